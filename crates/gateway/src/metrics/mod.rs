//! Prometheus metrics. Handles are resolved once per replica and once per version, not per request.

mod versions;

pub(crate) use versions::ModelMetrics;

use crate::routes::{Endpoint, Version};
use gantry_transport::{
    Protocol,
    metrics::{InferenceMetrics, ModelLabels, Seconds},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;
use versions::VersionSeries;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    server: String,
    server_replica: u32,
}

pub(crate) struct Metrics {
    versions: VersionSeries,
    inference: InferenceMetrics,
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
        let inference = InferenceMetrics::new(latency);
        Self {
            versions: VersionSeries::new(&inference),
            inference,
            breaker_open: Family::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            shed: Counter::default(),
            refused_connections: Counter::default(),
            retries: Counter::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        self.inference.register(registry);
        let r = registry;
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
        EndpointMetrics {
            aggregate: Protocol::ALL.map(|p| self.inference.aggregate(server, server_replica, p)),
            api: Protocol::ALL.map(|p| self.inference.api(server, server_replica, p, p.ok())),
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
        self.inference.api(&endpoint.server, endpoint.replica, protocol, code).observe(seconds);
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
