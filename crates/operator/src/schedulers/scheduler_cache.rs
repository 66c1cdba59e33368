//! Objects as reported by the scheduler of each namespace, by kind.

use crate::{
    cluster::{CustomKind, Key, KindId, Model, Server},
    plan::Known,
};
use gantry_proto::scheduler as pb;
use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

pub const NO_SCHEDULER: &str = "the namespace has no scheduler: create a SeldonRuntime in it";

/// An object of a kind as reported by its scheduler.
pub trait SchedulerView: Any + Clone + fmt::Debug + PartialEq + Send + Sync {
    type Kind: CustomKind;

    /// Whether the operator put it there for this namespace: without its object it is an orphan.
    fn is_owned_by(&self, namespace: &str) -> bool;
}

/// A [`SchedulerView`] without its type.
trait AnyView: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn is_owned_by(&self, namespace: &str) -> bool;
}

impl<V: SchedulerView> AnyView for V {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_owned_by(&self, namespace: &str) -> bool {
        SchedulerView::is_owned_by(self, namespace)
    }
}

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
    views: BTreeMap<(KindId, String), Box<dyn AnyView>>,
    requests: BTreeMap<(KindId, String), LastRequest>,
}

impl NamespaceState {
    fn view<V: SchedulerView>(&self, name: &str) -> Option<&V> {
        self.views.get(&(KindId::of::<V::Kind>(), name.to_owned()))?.as_any().downcast_ref()
    }

    /// `true` when the view changed.
    fn set_view<V: SchedulerView>(&mut self, name: &str, view: V) -> bool {
        let is_changed = self.view::<V>(name) != Some(&view);
        if is_changed {
            self.views.insert((KindId::of::<V::Kind>(), name.to_owned()), Box::new(view));
        }
        is_changed
    }
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
            if !state.set_view(&status.model_name, view) {
                return false;
            }
            // A request rejected in the previous state may be accepted now.
            let key = (KindId::of::<Model>(), status.model_name);
            if state.requests.get(&key).is_some_and(|last| last.rejection.is_some()) {
                state.requests.remove(&key);
            }
            true
        })
    }

    /// Returns whether the server changed.
    pub fn apply_server_status(&self, namespace: &str, status: &pb::ServerStatusResponse) -> bool {
        use pb::server_status_response::Type;
        self.update(namespace, |state| {
            let mut view = state.view::<ServerView>(&status.server_name).cloned().unwrap_or_default();
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
            state.set_view(&status.server_name, view)
        })
    }

    pub fn clear_scaling_request(&self, key: &Key) {
        self.update(&key.namespace, |state| {
            if let Some(view) = state.view::<ServerView>(&key.name).cloned() {
                state.set_view(&key.name, ServerView { requested_replicas: None, ..view });
            }
        });
    }

    pub fn record_response<K: CustomKind>(
        &self,
        key: &Key,
        request: SchedulerRequest,
        rejection: Option<String>,
    ) {
        self.record::<K>(key, LastRequest { at: Instant::now(), request, rejection, failure: None });
    }

    pub fn record_failure<K: CustomKind>(&self, key: &Key, request: SchedulerRequest, reason: String) {
        let failure = Some(reason);
        self.record::<K>(key, LastRequest { at: Instant::now(), request, rejection: None, failure });
    }

    fn record<K: CustomKind>(&self, key: &Key, last: LastRequest) {
        self.update(&key.namespace, |state| {
            state.requests.insert((KindId::of::<K>(), key.name.clone()), last);
        });
    }

    /// The last request for an object and its age.
    pub fn last_request<K: CustomKind>(&self, key: &Key) -> Option<(LastRequest, Duration)> {
        let at = (KindId::of::<K>(), key.name.clone());
        let find = |state: &NamespaceState| state.requests.get(&at).cloned();
        let last = self.read(&key.namespace, find).flatten()?;
        let age = last.at.elapsed();
        Some((last, age))
    }

    pub fn forget_request<K: CustomKind>(&self, key: &Key) {
        self.update(&key.namespace, |state| {
            state.requests.remove(&(KindId::of::<K>(), key.name.clone()));
        });
    }

    pub fn get<V: SchedulerView>(&self, key: &Key) -> Known<V> {
        let known = self.read(&key.namespace, |state| {
            if state.is_synced {
                state.view(&key.name).cloned().map_or(Known::Absent, Known::Present)
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

    /// Objects of the scheduler that the operator put there for this namespace.
    pub fn owned_by(&self, namespace: &str) -> Vec<(KindId, String)> {
        self.read(namespace, |state| {
            let owned = state.views.iter().filter(|(_, view)| view.is_owned_by(namespace));
            owned.map(|(at, _)| at.clone()).collect()
        })
        .unwrap_or_default()
    }
}

fn is_managed_by(manager: &str, namespace: &str) -> bool {
    manager.is_empty() || manager == format!("operator:{namespace}")
}

impl SchedulerView for ServerView {
    type Kind = Server;

    fn is_owned_by(&self, namespace: &str) -> bool {
        self.is_expected_for(namespace)
    }
}

impl SchedulerView for ModelView {
    type Kind = Model;

    fn is_owned_by(&self, namespace: &str) -> bool {
        !self.deleted && self.is_from(namespace)
    }
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
        let request = || SchedulerRequest { operation: Operation::Unload, uid: "u".into(), generation: 1 };
        cache.add_namespace("ml");
        cache.begin_sync("ml");
        cache.synced("ml");
        assert!(cache.has_scheduler("ml") && cache.unreachable_for("ml").is_none());
        cache.record_response::<Model>(&key, request(), None);
        assert!(cache.last_request::<Model>(&key).is_some());
        cache.remove_namespace("ml");
        cache.record_failure::<Model>(&key, request(), "timed out".into());
        let status = pb::ModelStatusResponse { model_name: "iris".into(), ..Default::default() };
        cache.apply_model_status("ml", status);
        cache.disconnected("ml", "connection lost");
        cache.begin_sync("ml");
        cache.synced("ml");
        assert!(!cache.has_scheduler("ml"));
        assert_eq!(cache.get::<ModelView>(&key), Known::Unknown(NO_SCHEDULER.into()));
    }
}
