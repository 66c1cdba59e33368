//! Marks `StatefulSets` and Deployments ready some time after a change.

use super::{pods, write};
use crate::{
    object::{is_terminating, text},
    read::uid,
    request::{Subresource, Verb},
    state::{Key, State},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct Workloads {
    ready_after: SignedDuration,
    pods: bool,
    due: BTreeMap<Key, (String, i64, Timestamp)>,
}

pub(super) struct Progress {
    pub(super) replicas: i64,
    pub(super) updated: i64,
    pub(super) ready: i64,
}

impl Workloads {
    /// Ready this long after a change; with pod objects, or only with status counts.
    pub fn new(ready_after: Duration, pods: bool) -> Self {
        let ready_after = SignedDuration::try_from(ready_after).unwrap_or(SignedDuration::MAX);
        Self { ready_after, pods, due: BTreeMap::new() }
    }

    pub(super) fn step(&mut self, state: &mut State, now: Timestamp) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        for kind in ["statefulsets.apps", "deployments.apps"] {
            for (key, object) in state.objects_at(kind, state.revision()) {
                if is_terminating(&object) {
                    continue;
                }
                let (progress, due) = if self.pods {
                    pods::step(state, &key, &object, self.ready_after, now)
                } else {
                    self.count(&key, &object, now)
                };
                next = next.into_iter().chain(due).min();
                report(state, &key, &object, &progress, now);
            }
        }
        if self.pods {
            let due = pods::finish(state, now);
            next = next.into_iter().chain(due).min();
        }
        next
    }

    /// Without pods, a new generation is ready after the delay.
    fn count(&mut self, key: &Key, object: &Value, now: Timestamp) -> (Progress, Option<Timestamp>) {
        let generation = object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
        let known = self.due.get(key).filter(|(of, at, _)| of == uid(object) && *at == generation);
        let due = match known {
            Some((_, _, due)) => *due,
            None => now.saturating_add(self.ready_after).unwrap_or(now),
        };
        self.due.insert(key.clone(), (uid(object).to_owned(), generation, due));
        let replicas = wanted(object);
        if now >= due {
            return (Progress { replicas, updated: replicas, ready: replicas }, None);
        }
        let ready =
            object.pointer("/status/readyReplicas").and_then(Value::as_i64).unwrap_or(0).min(replicas);
        (Progress { replicas, updated: replicas, ready }, Some(due))
    }
}

pub(super) fn wanted(object: &Value) -> i64 {
    object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

pub(super) fn revision(object: &Value) -> String {
    let template = object.pointer("/spec/template").cloned().unwrap_or_default();
    let text = crate::apply::fields::canonical(&template);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:08x}", hash >> 32)
}

/// Writes a changed status.
fn report(state: &mut State, key: &Key, object: &Arc<Value>, progress: &Progress, now: Timestamp) {
    let Progress { replicas, updated, ready } = *progress;
    let generation = object.pointer("/metadata/generation").cloned().unwrap_or(json!(0));
    let some = |number: i64| if number == 0 { Value::Null } else { number.into() };
    let status = if key.kind.starts_with("statefulsets") {
        let current = format!("{}-{}", key.name, revision(object));
        let before = match text(object, "/status/currentRevision") {
            "" => current.clone(),
            before if updated < replicas || ready < replicas => before.to_owned(),
            _ => current.clone(),
        };
        json!({
            "observedGeneration": generation, "replicas": replicas, "readyReplicas": some(ready),
            "availableReplicas": ready, "updatedReplicas": some(updated), "currentReplicas": some(updated),
            "currentRevision": before, "updateRevision": current, "collisionCount": 0,
        })
    } else {
        let available = ready >= replicas;
        let (status, reason) = if available {
            ("True", "MinimumReplicasAvailable")
        } else {
            ("False", "MinimumReplicasUnavailable")
        };
        let old = object.pointer("/status/conditions/0");
        let since = match old.filter(|old| text(old, "/status") == status) {
            Some(old) => text(old, "/lastTransitionTime").to_owned(),
            None => crate::object::time(now),
        };
        json!({
            "observedGeneration": generation, "replicas": some(replicas), "readyReplicas": some(ready),
            "availableReplicas": some(ready), "updatedReplicas": some(updated),
            "unavailableReplicas": some((replicas - ready).max(0)),
            "conditions": [{
                "type": "Available", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": since, "lastUpdateTime": since,
            }],
        })
    };
    let body = json!({"metadata": {"uid": uid(object)}, "status": status});
    write(state, key, Verb::Patch, Subresource::Status, body, now);
}
