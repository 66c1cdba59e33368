//! Conditions of a pipeline.

use crate::{
    cluster::{Custom, Pipeline},
    conditions::{ConditionStatus, ConditionUpdate, Progress},
    schedulers::PipelineView,
};
use gantry_api::PipelineSpec;
use gantry_proto::{
    gantry::RolloutStatus,
    scheduler::{PipelineVersionState, pipeline_version_state::PipelineStatus},
};

/// Steps listed by name.
const MAX_LISTED: usize = 5;

/// The conditions of Seldon's operator that `Ready` is derived from.
pub(super) struct Conditions {
    pipeline: ConditionUpdate,
    gateways: ConditionUpdate,
    models: ConditionUpdate,
}

/// Conditions by name. Without a report of the scheduler only the first is known.
pub(super) fn own(
    object: &Custom<Pipeline>,
    ready: &ConditionUpdate,
    view: Option<&PipelineView>,
) -> [(&'static str, ConditionUpdate); 3] {
    let reported = object.spec.as_ref().ok().zip(view);
    let conditions =
        reported.map_or_else(|| Conditions::unknown(ready), |(spec, view)| Conditions::of(spec, view));
    let Conditions { pipeline, gateways, models } = conditions;
    [("PipelineReady", pipeline), ("PipelineGwReady", gateways), ("ModelsReady", models)]
}

impl Conditions {
    fn unknown(ready: &ConditionUpdate) -> Self {
        let unknown = ready.unknown();
        Self { pipeline: ready.clone(), gateways: unknown.clone(), models: unknown }
    }

    pub(super) fn of(spec: &PipelineSpec, view: &PipelineView) -> Self {
        let state = &view.state;
        let version = state.pipeline_version;
        let pipeline =
            condition(state.status(), "PipelineReady", &state.reason, &format!("serves version {version}"));
        let gateways = condition(
            state.pipeline_gw_status(),
            "PipelineGwReady",
            &state.pipeline_gw_reason,
            &format!("every gateway has version {version}"),
        );
        let models = if state.models_ready {
            ConditionUpdate::new(
                true,
                "ModelsReady",
                "the models of all steps are available",
                Progress::Settled,
            )
        } else {
            let message = models_not_ready(spec, state);
            ConditionUpdate::new(false, "ModelsNotReady", message, Progress::InProgress)
        };
        Self { pipeline, gateways, models }
    }

    /// The first obstacle: an invalid pipeline needs a change, and without its models it cannot become ready.
    pub(super) fn ready(&self) -> ConditionUpdate {
        let is_ready = |condition: &ConditionUpdate| condition.status == ConditionStatus::True;
        let Self { pipeline, gateways, models } = self;
        let stalled = [pipeline, gateways].into_iter().find(|c| c.progress == Progress::Stalled);
        let obstacle = stalled.or_else(|| [models, pipeline, gateways].into_iter().find(|c| !is_ready(c)));
        obstacle.unwrap_or(pipeline).clone()
    }
}

/// The condition of a pipeline whose latest version does not have all requests.
pub(super) fn of_rollout(view: &PipelineView, rollout: &RolloutStatus) -> Option<ConditionUpdate> {
    let version = view.state.pipeline_version;
    let stable = rollout.stable.as_ref().map(|stable| stable.version).filter(|stable| *stable > 0)?;
    if stable == version {
        return None;
    }
    let candidate = rollout.candidate.as_ref().filter(|candidate| candidate.version == version);
    if let Some(candidate) = candidate.filter(|_| rollout.phase == "Progressing") {
        let weight = candidate.weight;
        let message = format!(
            "version {version} is rolled out to {weight} % of the requests; version {stable} serves the others"
        );
        return Some(ConditionUpdate::new(false, "RollingOut", message, Progress::InProgress));
    }
    let failed = rollout.failed.last().map(|failed| format!(": {}", failed.message)).unwrap_or_default();
    let message = format!(
        "version {version} was rolled back{failed}; version {stable} serves: change the Pipeline, or allow it again \
         with `gantry rollout retry`"
    );
    Some(ConditionUpdate::new(false, "RolledBack", message, Progress::Stalled))
}

/// A condition from the state of a pipeline, or of its gateways.
fn condition(status: PipelineStatus, ready: &str, reason: &str, settled: &str) -> ConditionUpdate {
    let or = |text: &str| if reason.is_empty() { text.to_owned() } else { reason.to_owned() };
    let in_progress =
        |reason: &str, text: &str| ConditionUpdate::new(false, reason, or(text), Progress::InProgress);
    match status {
        PipelineStatus::PipelineReady => ConditionUpdate::new(true, ready, settled, Progress::Settled),
        PipelineStatus::PipelineFailed => {
            ConditionUpdate::new(false, "PipelineFailed", or("could not be loaded"), Progress::Stalled)
        }
        PipelineStatus::PipelineCreate | PipelineStatus::PipelineCreating => {
            in_progress("PipelineCreating", "is being loaded")
        }
        PipelineStatus::PipelineRebalancing => {
            in_progress("PipelineRebalancing", "is being moved between gateways")
        }
        PipelineStatus::PipelineTerminate | PipelineStatus::PipelineTerminating => {
            in_progress("PipelineTerminating", "is being unloaded")
        }
        PipelineStatus::PipelineTerminated | PipelineStatus::PipelineFailedTerminating => {
            in_progress("PipelineTerminated", "is unloaded")
        }
        PipelineStatus::Unknown => ConditionUpdate::new(
            ConditionStatus::Unknown,
            "PipelineStateUnknown",
            or("the scheduler reports no state"),
            Progress::InProgress,
        ),
    }
}

/// The scheduler's reason if it names a step, or what a gateway has yet to do; otherwise the steps whose models may be
/// missing.
fn models_not_ready(spec: &PipelineSpec, state: &PipelineVersionState) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let names_a_step = |word| spec.steps.iter().any(|step| step.name == word);
    if state.reason.split(|c| !is_name(c)).any(names_a_step) {
        return state.reason.clone();
    }
    if !state.pipeline_gw_reason.is_empty() {
        return state.pipeline_gw_reason.clone();
    }
    let names: Vec<&str> = spec.steps.iter().map(|step| step.name.as_str()).take(MAX_LISTED).collect();
    let more = if spec.steps.len() > names.len() { ", …" } else { "" };
    format!("the model of a step is not available: see the Models {}{more}", names.join(", "))
}
