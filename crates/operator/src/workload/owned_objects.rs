//! Objects controlled by a custom resource.

use crate::{
    caches::Caches,
    cluster::{DeleteTarget, Desired, Key, KindId, OwnedObject, ResourceKind},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The controller of an object; garbage collection deletes the object with it.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub kind: KindId,
    pub name: &'a str,
    pub uid: &'a str,
}

impl Owner<'_> {
    pub fn references(&self) -> Value {
        json!([{
            "apiVersion": self.kind.api_version(),
            "kind": self.kind.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }])
    }
}

/// Cached objects controlled by one owner, and the other objects of the namespace.
#[derive(Clone, Debug, Default)]
pub struct OwnedObjects {
    ours: Vec<(ResourceKind, Arc<OwnedObject>)>,
    others: Vec<(ResourceKind, Arc<OwnedObject>)>,
}

impl OwnedObjects {
    pub fn of(caches: &Caches, kinds: &[ResourceKind], namespace: &str, uid: &str) -> Self {
        let mut objects = Vec::new();
        for &kind in kinds {
            let all = caches.owned(kind).in_namespace(namespace);
            objects.extend(all.into_iter().map(|child| (kind, child)));
        }
        Self::new(objects, uid)
    }

    pub fn new(all: impl IntoIterator<Item = (ResourceKind, Arc<OwnedObject>)>, uid: &str) -> Self {
        let ours = |child: &OwnedObject| {
            !uid.is_empty() && child.controller().is_some_and(|(_, owner)| owner == uid)
        };
        let (ours, others) = all.into_iter().partition(|(_, child)| ours(child));
        Self { ours, others }
    }

    pub fn get(&self, kind: ResourceKind, name: &str) -> Option<&OwnedObject> {
        find(&self.ours, kind, name)
    }

    /// All owned objects of a kind.
    pub fn of_kind(&self, kind: ResourceKind) -> impl Iterator<Item = &OwnedObject> {
        self.ours.iter().filter(move |(k, _)| *k == kind).map(|(_, child)| child.as_ref())
    }

    /// UID of the object with this name, also if it is not ours.
    pub fn live_uid(&self, kind: ResourceKind, name: &str) -> Option<&str> {
        let live = find(&self.ours, kind, name).or_else(|| find(&self.others, kind, name))?;
        live.metadata.uid.as_deref()
    }

    /// Owned objects that are no longer desired and not yet terminating. An object that is replaced by one of another
    /// kind is kept while an apply fails.
    pub fn orphans(&self, desired: &[Desired], has_failure: bool) -> Vec<DeleteTarget> {
        let is_desired = |kind: ResourceKind, key: &Key| {
            desired.iter().any(|d| d.key == *key && (d.kind == kind || has_failure))
        };
        let mut targets = Vec::new();
        for (kind, child) in &self.ours {
            let key = Key::of(&child.metadata);
            let (uid, version) = (child.metadata.uid.clone(), child.metadata.resource_version.clone());
            if let (Some(uid), Some(resource_version)) = (uid, version)
                && child.metadata.deletion_timestamp.is_none()
                && !is_desired(*kind, &key)
            {
                targets.push(DeleteTarget { kind: *kind, key, uid, resource_version });
            }
        }
        targets
    }
}

fn find<'a>(
    all: &'a [(ResourceKind, Arc<OwnedObject>)],
    kind: ResourceKind,
    name: &str,
) -> Option<&'a OwnedObject> {
    let is = |child: &OwnedObject| child.metadata.name.as_deref() == Some(name);
    all.iter().find(|(k, child)| *k == kind && is(child)).map(|(_, child)| child.as_ref())
}
