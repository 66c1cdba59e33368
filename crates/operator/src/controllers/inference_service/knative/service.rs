//! The Service of Knative of one component.

use super::super::{component::Component, pod::set};
use crate::{
    cluster::{Custom, Desired, InferenceService, ResourceKind},
    workload::Owner,
};
use serde_json::{Value, json};

/// Annotations of the Service; all others belong to its revisions.
const OF_SERVICE: [&str; 2] =
    ["serving.knative.dev/rollout-duration", "serving.knative.openshift.io/enablePassthrough"];
const VISIBILITY: &str = "networking.knative.dev/visibility";
const CLASS: &str = "autoscaling.knative.dev/class";
const INITIAL_SCALE: &str = "autoscaling.knative.dev/initial-scale";

pub(super) fn service(
    component: &Component,
    object: &Custom<InferenceService>,
    owner: Owner<'_>,
    rolled_out: Option<&str>,
) -> Desired {
    let is_of_service = |name: &String| OF_SERVICE.contains(&name.as_str());
    let (of_service, mut of_template): (Vec<_>, Vec<_>) =
        component.annotations.clone().into_iter().partition(|(name, _)| is_of_service(name));
    // Knative refuses a revision with an initial scale that is no number.
    of_template.retain(|(name, value)| name != INITIAL_SCALE || value.parse::<u32>().is_ok());
    let mut annotations: std::collections::BTreeMap<String, String> = of_template.into_iter().collect();
    let spec = &component.spec;
    annotations.entry(CLASS.into()).or_insert_with(|| "kpa.autoscaling.knative.dev".into());
    let mut scaling = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            annotations.insert(format!("autoscaling.knative.dev/{name}"), value);
        }
    };
    scaling("target", spec.scale_target.map(|target| target.to_string()));
    scaling("metric", spec.scale_metric.clone());
    scaling("min-scale", Some(spec.min_replicas.unwrap_or(1).to_string()));
    scaling("max-scale", spec.max_replicas.filter(|max| *max != 0).map(|max| max.to_string()));
    let mut revision = component.pod.clone();
    if let Some(timeout) = spec.timeout {
        set(&mut revision, "timeoutSeconds", timeout.into());
        set(&mut revision, "responseStartTimeoutSeconds", timeout.into());
    }
    if let Some(concurrency) = spec.container_concurrency {
        set(&mut revision, "containerConcurrency", concurrency.into());
    }
    let mut labels = component.labels.clone();
    let visibility = object.metadata.labels.as_ref().and_then(|labels| labels.get(VISIBILITY));
    if let Some(visibility) = visibility {
        labels.insert(VISIBILITY.into(), visibility.clone());
    }
    let mut metadata = json!({ "labels": labels, "ownerReferences": owner.references() });
    if !of_service.is_empty() {
        let of_service: serde_json::Map<String, Value> =
            of_service.into_iter().map(|(name, value)| (name, value.into())).collect();
        set(&mut metadata, "annotations", of_service.into());
    }
    let template = json!({
        "metadata": { "labels": component.labels, "annotations": annotations },
        "spec": revision,
    });
    let spec = json!({ "template": template, "traffic": traffic(component, object, rolled_out) });
    let body = json!({ "metadata": metadata, "spec": spec });
    Desired::new(ResourceKind::KNATIVE_SERVICE, component.key.clone(), body)
}

/// All traffic for the latest revision; with a canary, the rest for the one that was rolled out before.
fn traffic(component: &Component, object: &Custom<InferenceService>, rolled_out: Option<&str>) -> Vec<Value> {
    let percent = component.spec.canary_traffic_percent.filter(|_| rolled_out.is_some());
    let percent = percent.unwrap_or(100);
    let mut latest = json!({ "latestRevision": true, "percent": percent });
    let tags =
        object.metadata.annotations.as_ref().and_then(|a| a.get("serving.kserve.io/enable-tag-routing"));
    if tags.is_some_and(|value| value == "true") {
        set(&mut latest, "tag", "latest".into());
    }
    let mut traffic = vec![latest];
    if let Some(revision) = rolled_out.filter(|_| percent < 100) {
        traffic.push(json!({
            "revisionName": revision, "latestRevision": false, "percent": 100 - percent, "tag": "prev",
        }));
    }
    traffic
}
