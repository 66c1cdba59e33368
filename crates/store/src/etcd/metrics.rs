//! Calls to etcd, for Prometheus.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    call: &'static str,
}

#[derive(Debug)]
pub(super) struct Metrics {
    seconds: Family<Call, Histogram>,
    failures: Family<Call, Counter>,
    pub(super) leads: Gauge,
    pub(super) changes: Counter,
    /// Writes whose outcome was unknown at first.
    pub(super) settled: Counter,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let buckets = || Histogram::new(exponential_buckets(0.000_25, 2.0, 15));
        Self {
            seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
            failures: Family::default(),
            leads: Gauge::default(),
            changes: Counter::default(),
            settled: Counter::default(),
        }
    }

    pub(super) fn called(&self, call: &'static str, took: Duration, failed: bool) {
        self.seconds.get_or_create(&Call { call }).observe(took.as_secs_f64());
        if failed {
            self.failures.get_or_create(&Call { call }).inc();
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let own = registry.sub_registry_with_prefix("gantry_scheduler");
        own.register("leader", "1 while this scheduler leads, 0 while it stands by", self.leads.clone());
        own.register(
            "leadership_changes",
            "Times that this scheduler became or ceased to be the leader",
            self.changes.clone(),
        );
        own.register("etcd_request_seconds", "Duration of calls to etcd", self.seconds.clone());
        own.register("etcd_request_failures", "Failed calls to etcd", self.failures.clone());
        own.register(
            "etcd_writes_settled",
            "Writes whose outcome was read back from etcd",
            self.settled.clone(),
        );
    }
}
