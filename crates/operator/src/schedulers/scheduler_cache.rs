//! Objects as reported by the scheduler of each namespace, by kind.

use super::{
    rollouts::{Target, serving_version},
    views::{ExperimentView, ModelView, PipelineView, SchedulerView, ServerView},
};
use crate::{
    cluster::{Custom, CustomKind, Key, KindId},
    plan::Known,
};
use gantry_proto::{gantry::RolloutStatus, scheduler as pb};
use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

pub const NO_SCHEDULER: &str = "the namespace has no scheduler: create a SeldonRuntime in it";

/// A [`SchedulerView`] without its type.
pub(super) trait AnyView: fmt::Debug + Send + Sync {
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

/// State of all schedulers. Discarded when a connection is lost.
#[derive(Debug, Default)]
pub struct SchedulerCache {
    pub(super) namespaces: Mutex<BTreeMap<String, NamespaceState>>,
    /// The operator's namespace, whose scheduler has the services of namespaces without one.
    pub(super) home: String,
    /// Whether one scheduler serves all namespaces.
    pub(super) is_shared: bool,
}

#[derive(Debug, Default)]
pub(super) struct NamespaceState {
    /// Whether the current connection has delivered the complete state.
    pub(super) is_synced: bool,
    /// Whether that includes services: Seldon's scheduler has none.
    pub(super) has_services: bool,
    /// Why it is not synced.
    reason: String,
    unreachable_since: Option<Instant>,
    pub(super) views: BTreeMap<(KindId, String), Box<dyn AnyView>>,
    pub(super) requests: BTreeMap<(KindId, String), LastRequest>,
    pub(super) rollouts: BTreeMap<Target, RolloutStatus>,
}

impl NamespaceState {
    pub(super) fn view<V: SchedulerView>(&self, name: &str) -> Option<&V> {
        self.views.get(&(KindId::of::<V::Kind>(), name.to_owned()))?.as_any().downcast_ref()
    }

    /// `true` when the view changed.
    pub(super) fn set_view<V: SchedulerView>(&mut self, name: &str, view: V) -> bool {
        let is_changed = self.view::<V>(name) != Some(&view);
        if is_changed {
            self.views.insert((KindId::of::<V::Kind>(), name.to_owned()), Box::new(view));
        }
        is_changed
    }
}

/// A request for one object. The UID tells objects with the same name apart; it is empty for an object that only the
/// scheduler has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerRequest {
    pub operation: Operation,
    pub uid: String,
    pub generation: i64,
    /// Annotations of the desired state: a change of them is no new generation.
    pub switches: BTreeMap<&'static str, String>,
    /// Digest of a part of the desired state that other objects determine.
    pub variant: u64,
}

impl SchedulerRequest {
    pub fn new<K: CustomKind>(operation: Operation, object: Option<&Custom<K>>) -> Self {
        let uid = object.map_or_else(String::new, |object| object.uid().to_owned());
        let value = |switch: &&'static str| Some((*switch, object?.annotation(switch)?.to_owned()));
        let switches = K::SWITCHES.iter().filter_map(value).collect();
        Self { operation, uid, generation: object.map_or(0, Custom::generation), switches, variant: 0 }
    }

    #[must_use]
    pub fn with_variant(self, variant: u64) -> Self {
        Self { variant, ..self }
    }
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
    /// How often it was sent.
    pub attempts: u32,
    /// Whether the scheduler accepted it before: a rejected repetition then means that it is in progress.
    pub was_accepted: bool,
    /// Why the scheduler rejected it.
    pub rejection: Option<String>,
    /// Why there was no response.
    pub failure: Option<String>,
}

impl LastRequest {
    /// Whether the scheduler accepted it.
    pub const fn is_accepted(&self) -> bool {
        self.rejection.is_none() && self.failure.is_none()
    }

    /// Whether the scheduler has never accepted it.
    const fn is_rejected(&self) -> bool {
        self.rejection.is_some() && !self.was_accepted
    }
}

impl SchedulerCache {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, NamespaceState>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read<T>(&self, namespace: &str, read: impl FnOnce(&NamespaceState) -> T) -> Option<T> {
        self.lock().get(namespace).map(read)
    }

