//! Generic reconcile loop: snapshot, plan, apply, requeue.

use crate::{
    apply_plan::{Applied, apply},
    cluster::{ApiError, Cache, CustomKind, Key},
    connections,
    context::Context,
    controller::Controller,
    inputs,
    workqueue::Priority,
};
use kube::Resource;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Passes over one object before the next key of the queue gets its turn.
const MAX_PASSES: usize = 4;
/// Conflicts that are retried at once.
const MAX_CONFLICTS: usize = 3;
/// Consecutive failures after which a failure is logged as a warning.
const WARN_AFTER: u32 = 5;

/// Reconciles one object until its plan changes nothing.
async fn reconcile<C: Controller>(context: &Arc<Context>, key: &Key) -> Outcome {
    // The key is enqueued again when the lists of its namespace are complete.
    if !context.is_synced(&key.namespace) {
        return Outcome::Done(None);
    }
    let cache = context.caches.of::<C::Kind>();
    let mut conflicts = 0;
    for _ in 0..MAX_PASSES {
        inputs::sync::<C>(context, key);
        let (object, snapshot) = read_together(&cache, key, || C::snapshot(&context.caches, key));
        let plan = C::plan(&snapshot, (context.clock)());
        let requeue_after = plan.requeue_after;
        match apply::<C>(context, key, object, plan).await {
            Ok(Applied::Nothing) => return Outcome::Done(requeue_after),
            Ok(Applied::Something) => {}
            Err(ApiError::Conflict) if conflicts < MAX_CONFLICTS => conflicts += 1,
            Err(ApiError::NotLeading) => return Outcome::NotLeading,
            // The object is gone; the delete event follows.
            Err(ApiError::NotFound) => return Outcome::Done(None),
            Err(ApiError::Throttled(delay)) => {
                return Outcome::Failed("the API server is busy".into(), delay);
            }
            Err(error) => return Outcome::Failed(error.to_string(), Duration::ZERO),
        }
    }
    Outcome::Unsettled
}

/// An object, and a snapshot that contains the same version of it: the plan is applied to what it was made for.
fn read_together<O: Resource, S>(
    cache: &Cache<O>,
    key: &Key,
    snapshot: impl Fn() -> S,
) -> (Option<Arc<O>>, S) {
    let mut object = cache.get(key);
    loop {
        let taken = snapshot();
        let now = cache.get(key);
        // Versions in a cache only grow: the same one before and after is the one in between.
        if object.as_ref().map(Arc::as_ptr) == now.as_ref().map(Arc::as_ptr) {
            return (object, taken);
        }
        object = now;
    }
}

enum Outcome {
    /// Done, until a trigger or this delay.
    Done(Option<Duration>),
    /// Every pass changed something: a long sequence of steps, or another controller that undoes them.
    Unsettled,
    /// The reason, and a minimum delay before the retry.
    Failed(String, Duration),
    NotLeading,
}

impl Outcome {
    const fn label(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Unsettled => "unsettled",
            Self::Failed(..) => "failed",
            Self::NotLeading => "not_leading",
        }
    }
}

/// One worker of a controller. On stop it finishes the object in hand.
pub(crate) async fn work<C: Controller>(context: Arc<Context>, stop: CancellationToken) {
    let queue = context.queues.of::<C::Kind>();
    loop {
        let key = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            key = queue.next() => key,
        };
        let start = tokio::time::Instant::now();
        let outcome = reconcile::<C>(&context, &key).await;
        context.metrics.reconcile(C::NAME, outcome.label(), start.elapsed());
        match outcome {
            Outcome::Done(requeue_after) => {
                queue.reset_backoff(&key);
                if let Some(delay) = requeue_after {
                    queue.add_after(key.clone(), delay);
                }
            }
            Outcome::Failed(reason, min_delay) => {
                let (failures, delay) = queue.add_with_backoff(key.clone(), min_delay);
                if failures == WARN_AFTER {
                    tracing::warn!(kind = C::Kind::KIND, object = %key, failures, "reconcile keeps failing: {reason}");
                } else {
                    tracing::debug!(kind = C::Kind::KIND, object = %key, failures, ?delay, "reconcile failed: {reason}");
                }
            }
            Outcome::Unsettled => {
                let (rounds, delay) = queue.add_with_backoff(key.clone(), Duration::ZERO);
                if rounds == WARN_AFTER {
                    tracing::warn!(kind = C::Kind::KIND, object = %key, rounds, "reconcile does not settle: each pass changes something; another controller may undo it");
                }
                tracing::debug!(kind = C::Kind::KIND, object = %key, rounds, ?delay, "reconcile continues");
            }
            // It is due again as soon as the lease is, in this process or in the next leader.
            Outcome::NotLeading => queue.add(key.clone(), Priority::Urgent),
        }
        queue.done(&key);
        context.metrics.queue_depth(C::NAME, queue.depth());
        if !context.may_write() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = context.fence.opened() => {}
            }
            // A namespace without its connection would look like one without a scheduler.
            connections::open_all(&context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Origin;
    use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
    use std::cell::Cell;

    fn object(version: u64) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some("a".into()),
            namespace: Some("ns".into()),
            uid: Some("u".into()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    #[test]
    fn object_and_snapshot_have_the_same_version_when_it_changes_between_the_reads() {
        let (cache, key) = (Cache::default(), Key::new("ns", "a"));
        let version =
            |object: Option<Arc<ConfigMap>>| object.and_then(|o| o.metadata.resource_version.clone());
        for changes in 0..4_u64 {
            cache.put(object(10 * (changes + 1)), Origin::Watch);
            let left = Cell::new(changes);
            let (read, snapshot) = read_together(&cache, &key, || {
                // A watch event arrives before the snapshot, or after it.
                let change = || {
                    if left.get() > 0 {
                        left.set(left.get() - 1);
                        cache.put(object(10 * (changes + 1) + changes - left.get()), Origin::Watch);
                    }
                };
                if changes % 2 == 0 {
                    change();
                }
                let snapshot = cache.get(&key);
                if changes % 2 == 1 {
                    change();
                }
                snapshot
            });
            assert_eq!(left.get(), 0);
            assert_eq!(version(read), version(snapshot), "{changes} changes");
        }
    }
}
