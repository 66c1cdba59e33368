//! Prometheus metrics. Handles are resolved once per replica and once per version, not per request.

mod experiments;
mod pipelines;
mod retention;
mod versions;

pub(crate) use experiments::CandidateMetrics;
pub(crate) use pipelines::PipelineMetrics;
pub(crate) use versions::ModelMetrics;

use crate::routes::{Endpoint, Version};
use experiments::ExperimentSeries;
use gantry_transport::{
    Protocol,
    metrics::{AggregateLabels, ApiLabels, InferenceMetrics, ModelLabels, Seconds},
};
use pipelines::PipelineSeries;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use retention::{Retained, Used};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use versions::VersionSeries;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    server: String,
    server_replica: u32,
}

/// A series of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum EndpointSeries {
    Aggregate(AggregateLabels),
    Api(ApiLabels),
    Breaker(EndpointLabels),
}

pub(crate) struct Metrics {
    versions: VersionSeries,
    endpoints: Retained<EndpointSeries>,
    pipelines: PipelineSeries,
    experiments: ExperimentSeries,
    inference: InferenceMetrics,
    breaker_open: Family<EndpointLabels, Gauge>,
    pub(crate) in_flight: Gauge,
    pub(crate) incomplete_bodies: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) shed: Counter,
    pub(crate) refused_connections: Counter,
    pub(crate) retries: Counter,
    pub(crate) background_dropped: Counter,
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
            endpoints: Retained::new(),
            pipelines: PipelineSeries::new(latency),
            experiments: ExperimentSeries::new(latency),
            inference,
            breaker_open: Family::default(),
            in_flight: Gauge::default(),
            incomplete_bodies: Gauge::default(),
            connections: Gauge::default(),
            shed: Counter::default(),
            refused_connections: Counter::default(),
            retries: Counter::default(),
            background_dropped: Counter::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        self.inference.register(registry);
        self.pipelines.register(registry);
        self.experiments.register(registry);
        let r = registry;
        r.register(
            "gantry_gateway_breaker_open",
            "Circuit breaker state of a replica (1 = open)",
            self.breaker_open.clone(),
        );
        r.register("gantry_gateway_in_flight", "Requests in flight", self.in_flight.clone());
        r.register(
            "gantry_gateway_incomplete_bodies",
            "Requests whose body has not arrived completely",
            self.incomplete_bodies.clone(),
        );
        r.register("gantry_gateway_connections", "Open client connections", self.connections.clone());
        r.register("gantry_gateway_shed", "Requests rejected because of overload", self.shed.clone());
        r.register(
            "gantry_gateway_connections_refused",
            "Connections rejected by the connection limit",
            self.refused_connections.clone(),
        );
        r.register("gantry_gateway_retries", "Requests retried on another replica", self.retries.clone());
        r.register(
            "gantry_pipeline_background_dropped",
            "Runs of pipelines that did not continue beyond the response because too many do",
            self.background_dropped.clone(),
        );
    }

    /// The series of a replica, removed some time after the last of its endpoints.
    pub(crate) fn endpoint(&self, server: &str, server_replica: u32) -> EndpointMetrics {
        let used = self.endpoints.user();
        let api = Protocol::ALL.map(|p| self.api(&used, server, server_replica, p, p.ok()));
        let aggregate = Protocol::ALL.map(|p| {
            let method_type = p.name();
            used.add(&EndpointSeries::Aggregate(AggregateLabels {
                server: server.to_owned(),
                server_replica,
                method_type,
            }));
            self.inference.aggregate(server, server_replica, p)
        });
        let labels = EndpointLabels { server: server.to_owned(), server_replica };
        let breaker_open = self.breaker_open.get_or_create(&labels).clone();
        // A replica that returns at another address has a new breaker.
        breaker_open.set(0);
        used.add(&EndpointSeries::Breaker(labels));
        EndpointMetrics { aggregate, api, breaker_open, used }
    }

    fn api(
        &self,
        used: &Used<EndpointSeries>,
        server: &str,
        server_replica: u32,
        protocol: Protocol,
        code: u16,
    ) -> Histogram {
        used.add(&EndpointSeries::Api(ApiLabels {
            server: server.to_owned(),
            server_replica,
            method: protocol.name(),
            code: code.to_string(),
        }));
        self.inference.api(server, server_replica, protocol, code)
    }

    pub(crate) fn version(&self) -> ModelMetrics {
        self.versions.for_version()
    }

    pub(crate) fn pipeline(&self, name: &Arc<str>) -> PipelineMetrics {
        self.pipelines.pipeline(name)
    }

    pub(crate) fn candidate(&self, experiment: &str, candidate: &str) -> CandidateMetrics {
        self.experiments.candidate(experiment, candidate)
    }

    pub(crate) fn record_pipeline(
        &self,
        pipeline: &PipelineMetrics,
        protocol: Protocol,
        code: u16,
        took: Duration,
    ) {
        self.pipelines.record(pipeline, protocol, code, took);
    }

    /// Removes series past their retention.
    pub(crate) fn sweep(&self) {
        self.sweep_at(Instant::now());
    }

    fn sweep_at(&self, now: Instant) {
        self.versions.sweep(now);
        self.pipelines.sweep(now);
        self.experiments.sweep(now);
        self.endpoints.sweep(now, |series| match series {
            EndpointSeries::Aggregate(labels) => {
                self.inference.aggregate_total.remove(labels);
                self.inference.aggregate_seconds.remove(labels);
            }
            EndpointSeries::Api(labels) => drop(self.inference.api_seconds.remove(labels)),
            EndpointSeries::Breaker(labels) => drop(self.breaker_open.remove(labels)),
        });
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
        let used = &endpoint.metrics.used;
        self.api(used, &endpoint.server, endpoint.replica, protocol, code).observe(seconds);
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
    used: Used<EndpointSeries>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap_or_default();
        text
    }

    #[test]
    fn series_of_replicas_that_are_gone_are_removed() {
        let metrics = Metrics::new();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let (gone, stays) = (metrics.endpoint("s", 0), metrics.endpoint("s", 1));
        metrics.api(&gone.used, "s", 0, Protocol::Rest, 503).observe(0.1);
        gone.breaker_open.set(1);
        let returned = metrics.endpoint("s", 0);
        assert!(text(&registry).contains("breaker_open{server=\"s\",server_replica=\"0\"} 0"));
        drop(gone);
        metrics.sweep_at(Instant::now() + retention::RETENTION);
        assert!(!text(&registry).contains("code=\"503\""), "no endpoint uses it");
        assert!(text(&registry).contains("server_replica=\"0\""));
        drop(returned);
        metrics.sweep_at(Instant::now());
        assert!(text(&registry).contains("server_replica=\"0\""), "the last values stay readable");
        metrics.sweep_at(Instant::now() + retention::RETENTION);
        let text = text(&registry);
        assert!(!text.contains("server_replica=\"0\""), "{text}");
        assert!(text.contains("server_replica=\"1\""));
        drop(stays);
    }
}
