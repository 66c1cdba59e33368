//! Workloads whose replicas are managed by an autoscaler.

use crate::{
    cluster::{Cache, Change, Desired, OwnedObject, ResourceKind, strip_metadata},
    plan::{Action, ClusterAction},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const TARGET: &str = "/spec/scaleTargetRef";
/// Marks workloads whose replicas are left to an autoscaler.
const AUTOSCALED: &str = "gantry.dev/autoscaled";

/// What an autoscaler scales.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScaleTarget {
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl ScaleTarget {
    fn of(scaler: &OwnedObject) -> Option<Self> {
        let target = scaler.data.pointer(TARGET)?;
        let text = |field: &str| target.get(field).and_then(Value::as_str).map(str::to_owned);
        Some(Self { kind: text("kind")?, name: text("name")? })
    }
}

/// Removes everything but the target: the status of an autoscaler changes every few seconds.
pub(crate) fn strip_autoscaler(scaler: OwnedObject) -> OwnedObject {
    let target = scaler.data.pointer(TARGET).cloned().unwrap_or_default();
    let metadata = ObjectMeta { labels: None, annotations: None, ..strip_metadata(scaler).metadata };
    OwnedObject { metadata, data: json!({ "spec": { "scaleTargetRef": target } }) }
}

/// Targets of an autoscaler before and after a change of its target; none when the target is the same.
pub(crate) fn retargeted(change: &Change<OwnedObject>) -> Vec<ScaleTarget> {
    let target = |scaler: &Option<Arc<OwnedObject>>| scaler.as_deref().and_then(ScaleTarget::of);
    let (before, after) = (target(&change.before), target(&change.after));
    if before == after { Vec::new() } else { before.into_iter().chain(after).collect() }
}

/// Autoscaler names by kind and name of their target.
pub fn autoscalers(cache: &Cache<OwnedObject>, namespace: &str) -> BTreeMap<(String, String), String> {
    let entry = |scaler: &OwnedObject| {
        let ScaleTarget { kind, name } = ScaleTarget::of(scaler)?;
        Some(((kind, name), scaler.metadata.name.clone()?))
    };
    cache.in_namespace(namespace).iter().filter_map(|scaler| entry(scaler)).collect()
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
