//! Series of experiments' candidates, removed after the experiment.

use super::retention::{Retained, Used};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CandidateLabels {
    experiment: String,
    candidate: String,
}

pub(super) struct ExperimentSeries {
    requests: Family<CandidateLabels, Counter>,
    errors: Family<CandidateLabels, Counter>,
    seconds: Family<CandidateLabels, Histogram, fn() -> Histogram>,
    mirrored: Family<CandidateLabels, Counter>,
    dropped: Family<CandidateLabels, Counter>,
    retained: Retained<CandidateLabels>,
}

/// Series of a candidate or a mirror.
pub(crate) struct CandidateMetrics {
    /// Requests that the experiment sends to it.
    pub(crate) requests: Counter,
    /// Calls without success.
    pub(crate) errors: Counter,
    /// Latency of all calls.
    pub(crate) seconds: Histogram,
    /// Copies sent to it as a mirror.
    pub(crate) mirrored: Counter,
    /// Copies that were not sent because too many are in flight.
    pub(crate) dropped: Counter,
    _used: Used<CandidateLabels>,
}

impl ExperimentSeries {
    pub(super) fn new(latency: fn() -> Histogram) -> Self {
        Self {
            requests: Family::default(),
            errors: Family::default(),
            seconds: Family::new_with_constructor(latency),
            mirrored: Family::default(),
            dropped: Family::default(),
            retained: Retained::new(),
        }
    }

    pub(super) fn register(&self, r: &mut Registry) {
        r.register(
            "gantry_experiment_requests",
            "Requests that an experiment sends to a candidate",
            self.requests.clone(),
        );
        r.register(
            "gantry_experiment_errors",
            "Calls of a candidate without success; a request can have several",
            self.errors.clone(),
        );
        r.register(
            "gantry_experiment_seconds",
            "Latency of the calls of a candidate in seconds",
            self.seconds.clone(),
        );
        r.register(
            "gantry_experiment_mirrored",
            "Copies of requests sent to the mirror of an experiment",
            self.mirrored.clone(),
        );
        r.register(
            "gantry_experiment_mirror_dropped",
            "Copies of requests that were not sent because too many are in flight",
            self.dropped.clone(),
        );
    }

    pub(super) fn candidate(&self, experiment: &str, candidate: &str) -> CandidateMetrics {
        let labels = CandidateLabels { experiment: experiment.into(), candidate: candidate.into() };
        let used = self.retained.user();
        used.add(&labels);
        CandidateMetrics {
            requests: self.requests.get_or_create(&labels).clone(),
            errors: self.errors.get_or_create(&labels).clone(),
            seconds: self.seconds.get_or_create(&labels).clone(),
            mirrored: self.mirrored.get_or_create(&labels).clone(),
            dropped: self.dropped.get_or_create(&labels).clone(),
            _used: used,
        }
    }

    pub(super) fn sweep(&self, now: Instant) {
        self.retained.sweep(now, |labels| {
            self.requests.remove(labels);
            self.errors.remove(labels);
            self.seconds.remove(labels);
            self.mirrored.remove(labels);
            self.dropped.remove(labels);
        });
    }
}
