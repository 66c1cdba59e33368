//! Server-side apply and field ownership.

pub mod compare;
pub mod fields;
pub mod managed;
pub mod merge;
#[cfg(test)]
mod tests;

use super::merge_schema::MergeSchema;
use compare::{compare, owned};
use fields::{FieldSet, Step, shown};
use managed::{Entry, Managed, Manager, Operation};
use serde_json::Value;

/// The author of a write.
#[derive(Clone, Debug)]
pub struct Author<'a> {
    pub name: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub version: &'a str,
    /// RFC 3339.
    pub time: &'a str,
}

impl Author<'_> {
    fn manager(&self, operation: Operation) -> Manager {
        let version = if operation == Operation::Update { self.version.to_owned() } else { String::new() };
        Manager { name: self.name.into(), operation, subresource: self.subresource.into(), version }
    }
}

/// A field owned by another manager with a different value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: Manager,
    pub field: String,
}

impl Conflict {
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

/// Paths without ownership, such as `metadata.uid`.
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

/// Applies a configuration, except its `reset` trees, which belong to another endpoint.
///
/// Returns the object and its owners, or all conflicts unless `force` is set.
pub fn apply(
    live: &Value,
    config: &Value,
    mut managed: Managed,
    author: &Author<'_>,
    force: bool,
    merge_schema: &MergeSchema,
    reset: &FieldSet,
) -> Result<(Value, Managed), Vec<Conflict>> {
    let me = author.manager(Operation::Apply);
    let former = managed.clone();
    let config = merge::remove(config, reset, merge_schema);
    let merged = merge::merge(live, &config, merge_schema);

    let last = managed.0.remove(&me).map(|entry| entry.fields).unwrap_or_default();
    let set = owned(&config, merge_schema).difference(&unowned());
    let entry = Entry { fields: set, version: author.version.into(), time: String::new() };
    managed.0.insert(me.clone(), entry);
    let gone = last.with_parents().difference(&managed.union().with_parents());
    let object = merge::remove(&merged, &gone, merge_schema);

    let change = compare(Some(live), Some(&object), merge_schema).without(reset);
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
    // Becoming a co-owner of an unchanged field does not update the time.
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

/// Ownership after a write other than apply; `reset` trees as in [`apply`].
pub fn track(
    live: &Value,
    new: &Value,
    mut managed: Managed,
    author: &Author<'_>,
    merge_schema: &MergeSchema,
    reset: &FieldSet,
) -> Managed {
    let change = compare(Some(live), Some(new), merge_schema).without(reset);
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
