//! What is asked of models, for whoever decides in how many replicas they are served; and waiting for one that sleeps.

use super::{Cell, Routes, Target};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// What was asked of a model since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The model.
    pub model: Arc<str>,
    /// Requests under way at once, on average, in thousandths.
    pub in_flight_milli: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// A request waits for a replica.
    pub waiting: bool,
}

/// A request that waits for a model to wake; counts until it is dropped.
struct Waiting<'a>(&'a Cell);

impl<'a> Waiting<'a> {
    fn at(cell: &'a Cell) -> Self {
        cell.waiting.fetch_add(1, Ordering::SeqCst);
        Self(cell)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Target {
    /// Counts an inference that took so long.
    pub(crate) fn used(&self, took: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.busy_micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Routes {
    /// What was asked of each model since the last call, `passed` ago. Models of which nothing was asked are left out.
    ///
    /// Requests at once are the time spent on requests over the time that passed; requests that take longer than that
    /// are seen while they are under way.
    pub fn demand(&self, passed: Duration) -> Vec<Demand> {
        let passed = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX).max(1);
        let mut demands = Vec::new();
        for cell in self.inner.table.cells() {
            let (mut answered, mut busy, mut in_flight) = (0_u64, 0_u64, 0_u64);
            if let Some(route) = cell.route.load().as_ref() {
                for target in route.targets() {
                    answered = answered.saturating_add(target.answered.swap(0, Ordering::Relaxed));
                    busy = busy.saturating_add(target.busy_micros.swap(0, Ordering::Relaxed));
                    in_flight += target.in_flight.load(Ordering::Relaxed) as u64;
                }
            }
            let waiting = cell.waiting.load(Ordering::SeqCst);
            in_flight += waiting as u64;
            if answered > 0 || in_flight > 0 {
                let spent = busy.saturating_mul(1000) / passed;
                demands.push(Demand {
                    model: Arc::clone(&cell.model),
                    in_flight_milli: spent.max(in_flight * 1000),
                    answered,
                    waiting: waiting > 0,
                });
            }
        }
        demands
    }

    /// Ends when a request begins to wait for a model that sleeps.
    pub async fn wanted(&self) {
        self.inner.wanted.notified().await;
    }

    /// Asks for a model that sleeps and ends when its route changes; at once when there is no such model.
    pub(crate) async fn wake(&self, model: &str) {
        let cell = {
            let found = self.inner.table.find(model);
            let Some(cell) = found.as_ref().and_then(|f| f.cell(model)).map(Arc::clone) else { return };
            cell
        };
        let mut changed = std::pin::pin!(cell.changed.notified());
        // From here on no change is missed; so what is read next is not out of date when we wait.
        changed.as_mut().enable();
        let _waiting = Waiting::at(&cell);
        if cell.route.load().as_ref().is_none_or(|route| route.is_served()) {
            return;
        }
        self.inner.wanted.notify_one();
        changed.await;
    }
}
