//! Counters of one version on one thread, and their totals.

use super::ObservedValues;
use crate::policy::result_class::ResultClass;
use gantry_core::rollout::{BUCKETS, Bucket, Distribution};
use gantry_proto::gantry as pb;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Counters of one thread, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Counters {
    /// By [`ResultClass`].
    results: [AtomicU64; ResultClass::COUNT],
    latency: [AtomicU64; BUCKETS],
}

/// The version and generation that a request counts for.
#[derive(Debug)]
pub(crate) struct Attribution {
    pub(super) counters: Arc<Counters>,
    /// When the version was chosen.
    pub(super) since: Instant,
    /// Set for a request whose values are observed.
    pub(crate) sample: Option<Arc<ObservedValues>>,
}

impl Attribution {
    /// Records a request that ended at `end`.
    pub(crate) fn record(&self, class: ResultClass, end: Instant) {
        self.record_latency(class, end.saturating_duration_since(self.since));
    }

    pub(crate) fn record_latency(&self, class: ResultClass, took: Duration) {
        self.counters.record(class, took);
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            results: [const { AtomicU64::new(0) }; ResultClass::COUNT],
            latency: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

impl Counters {
    fn record(&self, class: ResultClass, took: Duration) {
        if let Some(count) = self.results.get(class as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        // A refused connection is no fast response.
        if class != ResultClass::NoResponse
            && let Some(count) = self.latency.get(Bucket::of(took.as_secs_f64() * 1000.0).index())
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves the counts to `total`.
    pub(super) fn take(&self, total: &mut Totals) {
        let counts = self.results.iter().chain(&self.latency);
        let totals = total.results.iter_mut().chain(&mut total.latency);
        for (count, total) in counts.zip(totals) {
            // A write would take the cache line from the worker.
            if count.load(Ordering::Relaxed) > 0 {
                *total = total.saturating_add(count.swap(0, Ordering::Relaxed));
            }
        }
    }
}

/// Counts of all threads.
pub(super) struct Totals {
    results: [u64; ResultClass::COUNT],
    latency: [u64; BUCKETS],
    pub(super) values: Distribution,
    /// Compared answers, and those that differ.
    pub(super) compared: [u64; 2],
}

impl Default for Totals {
    fn default() -> Self {
        let (results, latency) = ([0; ResultClass::COUNT], [0; BUCKETS]);
        Self { results, latency, values: Distribution::default(), compared: [0; 2] }
    }
}

impl Totals {
    pub(super) fn is_zero(&self) -> bool {
        let mut counts = self.results.iter().chain(&self.latency).chain(&self.compared);
        counts.all(|count| *count == 0) && self.values.total() == 0
    }

    pub(super) fn add(&mut self, other: &Self) {
        let others = other.results.iter().chain(&other.latency).chain(&other.compared);
        let counts = self.results.iter_mut().chain(&mut self.latency).chain(&mut self.compared);
        for (mine, theirs) in counts.zip(others) {
            *mine = mine.saturating_add(*theirs);
        }
        self.values.merge(&other.values);
    }

    fn of(&self, class: ResultClass) -> u64 {
        self.results.get(class as usize).copied().unwrap_or(0)
    }

    pub(super) fn report(&self, version: u32) -> pb::VersionTraffic {
        let used = self.latency.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        pb::VersionTraffic {
            version,
            // The classes are disjoint, so that a report never has more failures than requests.
            requests: self.results.iter().fold(0, |sum, count| sum.saturating_add(*count)),
            server_errors: self.of(ResultClass::ServerError),
            timeouts: self.of(ResultClass::Timeout),
            connection_errors: self.of(ResultClass::NoResponse),
            client_errors: self.of(ResultClass::ClientError),
            latency: self.latency.iter().take(used).copied().collect(),
            value_bins: self.values.counts().map(|(bin, _)| bin).collect(),
            compared: self.compared[0],
            differing: self.compared[1],
            value_counts: self.values.counts().map(|(_, count)| count).collect(),
        }
    }
}
