//! Prometheus metrics, with the names of Seldon's agent.

use gantry_transport::{
    Protocol,
    metrics::{InferenceMetrics, ModelLabels},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::{sync::atomic::AtomicU64, time::Duration};

type Number = Gauge<u64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Replica {
    server: String,
    server_replica: u32,
}

pub(crate) struct Metrics {
    server: String,
    replica: u32,
    // Counters exposed as gauges: `Counter` would append `_total` to names that dashboards expect as they are.
    pub(crate) evictions: Number,
    pub(crate) misses: Number,
    pub(crate) loads: Number,
    pub(crate) unloads: Number,
    loaded: Gauge,
    loaded_bytes: Number,
    evicted_bytes: Number,
    capacity: Number,
    over_commit: Number,
    over_commit_percent: u32,
    inference: InferenceMetrics,
}

fn latency() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

impl Metrics {
    pub(crate) fn new(server: &str, replica: u32, over_commit_percent: u32, registry: &mut Registry) -> Self {
        let labels = Replica { server: server.to_owned(), server_replica: replica };
        let mut gauge = |name: &str, help: &str| {
            let family = Family::<Replica, Number>::default();
            registry.register(name, help, family.clone());
            family.get_or_create_owned(&labels)
        };
        let evictions = gauge("seldon_cache_evict_count", "Models evicted from the server's memory");
        let misses = gauge("seldon_cache_miss_count", "Requests that had to load their model");
        let loads = gauge("seldon_load_model_counter", "Models loaded");
        let unloads = gauge("seldon_unload_model_counter", "Models unloaded");
        let loaded_bytes =
            gauge("seldon_loaded_model_memory_bytes_gauge", "Memory of the models in the server's memory");
        let evicted_bytes = gauge("seldon_evicted_model_memory_bytes_gauge", "Memory of evicted models");
        let capacity = gauge("seldon_server_replica_memory_capacity_bytes_gauge", "Memory for models");
        let over_commit = gauge(
            "seldon_server_replica_memory_capacity_overcommit_bytes_gauge",
            "Memory for models, including over-commit",
        );
        let family = Family::<Replica, Gauge>::default();
        registry.register("seldon_loaded_model_gauge", "Models in the server's memory", family.clone());
        let loaded = family.get_or_create_owned(&labels);
        let metrics = Self {
            server: server.to_owned(),
            replica,
            evictions,
            misses,
            loads,
            unloads,
            loaded,
            loaded_bytes,
            evicted_bytes,
            capacity,
            over_commit,
            over_commit_percent,
            inference: InferenceMetrics::new(latency),
        };
        metrics.inference.register(registry);
        metrics
    }

    pub(crate) fn capacity(&self, bytes: u64) {
        self.capacity.set(bytes);
        let promised = (bytes / 100).saturating_mul(u64::from(self.over_commit_percent));
        self.over_commit.set(bytes.saturating_add(promised));
    }

    pub(crate) fn memory(&self, models: usize, loaded: u64, evicted: u64) {
        self.loaded.set(i64::try_from(models).unwrap_or(i64::MAX));
        self.loaded_bytes.set(loaded);
        self.evicted_bytes.set(evicted);
    }

    pub(crate) fn record_inference(&self, internal: &str, protocol: Protocol, code: u16, took: Duration) {
        let model = internal.rsplit_once('_').map_or(internal, |(model, _)| model);
        let labels = ModelLabels {
            server: self.server.clone(),
            server_replica: self.replica,
            model: model.to_owned(),
            model_internal: internal.to_owned(),
            method_type: protocol.name(),
            code: code.to_string(),
        };
        self.inference.record(&labels, protocol, code, took);
    }
}
