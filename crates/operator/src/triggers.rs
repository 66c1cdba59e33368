//! Work queues, and the changes that enqueue keys: watch events, owned objects, relations to other kinds, schedulers.

use crate::{
    caches::Caches,
    cluster::{
        Algorithm, Cache, Change, Custom, CustomKind, InferenceGraph, InferenceService, Key, KindId, Origin,
        OwnedObject, ResourceKind, ResourceScope, RolloutPolicy,
    },
    connections,
    context::Context,
    controller::{Controller, SchedulerRole},
    controllers::Registry,
    schedulers::ChangeEvent,
    workqueue::{Priority, WorkQueue},
};
use kube::Resource;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// One work queue per registered kind.
#[derive(Debug)]
pub(crate) struct WorkQueues(BTreeMap<KindId, Arc<WorkQueue>>);

impl WorkQueues {
    pub(crate) fn new(registry: &Registry, seed: u64) -> Self {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let numbered = registry.iter().zip(1_u64..);
        Self(numbered.map(|(r, n)| (r.id, Arc::new(WorkQueue::new(seed.wrapping_add(n))))).collect())
    }

    pub(crate) fn of<K: CustomKind>(&self) -> Arc<WorkQueue> {
        self.get(KindId::of::<K>())
    }

    /// The queue of a kind; of an unregistered kind one that has no workers.
    pub(crate) fn get(&self, id: KindId) -> Arc<WorkQueue> {
        self.0.get(&id).cloned().unwrap_or_else(|| Arc::new(WorkQueue::new(1)))
    }

    fn add_keys(&self, id: KindId, keys: Vec<Key>) {
        let queue = self.get(id);
        for key in keys {
            queue.add(key, Priority::Background);
        }
    }

    /// Enqueues every object.
    pub(crate) fn add_all(&self, caches: &Caches) {
        caches.registry.iter().for_each(|r| self.add_keys(r.id, caches.keys(r.id)));
    }

    /// Enqueues every object of a namespace.
    pub(crate) fn add_all_in(&self, caches: &Caches, namespace: &str) {
        caches.registry.iter().for_each(|r| self.add_keys(r.id, caches.keys_in(r.id, namespace)));
    }

    /// Ends the backoff of every failed object.
    pub(crate) fn retry_now(&self) {
        self.0.values().for_each(|queue| queue.retry_now());
    }

    /// Enqueues every object of the kinds that own or read a resource kind.
    pub(crate) fn add_users_of(&self, caches: &Caches, kind: ResourceKind) {
        let users = caches.registry.iter().filter(|r| r.owns.contains(&kind) || r.reads.contains(&kind));
        users.for_each(|r| self.add_keys(r.id, caches.keys(r.id)));
    }

    /// Enqueues every object of a namespace that depends on its scheduler, and every object that only the scheduler has.
    pub(crate) fn add_namespace(&self, caches: &Caches, namespace: &str) {
        let clients = caches.registry.iter().filter(|r| r.scheduler != SchedulerRole::None);
        clients.for_each(|r| self.add_keys(r.id, caches.keys_in(r.id, namespace)));
        // The operator's scheduler has the services of all namespaces without one, and their rollouts.
        let (services, graphs) = (KindId::of::<InferenceService>(), KindId::of::<InferenceGraph>());
        let algorithms = KindId::of::<Algorithm>();
        let is_home = namespace == caches.settings.namespace;
        for kind in [services, graphs, algorithms, KindId::of::<RolloutPolicy>()] {
            self.add_keys(kind, if is_home { caches.keys(kind) } else { caches.keys_in(kind, namespace) });
        }
        for (kind, key) in caches.schedulers.owned_by(namespace) {
            // A route may be that of any of them.
            if kind == services {
                self.get(graphs).add(key.clone(), Priority::Background);
                self.get(algorithms).add(key.clone(), Priority::Background);
            }
            self.get(kind).add(key, Priority::Background);
        }
    }

    pub(crate) fn scheduler_changed(&self, caches: &Caches, namespace: &str, event: ChangeEvent) {
        match event {
            ChangeEvent::Object(kind, key) => self.get(kind).add(key, Priority::Urgent),
            ChangeEvent::Namespace => self.add_namespace(caches, namespace),
        }
    }
}

/// A dependency on another kind: maps a change there to keys of the dependent kind. It fires on every change of the
/// cache, no matter whether a watch or a write of this process caused it.
pub struct Relation(Subscribe);

type Subscribe = Box<dyn Fn(&Arc<Context>, Arc<WorkQueue>) + Send + Sync>;

impl fmt::Debug for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relation").finish_non_exhaustive()
    }
}

