//! Who owns which field: server-side apply, and what every other write takes from others.

pub mod compare;
pub mod fields;
pub mod managed;
pub mod merge;
#[cfg(test)]
mod tests;

use super::shape::Shape;
use compare::{compare, owned};
use fields::{FieldSet, Step, shown};
use managed::{Entry, Managed, Manager, Operation};
use serde_json::Value;

/// Who writes, in which version, when.
#[derive(Clone, Debug)]
pub struct Author<'a> {
    /// The field manager's name.
    pub name: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// `apiVersion` of the write.
    pub version: &'a str,
    /// The write's time as the API prints it.
    pub time: &'a str,
}

impl Author<'_> {
    fn manager(&self, operation: Operation) -> Manager {
        let version = if operation == Operation::Update { self.version.to_owned() } else { String::new() };
        Manager { name: self.name.into(), operation, subresource: self.subresource.into(), version }
    }
}

/// A field that somebody else owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its owner.
    pub manager: Manager,
    /// The field, as text.
    pub field: String,
}

impl Conflict {
    /// The owner as people read it.
    pub fn owner(&self) -> String {
        let mut text = format!("\"{}\"", self.manager.name);
        if !self.manager.subresource.is_empty() {
            text.push_str(&format!(" with subresource \"{}\"", self.manager.subresource));
        }
        if self.manager.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.manager.version));
        }
        text
    }
}

/// Paths that nobody owns: the API server keeps them.
pub fn unowned() -> FieldSet {
    let mut set = FieldSet::default();
    let field = |name: &str| Step::Field(name.to_owned());
    for name in ["apiVersion", "kind", "metadata"] {
        set.insert(&[field(name)]);
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert(&[field("metadata"), field(name)]);
    }
    set
}

/// Applies a configuration. The configuration's `reset` trees are ignored: they belong to another endpoint.
///
/// Answers with the object and its owners, or with every conflict when `force` is off.
pub fn apply(
    live: &Value,
    config: &Value,
    mut managed: Managed,
    author: &Author<'_>,
    force: bool,
    shape: &Shape,
    reset: &FieldSet,
) -> Result<(Value, Managed), Vec<Conflict>> {
    let me = author.manager(Operation::Apply);
    let former = managed.clone();
    let config = merge::remove(config, reset, shape);
    let merged = merge::merge(live, &config, shape);

    let last = managed.0.remove(&me).map(|entry| entry.fields).unwrap_or_default();
    let set = owned(&config, shape).difference(&unowned());
    let entry = Entry { fields: set, version: author.version.into(), time: String::new() };
    managed.0.insert(me.clone(), entry);
    let gone = last.with_parents().difference(&managed.union().with_parents());
    let object = merge::remove(&merged, &gone, shape);

    let change = compare(Some(live), Some(&object), shape).without(reset);
    let taken = change.taken();
    let mut conflicts = Vec::new();
    for (manager, entry) in managed.0.iter().filter(|(manager, _)| **manager != me) {
        for path in entry.fields.intersection(&taken).paths() {
            conflicts.push(Conflict { manager: manager.clone(), field: shown(&path) });
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    for (_, entry) in managed.0.iter_mut().filter(|(manager, _)| **manager != me) {
        entry.fields = entry.fields.difference(&taken).difference(&change.removed);
    }
    managed.tidy();
    // Only a change of the object has a time: who merely joins an owner gets none.
    let time = match former.0.get(&me) {
        _ if change != compare::Comparison::default() => author.time.to_owned(),
        Some(entry) => entry.time.clone(),
        None => String::new(),
    };
    if let Some(entry) = managed.0.get_mut(&me) {
        entry.time = time;
    }
    Ok((object, managed))
}

/// What a write that is no apply takes from others and owns afterwards; `reset` trees as in [`apply`].
pub fn track(
    live: &Value,
    new: &Value,
    mut managed: Managed,
    author: &Author<'_>,
    shape: &Shape,
    reset: &FieldSet,
) -> Managed {
    let change = compare(Some(live), Some(new), shape).without(reset);
    let taken = change.taken();
    for entry in managed.0.values_mut() {
        entry.fields = entry.fields.difference(&taken).difference(&change.removed);
    }
    managed.tidy();
    let mine = taken.difference(&unowned());
    if !mine.is_empty() {
        let me = author.manager(Operation::Update);
        let before = managed.0.remove(&me).map(|entry| entry.fields).unwrap_or_default();
        let entry =
            Entry { fields: before.union(&mine), version: author.version.into(), time: author.time.into() };
        managed.0.insert(me, entry);
    }
    managed
}
