//! Builds `StatefulSets`, Deployments and `PodDisruptionBudgets`.

use super::{hpa::mark_autoscaled, inherited::Inherited, owned_objects::Owner, pod_spec_merge::merge};
use crate::cluster::{Desired, Key, ResourceKind};
use gantry_api::VolumeClaimTemplate;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

type Pairs = BTreeMap<String, String>;

/// A `StatefulSet` or Deployment to build.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    pub kind: ResourceKind,
    pub key: Key,
    pub owner: Owner<'a>,
    /// Immutable label selector of the pods.
    pub selector: BTreeMap<String, String>,
    /// Metadata of the object and its pods; the operator's own wins.
    pub inherited: Inherited,
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
    /// Volume claim templates of a `StatefulSet`; a Deployment has a volume with the lifetime of the pod for each.
    pub claims: &'a [VolumeClaimTemplate],
    /// Additional fields of the object's spec.
    pub more: Map<String, Value>,
}

impl Workload<'_> {
    pub fn desired(&self) -> Desired {
        let labels = over(&over(&self.inherited.labels, &self.labels), &self.selector);
        let mut spec = self.more.clone();
        spec.insert("selector".into(), json!({ "matchLabels": self.selector }));
        let template = |labels: &Pairs, own: &Pairs, pod: &Value| {
            let mut metadata = json!({ "labels": labels });
            set_annotations(&mut metadata, &over(&self.inherited.annotations, own));
            let mut pod = pod.clone();
            if self.kind == ResourceKind::DEPLOYMENT {
                add_claimed_volumes(&mut pod, self.claims);
            }
            json!({ "metadata": metadata, "spec": pod })
        };
        spec.insert("template".into(), template(&labels, &self.pod_annotations, &self.pod));
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
        let mut annotations = over(&self.inherited.annotations, &self.annotations);
        if self.replicas.is_none() {
            mark_autoscaled(&mut annotations);
        }
        set_annotations(&mut metadata, &annotations);
        let mut bare_labels = self.inherited.labels.clone();
        bare_labels.retain(|name, _| !self.labels.contains_key(name));
        bare_labels.extend(self.selector.clone());
        let bare = template(&bare_labels, &Pairs::new(), &self.bare);
        let body = json!({ "metadata": metadata, "spec": spec });
        Desired::new(self.kind, self.key.clone(), body).with_base_pod(bare)
    }
}

fn over(base: &Pairs, own: &Pairs) -> Pairs {
    base.iter().chain(own).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn set_annotations(metadata: &mut Value, annotations: &Pairs) {
    if let Value::Object(fields) = metadata
        && !annotations.is_empty()
    {
        fields.insert("annotations".into(), json!(annotations));
    }
}

/// A volume of the pod with the name of a claim template stays.
fn add_claimed_volumes(pod: &mut Value, claims: &[VolumeClaimTemplate]) {
    let volumes: Vec<Value> = claims.iter().map(|c| json!({ "name": c.name, "emptyDir": {} })).collect();
    if !volumes.is_empty() {
        *pod = merge(&json!({ "volumes": volumes }), pod);
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
