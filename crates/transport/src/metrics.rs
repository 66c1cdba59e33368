//! Inference metrics with the names and labels of Seldon's dashboards.

use crate::Protocol;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::{sync::atomic::AtomicU64, time::Duration};

pub type Seconds = Counter<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelLabels {
    pub server: String,
    pub server_replica: u32,
    pub model: String,
    pub model_internal: String,
    pub method_type: &'static str,
    pub code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ApiLabels {
    pub server: String,
    pub server_replica: u32,
    pub method: &'static str,
    pub code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AggregateLabels {
    pub server: String,
    pub server_replica: u32,
    pub method_type: &'static str,
}

#[derive(Clone)]
pub struct InferenceMetrics {
    pub total: Family<ModelLabels, Counter>,
    pub seconds: Family<ModelLabels, Seconds>,
    pub api_seconds: Family<ApiLabels, Histogram, fn() -> Histogram>,
    pub aggregate_total: Family<AggregateLabels, Counter>,
    pub aggregate_seconds: Family<AggregateLabels, Seconds>,
}

impl InferenceMetrics {
    /// `latency` makes the histogram of `api_seconds`.
    pub fn new(latency: fn() -> Histogram) -> Self {
        Self {
            total: Family::default(),
            seconds: Family::default(),
            api_seconds: Family::new_with_constructor(latency),
            aggregate_total: Family::default(),
            aggregate_seconds: Family::default(),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("seldon_model_infer", "Inference requests", self.total.clone());
        r.register(
            "seldon_model_infer_seconds",
            "Total duration of inference requests in seconds",
            self.seconds.clone(),
        );
        r.register(
            "seldon_model_infer_api_seconds",
            "Inference latency in seconds",
            self.api_seconds.clone(),
        );
        r.register(
            "seldon_model_aggregate_infer",
            "Inference requests per replica",
            self.aggregate_total.clone(),
        );
        r.register(
            "seldon_model_aggregate_infer_seconds",
            "Total duration of inference requests per replica in seconds",
            self.aggregate_seconds.clone(),
        );
    }

    /// The aggregate series of a replica.
    pub fn aggregate(&self, server: &str, server_replica: u32, protocol: Protocol) -> (Counter, Seconds) {
        let labels =
            AggregateLabels { server: server.to_owned(), server_replica, method_type: protocol.name() };
        (
            self.aggregate_total.get_or_create(&labels).clone(),
            self.aggregate_seconds.get_or_create(&labels).clone(),
        )
    }

    /// The latency series of a replica and status code.
    pub fn api(&self, server: &str, server_replica: u32, protocol: Protocol, code: u16) -> Histogram {
        let labels = ApiLabels {
            server: server.to_owned(),
            server_replica,
            method: protocol.name(),
            code: code.to_string(),
        };
        self.api_seconds.get_or_create(&labels).clone()
    }

    /// Records a request in all families, resolving every series.
    pub fn record(&self, labels: &ModelLabels, protocol: Protocol, code: u16, took: Duration) {
        let (seconds, server, replica) = (took.as_secs_f64(), &labels.server, labels.server_replica);
        self.total.get_or_create(labels).inc();
        self.seconds.get_or_create(labels).inc_by(seconds);
        let (total, sum) = self.aggregate(server, replica, protocol);
        total.inc();
        sum.inc_by(seconds);
        self.api(server, replica, protocol, code).observe(seconds);
    }
}
