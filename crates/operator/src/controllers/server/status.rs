//! Status of a Server.

use super::SELECTOR;
use crate::{
    cluster::{Custom, EventDraft, Key, Server},
    conditions::{
        ConditionStatus, ConditionUpdate, Progress, READY, RECONCILING, STALLED, condition_status, conditions,
    },
    plan::Known,
    schedulers::{NO_SCHEDULER, ServerView},
    workload::Rollout,
};
use gantry_api::ServerStatus;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// The condition of Seldon's operator that `Ready` is derived from.
const WORKLOAD_READY: &str = "StatefulSetOrDeploymentReady";
/// Minimum interval of writes that change only the number of loaded models.
const LOADED_MODELS_INTERVAL: Duration = Duration::from_secs(1);

/// Observed state of a Server with a valid spec.
pub(super) struct Observed<'a> {
    /// The first rejected apply.
    pub(super) refused: Option<ConditionUpdate>,
    pub(super) rollout: Rollout,
    pub(super) scheduler: &'a Known<ServerView>,
    /// Why the scheduler refused the announcement.
    pub(super) scheduler_refusal: Option<String>,
}

pub(super) struct Report<'a> {
    ready: &'a ConditionUpdate,
    workload: &'a ConditionUpdate,
    /// Pods and loaded models; `None` keeps the previous values.
    counts: Option<(i32, Option<i32>)>,
}

impl Observed<'_> {
    /// The report of a Server whose objects cannot be built.
    pub(super) const fn only(condition: &ConditionUpdate) -> Report<'_> {
        Report { ready: condition, workload: condition, counts: None }
    }

    /// The `Ready` condition, and the condition of the workload.
    pub(super) fn condition(&self, key: &Key) -> (ConditionUpdate, ConditionUpdate) {
        let selector = format!("{SELECTOR}={}", key.name);
        let workload =
            self.refused.clone().unwrap_or_else(|| self.rollout.condition(&key.namespace, &selector));
        if workload.status != ConditionStatus::True {
            return (workload.clone(), workload);
        }
        let wanted = self.rollout.desired;
        let ready = match (&self.scheduler_refusal, self.scheduler) {
            (Some(why), _) => ConditionUpdate::new(
                false,
                "SchedulerRefuses",
                format!("the scheduler refuses it: {why}"),
                Progress::Stalled,
            ),
            (None, Known::Present(view)) if i64::from(view.available) >= wanted => {
                let message = match wanted {
                    0 => "no replicas are requested".to_owned(),
                    1 => "its replica accepts models".to_owned(),
                    _ => format!("{wanted} of {wanted} replicas accept models"),
                };
                ConditionUpdate::new(true, "ServerReady", message, Progress::Settled)
            }
            (None, Known::Absent) if wanted == 0 => {
                ConditionUpdate::new(true, "ServerReady", "no replicas are requested", Progress::Settled)
            }
            (None, Known::Unknown(why)) => {
                // Changing reasons would be a status write each.
                let why = if why == NO_SCHEDULER { why } else { "the scheduler is unreachable" };
                let message = format!("{}; unknown whether models can be loaded: {why}", workload.message);
                ConditionUpdate::new(true, "SchedulerUnreachable", message, Progress::Settled)
            }
            (None, known) => {
                let joined = if let Known::Present(view) = known { view.available } else { 0 };
                let have = if joined == 1 { "has" } else { "have" };
                let message = format!(
                    "{joined} of {wanted} replicas {have} joined the scheduler; see kubectl logs \
                     -n {} -l {selector} -c agent",
                    key.namespace
                );
                ConditionUpdate::new(false, "ReplicasJoining", message, Progress::InProgress)
            }
        };
        (ready, workload)
    }

    pub(super) fn report<'a>(&self, ready: &'a ConditionUpdate, workload: &'a ConditionUpdate) -> Report<'a> {
        let models = match self.scheduler {
            Known::Present(view) => Some(view.loaded_models),
            Known::Absent => Some(0),
            Known::Unknown(_) => None,
        };
        let pods = i32::try_from(self.rollout.pods).unwrap_or(i32::MAX);
        Report { ready, workload, counts: Some((pods, models)) }
    }
}

pub(super) fn build_status(object: &Custom<Server>, report: &Report<'_>, now: Timestamp) -> ServerStatus {
    let before = object.status.clone().unwrap_or_default();
    let own = [(WORKLOAD_READY, report.workload)];
    let (replicas, models) = report.counts.unwrap_or((before.replicas, None));
    ServerStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(&before.conditions, &own, report.ready, object.generation(), now),
        annotations: before.annotations,
        loaded_models: models.unwrap_or(before.loaded_models),
        replicas,
        selector: Some(format!("{SELECTOR}={}", object.metadata.name.as_deref().unwrap_or_default())),
    }
}

/// The previous `Ready` condition, if it is about this generation and the workload condition is the same.
pub(super) fn unchanged_ready(
    object: &Custom<Server>,
    workload: &ConditionUpdate,
) -> Option<ConditionUpdate> {
    let before = object.status.as_ref().filter(|s| s.observed_generation == Some(object.generation()))?;
    if condition_status(&before.conditions, WORKLOAD_READY) != Some(workload.status) {
        return None;
    }
    let ready = before.conditions.iter().find(|c| c.r#type == READY)?;
    let progress = match (
        condition_status(&before.conditions, RECONCILING),
        condition_status(&before.conditions, STALLED),
    ) {
        (Some(ConditionStatus::True), _) => Progress::InProgress,
        (_, Some(ConditionStatus::True)) => Progress::Stalled,
        _ => Progress::Settled,
    };
    let status = condition_status(&before.conditions, READY)?;
    Some(ConditionUpdate::new(status, ready.reason.clone()?, ready.message.clone()?, progress))
}

/// Delay of a status that changes only the number of loaded models.
pub(super) fn write_delay(
    object: &Custom<Server>,
    status: &ServerStatus,
    status_age: Option<Duration>,
) -> Option<Duration> {
    let before = object.status.as_ref()?;
    let same = ServerStatus { loaded_models: status.loaded_models, ..before.clone() };
    if before.loaded_models == status.loaded_models || same != *status {
        return None;
    }
    LOADED_MODELS_INTERVAL.checked_sub(status_age?).filter(|left| !left.is_zero())
}

/// An event when `Ready` changes, and for every new failure.
pub(super) fn transition_event(object: &Custom<Server>, condition: &ConditionUpdate) -> Option<EventDraft> {
    let before = object.status.as_ref().and_then(|s| condition_status(&s.conditions, READY));
    let known = object.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.r#type == READY));
    let is_new = known.and_then(|c| c.reason.as_deref()) != Some(condition.reason.as_str());
    let (warning, reason) = match (before, condition.status, condition.progress) {
        (Some(ConditionStatus::False | ConditionStatus::Unknown), ConditionStatus::True, _) => {
            (false, "ServerReady")
        }
        (_, ConditionStatus::False, Progress::Stalled) if is_new && condition.reason == "ApplyRefused" => {
            (true, "UpdateFailed")
        }
        (Some(ConditionStatus::True), ConditionStatus::False, _) => (true, "ServerNotReady"),
        (_, ConditionStatus::False, Progress::Stalled) if is_new => (true, "ServerNotReady"),
        _ => return None,
    };
    Some(EventDraft { warning, reason, message: condition.message.clone() })
}
