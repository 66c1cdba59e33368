//! What a model has done: counts and times, without a lock.

use gantry_oip::{Duration as Spent, ModelStatistics};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Counter {
    fn add(&self, spent: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn get(&self) -> Spent {
        Spent { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

/// What one model has done.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    last: AtomicU64,
    inferences: AtomicU64,
    executions: AtomicU64,
    success: Counter,
    fail: Counter,
    infer: Counter,
    /// Nanoseconds that a row takes, as of late.
    row_ns: AtomicU64,
}

impl Statistics {
    /// A run of the model on so many rows.
    pub(crate) fn ran(&self, rows: usize, took: Duration) {
        let rows = (rows as u64).max(1);
        self.executions.fetch_add(1, Relaxed);
        self.inferences.fetch_add(rows, Relaxed);
        self.infer.add(took);
        let sample = (u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / rows).max(1);
        let known = self.row_ns.load(Relaxed);
        // Quick to learn that a model is slow, slow to believe that it is quick.
        let next = if sample > known { known.midpoint(sample) } else { known - (known - sample) / 16 };
        self.row_ns.store(next, Relaxed);
    }

    /// A request answered.
    pub(crate) fn answered(&self, ok: bool, took: Duration) {
        if ok {
            self.success.add(took);
        } else {
            self.fail.add(took);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    /// How long so many rows will take, judging by the past; `None` when the model has never run.
    pub(crate) fn estimate(&self, rows: usize) -> Option<Duration> {
        let row = self.row_ns.load(Relaxed);
        (row > 0).then(|| Duration::from_nanos(row.saturating_mul((rows as u64).max(1))))
    }

    pub(crate) fn report(&self, name: &str, version: &str) -> ModelStatistics {
        ModelStatistics {
            name: name.to_owned(),
            version: version.to_owned(),
            last_inference: self.last.load(Relaxed),
            inference_count: self.inferences.load(Relaxed),
            execution_count: self.executions.load(Relaxed),
            success: self.success.get(),
            fail: self.fail.get(),
            compute_infer: self.infer.get(),
            ..ModelStatistics::default()
        }
    }
}
