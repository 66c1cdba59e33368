//! Creates, updates and deletes the pods of a workload.

use super::{
    workloads::{Progress, revision, wanted},
    write,
};
use crate::{
    object::{is_terminating, set, text, time},
    read::uid,
    request::{Subresource, Verb},
    state::{Key, State},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The template hash of a pod.
const REVISION: &str = "controller-revision-hash";

pub(super) fn step(
    state: &mut State,
    key: &Key,
    owner: &Arc<Value>,
    ready_after: SignedDuration,
    now: Timestamp,
) -> (Progress, Option<Timestamp>) {
    let (replicas, current) = (wanted(owner), revision(owner));
    let mine = |state: &State| -> BTreeMap<Key, Arc<Value>> {
        let pods = state.objects_at("pods", state.revision()).into_iter();
        pods.filter(|(_, pod)| text(pod, "/metadata/ownerReferences/0/uid") == uid(owner)).collect()
    };
    let name = |ordinal: i64| format!("{}-{ordinal}", key.name);
    let wanted_names: Vec<String> = (0..replicas).map(name).collect();
    for (place, pod) in mine(state) {
        let outdated = pod.pointer("/metadata/labels").and_then(|labels| labels.get(REVISION))
            != Some(&Value::from(current.as_str()));
        if !is_terminating(&pod) && (outdated || !wanted_names.contains(&place.name)) {
            write(
                state,
                &place,
                Verb::Delete,
                Subresource::Main,
                json!({"preconditions": {"uid": uid(&pod)}}),
                now,
            );
        }
    }
    for name in &wanted_names {
        let place = Key { kind: "pods".into(), namespace: key.namespace.clone(), name: name.clone() };
        if state.object("pods", &place.namespace, &place.name).is_none() {
            write(state, &place, Verb::Create, Subresource::Main, pod(owner, name, &current), now);
        }
    }
    let mut due = None;
    let mut progress = Progress { replicas: 0, updated: 0, ready: 0 };
    for (place, pod) in mine(state).iter().filter(|(_, pod)| !is_terminating(pod)) {
        progress.replicas += 1;
        progress.updated += i64::from(
            pod.pointer("/metadata/labels").and_then(|labels| labels.get(REVISION))
                == Some(&Value::from(current.as_str())),
        );
        let born: Timestamp = text(pod, "/metadata/creationTimestamp").parse().unwrap_or(now);
        let ready_at = born.saturating_add(ready_after).unwrap_or(now);
        if now < ready_at {
            due = due.into_iter().chain([ready_at]).min();
            continue;
        }
        progress.ready += 1;
        if text(pod, "/status/phase") != "Running" {
            let since = time(now);
            let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": since, "lastProbeTime": null});
            let body = json!({"status": {"phase": "Running", "conditions": [condition], "startTime": since}});
            write(state, place, Verb::Patch, Subresource::Status, body, now);
        }
    }
    (progress, due)
}

fn pod(owner: &Value, name: &str, current: &str) -> Value {
    let template = owner.pointer("/spec/template").cloned().unwrap_or_default();
    let reference = json!({
        "apiVersion": text(owner, "/apiVersion"), "kind": text(owner, "/kind"), "name": text(owner, "/metadata/name"),
        "uid": uid(owner), "controller": true, "blockOwnerDeletion": true,
    });
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}});
    for part in ["metadata", "spec"] {
        if let Some(value) = template.get(part) {
            set(&mut pod, &[part], value.clone());
        }
    }
    set(&mut pod, &["metadata", "name"], name);
    set(&mut pod, &["metadata", "labels", REVISION], current);
    set(&mut pod, &["metadata", "ownerReferences"], json!([reference]));
    set(&mut pod, &["spec", "nodeName"], "node");
    pod
}

/// Removes pods after their grace period, as the kubelet does.
pub(super) fn finish(state: &mut State, now: Timestamp) -> Option<Timestamp> {
    let mut due = None;
    for (place, pod) in state.objects_at("pods", state.revision()) {
        let Ok(end) = text(&pod, "/metadata/deletionTimestamp").parse::<Timestamp>() else { continue };
        if now < end {
            due = due.into_iter().chain([end]).min();
        } else {
            let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid(&pod)}});
            write(state, &place, Verb::Delete, Subresource::Main, body, now);
        }
    }
    due
}