    /// Whether the scheduler of a connected namespace may have objects of it.
    pub(crate) fn may_have_objects(&self, namespace: &str) -> bool {
        let may_have = |state: &NamespaceState| {
            !state.is_synced || state.views.values().any(|view| view.is_owned_by(namespace))
        };
        self.read(namespace, may_have).unwrap_or(false)
    }

    /// Updates the state of a namespace if it exists; late results of a removed scheduler are ignored.
    pub(super) fn update<T: Default>(
        &self,
        namespace: &str,
        change: impl FnOnce(&mut NamespaceState) -> T,
    ) -> T {
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
        let name = status.model_name;
        let serving = self.read(namespace, |state| serving_version(state, &name)).flatten();
        let view = ModelView { deleted: status.deleted, manager: status.manager, latest, serving };
        self.apply(namespace, &name, view)
    }

    /// Returns whether the pipeline changed.
    pub fn apply_pipeline_status(&self, namespace: &str, status: pb::PipelineStatusResponse) -> bool {
        let version = |v: &pb::PipelineWithState| v.state.as_ref().map_or(0, |state| state.pipeline_version);
        let Some(latest) = status.versions.into_iter().max_by_key(version) else { return false };
        let (pipeline, state) = (latest.pipeline.unwrap_or_default(), latest.state.unwrap_or_default());
        let view = PipelineView { manager: status.manager, pipeline, state };
        self.apply(namespace, &status.pipeline_name, view)
    }

    /// Returns whether the experiment changed.
    pub fn apply_experiment_status(&self, namespace: &str, status: pb::ExperimentStatusResponse) -> bool {
        let name = status.experiment_name.clone();
        self.apply(namespace, &name, ExperimentView(status))
    }

    pub(super) fn apply<V: SchedulerView>(&self, namespace: &str, name: &str, view: V) -> bool {
        self.update(namespace, |state| {
            if !state.set_view(name, view) {
                return false;
            }
            // A request rejected in the previous state may be accepted now.
            let key = (KindId::of::<V::Kind>(), name.to_owned());
            if state.requests.get(&key).is_some_and(LastRequest::is_rejected) {
                state.requests.remove(&key);
            }
            true
        })
    }

    /// Forgets the rejected requests of a kind, so that they are sent again; returns the names of their objects.
    pub fn forget_rejections<K: CustomKind>(&self, namespace: &str) -> Vec<String> {
        self.update(namespace, |state| {
            let is_rejected = |(kind, _): &(KindId, String), last: &mut LastRequest| {
                *kind == KindId::of::<K>() && last.is_rejected()
            };
            let rejected = state.requests.extract_if(.., is_rejected);
            rejected.map(|((_, name), _)| name).collect()
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
        self.record::<K>(key, request, rejection, None);
    }

    pub fn record_failure<K: CustomKind>(&self, key: &Key, request: SchedulerRequest, reason: String) {
        self.record::<K>(key, request, None, Some(reason));
    }

    fn record<K: CustomKind>(
        &self,
        key: &Key,
        request: SchedulerRequest,
        rejection: Option<String>,
        failure: Option<String>,
    ) {
        self.update(&key.namespace, |state| {
            let at = (KindId::of::<K>(), key.name.clone());
            let earlier = state.requests.get(&at).filter(|earlier| earlier.request == request);
            let last = LastRequest {
                at: Instant::now(),
                attempts: earlier.map_or(0, |earlier| earlier.attempts).saturating_add(1),
                was_accepted: earlier.is_some_and(|earlier| earlier.was_accepted || earlier.is_accepted()),
                request,
                rejection,
                failure,
            };
            state.requests.insert(at, last);
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
    pub fn owned_by(&self, namespace: &str) -> Vec<(KindId, Key)> {
        self.read(namespace, |state| {
            let owned = state.views.iter().filter(|(_, view)| view.is_owned_by(namespace));
            owned.map(|((kind, name), _)| (*kind, super::services::key_of(namespace, name))).collect()
        })
        .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Model;

    #[tokio::test]
    async fn late_results_do_not_bring_back_a_removed_namespace() {
        let (cache, key) = (SchedulerCache::default(), Key::new("ml", "iris"));
        let request = || SchedulerRequest {
            operation: Operation::Unload,
            uid: "u".into(),
            generation: 1,
            switches: BTreeMap::new(),
            variant: 0,
        };
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
