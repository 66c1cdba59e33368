//! Series of the engine; labels have a few fixed values.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabel {
    pub(super) result: &'static str,
}

#[derive(Clone, Default)]
pub struct Metrics {
    records: Family<ResultLabel, Counter>,
    pub(super) retries: Counter,
    pub(super) rebalances: Counter,
    commits: Family<ResultLabel, Counter>,
    pub(super) in_flight: Gauge,
    pub(super) in_flight_bytes: Gauge,
}

impl Metrics {
    pub(super) fn record(&self, result: &'static str) {
        self.records.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn commit(&self, result: &'static str) {
        self.commits.get_or_create(&ResultLabel { result }).inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("gantry_kafka");
        registry.register("records", "Records by result: answered, failed", self.records.clone());
        registry.register("retries", "Retries after failures that may pass", self.retries.clone());
        registry.register("rebalances", "Revocations of partitions", self.rebalances.clone());
        registry.register("commits", "Offset commits by result: ok, failed", self.commits.clone());
        registry.register("in_flight", "Records that run or wait for their key", self.in_flight.clone());
        registry.register("in_flight_bytes", "The same in bytes", self.in_flight_bytes.clone());
    }
}
