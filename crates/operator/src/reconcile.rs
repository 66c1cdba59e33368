//! Generic reconcile loop: snapshot, plan, apply, requeue.

use crate::{
    apply_plan::{Applied, apply},
    cluster::{ApiError, CustomKind, Key},
    context::Context,
    controller::Controller,
    inputs,
};
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
    let mut conflicts = 0;
    for _ in 0..MAX_PASSES {
        inputs::sync::<C>(context, key);
        let snapshot = C::snapshot(&context.caches, key);
        let plan = C::plan(&snapshot, (context.clock)());
        let requeue_after = plan.requeue_after;
        match apply::<C>(context, key, plan).await {
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
            Outcome::NotLeading => {}
        }
        queue.done(&key);
        context.metrics.queue_depth(C::NAME, queue.depth());
    }
}
