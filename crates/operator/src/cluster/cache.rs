//! Informer cache of one kind, with subscribers.

use super::custom_resource::Key;
use kube::Resource;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// Tombstones kept, so that a late write response cannot resurrect a deleted object.
const MAX_TOMBSTONES: usize = 4096;

/// One cached object changed.
#[derive(Debug)]
pub struct Change<O> {
    pub key: Key,
    /// `None` when the object is new.
    pub before: Option<Arc<O>>,
    /// `None` when the object is gone.
    pub after: Option<Arc<O>>,
    pub origin: Origin,
}

/// Source of a cache change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A complete list.
    List,
    /// A watch event.
    Watch,
    /// The response to a write of this process.
    Write,
}

type Subscriber<O> = Arc<dyn Fn(&Change<O>) + Send + Sync>;

/// Objects by key. Only a newer resource version replaces an object, whether it comes from the watch or from the
/// response to a write. Subscribers receive every change.
pub struct Cache<O> {
    inner: RwLock<Inner<O>>,
    subscribers: RwLock<Vec<Subscriber<O>>>,
}

#[derive(Debug)]
struct Inner<O> {
    objects: BTreeMap<Key, Arc<O>>,
    /// Scopes (a namespace, or "" for all) whose first list is complete.
    listed: BTreeSet<String>,
    /// By UID.
    tombstones: HashMap<String, Tombstone>,
    /// UIDs of the tombstones, oldest first.
    tombstone_order: VecDeque<String>,
}

/// How an object left the cache.
#[derive(Clone, Copy, Debug)]
enum Tombstone {
    /// With a delete event of this version. A newer version of the same object means that it left the selector of the
    /// watch, was changed, and is back.
    Deleted(u64),
    /// Missing from a list, last seen at this version. A list is older than the write responses around it, so only the
    /// watch can tell whether the object exists.
    NotListed(u64),
}

impl Tombstone {
    const fn admits(self, version: u64, origin: Origin) -> bool {
        match (self, origin) {
            (Self::Deleted(deleted), _) => version > deleted,
            (Self::NotListed(seen), Origin::List | Origin::Watch) => version >= seen,
            (Self::NotListed(_), Origin::Write) => false,
        }
    }
}

impl<O> Default for Cache<O> {
    fn default() -> Self {
        let inner = Inner {
            objects: BTreeMap::new(),
            listed: BTreeSet::new(),
            tombstones: HashMap::new(),
            tombstone_order: VecDeque::new(),
        };
        Self { inner: RwLock::new(inner), subscribers: RwLock::default() }
    }
}

impl<O: fmt::Debug> fmt::Debug for Cache<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<O: Resource> Cache<O> {
    fn read(&self) -> RwLockReadGuard<'_, Inner<O>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<O>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls back on every later change, after it is visible in the cache.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<O>) + Send + Sync + 'static) {
        self.subscribers.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(subscriber));
    }

    fn notify(&self, change: &Change<O>) {
        let subscribers = self.subscribers.read().unwrap_or_else(PoisonError::into_inner).clone();
        for subscriber in &subscribers {
            subscriber(change);
        }
    }

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

    pub fn all(&self) -> Vec<Arc<O>> {
        self.read().objects.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.read().objects.is_empty()
    }

    pub fn has_any_in(&self, namespace: &str) -> bool {
        let from = Key::new(namespace, "");
        self.read().objects.range(from..).next().is_some_and(|(key, _)| key.namespace == namespace)
    }

    /// Whether the list of each of these scopes is complete.
    pub fn is_listed<'a>(&self, scopes: impl IntoIterator<Item = &'a str>) -> bool {
        let inner = self.read();
        scopes.into_iter().all(|scope| inner.listed.contains(scope))
    }

    /// Stores an object unless a version as new is cached, or a tombstone rules it out. `true` when the cache changed.
    pub fn put(&self, object: O, origin: Origin) -> bool {
        let mut inner = self.write();
        let uid = object.meta().uid.clone().unwrap_or_default();
        if inner.tombstones.get(&uid).is_some_and(|t| !t.admits(version(&object), origin)) {
            return false;
        }
        let key = Key::of(object.meta());
        let before = inner.objects.get(&key).cloned();
        if let Some(known) = &before
            && known.meta().uid == object.meta().uid
            && version(known.as_ref()) >= version(&object)
        {
            return false;
        }
        inner.tombstones.remove(&uid);
        let after = Arc::new(object);
        inner.objects.insert(key.clone(), Arc::clone(&after));
        drop(inner);
        self.notify(&Change { key, before, after: Some(after), origin });
        true
    }

    /// Removes an object and leaves a tombstone for its UID. `true` when it was cached: a new object of the same name is
    /// another one, and stays. Subscribers are called in both cases.
    pub fn remove(&self, object: &O) -> bool {
        let mut inner = self.write();
        if let Some(uid) = object.meta().uid.clone() {
            inner.tombstone(uid, Tombstone::Deleted(version(object)));
        }
        let key = Key::of(object.meta());
        let is_same = |known: &Arc<O>| known.meta().uid == object.meta().uid;
        let before =
            if inner.objects.get(&key).is_some_and(is_same) { inner.objects.remove(&key) } else { None };
        let after = inner.objects.get(&key).cloned();
        drop(inner);
        let was_cached = before.is_some();
        self.notify(&Change { key, before, after, origin: Origin::Watch });
        was_cached
    }

    /// Replaces a scope by a complete list: objects missing from it are gone.
    pub fn replace(&self, scope: &str, list: Vec<O>) {
        let mut inner = self.write();
        let now: BTreeSet<String> = list.iter().filter_map(|o| o.meta().uid.clone()).collect();
        let mut changed: Vec<(Key, Option<Arc<O>>)> = Vec::new();
        let lost: Vec<(Key, Option<String>, u64)> = inner
            .objects
            .iter()
            .filter(|(key, _)| scope.is_empty() || key.namespace == scope)
            .filter(|(_, o)| o.meta().uid.as_ref().is_none_or(|uid| !now.contains(uid)))
            .map(|(key, o)| (key.clone(), o.meta().uid.clone(), version(o.as_ref())))
            .collect();
        for (key, uid, version) in lost {
            let before = inner.objects.remove(&key);
            if let Some(uid) = uid {
                inner.tombstone(uid, Tombstone::NotListed(version));
            }
            changed.push((key, before));
        }
        for object in list {
            if let Some(uid) = &object.meta().uid {
                inner.tombstones.remove(uid);
            }
            let key = Key::of(object.meta());
            let newer =
                inner.objects.get(&key).is_none_or(|known| version(known.as_ref()) < version(&object));
            if newer {
                let before = inner.objects.insert(key.clone(), Arc::new(object));
                changed.push((key, before));
            }
        }
        inner.listed.insert(scope.to_owned());
        drop(inner);
        for (key, before) in changed {
            let after = self.get(&key);
            self.notify(&Change { key, before, after, origin: Origin::List });
        }
    }
}

