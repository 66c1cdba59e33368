//! Plan of a model.

use super::{FINALIZER, Snapshot, status};
use crate::{
    cluster::{Custom, EventDraft, Model},
    conditions::{ConditionStatus, ConditionUpdate, Progress, READY, condition_status},
    controllers::validation::validate,
    plan::{ClusterAction, Known, Plan, SchedulerAction},
    schedulers::{ModelView, Operation, SchedulerRequest},
};
use gantry_api::ModelStatus;
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Delay before "in progress" is written after a load request: most models are ready sooner, and need one write.
const PROGRESSING_DEBOUNCE: Duration = Duration::from_millis(700);
/// Delay before an unanswered request is sent again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a deleted model waits for an unreachable scheduler. It is unloaded after the scheduler reconnects.
const UNREACHABLE_GRACE: Duration = Duration::from_secs(30);

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ModelStatus> {
    match &snapshot.object {
        None => plan_absent(snapshot),
        Some(object) if object.is_deleted() => plan_deletion(snapshot, object, now),
        Some(object) => plan_present(snapshot, object, now),
    }
}

/// The object is gone: an orphan in the scheduler is unloaded.
fn plan_absent(snapshot: &Snapshot) -> Plan<ModelStatus> {
    let mut plan = Plan::default();
    if let Known::Present(view) = &snapshot.scheduler
        && !view.deleted
        && view.is_from(&snapshot.key.namespace)
    {
        plan.push(unload(snapshot));
    }
    plan
}

/// The object is being deleted: it is released when the scheduler has unloaded the model, or cannot.
fn plan_deletion(snapshot: &Snapshot, object: &Custom<Model>, now: Timestamp) -> Plan<ModelStatus> {
    let mut plan = Plan::default();
    if !object.has_finalizer(FINALIZER) {
        return plan;
    }
    let release = ClusterAction::RemoveFinalizer(FINALIZER);
    match &snapshot.scheduler {
        Known::Absent => plan.push(release),
        Known::Present(view) if !view.is_from(&snapshot.key.namespace) => plan.push(release),
        Known::Present(view) if view.deleted => {
            if has_ended(view) {
                plan.push(release);
            } else {
                let condition = in_progress("ModelTerminating", "is being unloaded");
                plan.status = Some(status::build_status(object, &condition, Some(view), now));
            }
        }
        // A retry would be refused as well: the scheduler keeps the model.
        Known::Present(_) if rejection(snapshot, Operation::Unload, object).is_some() => plan.push(release),
        Known::Present(_) => match failure(snapshot, Operation::Unload, object) {
            Some((why, _)) if deleted_for(object, now) >= UNREACHABLE_GRACE * 2 => {
                plan.events.push(unreachable_event(&why));
                plan.push(release);
            }
            Some((_, left)) => plan.requeue_after = Some(left),
            None => plan.push(unload(snapshot)),
        },
        Known::Unknown(_) if !snapshot.has_scheduler => plan.push(release),
        Known::Unknown(why) => {
            let unreachable_for = snapshot.unreachable_for.unwrap_or_default();
            if unreachable_for >= UNREACHABLE_GRACE {
                plan.events.push(unreachable_event(why));
                plan.push(release);
            } else {
                plan.requeue_after = Some(UNREACHABLE_GRACE.saturating_sub(unreachable_for));
            }
        }
    }
    plan
}

