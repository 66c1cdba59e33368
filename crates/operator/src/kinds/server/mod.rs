//! Servers: pods that models are loaded onto, made from a `ServerConfig` and what the Server lays over it.

mod objects;
mod observe;
mod plan;
mod pod;
mod status;
#[cfg(test)]
mod tests;

pub use objects::{Build, SELECTOR, objects};
pub use observe::Snapshot;

use crate::{
    cluster::{Cache, Custom, Key, Server},
    controller::Controller,
    plan::Plan,
    world::World,
};
use gantry_api::ServerStatus;
use k8s_openapi::jiff::Timestamp;

/// The controller of Servers.
#[derive(Clone, Copy, Debug)]
pub struct Servers;

impl Controller for Servers {
    type Kind = Server;
    type Snapshot = Snapshot;
    const NAME: &'static str = "server";
    const PACED: bool = true;

    fn cache(world: &World) -> &Cache<Custom<Server>> {
        &world.servers
    }

    fn observe(world: &World, key: &Key) -> Snapshot {
        observe::observe(world, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ServerStatus> {
        plan::plan(snapshot, now)
    }
}
