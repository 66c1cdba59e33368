//! Algorithms: a stable and a canary Deployment, and a rollout that evidence drives.

mod engine;
mod evidence_request;
mod objects;
mod placement;
mod plan;
mod policy;
mod retry;
mod revision;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

pub use evidence_request::evidence_request;
pub use snapshot::Snapshot;

use crate::{
    caches::Caches,
    cluster::{Algorithm, Key, ResourceKind},
    controller::Controller,
    plan::Plan,
};
use gantry_api::AlgorithmStatus;
use k8s_openapi::jiff::Timestamp;

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
    const MANY: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<AlgorithmStatus> {
        plan::plan(snapshot, now)
    }
}
