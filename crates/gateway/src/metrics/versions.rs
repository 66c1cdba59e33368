//! Per-version series: created by the first request, removed after the version.

use super::retention::{Retained, Used};
use gantry_transport::metrics::{InferenceMetrics, ModelLabels, Seconds};
use prometheus_client::metrics::{counter::Counter, family::Family};
use std::sync::OnceLock;
use tokio::time::Instant;

pub(super) struct VersionSeries {
    pub(super) total: Family<ModelLabels, Counter>,
    pub(super) seconds: Family<ModelLabels, Seconds>,
    retained: Retained<ModelLabels>,
}

/// Series of a version on a replica. Success series are cached by protocol on first use, since most of ten
/// thousand models get no request.
pub(crate) struct ModelMetrics {
    pub(super) ok: [OnceLock<(Counter, Seconds)>; 2],
    used: Used<ModelLabels>,
}

impl VersionSeries {
    pub(super) fn new(inference: &InferenceMetrics) -> Self {
        Self { total: inference.total.clone(), seconds: inference.seconds.clone(), retained: Retained::new() }
    }

    pub(super) fn for_version(&self) -> ModelMetrics {
        ModelMetrics { ok: Default::default(), used: self.retained.user() }
    }

    /// The series with these labels, in use by `version` until it is dropped.
    pub(super) fn get(&self, version: &ModelMetrics, labels: &ModelLabels) -> (Counter, Seconds) {
        version.used.add(labels);
        (self.total.get_or_create(labels).clone(), self.seconds.get_or_create(labels).clone())
    }

    pub(super) fn sweep(&self, now: Instant) {
        self.retained.sweep(now, |labels| {
            self.total.remove(labels);
            self.seconds.remove(labels);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{super::retention::RETENTION, *};

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
        assert!(series.retained.is_empty());
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
