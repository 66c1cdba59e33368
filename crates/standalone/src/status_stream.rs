//! Status subscriptions to the scheduler: models, pipelines and experiments.

use crate::scheduler_client::collect;
use futures::{StreamExt as _, stream::BoxStream};
use gantry_api::Kind;
use gantry_proto::scheduler::{
    ExperimentStatusRequest, ExperimentStatusResponse, ExperimentSubscriptionRequest, ModelStatusRequest,
    ModelStatusResponse, ModelSubscriptionRequest, PipelineStatusRequest, PipelineStatusResponse,
    PipelineSubscriptionRequest, ResourceType, model_status::ModelState,
    pipeline_version_state::PipelineStatus, scheduler_client::SchedulerClient,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tonic::{Status, Streaming, transport::Channel};

/// Kind and name of an object.
pub(crate) type Key = (Kind, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pending,
    Ready,
    /// Does not become ready without a change.
    Failed {
        reason: String,
        code: String,
    },
}

/// A status of one kind.
enum Change {
    Model(ModelStatusResponse),
    Pipeline(PipelineStatusResponse),
    Experiment(ExperimentStatusResponse),
}

/// What a status tells about an object.
struct Observed {
    key: Key,
    removed: bool,
    outcome: Outcome,
    version: u32,
    /// Models or pipelines without which it cannot be ready.
    needs: Vec<Key>,
    /// For the start screen.
    detail: String,
    /// Why it is pending.
    reason: String,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    version: u32,
    needs: Vec<Key>,
    pub(crate) detail: String,
    pub(crate) reason: String,
}

/// The outcome of every object that is not deleted.
pub(crate) struct StatusStream {
    stream: futures::stream::SelectAll<BoxStream<'static, Option<Change>>>,
    /// Objects that were known when the stream was opened, without those that are being removed.
    pub(crate) expected: BTreeSet<Key>,
    pub(crate) outcomes: BTreeMap<Key, Outcome>,
    pub(crate) seen: BTreeMap<Key, Seen>,
    /// The version that failed last, and why.
    reported_failures: BTreeMap<Key, (u32, String)>,
}

impl StatusStream {
    pub(crate) async fn open(client: &mut SchedulerClient<Channel>) -> Result<Self, Status> {
        let subscriber_name = "gantry up".to_owned();
        let subscriber = || subscriber_name.clone();
        let models = ModelStatusRequest { subscriber_name: subscriber(), model: None, all_versions: false };
        let models = collect(client.model_status(models).await?.into_inner()).await?;
        let pipelines =
            PipelineStatusRequest { subscriber_name: subscriber(), name: None, all_versions: false };
        let pipelines = collect(client.pipeline_status(pipelines).await?.into_inner()).await?;
        let experiments = ExperimentStatusRequest { subscriber_name: subscriber(), name: None };
        let experiments = collect(client.experiment_status(experiments).await?.into_inner()).await?;
        let known = models.into_iter().map(Change::Model);
        let known = known.chain(pipelines.into_iter().map(Change::Pipeline));
        let known = known.chain(experiments.into_iter().map(Change::Experiment)).map(Observed::from);
        let expected = known.filter(|o| !o.removed).map(|o| o.key).collect();

        let request = ModelSubscriptionRequest { subscriber_name: subscriber(), is_model_gateway: false };
        let models = client.subscribe_model_status(request).await?.into_inner();
        let request = PipelineSubscriptionRequest { subscriber_name: subscriber(), ..Default::default() };
        let pipelines = client.subscribe_pipeline_status(request).await?.into_inner();
        let request = ExperimentSubscriptionRequest { subscriber_name };
        let experiments = client.subscribe_experiment_status(request).await?.into_inner();
        let stream = futures::stream::select_all([
            changes(models, Change::Model),
            changes(pipelines, Change::Pipeline),
            changes(experiments, Change::Experiment),
        ]);
        Ok(Self {
            stream,
            expected,
            outcomes: BTreeMap::new(),
            seen: BTreeMap::new(),
            reported_failures: BTreeMap::new(),
        })
    }

    /// The next object whose outcome or version changes; `None` after the scheduler closed a stream.
    pub(crate) async fn next(&mut self) -> Option<Key> {
        loop {
            let change = self.stream.next().await??;
            if let Some(key) = self.update(change.into()) {
                return Some(key);
            }
        }
    }

    fn update(&mut self, observed: Observed) -> Option<Key> {
        let Observed { key, removed, outcome, version, needs, detail, reason } = observed;
        if removed {
            self.expected.remove(&key);
            self.seen.remove(&key);
            self.reported_failures.remove(&key);
            return self.outcomes.remove(&key).map(|_| key);
        }
        // A new version is a change even if the object stays ready.
        let before = self.outcomes.insert(key.clone(), outcome.clone());
        let seen = self.seen.insert(key.clone(), Seen { version, needs, detail, reason });
        let unchanged = before == Some(outcome) && seen.map(|s| s.version) == Some(version);
        (!unchanged).then_some(key)
    }

    /// The outcome to print: a version that fails again for the same reason is reported once.
    pub(crate) fn report(&mut self, key: &Key) -> Option<Outcome> {
        let outcome = self.outcomes.get(key)?.clone();
        match &outcome {
            Outcome::Pending => return None,
            Outcome::Ready => _ = self.reported_failures.remove(key),
            Outcome::Failed { reason, .. } => {
                let failure = (self.seen.get(key).map_or(0, |seen| seen.version), reason.clone());
                if self.reported_failures.insert(key.clone(), failure.clone()) == Some(failure) {
                    return None;
                }
            }
        }
        Some(outcome)
    }

    /// Whether every expected object is ready, has failed, or needs one that is not ready.
    pub(crate) fn is_settled(&self) -> bool {
        self.expected.iter().all(|key| self.outcome_settled(key) || self.is_blocked(key))
    }

    fn outcome_settled(&self, key: &Key) -> bool {
        self.outcomes.get(key).is_some_and(|o| *o != Outcome::Pending)
    }

    /// Whether something that it needs does not exist, has failed, or is blocked itself.
    pub(crate) fn is_blocked(&self, key: &Key) -> bool {
        let needs = self.seen.get(key).map(|s| s.needs.as_slice()).unwrap_or_default();
        let is_missing = |key: &Key| match self.outcomes.get(key) {
            None => !self.expected.contains(key),
            Some(outcome) => matches!(outcome, Outcome::Failed { .. }),
        };
        // An experiment needs pipelines, which need models: two levels.
        needs.iter().any(|need| {
            let below = self.seen.get(need).map(|s| s.needs.as_slice()).unwrap_or_default();
            is_missing(need) || below.iter().any(is_missing)
        })
    }

    /// Width of the column with platforms and kinds.
    pub(crate) fn kind_width(&self) -> usize {
        if self.expected.iter().any(|key| key.0 == Kind::Experiment) { 10 } else { 8 }
    }

    /// Such as `Ready in 0.12 s: 2 of 3 models ready; not ready: fraud.`
    pub(crate) fn summary(&self, took: Duration) -> String {
        let outcomes: BTreeMap<Key, Outcome> = self
            .outcomes
            .iter()
            .map(|(key, outcome)| {
                let blocked = *outcome == Outcome::Pending && self.is_blocked(key);
                let failed = || Outcome::Failed { reason: String::new(), code: String::new() };
                (key.clone(), if blocked { failed() } else { outcome.clone() })
            })
            .collect();
        summary(&self.expected, &outcomes, took)
    }
}

fn changes<T: Send + 'static>(
    stream: Streaming<T>,
    change: fn(T) -> Change,
) -> BoxStream<'static, Option<Change>> {
    let end = futures::stream::once(async { None });
    stream.map(move |status| status.ok().map(change)).chain(end).boxed()
}

