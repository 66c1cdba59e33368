//! Workloads whose replicas are managed by an autoscaler.

use crate::{
    cluster::{Cache, Desired, OwnedObject, ResourceKind},
    plan::{Action, ClusterAction},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Marks workloads whose replicas are left to an autoscaler.
const AUTOSCALED: &str = "gantry.dev/autoscaled";

/// Autoscaler names by kind and name of their target.
pub fn autoscalers(cache: &Cache<OwnedObject>, namespace: &str) -> BTreeMap<(String, String), String> {
    let target = |scaler: &OwnedObject| {
        let text = |field: &str| {
            scaler
                .data
                .pointer(&format!("/spec/scaleTargetRef/{field}"))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Some(((text("kind")?, text("name")?), scaler.metadata.name.clone()?))
    };
    cache.in_namespace(namespace).iter().filter_map(|scaler| target(scaler)).collect()
}

pub(super) fn mark_autoscaled(annotations: &mut BTreeMap<String, String>) {
    annotations.insert(AUTOSCALED.into(), "true".into());
}

/// Required before `spec.replicas` is omitted for the first time: server-side apply resets a field without an owner to
/// its default of 1, so another field manager takes it over with its current value.
pub(super) fn hand_over_replicas(live: Option<&OwnedObject>, desired: &Desired) -> Option<Action> {
    let live = live?;
    let is_omitted = desired.body.pointer("/spec/replicas").is_none();
    let was_ours = live.metadata.annotations.as_ref().is_none_or(|a| !a.contains_key(AUTOSCALED));
    let is_workload = matches!(desired.kind, ResourceKind::STATEFUL_SET | ResourceKind::DEPLOYMENT);
    let replicas = live.data.pointer("/spec/replicas").filter(|_| is_workload && is_omitted && was_ours)?;
    let body = json!({ "spec": { "replicas": replicas } });
    Some(
        ClusterAction::HandOverReplicas(Box::new(Desired::new(desired.kind, desired.key.clone(), body)))
            .into(),
    )
}
