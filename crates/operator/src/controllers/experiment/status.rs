//! Conditions of an experiment.

use crate::{
    cluster::{Custom, Experiment},
    conditions::{ConditionStatus, ConditionUpdate, Progress},
    schedulers::ExperimentView,
};
use gantry_api::{ExperimentSpec, ResourceType};

/// Candidates listed by name.
const MAX_LISTED: usize = 5;

/// The conditions of Seldon's operator that `Ready` is derived from.
pub(super) struct Conditions {
    experiment: ConditionUpdate,
    candidates: ConditionUpdate,
    mirror: ConditionUpdate,
}

/// Conditions by name. Without a report of the scheduler only the first is known.
pub(super) fn own(
    object: &Custom<Experiment>,
    ready: &ConditionUpdate,
    view: Option<&ExperimentView>,
) -> [(&'static str, ConditionUpdate); 3] {
    let reported = object.spec.as_ref().ok().zip(view);
    let conditions =
        reported.map_or_else(|| Conditions::unknown(ready), |(spec, view)| Conditions::of(spec, view));
    let Conditions { experiment, candidates, mirror } = conditions;
    [("ExperimentReady", experiment), ("CandidatesReady", candidates), ("MirrorReady", mirror)]
}

impl Conditions {
    fn unknown(ready: &ConditionUpdate) -> Self {
        let unknown = ready.unknown();
        Self { experiment: ready.clone(), candidates: unknown.clone(), mirror: unknown }
    }

    pub(super) fn of(spec: &ExperimentSpec, view: &ExperimentView) -> Self {
        let (status, why) = (&view.0, view.0.status_description.as_str());
        let of = |is_ready: bool, yes: (&str, &str), no: (&str, String)| {
            if is_ready {
                ConditionUpdate::new(true, yes.0, yes.1, Progress::Settled)
            } else {
                ConditionUpdate::new(false, no.0, no.1, Progress::InProgress)
            }
        };
        let candidates: Vec<&str> = spec.candidates.iter().map(|c| c.name.as_str()).collect();
        let candidates = of(
            status.candidates_ready,
            ("CandidatesReady", "all candidates are ready"),
            ("CandidatesNotReady", not_ready(spec, &candidates, "a candidate", why)),
        );
        let mirror = match &spec.mirror {
            None => of(true, ("NoMirror", "has no mirror"), ("", String::new())),
            Some(mirror) => of(
                status.mirror_ready,
                ("MirrorReady", "the mirror is ready"),
                ("MirrorNotReady", not_ready(spec, &[&mirror.name], "the mirror", why)),
            ),
        };
        let inactive = if why.is_empty() { "does not split traffic yet" } else { why };
        let experiment = of(
            status.active,
            ("ExperimentReady", &split(spec)),
            ("ExperimentNotActive", inactive.to_owned()),
        );
        Self { experiment, candidates, mirror }
    }

    /// The first obstacle: an experiment is active when its candidates and its mirror are ready.
    pub(super) fn ready(&self) -> ConditionUpdate {
        let all = [&self.candidates, &self.mirror, &self.experiment];
        let obstacle = all.into_iter().find(|condition| condition.status != ConditionStatus::True);
        obstacle.unwrap_or(&self.experiment).clone()
    }
}

/// Weights, and the mirror.
fn split(spec: &ExperimentSpec) -> String {
    let weights: Vec<String> =
        spec.candidates.iter().take(MAX_LISTED).map(|c| format!("{} {}", c.name, c.weight)).collect();
    let more = if spec.candidates.len() > MAX_LISTED { ", …" } else { "" };
    let mirror =
        spec.mirror.as_ref().map(|m| format!("; mirror {} {} %", m.name, m.percent)).unwrap_or_default();
    format!("splits requests: {}{more}{mirror}", weights.join(", "))
}

/// The scheduler's reason if it names one of the targets; otherwise the targets that may be missing.
fn not_ready(spec: &ExperimentSpec, targets: &[&str], what: &str, why: &str) -> String {
    if targets.iter().any(|target| why.contains(target)) {
        return why.to_owned();
    }
    let kind = match spec.resource_type {
        ResourceType::Model => "Models",
        ResourceType::Pipeline => "Pipelines",
    };
    let more = if targets.len() > MAX_LISTED { ", …" } else { "" };
    let few = targets.iter().copied().take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    format!("{what} is not ready: see the {kind} {few}{more}")
}