impl From<Change> for Observed {
    fn from(change: Change) -> Self {
        match change {
            Change::Model(status) => model(status),
            Change::Pipeline(status) => pipeline(status),
            Change::Experiment(status) => experiment(status),
        }
    }
}

fn model(status: ModelStatusResponse) -> Observed {
    let version = status.versions.first().map_or(0, |v| v.version);
    let state = status.versions.into_iter().next().and_then(|v| v.state).unwrap_or_default();
    let removed =
        status.deleted || matches!(state.state(), ModelState::ModelTerminating | ModelState::ModelTerminated);
    let outcome = match state.state() {
        ModelState::ModelAvailable | ModelState::ModelScaledDown => Outcome::Ready,
        ModelState::ModelFailed | ModelState::ScheduleFailed | ModelState::ModelTerminateFailed => {
            Outcome::Failed { reason: state.reason, code: state.reason_code }
        }
        _ => Outcome::Pending,
    };
    let key = (Kind::Model, status.model_name);
    Observed {
        key,
        removed,
        outcome,
        version,
        needs: Vec::new(),
        detail: String::new(),
        reason: String::new(),
    }
}

fn pipeline(status: PipelineStatusResponse) -> Observed {
    use PipelineStatus as S;
    let latest =
        status.versions.into_iter().max_by_key(|v| v.state.as_ref().map_or(0, |s| s.pipeline_version));
    let (definition, state) = latest.map(|v| (v.pipeline, v.state)).unwrap_or_default();
    let (definition, state) = (definition.unwrap_or_default(), state.unwrap_or_default());
    let outcome = match state.status() {
        S::PipelineFailed => Outcome::Failed { reason: state.reason.clone(), code: String::new() },
        S::PipelineReady if state.models_ready && state.pipeline_gw_status() == S::PipelineReady => {
            Outcome::Ready
        }
        _ => Outcome::Pending,
    };
    let steps = definition.steps.len();
    Observed {
        key: (Kind::Pipeline, status.pipeline_name),
        removed: matches!(
            state.status(),
            S::PipelineTerminate | S::PipelineTerminating | S::PipelineTerminated
        ),
        outcome,
        version: state.pipeline_version,
        needs: definition.steps.into_iter().map(|step| (Kind::Model, step.name)).collect(),
        detail: format!("{steps} {}", if steps == 1 { "step" } else { "steps" }),
        reason: state.reason,
    }
}

