//! Builds `StatefulSets`, Deployments and `PodDisruptionBudgets`.

use super::{hpa::mark_autoscaled, owned_objects::Owner};
use crate::cluster::{Desired, Key, ResourceKind};
use gantry_api::VolumeClaimTemplate;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A `StatefulSet` or Deployment to build.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    pub kind: ResourceKind,
    pub key: Key,
    pub owner: Owner<'a>,
    /// Immutable label selector of the pods.
    pub selector: BTreeMap<String, String>,
    /// Additional labels of the object and its pods.
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// A change replaces the pods.
    pub pod_annotations: BTreeMap<String, String>,
    /// `None` when an autoscaler manages them.
    pub replicas: Option<u32>,
    /// The pod spec.
    pub pod: Value,
    /// The pod spec without the operator's own additions, to compare with adopted objects.
    pub bare: Value,
    /// Volume claim templates of a `StatefulSet`.
    pub claims: &'a [VolumeClaimTemplate],
    /// Additional fields of the object's spec.
    pub more: Map<String, Value>,
}

impl Workload<'_> {
    pub fn desired(&self) -> Desired {
        let mut labels = self.labels.clone();
        labels.extend(self.selector.clone());
        let mut spec = self.more.clone();
        spec.insert("selector".into(), json!({ "matchLabels": self.selector }));
        let mut pods = json!({ "labels": labels });
        if !self.pod_annotations.is_empty() {
            set(&mut pods, "annotations", json!(self.pod_annotations));
        }
        spec.insert("template".into(), json!({ "metadata": pods, "spec": self.pod }));
        if let Some(replicas) = self.replicas {
            spec.insert("replicas".into(), json!(replicas));
        }
        if self.kind == ResourceKind::STATEFUL_SET {
            spec.entry("podManagementPolicy").or_insert_with(|| json!("Parallel"));
            if !self.claims.is_empty() {
                let claims = self.claims.iter();
                let claims: Vec<Value> =
                    claims.map(|c| json!({ "metadata": { "name": c.name }, "spec": c.spec })).collect();
                spec.insert("volumeClaimTemplates".into(), claims.into());
            }
        }
        let mut metadata = json!({ "labels": labels, "ownerReferences": self.owner.references() });
        let mut annotations = self.annotations.clone();
        if self.replicas.is_none() {
            mark_autoscaled(&mut annotations);
        }
        if !annotations.is_empty() {
            set(&mut metadata, "annotations", json!(annotations));
        }
        let bare = json!({ "metadata": { "labels": self.selector }, "spec": self.bare });
        let body = json!({ "metadata": metadata, "spec": spec });
        Desired::new(self.kind, self.key.clone(), body).with_base_pod(bare)
    }
}

fn set(at: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = at {
        fields.insert(name.to_owned(), value);
    }
}

/// `maxUnavailable: 1`; unhealthy pods may always be evicted.
pub fn pod_disruption_budget(
    key: Key,
    owner: &Owner<'_>,
    selector: &BTreeMap<String, String>,
    labels: &Value,
) -> Desired {
    let body = json!({
        "metadata": { "labels": labels, "ownerReferences": owner.references() },
        "spec": {
            "maxUnavailable": 1,
            "selector": { "matchLabels": selector },
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    });
    Desired::new(ResourceKind::POD_DISRUPTION_BUDGET, key, body)
}

/// Sets the image of containers without one.
pub fn with_default_image(mut pod: Value, image: &str) -> Value {
    for list in ["containers", "initContainers"] {
        let containers = pod.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let has_image = container.get("image").and_then(Value::as_str).is_some_and(|i| !i.is_empty());
            if !has_image {
                container.insert("image".into(), json!(image));
            }
        }
    }
    pod
}
