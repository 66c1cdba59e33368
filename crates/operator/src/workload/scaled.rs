//! Workloads whose replicas belong to an autoscaler.

use crate::{
    cluster::{Cache, OwnedObject, ResourceKind, Desired},
    plan::{Action, ClusterAction},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The annotation of a workload whose replicas are not ours.
const AUTOSCALED: &str = "gantry.dev/autoscaled";

/// The autoscalers of a namespace, by the kind and the name of what they scale.
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

/// The annotations of a workload whose replicas are an autoscaler's.
pub(crate) fn marked(annotations: &mut BTreeMap<String, String>) {
    annotations.insert(AUTOSCALED.into(), "true".into());
}

/// What comes before replicas are left out for the first time: a field that nobody owns falls back to one, so that it
/// is given to somebody else first, as it is.
pub fn hand_over(live: Option<&OwnedObject>, wanted: &Desired) -> Option<Action> {
    let live = live?;
    let is_left_out = wanted.body.pointer("/spec/replicas").is_none();
    let was_ours = live.metadata.annotations.as_ref().is_none_or(|a| !a.contains_key(AUTOSCALED));
    let is_workload = matches!(wanted.kind, ResourceKind::STATEFUL_SET | ResourceKind::DEPLOYMENT);
    let replicas = live.data.pointer("/spec/replicas").filter(|_| is_workload && is_left_out && was_ours)?;
    let body = json!({ "spec": { "replicas": replicas } });
    Some(ClusterAction::HandOverReplicas(Box::new(Desired::new(wanted.kind, wanted.key.clone(), body))).into())
}
