//! `SeldonRuntimes`: the components of one namespace, made from a `SeldonConfig` and what the runtime lays over it.

mod access;
mod components;
mod objects;
mod observe;
mod plan;
mod services;
mod settings;
mod status;
#[cfg(test)]
mod tests;

pub use objects::{Build, objects};
pub use observe::Snapshot;

use crate::{
    cluster::{Cache, Custom, Key, SeldonRuntime},
    controller::Controller,
    plan::Plan,
    world::World,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

/// Holds a runtime until the last Server of its namespace has gone: agents need their scheduler to move models away.
/// The name is Seldon's: objects of either operator are the other's.
pub const FINALIZER: &str = "seldon.runtime.finalizer";

/// The controller of `SeldonRuntimes`.
#[derive(Clone, Copy, Debug)]
pub struct Runtimes;

impl Controller for Runtimes {
    type Kind = SeldonRuntime;
    type Snapshot = Snapshot;
    const NAME: &'static str = "seldonruntime";

    fn cache(world: &World) -> &Cache<Custom<SeldonRuntime>> {
        &world.runtimes
    }

    fn observe(world: &World, key: &Key) -> Snapshot {
        observe::observe(world, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        plan::plan(snapshot, now)
    }
}
