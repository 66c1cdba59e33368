//! Algorithms: a stable and a canary Deployment, and a rollout that evidence drives.

mod engine;
mod evidence_request;
mod metrics_api;
mod objects;
mod placement;
mod plan;
mod policy;
mod retry;
mod revision;
mod route;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

pub use evidence_request::evidence_request;
pub(crate) use evidence_request::latency_request;
pub use metrics_api::MetricsApi;
pub use snapshot::Snapshot;

use crate::{
    caches::Caches,
    cluster::{Algorithm, Change, Key, OwnedObject, ResourceKind},
    controller::Controller,
    inputs::InputRef,
    plan::Plan,
    triggers::Relation,
};
use gantry_api::AlgorithmStatus;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

/// Labels of objects and pods: the name of the Algorithm, the track and the revision.
pub const ALGORITHM: &str = "ai.alien6.io/algorithm";
pub const TRACK: &str = "ai.alien6.io/track";
pub const REVISION: &str = "ai.alien6.io/revision";
/// The annotation that allows a failed revision again.
pub const RETRY: &str = "ai.alien6.io/retry";

/// One of the two Deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    Stable,
    Canary,
}

impl Track {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Canary => "canary",
        }
    }

    /// The name of its Deployment.
    fn deployment(self, algorithm: &str) -> String {
        match self {
            Self::Stable => algorithm.to_owned(),
            Self::Canary => format!("{algorithm}-canary"),
        }
    }

    /// The name of its Service.
    fn service(self, algorithm: &str) -> String {
        format!("{algorithm}-{}", self.as_str())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct AlgorithmController;

impl AlgorithmController {
    /// Pods of all Algorithms.
    pub const PODS: ResourceKind = ResourceKind::new("", "v1", "Pod", "pods").with_label(ALGORITHM);
}

impl Controller for AlgorithmController {
    type Kind = Algorithm;
    type Snapshot = Snapshot;
    const NAME: &'static str = "algorithm";
    const OWNS: &'static [ResourceKind] = &[
        ResourceKind::CONFIG_MAP,
        ResourceKind::SERVICE,
        ResourceKind::DEPLOYMENT,
        ResourceKind::HORIZONTAL_POD_AUTOSCALER,
        ResourceKind::POD_DISRUPTION_BUDGET,
        ResourceKind::HTTP_ROUTE,
    ];
    const READS: &'static [ResourceKind] = &[Self::PODS];
    const MANY: bool = true;

    fn relations() -> Vec<Relation> {
        vec![Relation::to_read_kind(Self::PODS, algorithm_of_pod)]
    }

    fn inputs(caches: &Caches, key: &Key) -> Vec<InputRef> {
        metrics_api::inputs(caches, key)
    }

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<AlgorithmStatus> {
        plan::plan(snapshot, now)
    }
}

/// Only the route of Gantry's gateway has the pods.
fn algorithm_of_pod(caches: &Caches, change: &Change<OwnedObject>) -> Vec<Key> {
    let algorithms = caches.of::<Algorithm>();
    let name = |pod: &Arc<OwnedObject>| pod.metadata.labels.as_ref()?.get(ALGORITHM).cloned();
    let names = change.before.iter().chain(&change.after).filter_map(name);
    let mut keys: Vec<Key> = names.map(|name| Key::new(change.key.namespace.clone(), name)).collect();
    keys.dedup();
    keys.retain(|key| {
        let object = algorithms.get(key);
        object.is_some_and(|object| object.spec.as_ref().is_ok_and(gantry_api::AlgorithmSpec::has_own_route))
    });
    keys
}
