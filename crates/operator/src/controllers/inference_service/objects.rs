//! Desired objects of a component: Deployment, Service, autoscaler and disruption budget.

use super::agent;
use super::component::{Autoscaler, Component};
use super::config::Config;
use super::delivery::VERSION;
use super::keda::{is_scaled, scaled_object};
use super::multi_node::{GENERATION, ROLE, Workers, service_spec};
use super::scale_to_zero::replicas;
use crate::{
    cluster::{Desired, InferenceService, Key, KindId, OwnedObject, ResourceKind},
    workload::{Inherited, OwnedObjects, Owner, Workload, pod_disruption_budget},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The objects of one component.
pub(super) fn objects(
    component: &Component,
    owner: Owner<'_>,
    config: &Config,
    owned: &OwnedObjects,
    is_adopted: bool,
) -> Vec<Desired> {
    // A HorizontalPodAutoscaler does not scale up from zero.
    let is_stuck =
        |replicas| replicas == 0 && component.autoscaler == Autoscaler::Hpa && !component.scales_to_zero;
    let live = owned.get(ResourceKind::DEPLOYMENT, &component.key.name);
    // A Deployment of KServe's controller is not cached, and has the replicas of its autoscaler.
    let has_replicas = live.map_or(is_adopted, |live| !is_stuck(replicas(live)));
    let mut objects =
        vec![service(component, owner, config), deployment(component, owner, config, has_replicas)];
    match component.autoscaler {
        Autoscaler::Hpa => objects.extend(hpa(component, owner)),
        Autoscaler::Keda => {
            objects.extend(scaled_object(component, &config.autoscaler, &metadata(component, owner)));
        }
        Autoscaler::None | Autoscaler::External => {}
    }
    objects.extend(component.workers.iter().flat_map(|workers| worker_objects(component, workers, owner)));
    if component.min_replicas() > 1 {
        let labels = json!(component.labels);
        objects.push(pod_disruption_budget(component.key.clone(), &owner, &component.selector(), &labels));
    }
    objects
}

/// Whether replicas are left to an autoscaler.
pub(super) fn is_autoscaled(component: &Component) -> bool {
    match component.autoscaler {
        _ if component.scales_to_zero => true,
        Autoscaler::None => false,
        Autoscaler::External => true,
        Autoscaler::Keda => is_scaled(&component.spec),
        Autoscaler::Hpa => has_range(component),
    }
}

fn has_range(component: &Component) -> bool {
    component.min_replicas() < component.max_replicas()
}

pub(super) fn is_autoscaler(kind: ResourceKind) -> bool {
    [ResourceKind::HORIZONTAL_POD_AUTOSCALER, ResourceKind::SCALED_OBJECT].contains(&kind)
}

/// Whether a Deployment was applied for this spec.
pub(super) fn is_deployed(
    component: &Component,
    owner: Owner<'_>,
    config: &Config,
    live: &OwnedObject,
) -> bool {
    // With and without the replicas, which an autoscaler takes over.
    let applied = [false, true].map(|has_replicas| {
        deployment(component, owner, config, has_replicas).adopted_from(Some(live)).digest()
    });
    applied.iter().any(|digest| live.applied() == Some(digest.as_str()))
}

/// The pod template of a Deployment.
pub(super) fn pod_template(component: &Component, owner: Owner<'_>, config: &Config) -> Value {
    let deployment = deployment(component, owner, config, false);
    deployment.body.pointer("/spec/template").cloned().unwrap_or_default()
}

fn deployment(component: &Component, owner: Owner<'_>, config: &Config, has_replicas: bool) -> Desired {
    let mut more = Map::new();
    if let Some(strategy) = &component.spec.deployment_strategy {
        more.insert("strategy".into(), strategy.clone());
    } else if let Some(rollout) =
        config.deploy.deployment_rollout_strategy.as_ref().and_then(|s| s.default_rollout.clone())
    {
        more.insert("strategy".into(), json!({ "type": "RollingUpdate", "rollingUpdate": rollout }));
    }
    // A new Deployment starts with `minReplicas`; then the autoscaler has them.
    let replicas =
        u32::try_from(component.min_replicas()).ok().filter(|_| !(has_replicas && is_autoscaled(component)));
    let workload = Workload {
        kind: ResourceKind::DEPLOYMENT,
        key: component.key.clone(),
        owner,
        selector: component.selector(),
        inherited: Inherited { labels: component.labels.clone(), annotations: component.annotations.clone() },
        labels: BTreeMap::new(),
        annotations: component.version.iter().map(|version| (VERSION.to_owned(), version.clone())).collect(),
        pod_annotations: BTreeMap::new(),
        replicas,
        pod: component.pod.clone(),
        bare: component.pod.clone(),
        claims: &[],
        more,
    };
    workload.desired()
}

/// The Deployment of the workers, and the Services by which head and workers find each other.
fn worker_objects(component: &Component, workers: &Workers, owner: Owner<'_>) -> Vec<Desired> {
    let app = |name: &str| format!("isvc.{name}");
    // Old workers hold the GPUs that the new ones need.
    let rolling = json!({ "maxSurge": "0%", "maxUnavailable": "100%" });
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": rolling });
    let workload = Workload {
        kind: ResourceKind::DEPLOYMENT,
        key: workers.key.clone(),
        owner,
        selector: BTreeMap::from([("app".to_owned(), app(&workers.key.name))]),
        inherited: Inherited { labels: component.labels.clone(), annotations: component.annotations.clone() },
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        pod_annotations: BTreeMap::new(),
        replicas: Some(workers.replicas),
        pod: workers.pod.clone(),
        bare: workers.pod.clone(),
        claims: &[],
        more: Map::from_iter([("strategy".to_owned(), strategy)]),
    };
    let mut objects = vec![workload.desired()];
    let generation = component.labels.get(GENERATION).cloned().unwrap_or_default();
    for (name, role, pods) in [
        (&workers.head_service, "head", &component.key.name),
        (&workers.worker_service, "worker", &workers.key.name),
    ] {
        let mut labels = component.labels.clone();
        labels.insert(ROLE.into(), role.into());
        let metadata = json!({ "labels": labels, "ownerReferences": owner.references() });
        let body = json!({ "metadata": metadata, "spec": service_spec(&app(pods), &generation) });
        let key = Key::new(component.key.namespace.clone(), name);
        objects.push(Desired::new(ResourceKind::SERVICE, key, body));
    }
    objects
}

/// Ports of a Service: those of the container that receives requests. An agent is in front of the first one.
pub(super) fn ports(component: &Component) -> Vec<Value> {
    let of_front =
        agent::front_container(&component.pod).and_then(|c| c.get("ports")).and_then(Value::as_array);
    let mut ports: Vec<Value> = Vec::new();
    for (index, port) in of_front.into_iter().flatten().enumerate() {
        let number = port.get("containerPort").cloned().unwrap_or_else(|| 8080.into());
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        let name = if name.is_empty() && index == 0 { component.key.name.as_str() } else { name };
        let mut entry = json!({
            "port": if index == 0 { json!(80) } else { number.clone() },
            "targetPort": number,
            "protocol": port.get("protocol").cloned().unwrap_or_else(|| "TCP".into()),
        });
        super::pod::set(&mut entry, "name", if name.is_empty() { Value::Null } else { name.into() });
        if name.contains("grpc") || name.contains("h2c") {
            super::pod::set(&mut entry, "appProtocol", "kubernetes.io/h2c".into());
        }
        ports.push(entry);
    }
    if ports.is_empty() {
        let name = &component.key.name;
        ports.push(json!({ "name": name, "port": 80, "targetPort": 8080, "protocol": "TCP" }));
    }
    if let (Some(port), Some(first)) = (agent::port(&component.spec), ports.first_mut()) {
        super::pod::set(first, "targetPort", port.into());
    }
    ports
}

fn service(component: &Component, owner: Owner<'_>, config: &Config) -> Desired {
    let mut spec =
        json!({ "type": "ClusterIP", "ports": ports(component), "selector": component.selector() });
    if config.service.service_cluster_ip_none {
        super::pod::set(&mut spec, "clusterIP", "None".into());
    }
    let body = json!({ "metadata": metadata(component, owner), "spec": spec });
    Desired::new(ResourceKind::SERVICE, component.key.clone(), body)
}

fn metadata(component: &Component, owner: Owner<'_>) -> Value {
    let mut labels = component.labels.clone();
    labels.extend(component.selector());
    let mut metadata = json!({ "labels": labels, "ownerReferences": owner.references() });
    if !component.annotations.is_empty() {
        super::pod::set(&mut metadata, "annotations", json!(component.annotations));
    }
    metadata
}

/// Only where there is a range to scale in. It pauses while the Deployment has no replicas.
fn hpa(component: &Component, owner: Owner<'_>) -> Option<Desired> {
    if !has_range(component) {
        return None;
    }
    let spec = &component.spec;
    let resource = |name: &str, target: Value| json!({ "type": "Resource", "resource": { "name": name, "target": target } });
    let utilization = |percent: i32| json!({ "type": "Utilization", "averageUtilization": percent });
    let mut metrics: Vec<Value> = Vec::new();
    for metric in spec.auto_scaling.iter().flat_map(|a| &a.metrics) {
        let Some(source) = &metric.resource else { continue };
        let name = source.name.as_deref().unwrap_or("cpu");
        let target = source.target.clone().unwrap_or_default();
        let target = match (&target.average_value, target.average_utilization) {
            (Some(value), _) => json!({ "type": "AverageValue", "averageValue": value.to_string() }),
            (None, percent) => utilization(percent.unwrap_or(80)),
        };
        metrics.push(resource(name, target));
    }
    if metrics.is_empty() {
        let name = spec.scale_metric.as_deref().filter(|m| *m == "memory").unwrap_or("cpu");
        metrics.push(resource(name, utilization(spec.scale_target.unwrap_or(80))));
    }
    let mut body = json!({
        "metadata": metadata(component, owner),
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": component.key.name },
            "minReplicas": component.min_replicas(),
            "maxReplicas": component.max_replicas(),
            "metrics": metrics,
        },
    });
    if let Some(behavior) = spec.auto_scaling.as_ref().and_then(|a| a.behavior.clone())
        && let Some(spec) = body.get_mut("spec")
    {
        super::pod::set(spec, "behavior", behavior);
    }
    Some(Desired::new(ResourceKind::HORIZONTAL_POD_AUTOSCALER, component.key.clone(), body))
}

/// The owner of all objects of a service.
pub(super) const fn owner<'a>(name: &'a str, uid: &'a str) -> Owner<'a> {
    Owner { kind: KindId::of::<InferenceService>(), name, uid }
}