fn experiment(status: ExperimentStatusResponse) -> Observed {
    let definition = status.definition.unwrap_or_default();
    let kind = match definition.resource_type() {
        ResourceType::Model => Kind::Model,
        ResourceType::Pipeline => Kind::Pipeline,
    };
    let candidates: Vec<String> =
        definition.candidates.iter().map(|c| format!("{} {}", c.weight, c.name)).collect();
    let names = definition.candidates.into_iter().map(|c| c.name);
    Observed {
        key: (Kind::Experiment, status.experiment_name),
        removed: status.deleted,
        outcome: if status.active { Outcome::Ready } else { Outcome::Pending },
        version: 0,
        needs: names.chain(definition.mirror.map(|m| m.name)).map(|name| (kind, name)).collect(),
        detail: candidates.join(" : "),
        reason: status.status_description,
    }
}

fn summary(expected: &BTreeSet<Key>, outcomes: &BTreeMap<Key, Outcome>, took: Duration) -> String {
    let is_ready = |key: &&Key| outcomes.get(*key) == Some(&Outcome::Ready);
    let (ready, others): (Vec<&Key>, Vec<&Key>) = expected.iter().partition(is_ready);
    let is_failed = |key: &&Key| matches!(outcomes.get(*key), Some(Outcome::Failed { .. }));
    let (failed, loading): (Vec<&Key>, Vec<&Key>) = others.into_iter().partition(is_failed);
    let verb = if loading.is_empty() { "Ready" } else { "Started" };
    let mut line = format!("{verb} in {:.2} s", took.as_secs_f64());
    let mut counts = Vec::new();
    for kind in Kind::ALL {
        let all = expected.iter().filter(|key| key.0 == kind).count();
        if all > 0 {
            let ready = ready.iter().filter(|key| key.0 == kind).count();
            let plural = if all == 1 { "" } else { "s" };
            counts.push(format!("{ready} of {all} {}{plural}", kind.name().to_lowercase()));
        }
    }
    if !counts.is_empty() {
        line += &format!(": {} ready", counts.join(", "));
    }
    for (what, objects) in [("not ready", failed), ("still loading", loading)] {
        if !objects.is_empty() {
            line += &format!("; {what}: {}", listed(&objects));
        }
    }
    line + "."
}

/// Objects named in one line; the others are counted.
const MAX_NAMED: usize = 10;

