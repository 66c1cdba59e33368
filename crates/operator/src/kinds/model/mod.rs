//! Models: the API server says what is asked, the scheduler what is; the operator carries one to the other.

mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;

pub use observe::Snapshot;

use crate::{
    cluster::{Cache, Custom, Key, Model},
    controller::Controller,
    plan::Plan,
    world::World,
};
use gantry_api::ModelStatus;
use k8s_openapi::jiff::Timestamp;

/// Holds a model until its scheduler has let it go. The name is Seldon's: objects of either operator are the other's.
pub const FINALIZER: &str = "seldon.model.finalizer";

/// The controller of models.
#[derive(Clone, Copy, Debug)]
pub struct Models;

impl Controller for Models {
    type Kind = Model;
    type Snapshot = Snapshot;
    const NAME: &'static str = "model";

    fn cache(world: &World) -> &Cache<Custom<Model>> {
        &world.models
    }

    fn observe(world: &World, key: &Key) -> Snapshot {
        observe::observe(world, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ModelStatus> {
        plan::plan(snapshot, now)
    }
}
