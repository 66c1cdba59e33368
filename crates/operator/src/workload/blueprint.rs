//! `StatefulSets`, Deployments and what keeps them from being taken down at once.

use super::{family::Owner, scaled::marked};
use crate::cluster::{ResourceKind, Desired, Key};
use gantry_api::VolumeClaimTemplate;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Pods of one form, as many as are wanted.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    /// The kind of the object: a `StatefulSet` or a Deployment.
    pub kind: ResourceKind,
    /// Where it is.
    pub key: Key,
    /// Whom it belongs to.
    pub owner: Owner<'a>,
    /// What its pods are selected by; it cannot be changed later.
    pub selector: BTreeMap<String, String>,
    /// Labels of the object and of its pods, besides.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the object.
    pub annotations: BTreeMap<String, String>,
    /// Annotations of its pods: a change of one replaces them.
    pub pod_annotations: BTreeMap<String, String>,
    /// How many; `None` when an autoscaler says.
    pub replicas: Option<u32>,
    /// One of them.
    pub pod: Value,
    /// The same without what is added to it here and asked for nowhere.
    pub bare: Value,
    /// Volumes that each pod of a `StatefulSet` gets for itself.
    pub claims: &'a [VolumeClaimTemplate],
    /// Fields of the object's spec besides.
    pub more: Map<String, Value>,
}

impl Workload<'_> {
    /// The object.
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
            marked(&mut annotations);
        }
        if !annotations.is_empty() {
            set(&mut metadata, "annotations", json!(annotations));
        }
        let bare = json!({ "metadata": { "labels": self.selector }, "spec": self.bare });
        let body = json!({ "metadata": metadata, "spec": spec });
        Desired::new(self.kind, self.key.clone(), body).with_bare(bare)
    }
}

fn set(at: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = at {
        fields.insert(name.to_owned(), value);
    }
}

/// Whoever empties a node takes one pod at a time. A pod that does not work is in nobody's way.
pub fn budget(key: Key, owner: &Owner<'_>, selector: &BTreeMap<String, String>, labels: &Value) -> Desired {
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

/// The pod with an image for every container that names none: Gantry's own.
pub fn with_images(mut pod: Value, image: &str) -> Value {
    for list in ["containers", "initContainers"] {
        let containers = pod.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let named = container.get("image").and_then(Value::as_str).is_some_and(|i| !i.is_empty());
            if !named {
                container.insert("image".into(), json!(image));
            }
        }
    }
    pod
}
