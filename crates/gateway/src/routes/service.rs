//! InferenceServices that run in pods of their own, whose components are entries of the routing table, and
//! InferenceGraphs.

use super::{Inner, Removed, Route, Routes, Version, WeightedVersion, graph, table::Named, traffic::Counted};
use gantry_proto::gantry::{self as pb, service_component};
use http::{HeaderValue, Uri, uri::PathAndQuery};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::Ordering},
    time::Duration,
};

pub(crate) type Role = service_component::Role;

pub(crate) struct Service {
    /// `<namespace>/<name>`
    pub(crate) key: Arc<str>,
    /// Deadline of a request.
    pub(crate) timeout: Option<Duration>,
    /// The entries of the components.
    components: Vec<(Role, Arc<str>)>,
    /// In lower case.
    hosts: BTreeSet<String>,
    /// What a step of a graph calls.
    pub(crate) predict_path: PathAndQuery,
    pub(super) graph: Option<(graph::Source, graph::Compiled)>,
    /// Models of the scheduler that belong to the service.
    models: BTreeSet<String>,
}

impl Service {
    /// The graph of an InferenceGraph.
    pub(crate) fn graph(&self) -> Option<graph::Compiled> {
        self.graph.as_ref().map(|(_, compiled)| Arc::clone(compiled))
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Whether the scheduler serves a model of this name for the service.
    pub(crate) fn has_model(&self, name: &str) -> bool {
        self.models.contains(name)
    }

    pub(crate) fn has_models(&self) -> bool {
        !self.models.is_empty()
    }

    /// The entry of a component.
    pub(crate) fn component(&self, role: Role) -> Option<&Arc<str>> {
        self.components.iter().find(|(of, _)| *of == role).map(|(_, entry)| entry)
    }

    /// The component that gets a request: the explainer explains, the transformer is in front of the predictor.
    pub(crate) fn front(&self, is_explain: bool) -> Option<&Arc<str>> {
        let explainer = is_explain.then(|| self.component(Role::Explainer)).flatten();
        let front = || self.component(Role::Transformer).or_else(|| self.component(Role::Predictor));
        explainer.or_else(front)
    }
}

impl Named for Service {
    fn name(&self) -> &str {
        &self.key
    }
}

/// A host, and the services that claim it; the first one has it.
pub(super) struct Host {
    host: String,
    services: BTreeSet<Arc<str>>,
}

impl Named for Host {
    fn name(&self) -> &str {
        &self.host
    }
}

pub(super) fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The last part of an entry's name, and of a component's host.
pub(crate) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Predictor => "predictor",
        Role::Transformer => "transformer",
        Role::Explainer => "explainer",
    }
}

fn predict_path(wanted: &pb::ServiceRoute) -> PathAndQuery {
    let default = || format!("/v1/models/{}:predict", wanted.name).parse().ok();
    let given = Some(wanted.predict_path.as_str()).filter(|path| path.starts_with('/'));
    let path = given.and_then(|path| path.parse().ok()).or_else(default);
    path.unwrap_or_else(|| PathAndQuery::from_static("/"))
}

impl Routes {
    /// Serves these services beside those of the scheduler, instead of the ones that were set before.
    pub fn set_local_services(&self, services: &[pb::ServiceRoute]) -> Removed {
        let mut removed = Removed::default();
        let mut writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = services.iter().map(|service| key(&service.namespace, &service.name)).collect();
        for service in services {
            self.inner.upsert_service(service, &mut removed);
        }
        for gone in writer.local_services.difference(&keys) {
            self.inner.delete_service(gone, &mut removed);
        }
        writer.local_services = keys;
        removed
    }

    /// An InferenceService that runs in pods of its own.
    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>> {
        self.inner.services.get(&key(namespace, name))
    }

    /// The service as it is now.
    pub(crate) fn latest(&self, service: &Service) -> Option<Arc<Service>> {
        self.inner.services.get(&service.key)
    }

    /// The service that claims this host.
    pub(crate) fn service_by_host(&self, host: &str) -> Option<Arc<Service>> {
        let found = self.inner.hosts.find(host)?;
        let service = found.slot(host)?.services.first()?;
        self.inner.services.get(service)
    }
}

