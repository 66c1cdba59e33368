//! Request load per model, for autoscaling, and waiting for models that are scaled to zero.

use super::{Routes, Target};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const SERVED_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Load of a model since the previous report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub model: Arc<str>,
    /// Average concurrency, in thousandths.
    pub in_flight_milli: u64,
    pub answered: u64,
    /// A request is waiting for a replica.
    pub waiting: bool,
}

/// Bounds of the requests that wait for a replica.
#[derive(Clone, Copy)]
pub(crate) struct WaitLimits {
    pub(crate) per_model: usize,
    pub(crate) total: usize,
}

/// Too many requests wait for a replica.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyWaiting;

/// Counts a request as waiting until dropped.
struct WaitingRequest<'a> {
    of_model: &'a AtomicUsize,
    total: &'a AtomicUsize,
}

impl<'a> WaitingRequest<'a> {
    fn new(
        of_model: &'a AtomicUsize,
        total: &'a AtomicUsize,
        limits: WaitLimits,
    ) -> Result<Self, TooManyWaiting> {
        let waiting = Self { of_model, total };
        let before = (of_model.fetch_add(1, Ordering::SeqCst), total.fetch_add(1, Ordering::SeqCst));
        if before.0 >= limits.per_model || before.1 >= limits.total {
            return Err(TooManyWaiting);
        }
        Ok(waiting)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.of_model.fetch_sub(1, Ordering::SeqCst);
        self.total.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Target {
    pub(crate) fn record_inference(&self, took: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.busy_micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Routes {
    /// Load per model since the previous call, `elapsed` ago; idle models are omitted.
    ///
    /// Concurrency is busy time over elapsed time, at least the requests in flight now.
    pub fn demand(&self, elapsed: Duration) -> Vec<Demand> {
        let elapsed = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
        let mut report = Vec::new();
        for slot in self.inner.table.slots() {
            let (mut answered, mut busy, mut in_flight) = (0_u64, 0_u64, 0_u64);
            if let Some(route) = slot.route.load().as_ref() {
                for target in route.targets() {
                    answered = answered.saturating_add(target.answered.swap(0, Ordering::Relaxed));
                    busy = busy.saturating_add(target.busy_micros.swap(0, Ordering::Relaxed));
                    in_flight += target.in_flight.load(Ordering::Relaxed) as u64;
                }
            }
            let waiting = slot.waiting.load(Ordering::SeqCst);
            in_flight += waiting as u64;
            if answered > 0 || in_flight > 0 {
                let spent = busy.saturating_mul(1000) / elapsed;
                report.push(Demand {
                    model: Arc::clone(&slot.model),
                    in_flight_milli: spent.max(in_flight * 1000),
                    answered,
                    waiting: waiting > 0,
                });
            }
        }
        report
    }

    /// Resolves when a request starts waiting for a model that is scaled to zero.
    pub async fn scale_up_requested(&self) {
        self.inner.scale_up.notified().await;
    }

    /// Resolves when the model has a replica, or is scaled to zero and gets one for the next request.
    pub(crate) async fn served(&self, model: &str) {
        let is_served = || {
            let found = self.inner.table.find(model);
            let route = found.as_ref().and_then(|f| f.slot(model)).map(|slot| slot.route.load());
            route.is_some_and(|r| r.as_ref().is_some_and(|r| r.is_served() || r.scaled_to_zero))
        };
        while !is_served() {
            tokio::time::sleep(SERVED_POLL_INTERVAL).await;
        }
    }

    /// Requests a scale-up and resolves when the route changes; at once for an unknown model.
    pub(crate) async fn wait_for_replica(
        &self,
        model: &str,
        limits: WaitLimits,
    ) -> Result<(), TooManyWaiting> {
        let slot = {
            let found = self.inner.table.find(model);
            let Some(slot) = found.as_ref().and_then(|f| f.slot(model)).map(Arc::clone) else {
                return Ok(());
            };
            slot
        };
        let mut changed = std::pin::pin!(slot.changed.notified());
        // Registered before reading the route, so that no change is missed.
        changed.as_mut().enable();
        let _waiting = WaitingRequest::new(&slot.waiting, &self.inner.waiting, limits)?;
        if slot.route.load().as_ref().is_none_or(|route| route.is_served() || route.failed) {
            return Ok(());
        }
        self.inner.scale_up.notify_one();
        changed.await;
        Ok(())
    }
}
