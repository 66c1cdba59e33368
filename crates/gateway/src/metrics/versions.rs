//! Per-version series: created by the first request, removed after the version, so that model updates do not leak
//! series.

use gantry_transport::metrics::{InferenceMetrics, ModelLabels, Seconds};
use prometheus_client::metrics::{counter::Counter, family::Family};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long series outlive their version: several scrape intervals.
const RETENTION: Duration = Duration::from_mins(5);

pub(super) struct VersionSeries {
    pub(super) total: Family<ModelLabels, Counter>,
    pub(super) seconds: Family<ModelLabels, Seconds>,
    references: Arc<Mutex<References>>,
}

/// Reference counts of series.
#[derive(Default)]
struct References {
    counts: HashMap<ModelLabels, usize>,
    /// Series without references, oldest first.
    unreferenced: VecDeque<(Instant, ModelLabels)>,
}

/// Series of a version on a replica. Success series are cached by protocol on first use, since most of ten
/// thousand models get no request.
pub(crate) struct ModelMetrics {
    pub(super) ok: [OnceLock<(Counter, Seconds)>; 2],
    labels_in_use: Mutex<Vec<ModelLabels>>,
    references: Arc<Mutex<References>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VersionSeries {
    pub(super) fn new(inference: &InferenceMetrics) -> Self {
        Self {
            total: inference.total.clone(),
            seconds: inference.seconds.clone(),
            references: Arc::default(),
        }
    }

    pub(super) fn for_version(&self) -> ModelMetrics {
        ModelMetrics {
            ok: Default::default(),
            labels_in_use: Mutex::default(),
            references: Arc::clone(&self.references),
        }
    }

    /// The series with these labels, referenced by `version` until it is dropped.
    pub(super) fn get(&self, version: &ModelMetrics, labels: &ModelLabels) -> (Counter, Seconds) {
        let mut labels_in_use = lock(&version.labels_in_use);
        if !labels_in_use.contains(labels) {
            labels_in_use.push(labels.clone());
            *lock(&self.references).counts.entry(labels.clone()).or_default() += 1;
        }
        (self.total.get_or_create(labels).clone(), self.seconds.get_or_create(labels).clone())
    }

    /// Removes series that have been unreferenced for [`RETENTION`].
    pub(super) fn sweep(&self, now: Instant) {
        let mut references = lock(&self.references);
        while let Some((since, labels)) = references.unreferenced.pop_front() {
            if now.duration_since(since) < RETENTION {
                references.unreferenced.push_front((since, labels));
                return;
            }
            // The version may have been restored meanwhile.
            if references.counts.get(&labels) == Some(&0) {
                references.counts.remove(&labels);
                self.total.remove(&labels);
                self.seconds.remove(&labels);
            }
        }
    }
}

impl Drop for ModelMetrics {
    fn drop(&mut self) {
        let labels_in_use = std::mem::take(&mut *lock(&self.labels_in_use));
        if labels_in_use.is_empty() {
            return;
        }
        let mut references = lock(&self.references);
        for labels in labels_in_use {
            if let Some(counts) = references.counts.get_mut(&labels) {
                *counts -= 1;
                if *counts == 0 {
                    references.unreferenced.push_back((Instant::now(), labels));
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
    fn series_are_removed_after_retention() {
        let series = VersionSeries::new(&InferenceMetrics::new(crate::metrics::latency));
        let (one, other) = (series.for_version(), series.for_version());
        let (ok, bad) = (labels(1, "200"), labels(1, "500"));
        for version in [&one, &other] {
            series.get(version, &ok).0.inc();
            series.get(version, &ok).0.inc();
        }
        series.get(&one, &bad).0.inc();
        let later = || Instant::now() + RETENTION;

        drop(one);
        series.sweep(Instant::now());
        assert!(has(&series, &bad), "the last values stay readable");
        series.sweep(later());
        assert!(!has(&series, &bad));
        assert!(has(&series, &ok), "still referenced");
        assert_eq!(series.get(&other, &ok).0.get(), 4);

        drop(other);
        series.sweep(later());
        assert!(!has(&series, &ok));
        let references = lock(&series.references);
        assert!(references.counts.is_empty() && references.unreferenced.is_empty());
    }

    #[test]
    fn restored_version_keeps_its_series() {
        let series = VersionSeries::new(&InferenceMetrics::new(crate::metrics::latency));
        let ok = labels(1, "200");
        let first = series.for_version();
        series.get(&first, &ok).0.inc();
        drop(first);
        let again = series.for_version();
        series.get(&again, &ok).0.inc();
        series.sweep(Instant::now() + RETENTION);
        assert_eq!(series.total.get(&ok).map(|c| c.get()), Some(2));
        drop(again);
        series.sweep(Instant::now() + RETENTION);
        assert!(!has(&series, &ok));
    }
}
