//! Objects that belong to another.

use crate::{
    caches::Caches,
    cluster::{DeleteTarget, Desired, Key, KindId, OwnedObject, ResourceKind},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Whom an object belongs to: when the owner goes, so does it.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub kind: KindId,
    /// Its name.
    pub name: &'a str,
    /// Its identity.
    pub uid: &'a str,
}

impl Owner<'_> {
    /// As it stands in the metadata of what belongs to it.
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

/// Everything in the cluster that belongs to one object, and what is known to stand beside it.
#[derive(Clone, Debug, Default)]
pub struct Family {
    ours: Vec<(ResourceKind, Arc<OwnedObject>)>,
    others: Vec<(ResourceKind, Arc<OwnedObject>)>,
}

impl Family {
    /// What is known to belong to an object.
    pub fn of(caches: &Caches, kinds: &[ResourceKind], namespace: &str, uid: &str) -> Self {
        let mut family = Vec::new();
        for &kind in kinds {
            let all = caches.owned(kind).in_namespace(namespace);
            family.extend(all.into_iter().map(|child| (kind, child)));
        }
        Self::new(family, uid)
    }

    /// Those among many objects that belong to one.
    pub fn new(all: impl IntoIterator<Item = (ResourceKind, Arc<OwnedObject>)>, uid: &str) -> Self {
        let ours = |child: &OwnedObject| {
            !uid.is_empty() && child.controller().is_some_and(|(_, owner)| owner == uid)
        };
        let (ours, others) = all.into_iter().partition(|(_, child)| ours(child));
        Self { ours, others }
    }

    /// One of them.
    pub fn get(&self, kind: ResourceKind, name: &str) -> Option<&OwnedObject> {
        find(&self.ours, kind, name)
    }

    /// The identity of what is known to have a place, whoever it belongs to.
    pub fn occupant(&self, kind: ResourceKind, name: &str) -> Option<&str> {
        let there = find(&self.ours, kind, name).or_else(|| find(&self.others, kind, name))?;
        there.metadata.uid.as_deref()
    }

    /// Those that nobody wants any more, as they were seen. What is going already is left to go; what is to be replaced
    /// by an object of another kind stays until that one could be made.
    pub fn unwanted(&self, wanted: &[Desired], is_something_refused: bool) -> Vec<DeleteTarget> {
        let is_wanted = |kind: ResourceKind, key: &Key| {
            wanted.iter().any(|w| w.key == *key && (w.kind == kind || is_something_refused))
        };
        let mut target = Vec::new();
        for (kind, child) in &self.ours {
            let key = Key::of(&child.metadata);
            let (uid, version) = (child.metadata.uid.clone(), child.metadata.resource_version.clone());
            if let (Some(uid), Some(resource_version)) = (uid, version)
                && child.metadata.deletion_timestamp.is_none()
                && !is_wanted(*kind, &key)
            {
                target.push(DeleteTarget { kind: *kind, key, uid, resource_version });
            }
        }
        target
    }
}

fn find<'a>(all: &'a [(ResourceKind, Arc<OwnedObject>)], kind: ResourceKind, name: &str) -> Option<&'a OwnedObject> {
    let is = |child: &OwnedObject| child.metadata.name.as_deref() == Some(name);
    all.iter().find(|(k, child)| *k == kind && is(child)).map(|(_, child)| child.as_ref())
}
