//! Garbage collection by the UIDs of owner references.

use super::write;
use crate::{
    delete::{FOREGROUND, ORPHAN},
    object::{is_terminating, set, text, texts, unset},
    read::uid,
    request::{Subresource, Verb},
    state::{Key, State},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(super) fn step(state: &mut State, now: Timestamp) {
    let objects: Vec<(Key, Arc<Value>)> =
        state.objects().map(|(key, object)| (key.clone(), Arc::clone(object))).collect();
    let places: BTreeMap<String, (Key, Arc<Value>)> = objects
        .iter()
        .map(|(key, object)| (uid(object).to_owned(), (key.clone(), Arc::clone(object))))
        .collect();
    let mut holders: BTreeSet<String> = BTreeSet::new();
    for (key, object) in &objects {
        let references = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let Some(references) = references.filter(|references| !references.is_empty()) else { continue };
        // Owners in other namespaces do not count.
        let owner = |reference: &Value| {
            let found = places.get(text(reference, "/uid"));
            found.filter(|(owner, _)| owner.namespace.is_empty() || owner.namespace == key.namespace)
        };
        let ends = |owner: &Value, how: &str| {
            is_terminating(owner) && texts(owner, "/metadata/finalizers").contains(&how)
        };
        let kept: Vec<&Value> = references
            .iter()
            .filter(|reference| owner(reference).is_some_and(|(_, owner)| !ends(owner, ORPHAN)))
            .collect();
        let orphaned =
            references.iter().any(|reference| owner(reference).is_some_and(|(_, owner)| ends(owner, ORPHAN)));
        let waiting =
            kept.iter().any(|reference| owner(reference).is_some_and(|(_, owner)| ends(owner, FOREGROUND)));
        if (kept.is_empty() && !orphaned) || waiting {
            for reference in &kept {
                if reference.get("blockOwnerDeletion") == Some(&Value::Bool(true)) {
                    holders.insert(text(reference, "/uid").to_owned());
                }
            }
            if !is_terminating(object) {
                let body = json!({"propagationPolicy": "Background", "preconditions": {"uid": uid(object)}});
                write(state, key, Verb::Delete, Subresource::Main, body, now);
            }
        } else if kept.len() < references.len() {
            let mut patch = json!({"metadata": {"uid": uid(object)}});
            let kept: Vec<Value> = kept.into_iter().cloned().collect();
            let kept = if kept.is_empty() { Value::Null } else { kept.into() };
            set(&mut patch, &["metadata", "ownerReferences"], kept);
            write(state, key, Verb::Patch, Subresource::Main, patch, now);
        }
    }
    for (key, object) in &objects {
        release(state, key, object, &holders, now);
    }
}

/// Removes the garbage collector's finalizers from an object that waits only for them.
fn release(state: &mut State, key: &Key, object: &Value, holders: &BTreeSet<String>, now: Timestamp) {
    let finalizers = texts(object, "/metadata/finalizers");
    let ours = |name: &&str| *name == ORPHAN || (*name == FOREGROUND && !holders.contains(uid(object)));
    if !is_terminating(object) || !finalizers.iter().any(ours) {
        return;
    }
    let rest: Vec<&str> = finalizers.into_iter().filter(|name| !ours(name)).collect();
    let mut patch = json!({"metadata": {"uid": uid(object), "finalizers": rest}});
    if rest.is_empty() {
        unset(&mut patch, &["metadata", "finalizers"]);
        set(&mut patch, &["metadata", "finalizers"], Value::Null);
    }
    write(state, key, Verb::Patch, Subresource::Main, patch, now);
}