impl Inner {
    pub(super) fn upsert_service(&self, wanted: &pb::ServiceRoute, removed: &mut Removed) {
        let key = key(&wanted.namespace, &wanted.name);
        let old = self.services.get(&key);
        let key: Arc<str> = old.as_ref().map_or_else(|| key.into(), |old| Arc::clone(&old.key));
        let graph = self.graph(&key, wanted, old.as_deref());
        let of_graph =
            graph.as_ref().and_then(|(_, compiled)| compiled.as_ref().as_ref().ok()?.graph.timeout);
        let new = Arc::new(Service {
            timeout: (wanted.timeout_ms > 0).then(|| Duration::from_millis(wanted.timeout_ms)).or(of_graph),
            components: wanted
                .components
                .iter()
                .map(|component| self.upsert_component(&key, wanted, component, removed))
                .collect(),
            hosts: wanted.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            predict_path: predict_path(wanted),
            models: wanted.models.iter().cloned().collect(),
            graph,
            key,
        });
        self.claim_hosts(old.as_deref(), Some(&new));
        self.services.replace(Arc::clone(&new));
        match old {
            None => drop(self.service_count.fetch_add(1, Ordering::Relaxed)),
            // Components that are gone.
            Some(old) => {
                for (role, entry) in &old.components {
                    if new.component(*role).is_none() {
                        self.delete(entry, removed);
                    }
                }
            }
        }
    }

    pub(super) fn delete_service(&self, key: &str, removed: &mut Removed) {
        let Some(old) = self.services.remove(key) else { return };
        self.service_count.fetch_sub(1, Ordering::Relaxed);
        self.claim_hosts(Some(&old), None);
        for (_, entry) in &old.components {
            self.delete(entry, removed);
        }
    }

    fn claim_hosts(&self, old: Option<&Service>, new: Option<&Service>) {
        let empty = BTreeSet::new();
        let hosts = |service: Option<&Service>| service.map_or(&empty, |service| &service.hosts).clone();
        let Some(service) = new.or(old).map(|service| &service.key) else { return };
        let after = hosts(new);
        for host in hosts(old).symmetric_difference(&after) {
            let mut services = self.hosts.get(host).map(|entry| entry.services.clone()).unwrap_or_default();
            services.remove(service);
            if after.contains(host) {
                services.insert(Arc::clone(service));
            }
            if services.is_empty() {
                self.hosts.remove(host);
            } else {
                self.hosts.replace(Arc::new(Host { host: host.clone(), services }));
            }
        }
    }

    fn upsert_component(
        &self,
        service: &Arc<str>,
        of: &pb::ServiceRoute,
        wanted: &pb::ServiceComponent,
        removed: &mut Removed,
    ) -> (Role, Arc<str>) {
        let (role, namespace) = (wanted.role(), &of.namespace);
        let slot = self.slot(&format!("{service}/{}", role_name(role)), true);
        let old = slot.route.load_full();
        let backends = wanted.backends.iter().filter_map(|backend| {
            let version = self.backend(&slot.model, &backend.name, old.as_deref())?;
            let targets = backend.pods.iter().map(|pod| {
                let (server, host) = (format!("{namespace}/{}", pod.name), pod.host.clone());
                let (http_port, grpc_port) = (pod.http_port, pod.grpc_port);
                let pod = pb::Endpoint { server, host, http_port, grpc_port, ..pb::Endpoint::default() };
                self.target(&version, &pod, old.as_deref())
            });
            let (weight, targets) = (backend.weight, targets.collect());
            // Backends without a revision are not part of the rollout.
            let generation = if backend.revision.is_empty() { 0 } else { of.rollout_generation };
            let before = old.iter().flat_map(|old| &old.versions);
            let mut before = before.filter(|known| Arc::ptr_eq(&known.version, &version));
            let before = before.find_map(|known| known.counters.as_ref());
            let of_service = (Counted::Service, service);
            let counters = self.traffic.counters(of_service, generation, backend.version, None, before);
            Some(WeightedVersion { weight, version, targets, counters })
        });
        let new = Route { scaled_to_zero: wanted.sleeps, ..Route::new(backends.collect(), &wanted.reason) };
        Self::store(&slot, old.as_deref(), new, removed);
        (role, Arc::clone(&slot.model))
    }

    /// The backend of this name, with a number of its own. `None` if the name is no header value.
    fn backend(&self, entry: &Arc<str>, name: &str, old: Option<&Route>) -> Option<Arc<Version>> {
        let known = old.and_then(|old| old.versions.iter().find(|known| &*known.version.internal == name));
        if let Some(known) = known {
            return Some(Arc::clone(&known.version));
        }
        Some(Arc::new(Version {
            model: Arc::clone(entry),
            number: self.next_backend.fetch_add(1, Ordering::Relaxed),
            internal: name.into(),
            internal_header: None,
            route_header: HeaderValue::from_str(&format!(":{name}:")).ok()?,
            infer_uri: Uri::default(),
            inputs: OnceLock::new(),
            targets: Mutex::default(),
        }))
    }
}
