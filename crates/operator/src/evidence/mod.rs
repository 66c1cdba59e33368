//! Evidence about the revisions of Algorithms: measured outside of plans, kept for snapshots.

mod board;
mod gateway;
mod poller;
mod prometheus;
mod queries;

pub use board::{EvidenceBoard, Observation};
pub(crate) use gateway::version_of;
pub(crate) use poller::run;
pub use prometheus::Prometheus;

use crate::{cluster::Key, context::Context};
use futures::future::BoxFuture;
use gantry_api::{EvidenceSource, MetricQueries};
use gantry_core::rollout::{Bucket, DriftScore, Errors, LatencyHistogram, Stats};
use gateway::GatewayStatistics;
use std::{sync::Arc, time::Duration};

/// A source of evidence: Prometheus, or the statistics of a gateway.
pub trait EvidenceProvider: Send + Sync + 'static {
    /// Statistics of the revisions in a request; `None` when there are no values, and an error when they could not be read.
    fn measure<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<Measurement>, String>>;

    /// The latency of the stable revision in milliseconds: 0 without requests, `None` without values.
    fn stable_latency<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<f64>, String>> {
        Box::pin(async { Ok(self.measure(request).await?.and_then(|measured| measured.figures.latency_ms)) })
    }
}

/// Each source of evidence that a spec can name.
pub(crate) struct EvidenceSources {
    prometheus: Arc<dyn EvidenceProvider>,
    gateway: GatewayStatistics,
}

impl EvidenceSources {
    pub(crate) fn new(context: Arc<Context>, prometheus: Arc<dyn EvidenceProvider>) -> Self {
        Self { prometheus, gateway: GatewayStatistics::new(context) }
    }
}

impl EvidenceProvider for EvidenceSources {
    fn measure<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<Measurement>, String>> {
        match &request.source {
            EvidenceSource::Prometheus(_) => self.prometheus.measure(request),
            EvidenceSource::Gateway => self.gateway.measure(request),
        }
    }

    fn stable_latency<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<f64>, String>> {
        match &request.source {
            EvidenceSource::Prometheus(_) => self.prometheus.stable_latency(request),
            EvidenceSource::Gateway => self.gateway.stable_latency(request),
        }
    }
}

/// What is measured for one Algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct EvidenceRequest {
    pub key: Key,
    pub uid: String,
    pub source: EvidenceSource,
    pub queries: MetricQueries,
    pub stable: String,
    /// The revision under analysis; without one it is the stable revision.
    pub candidate: Option<String>,
    /// Generation of the weights.
    pub generation: u64,
    pub interval: Duration,
    pub window: Duration,
    /// Whether no request may count in two measurements.
    pub counts_once: bool,
    pub objectives: RevisionObjectives,
    /// Metric of the drift score, where drift is watched.
    pub drift_metric: Option<String>,
}

/// What a revision has to achieve: counts are rounded so that they stay on the same side of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RevisionObjectives {
    pub success: f64,
    pub latency_limit_ms: Option<f64>,
}

/// Statistics in both forms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    pub stable: Stats,
    pub candidate: Stats,
    pub figures: Figures,
}

/// What the status reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub success_rate: Option<f64>,
    pub latency_ms: Option<f64>,
    pub requests: Option<f64>,
    pub baseline_success_rate: Option<f64>,
}

/// Values of one revision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RevisionValues {
    pub(crate) requests: f64,
    pub(crate) success_rate: f64,
    pub(crate) latency_ms: Option<f64>,
    pub(crate) drift: Option<f64>,
}

impl RevisionValues {
    pub(crate) fn stats(&self, objectives: RevisionObjectives) -> Stats {
        let requests = self.requests.max(0.0).round() as u64;
        let success = self.success_rate.clamp(0.0, 1.0);
        let failed = requests as f64 * (1.0 - success);
        // The binary form of a ratio such as 0.99 is not exact.
        let failed = if success + 1e-9 >= objectives.success {
            (failed + 1e-6).floor()
        } else {
            (failed - 1e-6).ceil()
        };
        let errors = Errors { server: failed as u64, ..Errors::default() };
        let latency =
            self.latency_ms.map(|latency| histogram(latency, requests, objectives.latency_limit_ms));
        let drift = self.drift.and_then(DriftScore::new);
        Stats { requests, errors, latency: latency.unwrap_or_default(), drift, ..Stats::default() }
    }
}

/// All requests in the bucket of a latency, or in the next one on the same side of the limit.
fn histogram(latency: f64, requests: u64, limit: Option<f64>) -> LatencyHistogram {
    let index = Bucket::of(latency).index();
    let upper = Bucket::of(latency).upper_ms();
    let index = match limit {
        Some(limit) if latency <= limit && upper > limit => index.saturating_sub(1),
        Some(limit) if latency > limit => index + 1,
        _ => index,
    };
    let counts = (0..=index).map(|at| if at == index { requests } else { 0 });
    LatencyHistogram::from_counts(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_on_their_side_of_the_objectives() {
        let objectives = RevisionObjectives { success: 0.99, latency_limit_ms: Some(50.0) };
        for (requests, success_rate, failed) in [
            (100.0, 0.99, 1),
            (50.0, 0.99, 0),
            (50.0, 0.9899, 1),
            (1000.0, 0.5, 500),
            (99.6, 1.0, 0),
            (10.0, 0.0, 10),
            (10.0, f64::NEG_INFINITY, 10),
        ] {
            let values = RevisionValues { requests, success_rate, latency_ms: None, drift: None };
            assert_eq!(values.stats(objectives).errors.server, failed, "{requests} {success_rate}");
        }
        for latency in [0.0, 1.0, 42.0, 49.9, 50.0, 50.1, 52.0, 60.0, 1e9] {
            let values =
                RevisionValues { requests: 100.0, success_rate: 1.0, latency_ms: Some(latency), drift: None };
            let quantile = values.stats(objectives).latency.quantile_ms(0.99).unwrap();
            assert_eq!(quantile <= 50.0, latency <= 50.0, "{latency} ms became {quantile} ms");
        }
    }
}
