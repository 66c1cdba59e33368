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
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

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
    /// The series of each model on this replica.
    series: Mutex<HashMap<String, Vec<ModelLabels>>>,
}

/// Label of requests for models that are not on this replica: their names are the client's.
const UNKNOWN: &str = "unknown";

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
            series: Mutex::default(),
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

    fn series(&self) -> MutexGuard<'_, HashMap<String, Vec<ModelLabels>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests for a model are counted by its name from here on.
    pub(crate) fn add_model(&self, internal: &str) {
        self.series().entry(internal.to_owned()).or_default();
    }

    /// Removes the model's series.
    pub(crate) fn remove_model(&self, internal: &str) {
        let mut series = self.series();
        for labels in series.remove(internal).into_iter().flatten() {
            self.inference.total.remove(&labels);
            self.inference.seconds.remove(&labels);
        }
    }

    pub(crate) fn record_inference(&self, internal: &str, protocol: Protocol, code: u16, took: Duration) {
        // Locked until the series exists, so that it cannot outlive its model.
        let mut series = self.series();
        let known = series.get_mut(internal);
        let internal = if known.is_some() { internal } else { UNKNOWN };
        let labels = ModelLabels {
            server: self.server.clone(),
            server_replica: self.replica,
            model: internal.rsplit_once('_').map_or(internal, |(model, _)| model).to_owned(),
            model_internal: internal.to_owned(),
            method_type: protocol.name(),
            code: code.to_string(),
        };
        self.inference.record(&labels, protocol, code, took);
        if let Some(known) = known.filter(|known| !known.contains(&labels)) {
            known.push(labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_exist_for_models_of_the_replica_only() {
        let mut registry = Registry::default();
        let metrics = Metrics::new("s", 0, 0, &mut registry);
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let record =
            |name: &str| metrics.record_inference(name, Protocol::Rest, 200, Duration::from_millis(1));
        metrics.add_model("iris_1");
        for name in ["iris_1", "iris_1", "iris_2", "a\"b", ""] {
            record(name);
        }
        let counted = |model: &str, internal: &str, count: u32| {
            let labels =
                format!("model=\"{model}\",model_internal=\"{internal}\",method_type=\"rest\",code=\"200\"");
            text().contains(&format!(
                "seldon_model_infer_total{{server=\"s\",server_replica=\"0\",{labels}}} {count}\n"
            ))
        };
        assert!(counted("iris", "iris_1", 2) && counted(UNKNOWN, UNKNOWN, 3), "{}", text());
        metrics.remove_model("iris_1");
        assert!(!text().contains("iris"), "{}", text());
        // A request that ends after the unload.
        record("iris_1");
        assert!(!text().contains("iris") && counted(UNKNOWN, UNKNOWN, 4), "{}", text());
    }
}
