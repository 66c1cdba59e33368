//! What the API server said last about one kind of objects.

use super::object::Key;
use gantry_core::mutant;
use kube::Resource;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// How many identities of objects that are gone are remembered: an answer to a write that was under way when its
/// object went must not bring the object back.
const GRAVES: usize = 4096;

/// Objects by key. Only what is newer replaces what is there, whoever brings it: the watch, or the answer to a write.
#[derive(Debug)]
pub struct Cache<O> {
    inner: RwLock<Inner<O>>,
}

#[derive(Debug)]
struct Inner<O> {
    objects: BTreeMap<Key, Arc<O>>,
    /// Scopes (a namespace, or "" for all) whose first list is complete.
    listed: BTreeSet<String>,
    gone: VecDeque<String>,
    gone_set: HashSet<String>,
}

impl<O> Default for Cache<O> {
    fn default() -> Self {
        let inner = Inner {
            objects: BTreeMap::new(),
            listed: BTreeSet::new(),
            gone: VecDeque::new(),
            gone_set: HashSet::new(),
        };
        Self { inner: RwLock::new(inner) }
    }
}

impl<O: Resource> Cache<O> {
    fn read(&self) -> RwLockReadGuard<'_, Inner<O>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<O>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<O>> {
        self.read().objects.get(key).cloned()
    }

    /// The objects of a namespace, by name.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<O>> {
        let from = Key::new(namespace, "");
        let inner = self.read();
        inner
            .objects
            .range(from..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// Every object, by key.
    pub fn all(&self) -> Vec<Arc<O>> {
        self.read().objects.values().cloned().collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.read().objects.is_empty()
    }

    /// Whether the list of each of these scopes is complete.
    pub fn is_listed<'a>(&self, scopes: impl IntoIterator<Item = &'a str>) -> bool {
        let inner = self.read();
        scopes.into_iter().all(|scope| inner.listed.contains(scope))
    }

    /// Takes an object in, unless it is known as new or newer, or gone. `Some` holds what was there before.
    pub fn put(&self, object: O) -> Option<Option<Arc<O>>> {
        let mut inner = self.write();
        let uid = object.meta().uid.clone().unwrap_or_default();
        if inner.gone_set.contains(&uid) {
            return None;
        }
        let key = Key::of(object.meta());
        let before = inner.objects.get(&key).cloned();
        if let Some(known) = &before
            && known.meta().uid == object.meta().uid
            && version(known.as_ref()) >= version(&object)
            && !mutant::is("takes_older_objects")
        {
            return None;
        }
        inner.objects.insert(key, Arc::new(object));
        Some(before)
    }

    /// Takes an object away: its identity never comes back. `Some` when it was there.
    pub fn remove(&self, object: &O) -> Option<Arc<O>> {
        let mut inner = self.write();
        if let Some(uid) = object.meta().uid.clone() {
            inner.bury(uid);
        }
        let key = Key::of(object.meta());
        // A new object of the same name is not the one that went.
        if inner.objects.get(&key).is_some_and(|known| known.meta().uid == object.meta().uid) {
            return inner.objects.remove(&key);
        }
        None
    }

    /// A scope's list is complete: what it does not hold is gone. Returns what changed, with how it was before: whoever
    /// owns what is gone can be told from nothing else.
    pub fn replace(&self, scope: &str, list: Vec<O>) -> Vec<(Key, Option<Arc<O>>)> {
        let mut inner = self.write();
        let now: BTreeSet<String> = list.iter().filter_map(|o| o.meta().uid.clone()).collect();
        let mut changed: Vec<(Key, Option<Arc<O>>)> = Vec::new();
        let lost: Vec<(Key, Option<String>)> = inner
            .objects
            .iter()
            .filter(|(key, _)| scope.is_empty() || key.namespace == scope)
            .filter(|(_, o)| o.meta().uid.as_ref().is_none_or(|uid| !now.contains(uid)))
            .filter(|_| !mutant::is("keeps_what_a_list_lacks"))
            .map(|(key, o)| (key.clone(), o.meta().uid.clone()))
            .collect();
        for (key, uid) in lost {
            let before = inner.objects.remove(&key);
            if let Some(uid) = uid {
                inner.bury(uid);
            }
            changed.push((key, before));
        }
        for object in list {
            let key = Key::of(object.meta());
            let newer =
                inner.objects.get(&key).is_none_or(|known| version(known.as_ref()) < version(&object));
            if newer {
                let before = inner.objects.insert(key.clone(), Arc::new(object));
                changed.push((key, before));
            }
        }
        inner.listed.insert(scope.to_owned());
        changed
    }
}

impl<O> Inner<O> {
    fn bury(&mut self, uid: String) {
        if self.gone_set.insert(uid.clone()) {
            self.gone.push_back(uid);
        }
        if self.gone.len() > GRAVES
            && let Some(oldest) = self.gone.pop_front()
        {
            self.gone_set.remove(&oldest);
        }
    }
}

/// Versions grow, and since Kubernetes 1.35 are documented to be numbers. One that is not counts as the newest.
fn version<O: Resource>(object: &O) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    fn object(name: &str, uid: &str, version: u64) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("ns".into()),
                uid: Some(uid.into()),
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn seen(cache: &Cache<ConfigMap>, name: &str) -> Option<String> {
        cache.get(&Key::new("ns", name)).and_then(|o| o.metadata.resource_version.clone())
    }

    #[test]
    fn what_is_older_does_not_replace_what_is_newer() {
        let cache = Cache::default();
        assert!(cache.put(object("a", "1", 5)).is_some());
        assert!(cache.put(object("a", "1", 4)).is_none());
        assert!(cache.put(object("a", "1", 5)).is_none());
        assert_eq!(seen(&cache, "a").as_deref(), Some("5"));
        assert!(cache.put(object("a", "1", 6)).is_some());
    }

    #[test]
    fn a_late_answer_does_not_bring_back_what_is_gone() {
        let cache = Cache::default();
        cache.put(object("a", "1", 5));
        assert!(cache.remove(&object("a", "1", 7)).is_some());
        assert!(cache.put(object("a", "1", 6)).is_none());
        assert!(cache.is_empty());
    }

    #[test]
    fn a_late_deletion_does_not_take_the_new_object_of_that_name() {
        let cache = Cache::default();
        cache.put(object("a", "2", 9));
        assert!(cache.remove(&object("a", "1", 7)).is_none());
        assert_eq!(seen(&cache, "a").as_deref(), Some("9"));
    }

    #[test]
    fn a_list_takes_away_what_it_does_not_hold_and_keeps_what_is_newer() {
        let cache = Cache::default();
        cache.put(object("a", "1", 5));
        cache.put(object("b", "2", 9));
        let changed = cache.replace("ns", vec![object("b", "2", 8), object("c", "3", 8)]);
        let changed: Vec<(Key, bool)> =
            changed.into_iter().map(|(key, before)| (key, before.is_some())).collect();
        assert_eq!(changed, [(Key::new("ns", "a"), true), (Key::new("ns", "c"), false)]);
        assert_eq!(seen(&cache, "b").as_deref(), Some("9"));
        assert!(cache.is_listed(["ns"]) && !cache.is_listed(["other"]));
    }
}
