//! Inputs: objects of other owners that a controller reads by name. Each has a watch of its own while it is referenced,
//! because caches of owned objects select by our label.

use crate::{
    cluster::{Cache, Key, KindId, OwnedObject, ResourceKind, WatchSource, run_watch, strip_metadata},
    context::Context,
    controller::Controller,
    health::{Health, SyncChange},
    plan::Known,
    workqueue::Priority,
};
use kube::{Api, runtime::watcher};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::task::AbortHandle;

/// Kind and key of a referenced object.
pub type InputRef = (ResourceKind, Key);
type User = (KindId, Key);

/// Referenced objects and the objects that reference them.
#[derive(Default)]
pub struct Inputs(Mutex<State>);

#[derive(Default)]
struct State {
    references: BTreeMap<User, Vec<InputRef>>,
    watches: BTreeMap<InputRef, Watch>,
}

struct Watch {
    cache: Arc<Cache<OwnedObject>>,
    health: Health,
    task: AbortHandle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inputs").field("watches", &self.lock().watches.len()).finish()
    }
}

impl Inputs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A referenced object; unknown until its watch is synced.
    pub fn get(&self, kind: ResourceKind, key: &Key) -> Known<Arc<OwnedObject>> {
        let state = self.lock();
        match state.watches.get(&(kind, key.clone())).map(|watch| &watch.cache) {
            Some(cache) if cache.is_listed([key.namespace.as_str()]) => {
                cache.get(key).map_or(Known::Absent, Known::Present)
            }
            _ => Known::Unknown(format!("{kind} {key} is not read yet")),
        }
    }

    /// Why a referenced object cannot be read.
    pub fn failure(&self, kind: ResourceKind, key: &Key) -> Option<String> {
        self.lock().watches.get(&(kind, key.clone()))?.health.failure()
    }

    fn users(&self, input: &InputRef) -> Vec<User> {
        let state = self.lock();
        let users = state.references.iter().filter(|(_, references)| references.contains(input));
        users.map(|(user, _)| user.clone()).collect()
    }

    /// Replaces the references of one object: starts missing watches, and stops those without references.
    fn set(&self, user: User, references: Vec<InputRef>, start: impl Fn(&InputRef) -> Watch) {
        let mut state = self.lock();
        if state.references.get(&user).map_or(references.is_empty(), |known| *known == references) {
            return;
        }
        for input in &references {
            if !state.watches.contains_key(input) {
                state.watches.insert(input.clone(), start(input));
            }
        }
        if references.is_empty() {
            state.references.remove(&user);
        } else {
            state.references.insert(user, references);
        }
        let State { references, watches } = &mut *state;
        watches.retain(|input, _| references.values().any(|list| list.contains(input)));
    }
}

/// Watches the inputs of one object; a change of one enqueues the object.
pub(crate) fn sync<C: Controller>(context: &Arc<Context>, key: &Key) {
    let references = C::inputs(&context.caches, key);
    let user = (KindId::of::<C::Kind>(), key.clone());
    context.caches.inputs.set(user, references, |input| watch(context, input));
}

fn watch(context: &Arc<Context>, (kind, key): &InputRef) -> Watch {
    let input = (*kind, key.clone());
    let cache: Arc<Cache<OwnedObject>> = Arc::default();
    let weak = Arc::downgrade(context);
    let enqueue = Arc::new(move || {
        let Some(context) = weak.upgrade() else { return };
        for (kind, key) in context.caches.inputs.users(&input) {
            context.queues.get(kind).add(key, Priority::Urgent);
        }
    });
    let changed = Arc::clone(&enqueue);
    cache.subscribe(move |_| changed());
    let (client, resource) = (context.writer.client().clone(), kind.api_resource());
    // Cluster-scoped objects have no namespace.
    let api = if key.namespace.is_empty() {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, &key.namespace, &resource)
    };
    let config = watcher::Config::default().fields(&format!("metadata.name={}", key.name));
    let health = Health::default();
    let report = health.watch(kind.plural, &key.to_string());
    // A list without the object is an answer, too.
    let notify = move |change: SyncChange| {
        if change.is_listed {
            enqueue();
        }
    };
    let strip = if *kind == ResourceKind::SECRET { strip_secret } else { strip_metadata };
    let source = WatchSource { api, config, scope: key.namespace.clone(), strip };
    let run = run_watch(source, Arc::clone(&cache), report, None, notify);
    Watch { cache, health, task: tokio::spawn(run).abort_handle() }
}

/// Keeps the keys of a Secret, and annotations of KServe: no value stays in memory.
fn strip_secret(secret: OwnedObject) -> OwnedObject {
    let keys = secret.data.get("data").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let data = json!({ "data": keys.map(|key| (key.clone(), true.into())).collect::<Map<_, _>>() });
    let mut metadata = strip_metadata(secret).metadata;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| name.starts_with("serving.kserve.io/"));
    }
    OwnedObject { metadata, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_kept_without_its_values() {
        let copy = "kubectl.kubernetes.io/last-applied-configuration";
        let whole = json!({
            "metadata": { "name": "s", "annotations": { "serving.kserve.io/s3-region": "x", "note": "hush", copy: "hush" } },
            "data": { "awsSecretAccessKey": "aHVzaA==" }, "stringData": { "a": "hush" }, "type": "Opaque",
        });
        let stripped = strip_secret(serde_json::from_value(whole).unwrap());
        let text = serde_json::to_string(&stripped).unwrap();
        assert!(!text.contains("hush") && !text.contains("aHVzaA"), "{text}");
        assert_eq!(stripped.data, json!({ "data": { "awsSecretAccessKey": true } }));
        assert_eq!(stripped.metadata.annotations.unwrap().len(), 1);
    }
}
