//! Input of a `SeldonRuntime`'s plan.

use super::{Certificates, Counts, SeldonRuntimeController, services::GATEWAY};
use crate::{
    caches::Caches,
    cluster::{Custom, Key, Model, Pipeline, ResourceKind, SeldonConfig, SeldonRuntime, Server},
    controller::Controller as _,
    workload::{ApplyFailure, OwnedObjects, autoscalers, certificates},
};
use std::{collections::BTreeMap, sync::Arc};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<SeldonRuntime>>>,
    /// The `SeldonConfig` that it references.
    pub config: Option<Arc<Custom<SeldonConfig>>>,
    pub config_namespace: String,
    /// The image of containers without one.
    pub image: String,
    /// Whether that image has a Kafka client.
    pub has_kafka_client: bool,
    /// Models and Pipelines of the namespace.
    pub counts: Counts,
    /// Secrets that agents may read.
    pub agent_secrets: Vec<String>,
    /// Issued certificates; `None` where the operator issues none.
    pub certificates: Option<Certificates>,
    pub owned: OwnedObjects,
    /// The HPAs of the namespace, by kind and name of their target.
    pub autoscalers: BTreeMap<(String, String), String>,
    /// Servers of the namespace that are not being deleted.
    pub servers: Vec<String>,
    /// The oldest runtime of the namespace, if it is another one.
    pub first: Option<String>,
    /// Rejected applies.
    pub failures: Vec<ApplyFailure>,
}

impl Snapshot {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let settings = &caches.settings;
        let runtimes = caches.of::<SeldonRuntime>();
        let object = runtimes.get(key);
        let referenced = object.as_ref().and_then(|o| o.spec.as_ref().ok()).map(|spec| &spec.seldon_config);
        let config = referenced.and_then(|name| {
            caches.of::<SeldonConfig>().get(&Key::new(settings.namespace.clone(), name.clone()))
        });
        let servers = caches.of::<Server>().in_namespace(&key.namespace);
        let uid = object.as_ref().map_or("", |o| o.uid());
        Self {
            key: key.clone(),
            owned: OwnedObjects::of(caches, SeldonRuntimeController::OWNS, &key.namespace, uid),
            config,
            config_namespace: settings.namespace.clone(),
            image: settings.image.clone(),
            has_kafka_client: settings.has_kafka_client,
            counts: Counts {
                models: caches.of::<Model>().in_namespace(&key.namespace).len(),
                pipelines: caches.of::<Pipeline>().in_namespace(&key.namespace).len(),
            },
            agent_secrets: settings.agent_secrets.clone(),
            certificates: settings.issues_certificates.then(|| issued(caches, &key.namespace)),
            autoscalers: autoscalers(&caches.read(ResourceKind::HORIZONTAL_POD_AUTOSCALER), &key.namespace),
            servers: servers.iter().filter(|s| !s.is_deleted()).map(|s| s.key().name).collect(),
            first: first(&runtimes.in_namespace(&key.namespace)).filter(|name| *name != key.name),
            failures: caches.recent_failures.of::<SeldonRuntime>(key),
            object,
        }
    }
}

/// Certificates that the pods of a namespace can have now, so that all of them reach the scheduler.
fn issued(caches: &Caches, namespace: &str) -> Certificates {
    let scheduler = certificates::live_scheduler(caches, namespace);
    let clients = certificates::live_clients(caches, namespace);
    let gateway = clients.iter().find(|live| live.metadata.name.as_deref() == Some(GATEWAY));
    Certificates {
        scheduler: certificates::scheduler_ports(scheduler.as_deref(), &clients),
        gateway: certificates::has_certificates(gateway.map(AsRef::as_ref), scheduler.as_deref()),
    }
}

/// The oldest runtime that is not being deleted; of two of the same age, the first by name.
fn first(runtimes: &[Arc<Custom<SeldonRuntime>>]) -> Option<String> {
    let staying = runtimes.iter().filter(|runtime| !runtime.is_deleted());
    let age = |runtime: &&Arc<Custom<SeldonRuntime>>| {
        (runtime.metadata.creation_timestamp.as_ref().map(|time| time.0), runtime.key().name)
    };
    staying.min_by_key(age).map(|runtime| runtime.key().name)
}
