//! Objects, revisions and the change log.

use super::{
    failure::Failure,
    object::{set, text},
    registry::{Kind, Registry},
    request::{Request, Verb},
    watch::Watch,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// [`Kind::id`].
    pub kind: String,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(kind: &Kind, namespace: &str, name: &str) -> Self {
        Self { kind: kind.id(), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {}{separator}{}", self.kind, self.namespace, self.name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub revision: u64,
    pub key: Key,
    /// `None` for a creation.
    pub before: Option<Arc<Value>>,
    /// `None` for a deletion.
    pub after: Option<Arc<Value>>,
    /// The last state with the revision of the deletion, for watches.
    pub last: Option<Arc<Value>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Namespaces must exist, and reject new objects while terminating.
    pub namespaces: bool,
    /// Length of the change log; watches from before it get 410.
    pub history: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { namespaces: true, history: 20_000 }
    }
}

#[derive(Clone, Debug)]
pub enum Reply {
    Json {
        code: u16,
        body: Value,
        /// Seconds.
        retry_after: Option<u32>,
    },
    Watch(Box<Watch>),
}

impl Reply {
    pub const fn json(code: u16, body: Value) -> Self {
        Self::Json { code, body, retry_after: None }
    }

    pub const fn code(&self) -> u16 {
        match self {
            Self::Json { code, .. } => *code,
            Self::Watch(_) => 200,
        }
    }

    /// Null for a stream.
    pub const fn body(&self) -> &Value {
        match self {
            Self::Json { body, .. } => body,
            Self::Watch(_) => &Value::Null,
        }
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self::Json { code: failure.code, body: failure.status(), retry_after: failure.retry_after }
    }
}

/// The server as a deterministic value: no clock, no randomness besides the seed.
#[derive(Clone, Debug)]
pub struct State {
    pub registry: Registry,
    pub switches: Options,
    pub(super) objects: BTreeMap<Key, Arc<Value>>,
    changes: VecDeque<Change>,
    revision: u64,
    compacted: u64,
    drawn: u64,
    seed: u64,
}

impl State {
    /// Contains only the default namespaces.
    pub fn new(registry: Registry, seed: u64, now: Timestamp) -> Self {
        let mut state = Self {
            registry,
            switches: Options::default(),
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            revision: 1,
            compacted: 1,
            drawn: 0,
            seed,
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            state.seed_object(&namespace, now);
        }
        state
    }

    /// Depends only on the request and `now`.
    pub fn handle(&mut self, request: &Request, now: Timestamp) -> Reply {
        let answer = match request.verb {
            Verb::Get => self.get(request),
            Verb::List => self.list(request, self.revision),
            Verb::Watch => self.watch(request, now),
            Verb::Create => self.create(request, now),
            Verb::Update | Verb::Patch | Verb::Apply => self.change(request, now),
            Verb::Delete => self.delete(request, now),
            Verb::DeleteCollection => self.delete_collection(request, now),
        };
        answer.unwrap_or_else(Reply::from)
    }

    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The newest compacted revision.
    pub const fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Sorted by kind, namespace and name.
    pub fn objects(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter()
    }

    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.objects.get(&Key { kind: kind.into(), namespace: namespace.into(), name: name.into() })
    }

    /// Oldest first.
    pub fn changes_after(&self, revision: u64) -> impl Iterator<Item = &Change> {
        let start = self.changes.partition_point(|change| change.revision <= revision);
        self.changes.iter().skip(start)
    }

    /// Watches and lists from before the revision get 410.
    pub fn compact(&mut self, revision: u64) {
        while self.changes.front().is_some_and(|change| change.revision <= revision) {
            self.changes.pop_front();
        }
        self.compacted = self.compacted.max(revision.min(self.revision));
    }

    pub fn objects_at(&self, kind: &str, revision: u64) -> BTreeMap<Key, Arc<Value>> {
        let from = Key { kind: kind.into(), ..Key::default() };
        let of_kind = self.objects.range(from..).take_while(|(key, _)| key.kind == kind);
        let mut objects: BTreeMap<Key, Arc<Value>> =
            of_kind.map(|(key, object)| (key.clone(), Arc::clone(object))).collect();
        let undone = self.changes.iter().rev().take_while(|change| change.revision > revision);
        for change in undone.filter(|change| change.key.kind == kind) {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        objects
    }

    pub(super) const fn draw(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        let mut z = self.seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) const fn uid(&mut self) -> Uid {
        Uid(self.draw(), self.draw())
    }

    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        set(&mut object, &["metadata", "resourceVersion"], self.revision.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), Arc::clone(&object));
        let after = Some(Arc::clone(&object));
        self.record(Change { revision: self.revision, key, before, after, last: None });
        object
    }

    /// Removes an object; returns its last state.
    pub(super) fn erase(&mut self, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.revision += 1;
        let mut last = Value::clone(&before);
        set(&mut last, &["metadata", "resourceVersion"], self.revision.to_string());
        let last = Arc::new(last);
        let last_state = Some(Arc::clone(&last));
        self.record(Change {
            revision: self.revision,
            key: key.clone(),
            before: Some(before),
            after: None,
            last: last_state,
        });
        Some(last)
    }

    fn record(&mut self, change: Change) {
        self.changes.push_back(change);
        while self.changes.len() > self.switches.history.max(1) {
            if let Some(oldest) = self.changes.pop_front() {
                self.compacted = self.compacted.max(oldest.revision);
            }
        }
    }

    pub(super) fn namespace_phase(&self, name: &str) -> Option<&str> {
        self.object("namespaces", "", name).map(|namespace| text(namespace, "/status/phase"))
    }
}

pub(super) struct Uid(u64, u64);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = (self.0, self.1);
        let variant = 0x8000 | (b >> 48 & 0x3fff);
        write!(
            f,
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            a >> 16 & 0xffff,
            a & 0xfff,
            variant,
            b & 0xffff_ffff_ffff
        )
    }
}
