//! Models: desired state from the API server, observed state from the scheduler.

mod plan;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

pub use snapshot::Snapshot;

use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Key, Model},
    controller::{Controller, SchedulerRole},
    plan::Plan,
};
use gantry_api::ModelStatus;
use k8s_openapi::jiff::Timestamp;

/// Holds a model until its scheduler has unloaded it. The name is Seldon's: either operator can release the other's.
pub const FINALIZER: &str = "seldon.model.finalizer";

#[derive(Clone, Copy, Debug)]
pub struct ModelController;

impl Controller for ModelController {
    type Kind = Model;
    type Snapshot = Snapshot;
    const NAME: &'static str = "model";
    const SCHEDULER: SchedulerRole = SchedulerRole::Client;
    const PATCHES: bool = true;
    const MANY: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ModelStatus> {
        plan::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<Model>(request, caches)
    }
}
