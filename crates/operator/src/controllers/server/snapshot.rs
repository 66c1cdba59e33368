//! Input of a Server's plan.

use super::ServerController;
use crate::{
    caches::Caches,
    cluster::{Custom, CustomKind as _, Key, ResourceKind, Server, ServerConfig},
    controller::Controller as _,
    plan::Known,
    schedulers::{LastRequest, ServerView},
    workload::{ApplyFailure, OwnedObjects, autoscalers, certificates, live_configmap_digest},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<Server>>>,
    /// The `ServerConfig` that it references.
    pub config: Option<Arc<Custom<ServerConfig>>>,
    pub config_namespace: String,
    /// The image of containers without one.
    pub image: String,
    pub use_deployments: bool,
    /// Whether agents read Secrets of their namespace.
    pub reads_secrets: bool,
    /// Whether agents get issued certificates; `None` where the operator issues none.
    pub certificates: Option<bool>,
    pub owned: OwnedObjects,
    /// Digests of the `ConfigMaps` of the namespace's runtime, by name.
    pub config_maps: BTreeMap<String, String>,
    /// The HPA of its workload, whose replicas it sets.
    pub autoscaler: Option<String>,
    /// The HPA of the Server itself, whose `spec.replicas` it sets.
    pub server_autoscaler: Option<String>,
    /// The server as its scheduler has it.
    pub scheduler: Known<ServerView>,
    /// Time since the scheduler became unreachable; `None` when it is connected, or when there is none.
    pub unreachable_for: Option<Duration>,
    /// The last request to the scheduler for this object, and its age.
    pub last_request: Option<(LastRequest, Duration)>,
    /// Rejected applies.
    pub failures: Vec<ApplyFailure>,
    /// Time since the last status write.
    pub status_age: Option<Duration>,
}

impl Snapshot {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let settings = &caches.settings;
        let object = caches.of::<Server>().get(key);
        let referenced = object.as_ref().and_then(|o| o.spec.as_ref().ok()).map(|spec| &spec.server_config);
        let config = referenced.and_then(|name| {
            caches.of::<ServerConfig>().get(&Key::new(settings.namespace.clone(), name.clone()))
        });
        let config_maps = caches.owned(ResourceKind::CONFIG_MAP).in_namespace(&key.namespace);
        let uid = object.as_ref().map_or("", |o| o.uid());
        let autoscalers = autoscalers(&caches.read(ResourceKind::HORIZONTAL_POD_AUTOSCALER), &key.namespace);
        let mut snapshot = Self {
            key: key.clone(),
            owned: OwnedObjects::of(caches, ServerController::OWNS, &key.namespace, uid),
            config,
            config_namespace: settings.namespace.clone(),
            image: settings.image.clone(),
            use_deployments: settings.use_deployments,
            reads_secrets: !settings.agent_secrets.is_empty(),
            certificates: None,
            config_maps: config_maps
                .iter()
                .filter_map(|map| Some((map.metadata.name.clone()?, live_configmap_digest(map))))
                .collect(),
            autoscaler: None,
            server_autoscaler: None,
            scheduler: caches.schedulers.get(key),
            unreachable_for: caches.schedulers.unreachable_for(&key.namespace),
            last_request: caches.schedulers.last_request::<Server>(key),
            failures: caches.recent_failures.of::<Server>(key),
            status_age: caches.recent_failures.status_age::<Server>(key),
            object,
        };
        let workload = (snapshot.workload().kind.to_owned(), key.name.clone());
        snapshot.autoscaler = autoscalers.get(&workload).cloned();
        if settings.issues_certificates {
            let scheduler = certificates::live_scheduler(caches, &key.namespace);
            let own = snapshot.owned.get(snapshot.workload(), &key.name);
            snapshot.certificates = Some(certificates::has_certificates(own, scheduler.as_deref()));
        }
        let server = (Server::KIND.to_owned(), key.name.clone());
        snapshot.server_autoscaler = autoscalers.get(&server).cloned();
        snapshot
    }

    /// The kind of the Server's workload.
    pub const fn workload(&self) -> ResourceKind {
        if self.use_deployments { ResourceKind::DEPLOYMENT } else { ResourceKind::STATEFUL_SET }
    }
}
