//! The series of versions: made with the first request, taken away some time after the version is.
//!
//! Without that, each update of a model would leave its series behind for as long as the process lives.

use super::{ModelLabels, Seconds};
use prometheus_client::metrics::{counter::Counter, family::Family};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long the last figures of a version can still be read: several times the interval of any scraper.
const KEPT: Duration = Duration::from_mins(5);

/// Counts and seconds of requests, by version.
#[derive(Clone, Default)]
pub(super) struct VersionSeries {
    pub(super) total: Family<ModelLabels, Counter>,
    pub(super) seconds: Family<ModelLabels, Seconds>,
    ledger: Arc<Mutex<Ledger>>,
}

/// Who counts on which series.
#[derive(Default)]
struct Ledger {
    holders: HashMap<ModelLabels, usize>,
    /// Series that were let go by their last holder, the first one first.
    left: VecDeque<(Instant, ModelLabels)>,
}

/// The series of a version on a replica. Those of successes are at hand: REST first, gRPC second. Resolved with the
/// first request, because of ten thousand models few are asked.
pub(crate) struct ModelMetrics {
    pub(super) ok: [OnceLock<(Counter, Seconds)>; 2],
    held: Mutex<Vec<ModelLabels>>,
    ledger: Arc<Mutex<Ledger>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks can stop half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VersionSeries {
    pub(super) fn of_version(&self) -> ModelMetrics {
        ModelMetrics { ok: Default::default(), held: Mutex::default(), ledger: Arc::clone(&self.ledger) }
    }

    /// The series with these labels, which stay for as long as `version` does.
    pub(super) fn get(&self, version: &ModelMetrics, labels: &ModelLabels) -> (Counter, Seconds) {
        let mut held = lock(&version.held);
        if !held.contains(labels) {
            held.push(labels.clone());
            *lock(&self.ledger).holders.entry(labels.clone()).or_default() += 1;
        }
        (self.total.get_or_create(labels).clone(), self.seconds.get_or_create(labels).clone())
    }

    /// Takes away what nobody has counted on for some time.
    pub(super) fn sweep(&self, now: Instant) {
        let mut ledger = lock(&self.ledger);
        while let Some((left, labels)) = ledger.left.pop_front() {
            if now.duration_since(left) < KEPT {
                ledger.left.push_front((left, labels));
                return;
            }
            // The version may have come back meanwhile.
            if ledger.holders.get(&labels) == Some(&0) {
                ledger.holders.remove(&labels);
                self.total.remove(&labels);
                self.seconds.remove(&labels);
            }
        }
    }
}

impl Drop for ModelMetrics {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *lock(&self.held));
        if held.is_empty() {
            return;
        }
        let mut ledger = lock(&self.ledger);
        for labels in held {
            if let Some(holders) = ledger.holders.get_mut(&labels) {
                *holders -= 1;
                if *holders == 0 {
                    ledger.left.push_back((Instant::now(), labels));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(version: u32, code: &str) -> ModelLabels {
        ModelLabels {
            server: "mlserver".to_owned(),
            server_replica: 0,
            model: "iris".to_owned(),
            model_internal: format!("iris_{version}"),
            method_type: "rest",
            code: code.to_owned(),
        }
    }

    fn has(series: &VersionSeries, labels: &ModelLabels) -> bool {
        let known = series.total.get(labels).is_some();
        assert_eq!(known, series.seconds.get(labels).is_some());
        known
    }

    #[test]
    fn series_go_some_time_after_their_version() {
        let series = VersionSeries::default();
        let (one, other) = (series.of_version(), series.of_version());
        let (ok, bad) = (labels(1, "200"), labels(1, "500"));
        for version in [&one, &other] {
            series.get(version, &ok).0.inc();
            series.get(version, &ok).0.inc();
        }
        series.get(&one, &bad).0.inc();
        let later = || Instant::now() + KEPT;

        drop(one);
        series.sweep(Instant::now());
        assert!(has(&series, &bad), "the last figures can still be read");
        series.sweep(later());
        assert!(!has(&series, &bad));
        assert!(has(&series, &ok), "another one still counts on it");
        assert_eq!(series.get(&other, &ok).0.get(), 4);

        drop(other);
        series.sweep(later());
        assert!(!has(&series, &ok));
        let ledger = lock(&series.ledger);
        assert!(ledger.holders.is_empty() && ledger.left.is_empty());
    }

    #[test]
    fn a_version_that_comes_back_keeps_its_series() {
        let series = VersionSeries::default();
        let ok = labels(1, "200");
        let first = series.of_version();
        series.get(&first, &ok).0.inc();
        drop(first);
        let again = series.of_version();
        series.get(&again, &ok).0.inc();
        series.sweep(Instant::now() + KEPT);
        assert_eq!(series.total.get(&ok).map(|c| c.get()), Some(2));
        drop(again);
        series.sweep(Instant::now() + KEPT);
        assert!(!has(&series, &ok));
    }
}
