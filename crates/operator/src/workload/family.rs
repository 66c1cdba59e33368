//! Objects that belong to another.

use crate::{
    cluster::{Child, ChildKind, Desired, Doomed, GROUP, Key, VERSION},
    world::World,
};
use gantry_core::mutant;
use serde_json::{Value, json};
use std::sync::Arc;

/// Whom an object belongs to: when the owner goes, so does it.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The owner's kind.
    pub kind: &'static str,
    /// Its name.
    pub name: &'a str,
    /// Its identity.
    pub uid: &'a str,
}

impl Owner<'_> {
    /// As it stands in the metadata of what belongs to it.
    pub fn references(&self) -> Value {
        json!([{
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": self.kind,
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
    ours: Vec<(ChildKind, Arc<Child>)>,
    others: Vec<(ChildKind, Arc<Child>)>,
}

impl Family {
    /// What is known to belong to an object.
    pub fn of(world: &World, namespace: &str, uid: &str) -> Self {
        let mut family = Vec::new();
        for kind in ChildKind::ALL {
            let all = world.children(kind).in_namespace(namespace);
            family.extend(all.into_iter().map(|child| (kind, child)));
        }
        Self::new(family, uid)
    }

    /// Those among many objects that belong to one.
    pub fn new(all: impl IntoIterator<Item = (ChildKind, Arc<Child>)>, uid: &str) -> Self {
        let ours = |child: &Child| {
            let is_owner = |owner: &str| owner == uid || mutant::is("takes_others_for_its_own");
            !uid.is_empty() && child.controller().is_some_and(|(_, owner)| is_owner(owner))
        };
        let (ours, others) = all.into_iter().partition(|(_, child)| ours(child));
        Self { ours, others }
    }

    /// One of them.
    pub fn get(&self, kind: ChildKind, name: &str) -> Option<&Child> {
        find(&self.ours, kind, name)
    }

    /// The identity of what is known to have a place, whoever it belongs to.
    pub fn occupant(&self, kind: ChildKind, name: &str) -> Option<&str> {
        let there = find(&self.ours, kind, name).or_else(|| find(&self.others, kind, name))?;
        there.metadata.uid.as_deref()
    }

    /// Those that nobody wants any more, as they were seen. What is going already is left to go; what is to be replaced
    /// by an object of another kind stays until that one could be made.
    pub fn unwanted(&self, wanted: &[Desired], is_something_refused: bool) -> Vec<Doomed> {
        let is_wanted = |kind: ChildKind, key: &Key| {
            wanted.iter().any(|w| w.key == *key && (w.kind == kind || is_something_refused))
        };
        let mut doomed = Vec::new();
        for (kind, child) in self.ours.iter().filter(|_| !mutant::is("keeps_what_nobody_wants")) {
            let key = Key::of(&child.metadata);
            let (uid, version) = (child.metadata.uid.clone(), child.metadata.resource_version.clone());
            if let (Some(uid), Some(resource_version)) = (uid, version)
                && child.metadata.deletion_timestamp.is_none()
                && !is_wanted(*kind, &key)
            {
                doomed.push(Doomed { kind: *kind, key, uid, resource_version });
            }
        }
        doomed
    }
}

fn find<'a>(all: &'a [(ChildKind, Arc<Child>)], kind: ChildKind, name: &str) -> Option<&'a Child> {
    let is = |child: &Child| child.metadata.name.as_deref() == Some(name);
    all.iter().find(|(k, child)| *k == kind && is(child)).map(|(_, child)| child.as_ref())
}
