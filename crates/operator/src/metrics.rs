//! Operator metrics.

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
    /// `worker` for ready keys, `time` for delayed ones.
    waits_for: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScopeLabels {
    /// Empty for the whole cluster.
    namespace: String,
}

#[derive(Debug)]
pub struct Metrics {
    writes: Family<WriteLabels, Counter>,
    reconciles: Family<ReconcileLabels, Counter>,
    seconds: Family<ControllerLabels, Histogram>,
    waiting: Family<QueueLabels, Gauge>,
    leading: Gauge,
    /// At most one per watched namespace.
    synced: Family<ScopeLabels, Gauge>,
    admissions: Family<AdmissionLabels, Counter>,
    certificate: Gauge,
    external_certificate: Gauge,
    /// At most one per namespace with a runtime.
    issued: Family<ScopeLabels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            writes: Family::default(),
            reconciles: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 8))),
            waiting: Family::default(),
            leading: Gauge::default(),
            synced: Family::default(),
            admissions: Family::default(),
            certificate: Gauge::default(),
            external_certificate: Gauge::default(),
            issued: Family::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("gantry_operator_writes", "API writes by result", self.writes.clone());
        registry.register("gantry_operator_reconciles", "Reconciliations by result", self.reconciles.clone());
        registry.register("gantry_operator_reconcile_seconds", "Reconcile duration", self.seconds.clone());
        registry.register("gantry_operator_waiting", "Keys in the work queue", self.waiting.clone());
        registry.register(
            "gantry_operator_leading",
            "1 while this operator is the leader",
            self.leading.clone(),
        );
        registry.register(
            "gantry_operator_namespace_synced",
            "1 while every watch of a namespace works; 0 while one fails or is being listed",
            self.synced.clone(),
        );
        registry.register(
            "gantry_operator_admissions",
            "Admission reviews by result",
            self.admissions.clone(),
        );
        registry.register(
            "gantry_operator_webhook_certificate_expiry_seconds",
            "Expiry of the webhook certificate as Unix time; 0 without one",
            self.certificate.clone(),
        );
        registry.register(
            "gantry_operator_external_metrics_certificate_expiry_seconds",
            "Expiry of the certificate of the external metrics API as Unix time; 0 without one",
            self.external_certificate.clone(),
        );
        registry.register(
            "gantry_operator_issued_certificate_expiry_seconds",
            "Expiry of the first certificate of a namespace as Unix time",
            self.issued.clone(),
        );
    }

    pub(crate) fn write(&self, verb: &'static str, kind: &'static str, outcome: &'static str) {
        self.writes.get_or_create(&WriteLabels { verb, kind, outcome }).inc();
    }

    pub(crate) fn reconcile(&self, controller: &'static str, outcome: &'static str, took: Duration) {
        self.reconciles.get_or_create(&ReconcileLabels { controller, outcome }).inc();
        self.seconds.get_or_create(&ControllerLabels { controller }).observe(took.as_secs_f64());
    }

    pub(crate) fn queue_depth(&self, controller: &'static str, (for_worker, for_time): (usize, usize)) {
        for (waits_for, count) in [("worker", for_worker), ("time", for_time)] {
            let gauge = self.waiting.get_or_create(&QueueLabels { controller, waits_for });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn reviewed(&self, kind: &'static str, outcome: &'static str) {
        self.admissions.get_or_create(&AdmissionLabels { kind, outcome }).inc();
    }

    pub(crate) fn webhook_certificate(&self) -> Gauge {
        self.certificate.clone()
    }

    pub(crate) fn external_metrics_certificate(&self) -> Gauge {
        self.external_certificate.clone()
    }

    pub(crate) fn set_issued_until(&self, namespace: &str, until: Timestamp) {
        let labels = ScopeLabels { namespace: namespace.to_owned() };
        self.issued.get_or_create(&labels).set(until.as_second());
    }

    /// A namespace without a runtime has no certificates that could expire.
    pub(crate) fn forget_issued(&self, namespace: &str) {
        self.issued.remove(&ScopeLabels { namespace: namespace.to_owned() });
    }

    pub(crate) fn set_scope_synced(&self, scope: &str, is_synced: bool) {
        let labels = ScopeLabels { namespace: scope.to_owned() };
        self.synced.get_or_create(&labels).set(i64::from(is_synced));
    }

    pub(crate) fn set_leading(&self, leads: bool) {
        self.leading.set(i64::from(leads));
    }
}
