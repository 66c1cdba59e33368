//! The state that controllers decide from: informer caches, scheduler state, recent failures.

use crate::{
    cluster::{Cache, Custom, CustomKind, Key, KindId, OwnedObject, ResourceKind},
    controllers::{Registry, inference_service::config::LastValidConfig},
    evidence::EvidenceBoard,
    inputs::Inputs,
    recent_failures::RecentFailures,
    schedulers::SchedulerCache,
    settings::Settings,
};
use kube::Resource;
use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    fmt,
    sync::Arc,
};

/// Caches by kind. Snapshots read nothing else.
#[derive(Debug)]
pub struct Caches {
    pub settings: Settings,
    pub registry: Registry,
    custom: BTreeMap<TypeId, CacheSlot>,
    /// Objects that carry our label.
    owned: BTreeMap<ResourceKind, Arc<Cache<OwnedObject>>>,
    /// All objects of the kinds that controllers read.
    read: BTreeMap<ResourceKind, Arc<Cache<OwnedObject>>>,
    pub schedulers: Arc<SchedulerCache>,
    pub recent_failures: RecentFailures,
    /// Objects of other owners, by name.
    pub inputs: Inputs,
    /// Settings of InferenceServices.
    pub inference_service_config: LastValidConfig,
    /// Evidence about the revisions of Algorithms.
    pub evidence: EvidenceBoard,
}

impl Caches {
    /// Empty caches of the kinds of these settings.
    pub fn new(settings: Settings) -> Self {
        let registry = Registry::of(&settings);
        Self::with_registry(settings, registry)
    }

    pub fn with_registry(settings: Settings, registry: Registry) -> Self {
        let empty = |kinds: Vec<ResourceKind>| kinds.into_iter().map(|kind| (kind, Arc::default())).collect();
        Self {
            settings,
            custom: registry.iter().map(|r| (r.type_id, (r.new_cache)())).collect(),
            owned: empty(registry.owned_kinds()),
            read: empty(registry.read_kinds()),
            registry,
            schedulers: Arc::default(),
            recent_failures: RecentFailures::default(),
            inputs: Inputs::default(),
            inference_service_config: LastValidConfig::default(),
            evidence: EvidenceBoard::default(),
        }
    }

    /// The cache of a custom kind; of an unregistered one an empty cache that is never listed.
    pub fn of<K: CustomKind>(&self) -> Arc<Cache<Custom<K>>> {
        let slot = self.custom.get(&TypeId::of::<K>());
        slot.and_then(|slot| Arc::clone(&slot.typed).downcast().ok()).unwrap_or_default()
    }

    /// Objects of a kind that the operator created.
    pub fn owned(&self, kind: ResourceKind) -> Arc<Cache<OwnedObject>> {
        self.owned.get(&kind).cloned().unwrap_or_default()
    }

    /// All objects of a kind in [`Controller::READS`](crate::Controller::READS).
    pub fn read(&self, kind: ResourceKind) -> Arc<Cache<OwnedObject>> {
        self.read.get(&kind).cloned().unwrap_or_default()
    }

    /// Whether objects of an owned kind can be created: the API server serves it, and its list is complete.
    pub fn is_served(&self, kind: ResourceKind) -> bool {
        let scopes = self.settings.scope.watched(&self.settings.namespace);
        self.owned(kind).is_listed(scopes.iter().map(String::as_str))
    }

    fn slot(&self, id: KindId) -> Option<&CacheSlot> {
        let registration = self.registry.iter().find(|r| r.id == id)?;
        self.custom.get(&registration.type_id)
    }

    /// Keys of a custom kind.
    pub(crate) fn keys(&self, id: KindId) -> Vec<Key> {
        self.slot(id).map(|slot| slot.keys.all()).unwrap_or_default()
    }

    /// Keys of a custom kind in a namespace.
    pub(crate) fn keys_in(&self, id: KindId, namespace: &str) -> Vec<Key> {
        self.slot(id).map(|slot| slot.keys.in_namespace(namespace)).unwrap_or_default()
    }

    pub(crate) fn has_any_in(&self, id: KindId, namespace: &str) -> bool {
        self.slot(id).is_some_and(|slot| slot.keys.has_any_in(namespace))
    }
}

/// A cache of a custom kind, once with its type and once without.
pub(crate) struct CacheSlot {
    typed: Arc<dyn Any + Send + Sync>,
    keys: Arc<dyn Keys>,
}

impl CacheSlot {
    pub(crate) fn new<K: CustomKind>() -> Self {
        let cache: Arc<Cache<Custom<K>>> = Arc::default();
        Self { typed: Arc::<Cache<Custom<K>>>::clone(&cache), keys: cache }
    }
}

impl fmt::Debug for CacheSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSlot").field("keys", &self.keys.all().len()).finish_non_exhaustive()
    }
}

trait Keys: Send + Sync {
    fn all(&self) -> Vec<Key>;
    fn in_namespace(&self, namespace: &str) -> Vec<Key>;
    fn has_any_in(&self, namespace: &str) -> bool;
}

impl<O: Resource + Send + Sync> Keys for Cache<O> {
    fn all(&self) -> Vec<Key> {
        Self::all(self).iter().map(|object| Key::of(object.meta())).collect()
    }

    fn in_namespace(&self, namespace: &str) -> Vec<Key> {
        Self::in_namespace(self, namespace).iter().map(|object| Key::of(object.meta())).collect()
    }

    fn has_any_in(&self, namespace: &str) -> bool {
        Self::has_any_in(self, namespace)
    }
}
