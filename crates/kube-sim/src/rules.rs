//! Rules of single kinds: initial state, immutable fields, validation.

use super::{
    failure::Cause,
    object::{copy, default, is_terminating, set, text, texts},
    registry::Kind,
};
use serde_json::{Map, Value, json};

/// The baseline of a new object: fields that exist without being written.
pub(super) fn empty(kind: &Kind) -> Value {
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.kind});
    if kind.custom {
        return object;
    }
    let template = json!({"metadata": {}, "spec": {"containers": null}});
    let rest = match kind.kind.as_str() {
        "Deployment" => {
            json!({"spec": {"selector": null, "strategy": {}, "template": template}, "status": {}})
        }
        "ReplicaSet" => json!({"spec": {"selector": null, "template": template}, "status": {"replicas": 0}}),
        "StatefulSet" => json!({
            "spec": {"selector": null, "serviceName": "", "template": template, "updateStrategy": {}},
            "status": {"replicas": 0, "availableReplicas": 0},
        }),
        "Pod" => json!({"spec": {"containers": null}, "status": {}}),
        "Service" => json!({"spec": {}, "status": {"loadBalancer": {}}}),
        "PersistentVolumeClaim" => json!({"spec": {"resources": {}}, "status": {}}),
        "PodDisruptionBudget" => json!({
            "spec": {},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
        }),
        "HorizontalPodAutoscaler" => json!({
            "spec": {"scaleTargetRef": {"kind": "", "name": ""}, "maxReplicas": 0},
            "status": {"desiredReplicas": 0, "currentMetrics": null},
        }),
        "Namespace" | "Node" => json!({"spec": {}, "status": {}}),
        "Lease" => json!({"spec": {}}),
        "Role" | "ClusterRole" => json!({"rules": null}),
        "RoleBinding" | "ClusterRoleBinding" => json!({"roleRef": {"apiGroup": "", "kind": "", "name": ""}}),
        "EndpointSlice" => json!({"addressType": "", "endpoints": null, "ports": null}),
        "Event" if kind.group.is_empty() => json!({
            "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null, "eventTime": null,
            "reportingComponent": "", "reportingInstance": "",
        }),
        "Event" => json!({
            "regarding": {}, "deprecatedSource": {}, "deprecatedFirstTimestamp": null,
            "deprecatedLastTimestamp": null, "eventTime": null,
        }),
        _ => json!({}),
    };
    for (name, value) in rest.as_object().into_iter().flatten() {
        set(&mut object, &[name], value.clone());
    }
    set(&mut object, &["metadata"], Value::Object(Map::new()));
    object
}

/// The initial status.
pub(super) fn reset_status(kind: &Kind, object: &mut Value) {
    if kind.custom {
        super::object::unset(object, &["status"]);
        return;
    }
    let status = match kind.kind.as_str() {
        "Pod" => json!({"phase": "Pending", "qosClass": quality(object)}),
        "Service" => json!({"loadBalancer": {}}),
        "PersistentVolumeClaim" => json!({"phase": "Pending"}),
        "Namespace" => json!({"phase": "Active"}),
        "ReplicaSet" => json!({"replicas": 0}),
        "StatefulSet" => json!({"replicas": 0, "availableReplicas": 0}),
        "HorizontalPodAutoscaler" => json!({"desiredReplicas": 0, "currentMetrics": null}),
        "PodDisruptionBudget" => {
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
        }
        "CustomResourceDefinition" | "Node" => return,
        _ => json!({}),
    };
    set(object, &["status"], status);
}

fn quality(pod: &Value) -> &'static str {
    let asks = |container: &Value| {
        let resources = container.get("resources").and_then(Value::as_object);
        resources.is_some_and(|resources| !resources.is_empty())
    };
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    if containers.into_iter().flatten().any(asks) { "Burstable" } else { "BestEffort" }
}