fn listed(objects: &[&Key]) -> String {
    let named: Vec<String> = objects.iter().take(MAX_NAMED).map(|key| display(key)).collect();
    match objects.len().saturating_sub(MAX_NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A model by its name, others with their kind.
fn display(key: &Key) -> String {
    match key.0 {
        Kind::Model => key.1.clone(),
        kind => format!("{}/{}", kind.name().to_lowercase(), key.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> Key {
        (Kind::Model, name.to_owned())
    }

    fn failed() -> Outcome {
        Outcome::Failed { reason: "no".into(), code: "LoadFailed".into() }
    }

    fn stream(expected: &[Key]) -> StatusStream {
        StatusStream {
            stream: futures::stream::select_all([]),
            expected: expected.iter().cloned().collect(),
            outcomes: BTreeMap::new(),
            seen: BTreeMap::new(),
            reported_failures: BTreeMap::new(),
        }
    }

    #[test]
    fn repeated_failure_is_reported_once_while_another_model_loads() {
        let keys = [model("broken"), model("slow")];
        let mut stream = stream(&keys);
        let mut observe = |name: &str, version: u32, outcome: Outcome| {
            let key = model(name);
            stream.update(Observed {
                key: key.clone(),
                removed: false,
                outcome,
                version,
                needs: Vec::new(),
                detail: String::new(),
                reason: String::new(),
            });
            stream.report(&key)
        };
        let other = || Outcome::Failed { reason: "other".into(), code: "LoadFailed".into() };
        for (name, version, outcome, expected) in [
            ("slow", 1, Outcome::Pending, None),
            ("broken", 1, failed(), Some(failed())),
            // The load is tried again, with the same result.
            ("broken", 1, Outcome::Pending, None),
            ("broken", 1, failed(), None),
            ("slow", 1, Outcome::Ready, Some(Outcome::Ready)),
            ("broken", 1, failed(), None),
            // A new cause, a new version and a failure after success are reported.
            ("broken", 1, other(), Some(other())),
            ("broken", 2, other(), Some(other())),
            ("broken", 2, Outcome::Ready, Some(Outcome::Ready)),
            ("broken", 2, other(), Some(other())),
        ] {
            assert_eq!(observe(name, version, outcome.clone()), expected, "{name} {version} {outcome:?}");
        }
    }

    #[test]
    fn summary_counts_objects_and_names_those_that_are_not_ready() {
        let pipeline = |name: &str| (Kind::Pipeline, name.to_owned());
        let table: [(&[(Key, Outcome)], &str); 5] = [
            (&[], "Ready in 0.50 s."),
            (&[(model("a"), Outcome::Ready)], "Ready in 0.50 s: 1 of 1 model ready."),
            (
                &[(model("a"), failed()), (model("b"), Outcome::Ready), (model("c"), failed())],
                "Ready in 0.50 s: 1 of 3 models ready; not ready: a, c.",
            ),
            (
                &[(model("a"), failed()), (model("b"), Outcome::Pending)],
                "Started in 0.50 s: 0 of 2 models ready; not ready: a; still loading: b.",
            ),
            (
                &[
                    (model("a"), Outcome::Ready),
                    (pipeline("p"), failed()),
                    ((Kind::Experiment, "e".into()), Outcome::Ready),
                ],
                "Ready in 0.50 s: 1 of 1 model, 0 of 1 pipeline, 1 of 1 experiment ready; not ready: pipeline/p.",
            ),
        ];
        for (outcomes, expected) in table {
            let outcomes: BTreeMap<Key, Outcome> = outcomes.iter().cloned().collect();
            let names = outcomes.keys().cloned().collect();
            assert_eq!(summary(&names, &outcomes, Duration::from_millis(500)), expected);
        }
        let many: Vec<Key> = (0..12).map(|i| model(&format!("m{i:02}"))).collect();
        let many: Vec<&Key> = many.iter().collect();
        assert!(listed(&many).ends_with("m09 and 2 more"));
    }

    #[test]
    fn objects_that_need_a_missing_or_failed_one_are_settled() {
        let key = |kind, name: &str| (kind, name.to_owned());
        let (pipeline, experiment) = (key(Kind::Pipeline, "p"), key(Kind::Experiment, "e"));
        for (outcome, blocked) in [(Some(failed()), true), (None, true), (Some(Outcome::Pending), false)] {
            let seen = |needs: Vec<Key>| Seen { needs, ..Seen::default() };
            let mut stream = stream(&[pipeline.clone(), experiment.clone()]);
            stream.outcomes =
                [(pipeline.clone(), Outcome::Pending), (experiment.clone(), Outcome::Pending)].into();
            stream.seen = [
                (pipeline.clone(), seen(vec![model("a")])),
                (experiment.clone(), seen(vec![pipeline.clone()])),
            ]
            .into();
            stream.outcomes.extend(outcome.clone().map(|o| (model("a"), o)));
            for key in [&pipeline, &experiment] {
                assert_eq!(stream.is_blocked(key), blocked, "{key:?} {outcome:?}");
            }
            assert_eq!(stream.is_settled(), blocked, "{outcome:?}");
        }
    }
}
