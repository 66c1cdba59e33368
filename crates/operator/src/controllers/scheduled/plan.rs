//! Plan of an object that its scheduler runs.

use super::{Scheduled, Snapshot};
use crate::{
    cluster::{Custom, EventDraft},
    conditions::{ConditionStatus, ConditionUpdate, Progress, READY, condition_status},
    controllers::validation::validate,
    plan::{ClusterAction, Known, Plan, SchedulerAction},
    schedulers::{LoadedView as _, Operation, SchedulerRequest},
};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

const SCHEDULER_UNREACHABLE: &str = "SchedulerUnreachable";
/// Delay before "in progress" is written after a load request: most objects are ready sooner, and need one write.
const PROGRESSING_DEBOUNCE: Duration = Duration::from_millis(700);
/// Interval of status writes that change messages only, such as the step that a pipeline waits for.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Delay before a request without effect is sent again; doubles with each attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
const HOLD_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_mins(1);
/// How long an unreachable scheduler does not change the status, because restarts are shorter, and how long a deleted
/// object waits for it. It is unloaded after the scheduler reconnects.
const UNREACHABLE_GRACE: Duration = Duration::from_secs(30);
/// How long a deleted object waits for its scheduler to unload it. The scheduler remembers the deletion and completes it
/// when all replicas and gateways respond again.
const UNLOAD_TIMEOUT: Duration = Duration::from_mins(5);

pub(in crate::controllers) fn plan<K: Scheduled>(snapshot: &Snapshot<K>, now: Timestamp) -> Plan<K::Status> {
    match &snapshot.object {
        None => plan_absent(snapshot),
        Some(object) if object.is_deleted() => plan_deletion(snapshot, object, now),
        Some(object) => plan_present(snapshot, object, now),
    }
}

/// The object is gone: an orphan in the scheduler is unloaded.
pub(in crate::controllers) fn plan_absent<K: Scheduled>(snapshot: &Snapshot<K>) -> Plan<K::Status> {
    let mut plan = Plan::default();
    if let Known::Present(view) = &snapshot.scheduler
        && !view.is_deleted()
        && view.is_from(&snapshot.key.namespace)
    {
        match pending(snapshot, Operation::Unload, None) {
            Some((_, left)) => plan.requeue_after = Some(left),
            None => plan.push(unload(snapshot)),
        }
    }
    plan
}

/// The object is being deleted: it is released when the scheduler has unloaded it, or cannot.
fn plan_deletion<K: Scheduled>(
    snapshot: &Snapshot<K>,
    object: &Custom<K>,
    now: Timestamp,
) -> Plan<K::Status> {
    let mut plan = Plan::default();
    if !object.has_finalizer(K::FINALIZER) {
        return plan;
    }
    let release = ClusterAction::RemoveFinalizer(K::FINALIZER);
    match &snapshot.scheduler {
        Known::Absent => plan.push(release),
        Known::Present(view) if !view.is_from(&snapshot.key.namespace) => plan.push(release),
        Known::Present(view) if view.is_deleted() && view.has_ended() => plan.push(release),
        // A retry would be refused as well: the scheduler keeps the object.
        Known::Present(view)
            if !view.is_deleted() && rejection(snapshot, Operation::Unload, object).is_some() =>
        {
            plan.push(release);
        }
        Known::Present(_) if deleted_for(object, now) >= UNLOAD_TIMEOUT => {
            plan.events.push(unload_timeout_event::<K>());
            plan.push(release);
        }
        Known::Present(view) if view.is_deleted() => {
            let message = format!(
                "is being {}; a {} that does not respond delays the deletion by {} min at most",
                K::WORDS.unloaded,
                K::WORDS.confirmed_by,
                UNLOAD_TIMEOUT.as_secs() / 60
            );
            let condition = in_progress(K::WORDS.terminating, &message);
            plan.status = Some(K::build_status(object, &condition, Some(view), &snapshot.facts, now));
            let left = UNLOAD_TIMEOUT.saturating_sub(deleted_for(object, now));
            plan.requeue_after = Some(left.max(RETRY_INTERVAL));
        }
        Known::Present(_) => match pending(snapshot, Operation::Unload, Some(object)) {
            Some((Some(why), _)) if deleted_for(object, now) >= UNREACHABLE_GRACE * 2 => {
                plan.events.push(unreachable_event::<K>(why));
                plan.push(release);
            }
            Some((_, left)) => plan.requeue_after = Some(left),
            None => plan.push(unload(snapshot)),
        },
        Known::Unknown(_) if !snapshot.has_scheduler => plan.push(release),
        Known::Unknown(why) => {
            let unreachable_for = snapshot.unreachable_for.unwrap_or_default();
            if unreachable_for >= UNREACHABLE_GRACE {
                plan.events.push(unreachable_event::<K>(why));
                plan.push(release);
            } else {
                plan.requeue_after = Some(UNREACHABLE_GRACE.saturating_sub(unreachable_for));
            }
        }
    }
    plan
}

