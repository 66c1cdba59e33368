//! Models and servers as reported by the scheduler of each namespace.

use crate::{
    cluster::{CustomKind as _, Key, Model},
    plan::Known,
};
use gantry_proto::scheduler as pb;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

pub const NO_SCHEDULER: &str = "the namespace has no scheduler: create a SeldonRuntime in it";

/// A model as reported by its scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView {
    /// Unload requested; the model may still be terminating.
    pub deleted: bool,
    /// The owner, such as `operator:ml`; empty when the scheduler does not report owners.
    pub manager: String,
    pub latest: Option<pb::ModelVersionStatus>,
}

/// A server as reported by its scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerView {
    /// Connected replicas.
    pub available: i32,
    /// Announced replicas.
    pub expected: i32,
    /// Loaded model replicas.
    pub loaded_models: i32,
    /// The announced generation.
    pub generation: Option<i64>,
    /// The namespace that announced it.
    pub namespace: Option<String>,
    /// The owner, such as `operator:ml`; empty when the scheduler does not report owners.
    pub manager: String,
    /// Replicas of a pending scaling request.
    pub requested_replicas: Option<i32>,
}

/// State of all schedulers. Discarded when a connection is lost.
#[derive(Debug, Default)]
pub struct SchedulerCache {
    namespaces: Mutex<BTreeMap<String, NamespaceState>>,
}

#[derive(Debug, Default)]
struct NamespaceState {
    /// Whether the current connection has delivered the complete state.
    is_synced: bool,
    /// Why it is not synced.
    reason: String,
    unreachable_since: Option<Instant>,
    models: BTreeMap<String, ModelView>,
    servers: BTreeMap<String, ServerView>,
    /// By kind and name.
    requests: BTreeMap<(&'static str, String), LastRequest>,
}

/// A request for one object. The UID tells objects with the same name apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerRequest {
    pub operation: Operation,
    pub uid: String,
    pub generation: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Load,
    Unload,
    Notify,
}

/// The last request for an object and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct LastRequest {
    pub at: Instant,
    pub request: SchedulerRequest,
    /// Why the scheduler rejected it.
    pub rejection: Option<String>,
    /// Why there was no response.
    pub failure: Option<String>,
}