/// Fields that a write to `/status` does not change.
pub(super) fn keep_all_but_status(kind: &Kind, live: &Value, object: &mut Value) {
    if kind.custom {
        let status = object.get("status").cloned();
        *object = live.clone();
        match status {
            Some(status) => set(object, &["status"], status),
            None => {
                super::object::unset(object, &["status"]);
            }
        }
        return;
    }
    copy(object, live, &["spec"]);
    copy(object, live, &["metadata", "labels"]);
}

/// Fields that the server sets on creation, without an owner.
pub(super) fn give(kind: &Kind, object: &mut Value, number: u64) {
    match kind.kind.as_str() {
        "Service" if !kind.custom => allocate_address(object, number),
        "Namespace" if !kind.custom => default(object, &["spec", "finalizers"], json!(["kubernetes"])),
        _ => {}
    }
}

/// Server-set values that an update may omit.
pub(super) fn inherit(kind: &Kind, live: &Value, object: &mut Value) {
    if kind.kind == "Service" && !kind.custom && object.pointer("/spec/clusterIP").is_none() {
        copy(object, live, &["spec", "clusterIP"]);
        for name in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            copy(object, live, &["spec", name]);
        }
    }
}

/// Allocates a cluster IP, unless the Service is headless.
fn allocate_address(service: &mut Value, number: u64) {
    let spec = |name: &str| text(service, &format!("/spec/{name}")).to_owned();
    if spec("type") == "ExternalName" {
        return;
    }
    if spec("clusterIP").is_empty() {
        set(
            service,
            &["spec", "clusterIP"],
            format!("10.96.{}.{}", 1 + number % 250, 1 + number / 250 % 250),
        );
    }
    let address = text(service, "/spec/clusterIP").to_owned();
    set(service, &["spec", "clusterIPs"], vec![address]);
    default(service, &["spec", "ipFamilies"], json!(["IPv4"]));
    default(service, &["spec", "ipFamilyPolicy"], "SingleStack");
}

/// Whether a terminating object without finalizers can be removed.
pub(super) fn may_go(kind: &Kind, object: &Value) -> bool {
    match kind.kind.as_str() {
        "Namespace" => texts(object, "/spec/finalizers").is_empty(),
        "Pod" => object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64) == Some(0),
        _ => true,
    }
}

/// Changes outside `spec` that increment the generation, such as annotations of a Deployment.
pub(super) fn counts_as_new(kind: &Kind, live: &Value, object: &Value) -> bool {
    let pointer = "/metadata/annotations";
    match kind.kind.as_str() {
        "Deployment" => live.pointer(pointer) != object.pointer(pointer),
        "EndpointSlice" => {
            let content = |object: &Value| {
                let parts = ["/endpoints", "/ports", "/addressType", "/metadata/labels"];
                parts.map(|part| object.pointer(part).cloned())
            };
            content(live) != content(object)
        }
        _ => false,
    }
}

/// All validation errors.
pub(super) fn problems(kind: &Kind, live: Option<&Value>, object: &Value) -> Vec<Cause> {
    let mut found = Vec::new();
    let name = text(object, "/metadata/name");
    if !kind.group.starts_with("rbac") && !is_name(name) {
        let said = "must be lower-case letters, digits, - and ., and begin and end with a letter or digit";
        found.push(Cause::new("FieldValueInvalid", "metadata.name", said));
    }
    if let Some(live) = live
        && is_terminating(live)
    {
        let known = texts(live, "/metadata/finalizers");
        if texts(object, "/metadata/finalizers").iter().any(|name| !known.contains(name)) {
            let said = "no finalizer can be added to an object that is being deleted";
            found.push(Cause::new("FieldValueForbidden", "metadata.finalizers", said));
        }
    }
    if let Some(schema) = &kind.schema {
        found.extend(schema.problems(object));
    }
    if let (true, Some(scale)) = (kind.custom, &kind.scale) {
        let wrong = |replicas: &Value| replicas.as_i64().is_none_or(|replicas| replicas < 0);
        if object.pointer(&scale.spec).is_some_and(wrong) {
            found.push(Cause::new(
                "FieldValueInvalid",
                &scale.spec.replace('/', "."),
                "must be a number of 0 or more",
            ));
        }
    }
    if !kind.custom {
        workload(kind, object, &mut found);
        if let Some(live) = live {
            immutable(kind, live, object, &mut found);
        }
    }
    found
}

