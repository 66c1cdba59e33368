//! Prometheus metrics. Handles are resolved once per replica and once per version, not per request.

mod versions;

pub(crate) use versions::ModelMetrics;

use crate::routes::{Endpoint, Version};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{sync::atomic::AtomicU64, time::Duration};
use versions::VersionSeries;

type Seconds = Counter<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    server: String,
    server_replica: u32,
    model: String,
    model_internal: String,
    method_type: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiLabels {
    server: String,
    server_replica: u32,
    method: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AggregateLabels {
    server: String,
    server_replica: u32,
    method_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    server: String,
    server_replica: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Rest,
    Grpc,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Rest, Self::Grpc];

    const fn name(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Grpc => "grpc",
        }
    }

    const fn ok(self) -> u16 {
        match self {
            Self::Rest => 200,
            Self::Grpc => 0,
        }
    }
}

pub(crate) struct Metrics {
    versions: VersionSeries,
    api_seconds: Family<ApiLabels, Histogram, fn() -> Histogram>,
    aggregate_total: Family<AggregateLabels, Counter>,
    aggregate_seconds: Family<AggregateLabels, Seconds>,
    breaker_open: Family<EndpointLabels, Gauge>,
    pub(crate) in_flight: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) shed: Counter,
    pub(crate) refused_connections: Counter,
    pub(crate) retries: Counter,
}

fn latency() -> Histogram {
    Histogram::new([
        0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
        10.0,
    ])
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            versions: VersionSeries::default(),
            api_seconds: Family::new_with_constructor(latency as fn() -> Histogram),
            aggregate_total: Family::default(),
            aggregate_seconds: Family::default(),
            breaker_open: Family::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            shed: Counter::default(),
            refused_connections: Counter::default(),
            retries: Counter::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("seldon_model_infer", "Inference requests", self.versions.total.clone());
        r.register(
            "seldon_model_infer_seconds",
            "Total duration of inference requests in seconds",
            self.versions.seconds.clone(),
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
        r.register(
            "gantry_gateway_breaker_open",
            "Circuit breaker state of a replica (1 = open)",
            self.breaker_open.clone(),
        );
        r.register("gantry_gateway_in_flight", "Requests in flight", self.in_flight.clone());
        r.register("gantry_gateway_connections", "Open client connections", self.connections.clone());
        r.register("gantry_gateway_shed", "Requests rejected because of overload", self.shed.clone());
        r.register(
            "gantry_gateway_connections_refused",
            "Connections rejected by the connection limit",
            self.refused_connections.clone(),
        );
        r.register("gantry_gateway_retries", "Requests retried on another replica", self.retries.clone());
    }

    pub(crate) fn endpoint(&self, server: &str, server_replica: u32) -> EndpointMetrics {
        let labels = |method_type| AggregateLabels { server: server.to_owned(), server_replica, method_type };
        let api = |protocol: Protocol| {
            self.api_seconds
                .get_or_create(&ApiLabels {
                    server: server.to_owned(),
                    server_replica,
                    method: protocol.name(),
                    code: protocol.ok().to_string(),
                })
                .clone()
        };
        EndpointMetrics {
            aggregate: Protocol::ALL.map(|p| {
                let labels = labels(p.name());
                (
                    self.aggregate_total.get_or_create(&labels).clone(),
                    self.aggregate_seconds.get_or_create(&labels).clone(),
                )
            }),
            api: Protocol::ALL.map(api),
            breaker_open: self
                .breaker_open
                .get_or_create(&EndpointLabels { server: server.to_owned(), server_replica })
                .clone(),
        }
    }

    pub(crate) fn version(&self) -> ModelMetrics {
        self.versions.for_version()
    }

    /// Removes series of versions past their retention.
    pub(crate) fn sweep(&self) {
        self.versions.sweep(tokio::time::Instant::now());
    }

    pub(crate) fn record_inference(
        &self,
        target: &crate::routes::InFlightRequest,
        protocol: Protocol,
        code: u16,
        took: Duration,
    ) {
        let seconds = took.as_secs_f64();
        let index = usize::from(protocol == Protocol::Grpc);
        let endpoint = &target.endpoint;
        if let Some((total, sum)) = endpoint.metrics.aggregate.get(index) {
            total.inc();
            sum.inc_by(seconds);
        }
        if code == protocol.ok() {
            if let (Some(handles), Some(api)) =
                (target.metrics.ok.get(index), endpoint.metrics.api.get(index))
            {
                let (total, sum) = handles.get_or_init(|| {
                    self.versions
                        .get(&target.metrics, &model_labels(endpoint, &target.version, protocol, code))
                });
                total.inc();
                sum.inc_by(seconds);
                api.observe(seconds);
            }
            return;
        }
        let labels = model_labels(endpoint, &target.version, protocol, code);
        let (total, sum) = self.versions.get(&target.metrics, &labels);
        total.inc();
        sum.inc_by(seconds);
        self.api_seconds
            .get_or_create(&ApiLabels {
                server: endpoint.server.clone(),
                server_replica: endpoint.replica,
                method: protocol.name(),
                code: code.to_string(),
            })
            .observe(seconds);
    }
}

fn model_labels(endpoint: &Endpoint, version: &Version, protocol: Protocol, code: u16) -> ModelLabels {
    ModelLabels {
        server: endpoint.server.clone(),
        server_replica: endpoint.replica,
        model: version.model.to_string(),
        model_internal: version.internal.to_string(),
        method_type: protocol.name(),
        code: code.to_string(),
    }
}

/// Metric handles of a replica, indexed by [`Protocol`].
pub(crate) struct EndpointMetrics {
    aggregate: [(Counter, Seconds); 2],
    api: [Histogram; 2],
    pub(crate) breaker_open: Gauge,
}
