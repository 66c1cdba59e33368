//! Servers: pods that models are loaded onto, from a `ServerConfig` and the Server's own overrides.

mod objects;
mod plan;
mod pod;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

pub use objects::{Build, SELECTOR, objects};
pub use snapshot::Snapshot;

use super::validation::validate_ratcheted;
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Change, Custom, Key, OwnedObject, ResourceKind, Server, ServerConfig},
    controller::{Controller, SchedulerRole},
    plan::Plan,
    triggers::Relation,
    workload::{ScaleTarget, retargeted},
};
use gantry_api::ServerStatus;
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
pub struct ServerController;

impl Controller for ServerController {
    type Kind = Server;
    type Snapshot = Snapshot;
    const NAME: &'static str = "server";
    const OWNS: &'static [ResourceKind] = &[
        ResourceKind::SERVICE,
        ResourceKind::STATEFUL_SET,
        ResourceKind::DEPLOYMENT,
        ResourceKind::POD_DISRUPTION_BUDGET,
    ];
    const READS: &'static [ResourceKind] = &[ResourceKind::HORIZONTAL_POD_AUTOSCALER];
    const SCHEDULER: SchedulerRole = SchedulerRole::Client;
    const PATCHES: bool = true;
    const MANY: bool = true;
    const PACED: bool = true;

    fn relations() -> Vec<Relation> {
        vec![
            Relation::to::<ServerConfig>(users_of_config),
            Relation::to_owned_kind(ResourceKind::CONFIG_MAP, in_same_namespace),
            Relation::to_read_kind(ResourceKind::HORIZONTAL_POD_AUTOSCALER, autoscaled),
        ]
    }

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ServerStatus> {
        plan::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<Server>(request, caches)
    }
}

fn users_of_config(caches: &Caches, change: &Change<Custom<ServerConfig>>) -> Vec<Key> {
    let servers = caches.of::<Server>().all();
    let uses = |s: &&Arc<Custom<Server>>| s.spec.as_ref().is_ok_and(|s| s.server_config == change.key.name);
    servers.iter().filter(uses).map(|server| server.key()).collect()
}

fn in_same_namespace(caches: &Caches, change: &Change<OwnedObject>) -> Vec<Key> {
    caches.of::<Server>().in_namespace(&change.key.namespace).iter().map(|server| server.key()).collect()
}

/// The Servers that an autoscaler targets, or whose workload it targets, now or before the change.
fn autoscaled(caches: &Caches, change: &Change<OwnedObject>) -> Vec<Key> {
    let servers = caches.of::<Server>();
    let named = |target: ScaleTarget| Key::new(change.key.namespace.clone(), target.name);
    let keys = retargeted(change).into_iter().map(named);
    keys.filter(|key| servers.get(key).is_some()).collect()
}

/// Announcements for a newly connected scheduler: the Servers of its namespace that have a workload, with its replicas.
/// Other Servers are announced once their workload exists.
pub(crate) fn deployed(caches: &Caches, namespace: &str) -> Vec<pb::ServerNotify> {
    let announcement = |server: &Arc<Custom<Server>>| {
        let snapshot = Snapshot::take(caches, &server.key());
        let workload = snapshot.owned.get(snapshot.workload(), &snapshot.key.name)?;
        let spec = validate_ratcheted(server, true).ok().filter(|_| !server.is_deleted())?;
        let expected_replicas = u32::try_from(workload.number("/spec/replicas")).ok()?;
        let notify = spec.to_proto(&snapshot.key.name, Some(namespace), Some(server.generation()));
        Some(pb::ServerNotify { expected_replicas, ..notify })
    };
    caches.of::<Server>().in_namespace(namespace).iter().filter_map(announcement).collect()
}
