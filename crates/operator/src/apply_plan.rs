//! Applies a plan, one action at a time. Every prefix of a plan is a state that the next plan can start from.

use crate::{
    cluster::{ApiError, Custom, CustomKind, EventDraft, Key, Ownership},
    context::Context,
    controller::Controller,
    plan::{Action, ClusterAction, Plan, SchedulerAction},
    schedulers::{RpcOutcome, SchedulerRequest, service_at},
    workload::FailureCause,
};
use std::sync::Arc;

pub(crate) enum Applied {
    /// The cluster was in the desired state.
    Nothing,
    /// Something changed: plan again.
    Something,
}

/// Why the remaining steps of a plan are left out.
enum Stop {
    /// The object is released, or its next plan has to consider a rejection.
    Early(Applied),
    Error(ApiError),
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

type Object<C> = Custom<<C as Controller>::Kind>;

/// Actions in their order and the status after them, or before them if the plan demands it. `object` is the version that
/// the plan was made for.
pub(crate) async fn apply<C: Controller>(
    context: &Context,
    key: &Key,
    object: Option<Arc<Object<C>>>,
    plan: Plan<<C::Kind as CustomKind>::Status>,
) -> Result<Applied, ApiError> {
    match run::<C>(context, key, object, plan).await {
        Ok(true) => Ok(Applied::Something),
        Ok(false) => Ok(Applied::Nothing),
        Err(Stop::Early(applied)) => Ok(applied),
        Err(Stop::Error(error)) => Err(error),
    }
}

/// `true` when something changed.
async fn run<C: Controller>(
    context: &Context,
    key: &Key,
    mut object: Option<Arc<Object<C>>>,
    plan: Plan<<C::Kind as CustomKind>::Status>,
) -> Result<bool, Stop> {
    if object.is_none() {
        context.caches.recent_failures.forget::<C::Kind>(key);
        if plan.actions.is_empty() && plan.requeue_after.is_none() {
            context.caches.schedulers.forget_request::<C::Kind>(key);
        }
    }
    let mut changed = false;
    if plan.status_first {
        changed |= write_status::<C>(context, key, object.as_deref(), &plan).await?;
        let written = context.caches.of::<C::Kind>().get(key);
        let spec_of = |object: &Arc<Object<C>>| (object.uid().to_owned(), object.generation());
        if written.as_ref().map(spec_of) != object.as_ref().map(spec_of) {
            // The plan was made for another spec.
            return Err(Stop::Early(Applied::Something));
        }
        object = written;
    }
    let mut is_owner_confirmed = false;
    for action in &plan.actions {
        changed |= match action {
            Action::Cluster(action) => {
                apply_to_cluster::<C>(
                    context,
                    key,
                    object.as_deref(),
                    action,
                    &plan.events,
                    &mut is_owner_confirmed,
                )
                .await?
            }
            Action::Scheduler(action) => {
                send_to_scheduler::<C>(context, key, object.as_deref(), action).await?
            }
        };
    }
    if !plan.status_first {
        changed |= write_status::<C>(context, key, object.as_deref(), &plan).await?;
    }
    Ok(changed)
}

async fn apply_to_cluster<C: Controller>(
    context: &Context,
    key: &Key,
    object: Option<&Object<C>>,
    action: &ClusterAction,
    events: &[EventDraft],
    is_owner_confirmed: &mut bool,
) -> Result<bool, Stop> {
    let manager = format!("gantry/{}", C::NAME);
    let cache = context.caches.of::<C::Kind>();
    match (action, object) {
        (ClusterAction::Apply(desired), _) => {
            let owned = context.caches.owned(desired.kind);
            // The garbage collector deletes what is created for a deleted owner, and it would be created again.
            if let (Some(object), None, false) = (object, owned.get(&desired.key), *is_owner_confirmed) {
                context.writer.confirm(object).await?;
                *is_owner_confirmed = true;
            }
            match context.writer.apply(&manager, desired, &owned).await {
                Ok(is_changed) => {
                    context.caches.recent_failures.clear::<C::Kind>(key, desired);
                    return Ok(is_changed);
                }
                // A retry would not help: the rejection is recorded, and the next plan considers it.
                Err(error) => {
                    let Some(why) = obstacle(&error) else { return Err(error.into()) };
                    let live_uid = owned.get(&desired.key).and_then(|o| o.metadata.uid.clone());
                    let live_uid = live_uid.unwrap_or_default();
                    context.caches.recent_failures.record::<C::Kind>(key, desired, &live_uid, why);
                    return Err(Stop::Early(Applied::Something));
                }
            }
        }
        (ClusterAction::HandOverReplicas(part), _) => {
            let owned = context.caches.owned(part.kind);
            context.writer.hand_over(part, &owned, false).await?;
            return Ok(false);
        }
        (ClusterAction::ScaleWorkload(part), _) => {
            let owned = context.caches.owned(part.kind);
            context.writer.hand_over(part, &owned, true).await?;
        }
        (ClusterAction::Delete(target), _) => context.writer.delete(target).await?,
        (ClusterAction::AddFinalizer(name), Some(object)) => {
            context.writer.add_finalizer(&manager, object, name, &cache).await?;
        }
        (ClusterAction::RemoveFinalizer(name), Some(object)) => {
            context.writer.remove_finalizer(object, name).await?;
            emit(context, object, events).await;
            return Err(Stop::Early(Applied::Nothing));
        }
        (ClusterAction::Scale(replicas), Some(object)) => context.writer.scale(object, *replicas).await?,
        (ClusterAction::Emit(event), Some(object)) => {
            emit(context, object, std::slice::from_ref(event)).await;
            return Ok(false);
        }
        // The object is gone.
        (_, None) => return Ok(false),
    }
    Ok(true)
}

async fn send_to_scheduler<C: Controller>(
    context: &Context,
    key: &Key,
    object: Option<&Object<C>>,
    action: &SchedulerAction,
) -> Result<bool, Stop> {
    if let SchedulerAction::AcknowledgeScaling = action {
        context.caches.schedulers.clear_scaling_request(key);
        return Ok(true);
    }
    if !context.may_write() {
        return Err(ApiError::NotLeading.into());
    }
    let scheduler = action.scheduler().unwrap_or(&key.namespace);
    let outcome = context.send(scheduler, action.clone()).await;
    if outcome == RpcOutcome::Accepted {
        context.caches.schedulers.service_accepted(action);
    }
    // Schedulers have services of several namespaces.
    let key = &action.scheduler().map_or_else(|| key.clone(), |scheduler| service_at(scheduler, key));
    record_outcome(context, key, action, object, outcome)?;
    Ok(true)
}

/// Writes the status if it differs, and the events with it. `true` when it was written: the response, which is cached
/// now, may contain changes of others that the watch will not report again.
async fn write_status<C: Controller>(
    context: &Context,
    key: &Key,
    object: Option<&Object<C>>,
    plan: &Plan<<C::Kind as CustomKind>::Status>,
) -> Result<bool, Stop> {
    let (Some(status), Some(object)) = (&plan.status, object) else { return Ok(false) };
    if object.status.as_ref() == Some(status) {
        return Ok(false);
    }
    context.writer.status(object, status, &context.caches.of::<C::Kind>()).await?;
    if C::PACED {
        context.caches.recent_failures.status_written::<C::Kind>(key);
    }
    emit(context, object, &plan.events).await;
    Ok(true)
}

/// A rejection that a retry will not change; `None` for passing errors.
fn obstacle(error: &ApiError) -> Option<FailureCause> {
    match error {
        ApiError::Rejected(why) | ApiError::Forbidden(why) => Some(FailureCause::Rejected(why.clone())),
        ApiError::NotOwned(Ownership::PreviousOwner(owner)) => {
            Some(FailureCause::PreviousOwner(owner.clone()))
        }
        ApiError::NotOwned(Ownership::Foreign(owner)) => Some(FailureCause::Foreign(owner.clone())),
        _ => None,
    }
}

async fn emit<K: CustomKind>(context: &Context, object: &Custom<K>, events: &[EventDraft]) {
    for event in events {
        context.writer.emit(object, event, (context.clock)()).await;
    }
}

/// Keeps the scheduler's outcome, or its absence, for the next plan.
fn record_outcome<K: CustomKind>(
    context: &Context,
    key: &Key,
    action: &SchedulerAction,
    object: Option<&Custom<K>>,
    outcome: RpcOutcome,
) -> Result<(), ApiError> {
    let schedulers = &context.caches.schedulers;
    let request = SchedulerRequest::new(action.operation(), object).with_variant(action.variant());
    match outcome {
        RpcOutcome::Accepted => schedulers.record_response::<K>(key, request, None),
        // Without an object there is no status to report it in: the work queue retries with backoff.
        RpcOutcome::Rejected(why) if object.is_none() => return Err(ApiError::Rejected(why)),
        RpcOutcome::Unavailable(why) if object.is_none() => return Err(ApiError::Transient(why)),
        RpcOutcome::Rejected(why) => schedulers.record_response::<K>(key, request, Some(why)),
        RpcOutcome::Unavailable(why) => schedulers.record_failure::<K>(key, request, why),
    }
    Ok(())
}
