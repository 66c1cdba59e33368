//! `SeldonRuntimes`: the components of one namespace, from a `SeldonConfig` and the runtime's own overrides.

mod components;
mod kafka;
mod objects;
mod plan;
mod rbac;
mod services;
mod settings;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

pub use components::Counts;
pub use objects::{Build, Certificates, objects};
pub use snapshot::Snapshot;

use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{
        Change, Custom, CustomKind, Key, Model, OwnedObject, Pipeline, ResourceKind, SeldonConfig,
        SeldonRuntime, Server,
    },
    controller::{Controller, SchedulerRole},
    plan::Plan,
    triggers::Relation,
    workload::retargeted,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

/// Holds a runtime until the last Server of its namespace is gone: agents need the scheduler to move models away. The
/// name is Seldon's: either operator can release the other's.
pub const FINALIZER: &str = "seldon.runtime.finalizer";

#[derive(Clone, Copy, Debug)]
pub struct SeldonRuntimeController;

impl Controller for SeldonRuntimeController {
    type Kind = SeldonRuntime;
    type Snapshot = Snapshot;
    const NAME: &'static str = "seldonruntime";
    /// In the order of creation.
    const OWNS: &'static [ResourceKind] = &[
        ResourceKind::CONFIG_MAP,
        ResourceKind::SERVICE_ACCOUNT,
        ResourceKind::ROLE,
        ResourceKind::ROLE_BINDING,
        ResourceKind::SERVICE,
        ResourceKind::STATEFUL_SET,
        ResourceKind::DEPLOYMENT,
        ResourceKind::POD_DISRUPTION_BUDGET,
    ];
    const READS: &'static [ResourceKind] = &[ResourceKind::HORIZONTAL_POD_AUTOSCALER];
    const SCHEDULER: SchedulerRole = SchedulerRole::Provider;
    const PATCHES: bool = true;

    fn relations() -> Vec<Relation> {
        vec![
            Relation::to::<SeldonConfig>(users_of_config),
            Relation::to::<Server>(after_server_deletion),
            Relation::to::<SeldonRuntime>(after_runtime_deletion),
            Relation::to::<Model>(capped_by),
            Relation::to::<Pipeline>(capped_by),
            Relation::to_read_kind(ResourceKind::HORIZONTAL_POD_AUTOSCALER, in_namespace_of_autoscaler),
        ]
    }

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        plan::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<SeldonRuntime>(request, caches)
    }
}

fn users_of_config(caches: &Caches, change: &Change<Custom<SeldonConfig>>) -> Vec<Key> {
    let runtimes = caches.of::<SeldonRuntime>().all();
    let uses = |r: &&Arc<Custom<SeldonRuntime>>| {
        r.spec.as_ref().is_ok_and(|spec| spec.seldon_config == change.key.name)
    };
    runtimes.iter().filter(uses).map(|runtime| runtime.key()).collect()
}

/// A runtime that is being deleted waits for the last Server.
fn after_server_deletion(caches: &Caches, change: &Change<Custom<Server>>) -> Vec<Key> {
    let is_deleted = change.after.as_ref().is_none_or(|server| server.is_deleted());
    if is_deleted { in_namespace(caches, &change.key.namespace) } else { Vec::new() }
}

/// The next runtime of the namespace takes over.
fn after_runtime_deletion(caches: &Caches, change: &Change<Custom<SeldonRuntime>>) -> Vec<Key> {
    let is_deleted = change.after.as_ref().is_none_or(|runtime| runtime.is_deleted());
    if is_deleted { in_namespace(caches, &change.key.namespace) } else { Vec::new() }
}

/// The number of Models and Pipelines limits the replicas of some of Seldon's components.
fn capped_by<K: CustomKind>(caches: &Caches, change: &Change<Custom<K>>) -> Vec<Key> {
    if change.before.is_some() == change.after.is_some() {
        return Vec::new();
    }
    let configs = caches.of::<SeldonConfig>();
    let has_capped = |runtime: &&Arc<Custom<SeldonRuntime>>| {
        let spec = runtime.spec.as_ref().ok();
        let config = spec.and_then(|spec| {
            configs.get(&Key::new(caches.settings.namespace.clone(), spec.seldon_config.clone()))
        });
        config.is_some_and(|config| config.spec.as_ref().is_ok_and(components::has_capped))
    };
    let runtimes = caches.of::<SeldonRuntime>().in_namespace(&change.key.namespace);
    runtimes.iter().filter(has_capped).map(|runtime| runtime.key()).collect()
}

fn in_namespace_of_autoscaler(caches: &Caches, change: &Change<OwnedObject>) -> Vec<Key> {
    if retargeted(change).is_empty() { Vec::new() } else { in_namespace(caches, &change.key.namespace) }
}

fn in_namespace(caches: &Caches, namespace: &str) -> Vec<Key> {
    caches.of::<SeldonRuntime>().in_namespace(namespace).iter().map(|runtime| runtime.key()).collect()
}
