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

use super::checked::check;
use crate::{
    cluster::{Cache, Custom, Key, Server},
    controller::Controller,
    plan::Plan,
    world::World,
};
use gantry_api::ServerStatus;
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

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

/// What a scheduler is told when it is met: the Servers of its namespace that have pods, with as many as they have. Of
/// what is still to be made it hears when that is done.
pub(crate) fn deployed(world: &World, namespace: &str) -> Vec<pb::ServerNotify> {
    let told = |server: &Arc<Custom<Server>>| {
        let spec = check(server).ok().filter(|_| !server.is_deleted())?;
        let snapshot = observe::observe(world, &server.key());
        let workload = snapshot.family.get(snapshot.workload(), &snapshot.key.name)?;
        let expected_replicas = u32::try_from(workload.number("/spec/replicas")).ok()?;
        let told = spec.to_proto(&snapshot.key.name, Some(namespace), Some(server.generation()));
        Some(pb::ServerNotify { expected_replicas, ..told })
    };
    world.servers.in_namespace(namespace).iter().filter_map(told).collect()
}