impl SchedulerCache {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, NamespaceState>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, namespace: &str, read: impl FnOnce(&NamespaceState) -> T) -> Option<T> {
        self.lock().get(namespace).map(read)
    }

    /// Updates the state of a namespace if it exists; late results of a removed scheduler are ignored.
    fn update<T: Default>(&self, namespace: &str, change: impl FnOnce(&mut NamespaceState) -> T) -> T {
        self.lock().get_mut(namespace).map(change).unwrap_or_default()
    }

    /// Adds a namespace whose scheduler is not connected yet.
    pub fn add_namespace(&self, namespace: &str) {
        let reason = "not connected to the scheduler yet".to_owned();
        let state =
            NamespaceState { reason, unreachable_since: Some(Instant::now()), ..NamespaceState::default() };
        self.lock().insert(namespace.to_owned(), state);
    }

    pub fn remove_namespace(&self, namespace: &str) {
        self.lock().remove(namespace);
    }

    /// Discards the state of a disconnected scheduler.
    pub fn disconnected(&self, namespace: &str, reason: &str) {
        self.update(namespace, |state| {
            let since = state.unreachable_since.unwrap_or_else(Instant::now);
            *state = NamespaceState {
                reason: reason.to_owned(),
                unreachable_since: Some(since),
                ..NamespaceState::default()
            };
        });
    }

    /// Starts a new connection: its state counts only after [`Self::synced`].
    pub fn begin_sync(&self, namespace: &str) {
        self.update(namespace, |state| {
            *state = NamespaceState {
                reason: "synchronizing with the scheduler".into(),
                unreachable_since: state.unreachable_since,
                ..NamespaceState::default()
            };
        });
    }

    pub fn synced(&self, namespace: &str) {
        self.update(namespace, |state| {
            state.is_synced = true;
            state.unreachable_since = None;
        });
    }

    /// Returns whether the model changed.
    pub fn apply_model_status(&self, namespace: &str, status: pb::ModelStatusResponse) -> bool {
        let latest = status.versions.into_iter().max_by_key(|v| v.version);
        let view = ModelView { deleted: status.deleted, manager: status.manager, latest };
        self.update(namespace, |state| {
            if state.models.get(&status.model_name) == Some(&view) {
                return false;
            }
            // A request rejected in the previous state may be accepted now.
            let key = (Model::KIND, status.model_name.clone());
            if state.requests.get(&key).is_some_and(|last| last.rejection.is_some()) {
                state.requests.remove(&key);
            }
            state.models.insert(status.model_name, view);
            true
        })
    }

    /// Returns whether the server changed.
    pub fn apply_server_status(&self, namespace: &str, status: &pb::ServerStatusResponse) -> bool {
        use pb::server_status_response::Type;
        self.update(namespace, |state| {
            let view = state.servers.entry(status.server_name.clone()).or_default();
            let before = view.clone();
            if status.r#type() == Type::ScalingRequest {
                view.requested_replicas = Some(status.expected_replicas);
            } else {
                view.available = status.available_replicas;
                view.expected = status.expected_replicas;
                view.loaded_models = status.num_loaded_model_replicas;
                view.generation = status.kubernetes_meta.as_ref().map(|m| m.generation);
                view.namespace = status.kubernetes_meta.as_ref().map(|m| m.namespace.clone());
                view.manager.clone_from(&status.manager);
            }
            *view != before
        })
    }

    pub fn clear_scaling_request(&self, key: &Key) {
        self.update(&key.namespace, |state| {
            if let Some(view) = state.servers.get_mut(&key.name) {
                view.requested_replicas = None;
            }
        });
    }

    pub fn record_response(
        &self,
        kind: &'static str,
        key: &Key,
        request: SchedulerRequest,
        rejection: Option<String>,
    ) {
        self.record(kind, key, LastRequest { at: Instant::now(), request, rejection, failure: None });
    }

    pub fn record_failure(&self, kind: &'static str, key: &Key, request: SchedulerRequest, reason: String) {
        let failure = Some(reason);
        self.record(kind, key, LastRequest { at: Instant::now(), request, rejection: None, failure });
    }

    fn record(&self, kind: &'static str, key: &Key, last: LastRequest) {
        self.update(&key.namespace, |state| {
            state.requests.insert((kind, key.name.clone()), last);
        });
    }

    /// The last request for an object and its age.
    pub fn last_request(&self, kind: &'static str, key: &Key) -> Option<(LastRequest, Duration)> {
        let find = |state: &NamespaceState| state.requests.get(&(kind, key.name.clone())).cloned();
        let last = self.read(&key.namespace, find).flatten()?;
        let age = last.at.elapsed();
        Some((last, age))
    }

    pub fn forget_request(&self, kind: &'static str, key: &Key) {
        self.update(&key.namespace, |state| {
            state.requests.remove(&(kind, key.name.clone()));
        });
    }

    pub fn model(&self, key: &Key) -> Known<ModelView> {
        self.known(key, |state| state.models.get(&key.name).cloned())
    }

    pub fn server(&self, key: &Key) -> Known<ServerView> {
        self.known(key, |state| state.servers.get(&key.name).cloned())
    }

    fn known<T>(&self, key: &Key, get: impl FnOnce(&NamespaceState) -> Option<T>) -> Known<T> {
        let known = self.read(&key.namespace, |state| {
            if state.is_synced {
                get(state).map_or(Known::Absent, Known::Present)
            } else {
                Known::Unknown(state.reason.clone())
            }
        });
        known.unwrap_or_else(|| Known::Unknown(NO_SCHEDULER.into()))
    }

    /// How long the scheduler has been unreachable; `None` when connected.
    pub fn unreachable_for(&self, namespace: &str) -> Option<Duration> {
        self.read(namespace, |state| state.unreachable_since.map(|since| since.elapsed())).flatten()
    }

    /// Whether the namespace has a scheduler, connected or not.
    pub fn has_scheduler(&self, namespace: &str) -> bool {
        self.read(namespace, |_| ()).is_some()
    }

    /// Names of the scheduler's models that were loaded by this namespace.
    pub fn models_of(&self, namespace: &str) -> Vec<String> {
        self.read(namespace, |state| {
            let ours = |view: &&ModelView| !view.deleted && view.is_from(namespace);
            state.models.iter().filter(|(_, v)| ours(v)).map(|(name, _)| name.clone()).collect()
        })
        .unwrap_or_default()
    }

    /// Names of the scheduler's servers that were announced by this namespace.
    pub fn servers_of(&self, namespace: &str) -> Vec<String> {
        self.read(namespace, |state| {
            let ours = |view: &&ServerView| view.is_expected_for(namespace);
            state.servers.iter().filter(|(_, v)| ours(v)).map(|(name, _)| name.clone()).collect()
        })
        .unwrap_or_default()
    }
}

fn is_managed_by(manager: &str, namespace: &str) -> bool {
    manager.is_empty() || manager == format!("operator:{namespace}")
}

impl ServerView {
    /// Whether the operator announced replicas for this namespace.
    pub fn is_expected_for(&self, namespace: &str) -> bool {
        self.expected > 0
            && is_managed_by(&self.manager, namespace)
            && self.namespace.as_deref() == Some(namespace)
    }
}

impl ModelView {
    /// Whether the operator loaded it for this namespace.
    pub fn is_from(&self, namespace: &str) -> bool {
        let meta = self.latest.as_ref().and_then(|l| l.kubernetes_meta.as_ref());
        is_managed_by(&self.manager, namespace) && meta.is_some_and(|m| m.namespace == namespace)
    }

    pub fn state(&self) -> pb::model_status::ModelState {
        self.latest
            .as_ref()
            .and_then(|l| l.state.as_ref())
            .map_or_else(Default::default, pb::ModelStatus::state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn late_results_do_not_bring_back_a_removed_namespace() {
        let (cache, key) = (SchedulerCache::default(), Key::new("ml", "iris"));
        let request =
            || SchedulerRequest { operation: Operation::Unload, uid: "u".into(), generation: 1 };
        cache.add_namespace("ml");
        cache.begin_sync("ml");
        cache.synced("ml");
        assert!(cache.has_scheduler("ml") && cache.unreachable_for("ml").is_none());
        cache.record_response(Model::KIND, &key, request(), None);
        assert!(cache.last_request(Model::KIND, &key).is_some());
        cache.remove_namespace("ml");
        cache.record_failure(Model::KIND, &key, request(), "timed out".into());
        let status = pb::ModelStatusResponse { model_name: "iris".into(), ..Default::default() };
        cache.apply_model_status("ml", status);
        cache.disconnected("ml", "connection lost");
        cache.begin_sync("ml");
        cache.synced("ml");
        assert!(!cache.has_scheduler("ml"));
        assert_eq!(cache.model(&key), Known::Unknown(NO_SCHEDULER.into()));
    }
}