impl<O> Inner<O> {
    fn tombstone(&mut self, uid: String, tombstone: Tombstone) {
        if self.tombstones.insert(uid.clone(), tombstone).is_none() {
            self.tombstone_order.push_back(uid);
        }
        if self.tombstone_order.len() > MAX_TOMBSTONES
            && let Some(oldest) = self.tombstone_order.pop_front()
        {
            self.tombstones.remove(&oldest);
        }
    }
}

/// Resource versions grow, and are documented as numbers since Kubernetes 1.35. Any other counts as the newest.
fn version<O: Resource>(object: &O) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
    use std::sync::Mutex;

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
    fn put_ignores_older_resource_version() {
        let cache = Cache::default();
        assert!(cache.put(object("a", "1", 5), Origin::Watch));
        assert!(!cache.put(object("a", "1", 4), Origin::Watch));
        assert!(!cache.put(object("a", "1", 5), Origin::Watch));
        assert_eq!(seen(&cache, "a").as_deref(), Some("5"));
        assert!(cache.put(object("a", "1", 6), Origin::Watch));
    }

    #[test]
    fn late_write_response_does_not_resurrect_deleted_object() {
        let cache = Cache::default();
        cache.put(object("a", "1", 5), Origin::Watch);
        assert!(cache.remove(&object("a", "1", 7)));
        assert!(!cache.put(object("a", "1", 6), Origin::Write));
        assert!(cache.is_empty());
    }

    #[test]
    fn object_that_left_the_selector_returns_with_a_newer_version() {
        let cache = Cache::default();
        cache.put(object("a", "1", 5), Origin::Watch);
        cache.remove(&object("a", "1", 6));
        assert!(cache.put(object("a", "1", 7), Origin::Write));
        assert!(cache.put(object("a", "1", 8), Origin::Watch));
        assert_eq!(seen(&cache, "a").as_deref(), Some("8"));
    }

    #[test]
    fn object_created_after_the_snapshot_of_a_list_returns_with_its_event() {
        let cache = Cache::default();
        cache.put(object("a", "1", 9), Origin::Write);
        cache.replace("ns", Vec::new());
        assert!(
            !cache.put(object("a", "1", 10), Origin::Write),
            "a list after the deletion would look the same"
        );
        assert!(cache.put(object("a", "1", 9), Origin::Watch));
    }

    #[test]
    fn listed_object_accepts_updates_after_a_tombstone() {
        let cache = Cache::default();
        cache.put(object("a", "1", 5), Origin::Watch);
        cache.replace("ns", Vec::new());
        cache.replace("ns", vec![object("a", "1", 5)]);
        assert!(cache.put(object("a", "1", 6), Origin::Write));
    }

    #[test]
    fn late_delete_event_keeps_recreated_object() {
        let cache = Cache::default();
        cache.put(object("a", "2", 9), Origin::Watch);
        assert!(!cache.remove(&object("a", "1", 7)));
        assert_eq!(seen(&cache, "a").as_deref(), Some("9"));
    }

    #[test]
    fn list_removes_missing_objects_and_keeps_newer_ones() {
        let cache = Cache::default();
        cache.put(object("a", "1", 5), Origin::Watch);
        cache.put(object("b", "2", 9), Origin::Watch);
        let changes = recorded(&cache);
        cache.replace("ns", vec![object("b", "2", 8), object("c", "3", 8)]);
        assert_eq!(*changes.lock().unwrap(), ["a: true → false by List", "c: false → true by List"]);
        assert_eq!(seen(&cache, "b").as_deref(), Some("9"));
        assert!(cache.is_listed(["ns"]) && !cache.is_listed(["other"]));
    }

    #[test]
    fn subscribers_receive_changes_of_watch_and_write() {
        let cache = Cache::default();
        let changes = recorded(&cache);
        cache.put(object("a", "1", 5), Origin::Write);
        cache.put(object("a", "1", 5), Origin::Watch);
        cache.put(object("a", "1", 6), Origin::Watch);
        cache.remove(&object("a", "1", 6));
        let expected = ["a: false → true by Write", "a: true → true by Watch", "a: true → false by Watch"];
        assert_eq!(*changes.lock().unwrap(), expected);
    }

    fn recorded(cache: &Cache<ConfigMap>) -> Arc<Mutex<Vec<String>>> {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&changes);
        cache.subscribe(move |c| {
            let (before, after) = (c.before.is_some(), c.after.is_some());
            record.lock().unwrap().push(format!("{}: {before} → {after} by {:?}", c.key.name, c.origin));
        });
        changes
    }
}
