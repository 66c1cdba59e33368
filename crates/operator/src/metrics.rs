//! What the operator counts.

use k8s_openapi::jiff::Timestamp;
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
struct WriteLabels {
    verb: &'static str,
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    controller: &'static str,
    /// `worker` when nothing but a free worker is waited for, `time` after a failure or before a look that was planned.
    waits_for: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabels {
    kind: &'static str,
    outcome: &'static str,
}

/// Counters of the operator.
#[derive(Debug)]
pub struct Metrics {
    writes: Family<WriteLabels, Counter>,
    reconciles: Family<ReconcileLabels, Counter>,
    seconds: Family<ControllerLabels, Histogram>,
    waiting: Family<QueueLabels, Gauge>,
    leading: Gauge,
    admissions: Family<AdmissionLabels, Counter>,
    certificate: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            writes: Family::default(),
            reconciles: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 8))),
            waiting: Family::default(),
            leading: Gauge::default(),
            admissions: Family::default(),
            certificate: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Makes them readable.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "gantry_operator_writes",
            "Calls that change something, by what came of them",
            self.writes.clone(),
        );
        registry.register(
            "gantry_operator_reconciles",
            "Objects looked at, by what came of it",
            self.reconciles.clone(),
        );
        registry.register(
            "gantry_operator_reconcile_seconds",
            "Time that one look at an object takes",
            self.seconds.clone(),
        );
        registry.register(
            "gantry_operator_waiting",
            "Objects that wait to be looked at",
            self.waiting.clone(),
        );
        registry.register("gantry_operator_leading", "1 while this operator may write", self.leading.clone());
        registry.register(
            "gantry_operator_admissions",
            "Questions of the API server, by what came of them",
            self.admissions.clone(),
        );
        registry.register(
            "gantry_operator_webhook_certificate_expiry_seconds",
            "When the webhook's certificate ends, in seconds since 1970; 0 without one",
            self.certificate.clone(),
        );
    }

    pub(crate) fn wrote(&self, verb: &'static str, kind: &'static str, outcome: &'static str) {
        self.writes.get_or_create(&WriteLabels { verb, kind, outcome }).inc();
    }

    pub(crate) fn reconciled(&self, controller: &'static str, outcome: &'static str, took: Duration) {
        self.reconciles.get_or_create(&ReconcileLabels { controller, outcome }).inc();
        self.seconds.get_or_create(&ControllerLabels { controller }).observe(took.as_secs_f64());
    }

    pub(crate) fn waiting(&self, controller: &'static str, (for_worker, for_time): (usize, usize)) {
        for (waits_for, count) in [("worker", for_worker), ("time", for_time)] {
            let gauge = self.waiting.get_or_create(&QueueLabels { controller, waits_for });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn judged(&self, kind: &'static str, outcome: &'static str) {
        self.admissions.get_or_create(&AdmissionLabels { kind, outcome }).inc();
    }

    pub(crate) fn certificate_until(&self, until: Timestamp) {
        self.certificate.set(until.as_second());
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.leading.set(i64::from(leads));
    }
}