impl Relation {
    /// On a custom kind, which has to be registered.
    pub fn to<S: CustomKind>(keys: fn(&Caches, &Change<Custom<S>>) -> Vec<Key>) -> Self {
        Self(Box::new(move |context, queue| enqueue(context, &context.caches.of::<S>(), queue, keys)))
    }

    /// On objects that the operator created.
    pub fn to_owned_kind(kind: ResourceKind, keys: fn(&Caches, &Change<OwnedObject>) -> Vec<Key>) -> Self {
        Self(Box::new(move |context, queue| enqueue(context, &context.caches.owned(kind), queue, keys)))
    }

    /// On objects of a kind in [`Controller::READS`].
    pub fn to_read_kind(kind: ResourceKind, keys: fn(&Caches, &Change<OwnedObject>) -> Vec<Key>) -> Self {
        Self(Box::new(move |context, queue| enqueue(context, &context.caches.read(kind), queue, keys)))
    }
}

fn enqueue<O: Resource + Send + Sync + 'static>(
    context: &Arc<Context>,
    cache: &Cache<O>,
    queue: Arc<WorkQueue>,
    keys: fn(&Caches, &Change<O>) -> Vec<Key>,
) {
    // The context owns the cache, and the cache owns the subscriber.
    let context = Arc::downgrade(context);
    cache.subscribe(move |change| {
        if let Some(context) = context.upgrade() {
            for key in keys(&context.caches, change) {
                queue.add(key, priority(change.origin));
            }
        }
    });
}

const fn priority(origin: Origin) -> Priority {
    match origin {
        Origin::List => Priority::Background,
        Origin::Watch | Origin::Write => Priority::Urgent,
    }
}

/// Connects the caches to the work queue of a controller.
pub(crate) fn subscribe<C: Controller>(context: &Arc<Context>) {
    let queue = context.queues.of::<C::Kind>();
    let cache = context.caches.of::<C::Kind>();
    let own = Arc::clone(&queue);
    cache.subscribe(move |change| {
        // Reconciliation plans again after its own writes.
        if change.origin != Origin::Write {
            own.add(change.key.clone(), priority(change.origin));
        }
    });
    if C::SCHEDULER != SchedulerRole::None {
        let context = Arc::downgrade(context);
        cache.subscribe(move |change| {
            if let Some(context) = context.upgrade() {
                connections::update(&context, &change.key.namespace);
            }
        });
    }
    for kind in C::OWNS {
        enqueue(context, &context.caches.owned(*kind), Arc::clone(&queue), owners::<C::Kind>);
    }
    for relation in C::relations() {
        relation.0(context, Arc::clone(&queue));
    }
}

/// Keys of the objects of a kind that control an object, now or before the change.
fn owners<K: CustomKind>(_: &Caches, change: &Change<OwnedObject>) -> Vec<Key> {
    let mut keys = Vec::new();
    for object in change.before.iter().chain(&change.after) {
        let references = object.metadata.owner_references.iter().flatten();
        let is_owner =
            |api_version: &str| api_version.split_once('/').is_some_and(|(group, _)| group == K::GROUP);
        let controllers = references
            .filter(|r| r.controller == Some(true) && r.kind == K::KIND && is_owner(&r.api_version));
        keys.extend(controllers.map(|reference| match K::SCOPE {
            ResourceScope::Namespaced => Key::new(change.key.namespace.clone(), reference.name.clone()),
            ResourceScope::Cluster => Key::new("", reference.name.clone()),
        }));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::Server, settings::Settings};
    use serde_json::json;

    #[test]
    fn object_of_an_owner_of_another_group_enqueues_nothing() {
        let owner = |api_version: &str, kind: &str, controller: bool| {
            let owner = json!({
                "apiVersion": api_version, "kind": kind, "name": "a", "uid": "u", "controller": controller,
            });
            let object =
                json!({ "metadata": { "name": "a-0", "namespace": "ml", "ownerReferences": [owner] } });
            let after = Some(Arc::new(serde_json::from_value::<OwnedObject>(object).unwrap()));
            let change = Change { key: Key::new("ml", "a-0"), before: None, after, origin: Origin::Watch };
            owners::<Server>(&Caches::new(Settings::default()), &change)
        };
        assert_eq!(owner("mlops.seldon.io/v1alpha1", "Server", true), [Key::new("ml", "a")]);
        assert_eq!(owner("mlops.seldon.io/v2", "Server", true), [Key::new("ml", "a")]);
        assert_eq!(owner("serving.example.com/v1", "Server", true), []);
        assert_eq!(owner("mlops.seldon.io/v1alpha1", "Model", true), []);
        assert_eq!(owner("mlops.seldon.io/v1alpha1", "Server", false), []);
    }
}
