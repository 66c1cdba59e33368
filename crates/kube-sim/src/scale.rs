//! The scale subresource: an object's replicas as an `autoscaling/v1` Scale.

use super::{object::text, registry::Kind};
use serde_json::{Map, Value, json};

pub(super) fn view(kind: &Kind, object: &Value) -> Value {
    let Some(scale) = &kind.scale else { return Value::Null };
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
    let mut metadata = Map::new();
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.pointer(&format!("/metadata/{name}")) {
            metadata.insert(name.into(), value.clone());
        }
    }
    let mut status = json!({"replicas": number(&scale.status).unwrap_or(0)});
    let selector = scale.selector.as_deref().map(|pointer| selector(object, pointer)).unwrap_or_default();
    if let (false, Some(map)) = (selector.is_empty(), status.as_object_mut()) {
        map.insert("selector".into(), selector.into());
    }
    let spec = match number(&scale.spec) {
        None | Some(0) => json!({}),
        Some(replicas) => json!({"replicas": replicas}),
    };
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status})
}

/// Custom resources have it as a string, workloads as a label selector.
fn selector(object: &Value, pointer: &str) -> String {
    let Some(labels) = object.pointer(pointer).and_then(|selector| selector.get("matchLabels")) else {
        return text(object, pointer).to_owned();
    };
    let labels = labels.as_object().into_iter().flatten();
    let labels: Vec<String> =
        labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
    labels.join(",")
}
