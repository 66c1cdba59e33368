//! Autoscaling by KEDA: a `ScaledObject` instead of a `HorizontalPodAutoscaler`.

use super::{
    component::{BuildError, Component, ComponentKind},
    config::AutoscalerConfig,
    pod::set,
};
use crate::cluster::{Desired, ResourceKind};
use gantry_api::kserve::{ComponentSpec, MetricSource, MetricSpec, MetricTarget};
use serde_json::{Value, json};

/// Whether the component has metrics to scale by; without them its replicas are fixed.
pub(super) fn is_scaled(spec: &ComponentSpec) -> bool {
    spec.auto_scaling.as_ref().is_some_and(|scaling| !scaling.metrics.is_empty())
}

/// Metrics that no trigger can be made of.
pub(super) fn check(kind: ComponentKind, spec: &ComponentSpec) -> Result<(), BuildError> {
    let path = format!("spec.{}", kind.as_str());
    let invalid = |message: String| Err(BuildError { component: kind, reason: "InvalidAutoscaler", message });
    if spec.scale_metric.is_some() {
        return invalid(format!(
            "{path}.scaleMetric has no effect with the autoscaler class keda: use autoScaling.metrics"
        ));
    }
    for (index, metric) in spec.auto_scaling.iter().flat_map(|scaling| &scaling.metrics).enumerate() {
        let path = format!("{path}.autoScaling.metrics[{index}]");
        if let Err(message) = trigger(metric, "", "") {
            return invalid(format!("{path}{message}"));
        }
    }
    Ok(())
}

pub(super) fn scaled_object(
    component: &Component,
    config: &AutoscalerConfig,
    metadata: &Value,
) -> Option<Desired> {
    let scaling = component.spec.auto_scaling.as_ref().filter(|_| is_scaled(&component.spec))?;
    let (namespace, name) = (&component.key.namespace, &component.key.name);
    let triggers: Vec<Value> =
        scaling.metrics.iter().filter_map(|metric| trigger(metric, namespace, name).ok()).collect();
    let min = component.spec.min_replicas.unwrap_or(1).max(0);
    let behavior = scaling.behavior.clone().unwrap_or_else(|| {
        let window =
            |seconds: &str| json!({ "stabilizationWindowSeconds": seconds.parse().unwrap_or(0_i32) });
        json!({
            "scaleUp": window(&config.scale_up_stabilization_window_seconds),
            "scaleDown": window(&config.scale_down_stabilization_window_seconds),
        })
    });
    let body = json!({
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": { "name": name },
            "minReplicaCount": min,
            "maxReplicaCount": component.spec.max_replicas.unwrap_or(0).max(min).max(1),
            "triggers": triggers,
            "advanced": { "horizontalPodAutoscalerConfig": { "behavior": behavior } },
        },
    });
    Some(Desired::new(ResourceKind::SCALED_OBJECT, component.key.clone(), body))
}

/// The trigger of a metric; the error is a field and its problem.
fn trigger(metric: &MetricSpec, namespace: &str, name: &str) -> Result<Value, String> {
    match metric.r#type.as_str() {
        "Resource" => {
            let source = metric.resource.as_ref().ok_or(".resource is missing")?;
            resource_trigger(source)
        }
        "External" => external_trigger(metric.external.as_ref().ok_or(".external is missing")?),
        "PodMetric" => {
            pod_trigger(metric.podmetric.as_ref().ok_or(".podmetric is missing")?, namespace, name)
        }
        other => Err(format!(".type is {other}: use Resource, External or PodMetric")),
    }
}

fn resource_trigger(source: &MetricSource) -> Result<Value, String> {
    let name = source.name.as_deref().unwrap_or("cpu");
    let target = source.target.clone().unwrap_or_default();
    let (kind, value) = match (&target.average_value, target.average_utilization) {
        (Some(value), _) if name == "memory" => ("AverageValue", value.to_string()),
        (Some(_), None) => return Err(".resource.target of cpu needs averageUtilization".into()),
        (_, percent) => ("Utilization", percent.unwrap_or(80).to_string()),
    };
    Ok(json!({ "type": name, "metricType": kind, "metadata": { "value": value } }))
}

fn text<'a>(source: &'a MetricSource, field: &str) -> Option<&'a str> {
    let found = source.metric.as_ref()?.get(field)?.as_str();
    found.filter(|text| !text.is_empty())
}

/// The threshold, as the user wrote it.
fn threshold(source: &MetricSource) -> Option<String> {
    let MetricTarget { value, average_value, .. } = source.target.as_ref()?;
    value.as_ref().or(average_value.as_ref()).map(ToString::to_string)
}

fn external_trigger(source: &MetricSource) -> Result<Value, String> {
    let backend =
        text(source, "backend").ok_or(".external.metric.backend is missing: prometheus or graphite")?;
    let query = text(source, "query").ok_or(".external.metric.query is missing")?;
    let threshold = threshold(source).ok_or(".external.target.value is missing")?;
    let mut metadata = json!({
        "serverAddress": text(source, "serverAddress").unwrap_or_default(), "query": query, "threshold": threshold,
    });
    if let Some(namespace) = text(source, "namespace").filter(|_| backend == "prometheus") {
        set(&mut metadata, "namespace", namespace.into());
    }
    let authentication = source.authentication_ref.as_ref();
    if let Some(modes) = authentication.and_then(|a| a.get("authModes")) {
        set(&mut metadata, "authModes", modes.clone());
    }
    let mut trigger = json!({ "type": backend, "metadata": metadata });
    if let Some(name) = authentication.and_then(|a| a.pointer("/authenticationRef/name")) {
        set(&mut trigger, "authenticationRef", json!({ "name": name }));
    }
    Ok(trigger)
}

fn pod_trigger(source: &MetricSource, namespace: &str, name: &str) -> Result<Value, String> {
    let has_names =
        source.metric.as_ref().and_then(|m| m.get("metricNames")?.as_array()).is_some_and(|n| !n.is_empty());
    if has_names {
        return Err(
            ".podmetric.metric.metricNames is not supported yet: run a collector, and remove it".into()
        );
    }
    let query = text(source, "query").ok_or(".podmetric.metric.query is missing")?;
    let address = text(source, "serverAddress").ok_or(".podmetric.metric.serverAddress is missing")?;
    let target = threshold(source).ok_or(".podmetric.target.value is missing")?;
    let mut metadata = json!({
        "scalerAddress": address,
        "metricQuery": format!("sum({query}{{namespace=\"{namespace}\", deployment=\"{name}\"}})"),
        "targetValue": target,
    });
    if let Some(operation) = text(source, "operationOverTime") {
        set(&mut metadata, "operationOverTime", operation.into());
    }
    Ok(json!({ "type": "external", "metadata": metadata }))
}