fn is_name(name: &str) -> bool {
    let inner =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter);
    let outer = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    name.len() <= 253 && name.chars().all(inner) && outer(name.chars().next()) && outer(name.chars().last())
}

fn workload(kind: &Kind, object: &Value, found: &mut Vec<Cause>) {
    if !["Deployment", "StatefulSet", "ReplicaSet"].contains(&kind.kind.as_str()) {
        return;
    }
    if object.pointer("/spec/replicas").and_then(Value::as_i64).is_some_and(|replicas| replicas < 0) {
        found.push(Cause::new("FieldValueInvalid", "spec.replicas", "must be 0 or more"));
    }
    let Some(wanted) = object.pointer("/spec/selector").filter(|selector| !selector.is_null()) else {
        found.push(Cause::new("FieldValueRequired", "spec.selector", "a selector is required"));
        let said = "an empty selector is invalid";
        found.push(Cause::new("FieldValueInvalid", "spec.template.metadata.labels", said));
        containers(object, found);
        return;
    };
    let labels = object.pointer("/spec/template/metadata/labels");
    let label = |name: &str| labels.and_then(|labels| labels.get(name));
    let mut wanted = wanted.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    if !wanted.all(|(name, value)| label(name) == Some(value)) {
        let said = "the selector must match the labels of the template";
        found.push(Cause::new("FieldValueInvalid", "spec.template.metadata.labels", said));
    }
    containers(object, found);
}

fn containers(object: &Value, found: &mut Vec<Cause>) {
    let containers = object.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    match containers.map(Vec::as_slice) {
        None | Some([]) => {
            found.push(Cause::new(
                "FieldValueRequired",
                "spec.template.spec.containers",
                "at least one container is required",
            ));
        }
        Some(containers) => {
            for (index, container) in containers.iter().enumerate() {
                for field in ["name", "image"] {
                    if text(container, &format!("/{field}")).is_empty() {
                        let path = format!("spec.template.spec.containers[{index}].{field}");
                        found.push(Cause::new("FieldValueRequired", &path, "a value is required"));
                    }
                }
            }
        }
    }
}

/// Mutable fields of a `StatefulSet`.
const STATEFUL_SET_MAY: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn immutable(kind: &Kind, live: &Value, object: &Value, found: &mut Vec<Cause>) {
    let changed = |pointer: &str| live.pointer(pointer) != object.pointer(pointer);
    match kind.kind.as_str() {
        "StatefulSet" => {
            let rest = |object: &Value| {
                let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
                for name in STATEFUL_SET_MAY {
                    spec.remove(*name);
                }
                spec
            };
            if rest(live) != rest(object) {
                let said = format!("only {} may change", STATEFUL_SET_MAY.join(", "));
                found.push(Cause::new("FieldValueForbidden", "spec", &said));
            }
        }
        "Deployment" | "ReplicaSet" if changed("/spec/selector") => {
            found.push(Cause::new("FieldValueInvalid", "spec.selector", "field is immutable"));
        }
        "RoleBinding" | "ClusterRoleBinding" if changed("/roleRef") => {
            found.push(Cause::new(
                "FieldValueInvalid",
                "roleRef",
                "cannot change: delete and recreate the binding",
            ));
        }
        "Secret" if changed("/type") => {
            found.push(Cause::new("FieldValueInvalid", "type", "field is immutable"));
        }
        "Service" if changed("/spec/clusterIP") => {
            found.push(Cause::new(
                "FieldValueInvalid",
                "spec.clusterIPs[0]",
                "may not change once it is set",
            ));
        }
        "ConfigMap" | "Secret" if live.get("immutable") == Some(&Value::Bool(true)) && changed("/data") => {
            found.push(Cause::new(
                "FieldValueForbidden",
                "data",
                "field is immutable when `immutable` is set",
            ));
        }
        _ => {}
    }
}