/// Time since the deletion.
fn deleted_for(object: &Custom<Model>, now: Timestamp) -> Duration {
    let since = object.metadata.deletion_timestamp.as_ref().map_or(now, |t| t.0);
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn unreachable_event(why: &str) -> EventDraft {
    EventDraft {
        warning: true,
        reason: "SchedulerUnreachable",
        message: format!(
            "deleted while the scheduler is unreachable ({why}); the model will be unloaded after reconnect"
        ),
    }
}

fn in_progress(reason: &str, message: &str) -> ConditionUpdate {
    ConditionUpdate::new(false, reason, message, Progress::InProgress)
}

fn waiting_for_scheduler(why: &str) -> ConditionUpdate {
    let message = format!("waiting for the scheduler: {why}");
    ConditionUpdate::new(ConditionStatus::Unknown, "SchedulerUnreachable", message, Progress::InProgress)
}

fn plan_present(snapshot: &Snapshot, object: &Custom<Model>, now: Timestamp) -> Plan<ModelStatus> {
    let mut plan = Plan::default();
    let status_of = |condition: &ConditionUpdate, view: Option<&ModelView>| {
        Some(status::build_status(object, condition, view, now))
    };
    let spec = match validate(object) {
        Ok(spec) => spec,
        Err(condition) => {
            plan.status = status_of(&condition, None);
            return plan;
        }
    };
    if !object.has_finalizer(FINALIZER) {
        plan.push(ClusterAction::AddFinalizer(FINALIZER));
    }
    let generation = object.generation();
    let is_observed = object.status.as_ref().and_then(|s| s.observed_generation) == Some(generation);
    let desired = spec.to_proto(&snapshot.key.name, Some(&snapshot.key.namespace), Some(generation));
    match &snapshot.scheduler {
        Known::Unknown(why) => {
            // Loaded replicas keep serving without the scheduler: the status of this generation stays true.
            if !is_observed {
                plan.status = status_of(&waiting_for_scheduler(why), None);
            }
            return plan;
        }
        Known::Present(view) if !view.deleted && is_current(view, &desired) => {
            let condition = status::of(view);
            if !is_observed && view.state() == pb::model_status::ModelState::ModelProgressing {
                plan.requeue_after = debounce(snapshot, object);
                if plan.requeue_after.is_some() {
                    return plan;
                }
            }
            plan.events.extend(transition_event(object, &condition));
            plan.status = status_of(&condition, Some(view));
            return plan;
        }
        Known::Present(view) if view.deleted && !has_ended(view) => {
            let message = "waiting until the previous model of this name is unloaded";
            plan.status = status_of(&in_progress("ModelTerminating", message), None);
            return plan;
        }
        Known::Present(_) | Known::Absent => {}
    }
    if let Some(why) = rejection(snapshot, Operation::Load, object) {
        let condition = ConditionUpdate::new(false, "Refused", why, Progress::Stalled);
        plan.events.extend(transition_event(object, &condition));
        plan.status = status_of(&condition, None);
        return plan;
    }
    if let Some((why, left)) = failure(snapshot, Operation::Load, object) {
        plan.status = status_of(&waiting_for_scheduler(&why), None);
        plan.requeue_after = Some(left);
        return plan;
    }
    match &snapshot.last_request {
        // The load request is accepted; the scheduler's status follows.
        Some((last, age)) if last.request == request(Operation::Load, object) && last.failure.is_none() => {
            plan.requeue_after = debounce(snapshot, object);
            if plan.requeue_after.is_none() {
                plan.status = status_of(&in_progress("ModelProgressing", "waiting to be loaded"), None);
                if *age > UNREACHABLE_GRACE {
                    plan.push(SchedulerAction::LoadModel(Box::new(desired)));
                } else {
                    plan.requeue_after = Some(UNREACHABLE_GRACE);
                }
            }
        }
        _ => plan.push(SchedulerAction::LoadModel(Box::new(desired))),
    }
    plan
}

/// The rest of the delay before "in progress" is written.
fn debounce(snapshot: &Snapshot, object: &Custom<Model>) -> Option<Duration> {
    let (last, age) = snapshot.last_request.as_ref()?;
    let left = PROGRESSING_DEBOUNCE.checked_sub(*age).filter(|left| !left.is_zero());
    left.filter(|_| last.request == request(Operation::Load, object))
}

/// Whether the scheduler has this generation with this definition.
fn is_current(view: &ModelView, desired: &pb::Model) -> bool {
    let Some(latest) = &view.latest else { return false };
    let same_meta =
        latest.kubernetes_meta.as_ref() == desired.meta.as_ref().and_then(|m| m.kubernetes_meta.as_ref());
    let Some(known) = &latest.model_defn else { return same_meta };
    same_meta && normalized(known) == normalized(desired)
}

/// Without the fields that the scheduler adds.
fn normalized(model: &pb::Model) -> pb::Model {
    let mut model = model.clone();
    if let Some(meta) = &mut model.meta {
        meta.version = None;
        meta.kind = None;
        meta.kubernetes_meta = None;
    }
    if let Some(spec) = &mut model.model_spec {
        spec.model_runtime_info = None;
    }
    model.stream_spec = None;
    model
}

fn unload(snapshot: &Snapshot) -> SchedulerAction {
    let generation = snapshot.object.as_ref().map_or(0, |o| o.generation());
    SchedulerAction::UnloadModel(pb::UnloadModelRequest {
        model: Some(pb::ModelReference { name: snapshot.key.name.clone(), version: None }),
        kubernetes_meta: Some(pb::KubernetesMeta { namespace: snapshot.key.namespace.clone(), generation }),
    })
}

fn request(operation: Operation, object: &Custom<Model>) -> SchedulerRequest {
    SchedulerRequest { operation, uid: object.uid().to_owned(), generation: object.generation() }
}

/// The reason for which the scheduler refused the request.
fn rejection(snapshot: &Snapshot, operation: Operation, object: &Custom<Model>) -> Option<String> {
    let (last, _) = snapshot.last_request.as_ref()?;
    if last.request == request(operation, object) { last.rejection.clone() } else { None }
}

/// The reason for which the request got no answer, and the delay before it is sent again.
fn failure(snapshot: &Snapshot, operation: Operation, object: &Custom<Model>) -> Option<(String, Duration)> {
    let (last, age) =
        snapshot.last_request.as_ref().filter(|(a, _)| a.request == request(operation, object))?;
    let left = RETRY_INTERVAL.checked_sub(*age).filter(|left| !left.is_zero())?;
    Some((last.failure.clone()?, left))
}

/// Whether unloading is over.
fn has_ended(view: &ModelView) -> bool {
    use pb::model_status::ModelState;
    matches!(
        view.state(),
        ModelState::ModelTerminated
            | ModelState::ModelTerminateFailed
            | ModelState::ModelFailed
            | ModelState::ScheduleFailed
            | ModelState::Unknown
    )
}

/// An event when `Ready` changes, and for every new failure. A model that is ready at once needs none.
fn transition_event(object: &Custom<Model>, condition: &ConditionUpdate) -> Option<EventDraft> {
    let before = object.status.as_ref().and_then(|s| condition_status(&s.conditions, READY));
    let (warning, reason) = match (before, condition.status, condition.progress) {
        (Some(ConditionStatus::False | ConditionStatus::Unknown), ConditionStatus::True, _) => {
            (false, "ModelReady")
        }
        (Some(ConditionStatus::True), ConditionStatus::False, _)
        | (None, ConditionStatus::False, Progress::Stalled) => (true, "ModelNotReady"),
        _ => return None,
    };
    Some(EventDraft { warning, reason, message: condition.message.clone() })
}