/// Time since the deletion.
fn deleted_for<K: Scheduled>(object: &Custom<K>, now: Timestamp) -> Duration {
    let since = object.metadata.deletion_timestamp.as_ref().map_or(now, |t| t.0);
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn unload_timeout_event<K: Scheduled>() -> EventDraft {
    let words = K::WORDS;
    EventDraft {
        warning: true,
        reason: "UnloadTimedOut",
        message: format!(
            "deleted, although the scheduler has not {} the {} within {} min; it does so when the {} responds",
            words.unloaded,
            words.noun,
            UNLOAD_TIMEOUT.as_secs() / 60,
            words.confirmed_by
        ),
    }
}

fn unreachable_event<K: Scheduled>(why: &str) -> EventDraft {
    let words = K::WORDS;
    EventDraft {
        warning: true,
        reason: SCHEDULER_UNREACHABLE,
        message: format!(
            "deleted while the scheduler is unreachable ({why}); the {} will be {} after reconnect",
            words.noun, words.unloaded
        ),
    }
}

fn in_progress(reason: &str, message: &str) -> ConditionUpdate {
    ConditionUpdate::new(false, reason, message, Progress::InProgress)
}

fn waiting_for_scheduler(why: &str) -> ConditionUpdate {
    let message = format!("waiting for the scheduler: {why}");
    ConditionUpdate::new(ConditionStatus::Unknown, SCHEDULER_UNREACHABLE, message, Progress::InProgress)
}

fn plan_present<K: Scheduled>(snapshot: &Snapshot<K>, object: &Custom<K>, now: Timestamp) -> Plan<K::Status> {
    let mut plan = Plan::default();
    let facts = &snapshot.facts;
    let status_of = |condition: &ConditionUpdate| Some(K::build_status(object, condition, None, facts, now));
    let spec = match validate(object) {
        Ok(spec) => spec,
        Err(condition) => {
            plan.status = status_of(&condition);
            return plan;
        }
    };
    if !object.has_finalizer(K::FINALIZER) {
        plan.push(ClusterAction::AddFinalizer(K::FINALIZER));
    }
    let generation = object.generation();
    let is_observed = object.status.as_ref().and_then(|s| K::observed(s).0) == Some(generation);
    let desired = K::definition(object, spec, facts);
    match &snapshot.scheduler {
        Known::Unknown(why) => {
            // What is loaded keeps serving while the scheduler restarts, or while a new leader connects to it.
            let unreachable_for = snapshot.unreachable_for.unwrap_or(UNREACHABLE_GRACE);
            match UNREACHABLE_GRACE.checked_sub(unreachable_for).filter(|left| !left.is_zero()) {
                Some(left) if is_observed => plan.requeue_after = Some(left),
                _ if is_observed => {
                    let condition = waiting_for_scheduler(why);
                    plan.status = Some(K::build_unreachable_status(object, &condition, now));
                }
                _ => plan.status = status_of(&waiting_for_scheduler(why)),
            }
            return plan;
        }
        Known::Present(view) if !view.is_deleted() && K::is_current(view, &desired) => {
            let condition = K::ready(spec, view, facts);
            let delay = match is_observed {
                false if K::is_loading(view, &condition) => debounce(snapshot, object),
                true => message_delay(snapshot, object, &condition),
                false => None,
            };
            if delay.is_some() {
                plan.requeue_after = delay;
                return plan;
            }
            report(snapshot, object, (&condition, Some(view)), now, &mut plan);
            return plan;
        }
        Known::Present(view) if view.is_deleted() && !view.has_ended() => {
            let words = K::WORDS;
            let message =
                format!("waiting until the previous {} of this name is {}", words.noun, words.unloaded);
            plan.status = status_of(&in_progress(words.terminating, &message));
            return plan;
        }
        Known::Present(view) if !view.is_deleted() && K::hold(facts).is_some() => {
            plan.status = K::hold(facts).and_then(|condition| status_of(&condition));
            plan.requeue_after = Some(HOLD_INTERVAL);
            return plan;
        }
        Known::Present(_) | Known::Absent => {}
    }
    if let Some(why) = rejection(snapshot, Operation::Load, object) {
        let condition = ConditionUpdate::new(false, "Refused", why, Progress::Stalled);
        plan.events.extend(transition_event(object, &condition));
        plan.status = status_of(&condition);
        return plan;
    }
    if let Some((Some(why), left)) = pending(snapshot, Operation::Load, Some(object)) {
        plan.status = status_of(&waiting_for_scheduler(why));
        plan.requeue_after = Some(left);
        return plan;
    }
    match &snapshot.last_request {
        // The load request is accepted; the scheduler's status follows.
        Some((last, age))
            if last.request == request(snapshot, Operation::Load, Some(object)) && last.failure.is_none() =>
        {
            plan.requeue_after = debounce(snapshot, object);
            if plan.requeue_after.is_none() {
                let message = format!("waiting to be {}", K::WORDS.loaded);
                plan.status = status_of(&in_progress(K::WORDS.progressing, &message));
                if *age > UNREACHABLE_GRACE {
                    plan.push(load(snapshot, desired));
                } else {
                    plan.requeue_after = Some(UNREACHABLE_GRACE);
                }
            }
        }
        _ => plan.push(load(snapshot, desired)),
    }
    plan
}

/// The status of an object with its condition and its view, at the pace of its kind.
pub(in crate::controllers) fn report<K: Scheduled>(
    snapshot: &Snapshot<K>,
    object: &Custom<K>,
    (condition, view): (&ConditionUpdate, Option<&K::View>),
    now: Timestamp,
    plan: &mut Plan<K::Status>,
) {
    let facts = &snapshot.facts;
    let status = K::build_status(object, condition, view, facts, now);
    if let Some(interval) = K::refresh_after(facts) {
        plan.requeue_within(interval);
    }
    let before = object.status.as_ref();
    if let Some(left) = before.and_then(|before| write_delay(snapshot, before, &status)) {
        plan.requeue_within(left);
        return;
    }
    plan.events.extend(transition_event(object, condition));
    plan.events.extend(K::events(before, facts));
    plan.status = Some(status);
}

/// The rest of the delay before "in progress" is written.
fn debounce<K: Scheduled>(snapshot: &Snapshot<K>, object: &Custom<K>) -> Option<Duration> {
    let (last, age) = snapshot.last_request.as_ref()?;
    let left = PROGRESSING_DEBOUNCE.checked_sub(*age).filter(|left| !left.is_zero());
    left.filter(|_| last.request == request(snapshot, Operation::Load, Some(object)))
}

fn request<K: Scheduled>(
    snapshot: &Snapshot<K>,
    operation: Operation,
    object: Option<&Custom<K>>,
) -> SchedulerRequest {
    let variant = if operation == Operation::Load { K::variant(&snapshot.facts) } else { 0 };
    SchedulerRequest::new(operation, object).with_variant(variant)
}

/// The rest of the delay before a status with this difference is written.
fn write_delay<K: Scheduled>(
    snapshot: &Snapshot<K>,
    before: &K::Status,
    after: &K::Status,
) -> Option<Duration> {
    if before == after {
        return None;
    }
    K::write_interval(before, after).checked_sub(snapshot.status_age?).filter(|left| !left.is_zero())
}

/// The rest of the delay before another message is written with the same status and reason.
fn message_delay<K: Scheduled>(
    snapshot: &Snapshot<K>,
    object: &Custom<K>,
    condition: &ConditionUpdate,
) -> Option<Duration> {
    let (_, conditions) = K::observed(object.status.as_ref()?);
    let ready = conditions.iter().find(|c| c.r#type == READY)?;
    let is_message = ready.status == condition.status.as_str()
        && ready.reason.as_deref() == Some(&condition.reason)
        && ready.message.as_deref() != Some(&condition.message);
    MESSAGE_INTERVAL.checked_sub(snapshot.status_age?).filter(|left| is_message && !left.is_zero())
}

fn load<K: Scheduled>(snapshot: &Snapshot<K>, desired: K::Definition) -> SchedulerAction {
    let loaded = match &snapshot.scheduler {
        Known::Present(view) if !view.is_deleted() => view.kubernetes_meta(),
        _ => None,
    };
    K::load(desired, loaded.map_or(0, |meta| meta.generation))
}

fn unload<K: Scheduled>(snapshot: &Snapshot<K>) -> SchedulerAction {
    // A generation marks the request as the operator's.
    let generation = snapshot.object.as_ref().map_or(1, |o| o.generation().max(1));
    K::unload(&snapshot.key, generation)
}

/// The reason for which the scheduler refused the request.
fn rejection<K: Scheduled>(
    snapshot: &Snapshot<K>,
    operation: Operation,
    object: &Custom<K>,
) -> Option<String> {
    let (last, _) = snapshot.last_request.as_ref()?;
    let is_refused = last.request == request(snapshot, operation, Some(object)) && !last.was_accepted;
    last.rejection.clone().filter(|_| is_refused)
}

/// The reason for which the request got no answer, if it got none, and the delay before it is sent again.
fn pending<'a, K: Scheduled>(
    snapshot: &'a Snapshot<K>,
    operation: Operation,
    object: Option<&Custom<K>>,
) -> Option<(Option<&'a str>, Duration)> {
    let request = request(snapshot, operation, object);
    let (last, age) = snapshot.last_request.as_ref().filter(|(last, _)| last.request == request)?;
    let doublings = last.attempts.saturating_sub(1).min(8);
    let interval = RETRY_INTERVAL.saturating_mul(1 << doublings).min(MAX_RETRY_INTERVAL);
    let left = interval.checked_sub(*age).filter(|left| !left.is_zero())?;
    Some((last.failure.as_deref(), left))
}

/// An event when `Ready` changes, and for every new failure. An object that is ready at once needs none, and neither do all
/// objects of a scheduler that is reachable again.
fn transition_event<K: Scheduled>(object: &Custom<K>, condition: &ConditionUpdate) -> Option<EventDraft> {
    let conditions = object.status.as_ref().map(|s| K::observed(s).1).unwrap_or_default();
    let ready = conditions.iter().find(|c| c.r#type == READY);
    let was_unreachable = ready.and_then(|c| c.reason.as_deref()) == Some(SCHEDULER_UNREACHABLE);
    let before = condition_status(conditions, READY);
    let (warning, reason) = match (before, condition.status, condition.progress) {
        (Some(ConditionStatus::Unknown), ConditionStatus::True, _) if was_unreachable => return None,
        (Some(ConditionStatus::False | ConditionStatus::Unknown), ConditionStatus::True, _) => {
            (false, K::WORDS.ready)
        }
        (Some(ConditionStatus::True), ConditionStatus::False, _)
        | (None, ConditionStatus::False, Progress::Stalled) => (true, K::WORDS.not_ready),
        _ => return None,
    };
    Some(EventDraft { warning, reason, message: condition.message.clone() })
}
