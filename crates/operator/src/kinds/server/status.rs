//! What is reported of a Server.

use super::SELECTOR;
use crate::{
    cluster::{Custom, Happening, Key, Server},
    conditions::{Outlook, READY, RECONCILING, STALLED, Says, Truth, conditions, truth_of},
    plan::Known,
    schedulers::{NO_SCHEDULER, ServerView},
    workload::Progress,
};
use gantry_api::ServerStatus;
use gantry_core::mutant;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// The condition of Seldon's operator, of which `Ready` is made.
const WORKLOAD_READY: &str = "StatefulSetOrDeploymentReady";
/// A figure alone is not written more often than this.
const PACE: Duration = Duration::from_secs(1);

/// What there is to say of a Server that can be made.
pub(super) struct Told<'a> {
    /// What the API server would not take.
    pub(super) refused: Option<Says>,
    /// How far the pods are.
    pub(super) progress: Progress,
    /// The scheduler's word.
    pub(super) scheduler: &'a Known<ServerView>,
    /// Why the scheduler does not take the Server.
    pub(super) scheduler_refuses: Option<String>,
}

/// Conditions and figures.
pub(super) struct Report<'a> {
    ready: &'a Says,
    workload: &'a Says,
    figures: Option<(i32, Option<i32>)>,
}

impl Told<'_> {
    /// The same for a Server that cannot be made: figures stay as they were.
    pub(super) const fn only(says: &Says) -> Report<'_> {
        Report { ready: says, workload: says, figures: None }
    }

    /// What `Ready` says, and what the condition of the workload says.
    pub(super) fn says(&self, key: &Key) -> (Says, Says) {
        let selector = format!("{SELECTOR}={}", key.name);
        let workload = self.refused.clone().unwrap_or_else(|| self.progress.says(&key.namespace, &selector));
        if workload.truth != Truth::True {
            return (workload.clone(), workload);
        }
        let wanted = self.progress.wanted;
        let ready = match (&self.scheduler_refuses, self.scheduler) {
            (Some(why), _) => Says::new(
                false,
                "SchedulerRefuses",
                format!("the scheduler does not take it: {why}"),
                Outlook::Final,
            ),
            (None, Known::Present(view))
                if i64::from(view.available) >= wanted || mutant::is("is_ready_before_replicas_join") =>
            {
                let message = match wanted {
                    0 => "no replica is wanted".to_owned(),
                    1 => "its replica takes models".to_owned(),
                    _ => format!("{wanted} of {wanted} replicas take models"),
                };
                Says::new(true, "ServerReady", message, Outlook::Settled)
            }
            (None, Known::Absent) if wanted == 0 => {
                Says::new(true, "ServerReady", "no replica is wanted", Outlook::Settled)
            }
            (None, Known::Unknown(why)) => {
                // The reasons of one failed call after the other are not worth a write each.
                let why = if why == NO_SCHEDULER { why } else { "the scheduler cannot be reached" };
                let message =
                    format!("{}; whether models can be loaded is not known: {why}", workload.message);
                Says::new(true, "SchedulerUnreachable", message, Outlook::Settled)
            }
            (None, known) => {
                let joined = if let Known::Present(view) = known { view.available } else { 0 };
                let have = if joined == 1 { "has" } else { "have" };
                let message = format!(
                    "{joined} of {wanted} replicas {have} joined the scheduler; what the others wait for: kubectl logs \
                     -n {} -l {selector} -c agent",
                    key.namespace
                );
                Says::new(false, "ReplicasJoining", message, Outlook::Passing)
            }
        };
        (ready, workload)
    }

    /// All of it.
    pub(super) fn conditions<'a>(&self, ready: &'a Says, workload: &'a Says) -> Report<'a> {
        let models = match self.scheduler {
            Known::Present(view) => Some(view.loaded_models),
            Known::Absent => Some(0),
            Known::Unknown(_) => None,
        };
        let pods = i32::try_from(self.progress.pods).unwrap_or(i32::MAX);
        Report { ready, workload, figures: Some((pods, models)) }
    }
}

/// The whole status.
pub(super) fn told(object: &Custom<Server>, report: &Report<'_>, now: Timestamp) -> ServerStatus {
    let before = object.status.clone().unwrap_or_default();
    let own = [(WORKLOAD_READY, report.workload)];
    let (replicas, models) = report.figures.unwrap_or((before.replicas, None));
    ServerStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(&before.conditions, &own, report.ready, object.generation(), now),
        annotations: before.annotations,
        loaded_models: models.unwrap_or(before.loaded_models),
        replicas,
        selector: Some(format!("{SELECTOR}={}", object.metadata.name.as_deref().unwrap_or_default())),
    }
}

/// What `Ready` said last, if it is about what is asked now and the workload is as it was then.
pub(super) fn still(object: &Custom<Server>, workload: &Says) -> Option<Says> {
    let before = object.status.as_ref().filter(|s| s.observed_generation == Some(object.generation()))?;
    if truth_of(&before.conditions, WORKLOAD_READY) != Some(workload.truth) {
        return None;
    }
    let ready = before.conditions.iter().find(|c| c.r#type == READY)?;
    let outlook = match (truth_of(&before.conditions, RECONCILING), truth_of(&before.conditions, STALLED)) {
        (Some(Truth::True), _) => Outlook::Passing,
        (_, Some(Truth::True)) => Outlook::Final,
        _ => Outlook::Settled,
    };
    let truth = truth_of(&before.conditions, READY)?;
    Some(Says::new(truth, ready.reason.clone()?, ready.message.clone()?, outlook))
}

/// How long a status waits that differs from the last one in the number of models alone.
pub(super) fn pause(
    object: &Custom<Server>,
    status: &ServerStatus,
    told: Option<Duration>,
) -> Option<Duration> {
    let before = object.status.as_ref()?;
    let same = ServerStatus { loaded_models: status.loaded_models, ..before.clone() };
    if before.loaded_models == status.loaded_models || same != *status {
        return None;
    }
    PACE.checked_sub(told?).filter(|left| !left.is_zero())
}

/// An event where the truth changes, and where something new fails.
pub(super) fn news(object: &Custom<Server>, says: &Says) -> Option<Happening> {
    let before = object.status.as_ref().and_then(|s| truth_of(&s.conditions, READY));
    let known = object.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.r#type == READY));
    let is_new = known.and_then(|c| c.reason.as_deref()) != Some(says.reason.as_str());
    let (warning, reason) = match (before, says.truth, says.outlook) {
        (Some(Truth::False | Truth::Unknown), Truth::True, _) => (false, "ServerReady"),
        (_, Truth::False, Outlook::Final) if is_new && says.reason == "ApplyRefused" => {
            (true, "UpdateFailed")
        }
        (Some(Truth::True), Truth::False, _) => (true, "ServerNotReady"),
        (_, Truth::False, Outlook::Final) if is_new => (true, "ServerNotReady"),
        _ => return None,
    };
    Some(Happening { warning, reason, message: says.message.clone() })
}
