//! Defaulting and omission of empty values for built-in kinds.

use super::{
    object::{default, set, text, unset},
    registry::Kind,
};
use serde_json::{Map, Value, json};

/// Maps omitted when empty.
const OMITTED_MAPS: &[&str] = &[
    "labels",
    "annotations",
    "nodeSelector",
    "matchLabels",
    "data",
    "binaryData",
    "stringData",
    "limits",
    "requests",
    "selector",
];

/// Lists kept when empty.
const KEPT_LISTS: &[&str] = &["rules", "endpoints"];

pub(super) fn fill(kind: &Kind, object: &mut Value) {
    tidy(object);
    match kind.kind.as_str() {
        "Pod" => pod(object),
        "Deployment" => {
            default(object, &["spec", "replicas"], 1);
            default(object, &["spec", "revisionHistoryLimit"], 10);
            default(object, &["spec", "progressDeadlineSeconds"], 600);
            default(object, &["spec", "strategy", "type"], "RollingUpdate");
            if text(object, "/spec/strategy/type") == "RollingUpdate" {
                default(object, &["spec", "strategy", "rollingUpdate", "maxUnavailable"], "25%");
                default(object, &["spec", "strategy", "rollingUpdate", "maxSurge"], "25%");
            }
            template(object);
        }
        "ReplicaSet" => {
            default(object, &["spec", "replicas"], 1);
            template(object);
        }
        "StatefulSet" => stateful_set(object),
        "Service" => service(object),
        "PersistentVolumeClaim" => claim(object),
        "Secret" => default(object, &["type"], "Opaque"),
        "Namespace" => namespace(object),
        "HorizontalPodAutoscaler" => autoscaler(object),
        "RoleBinding" | "ClusterRoleBinding" => binding(object),
        "Role" | "ClusterRole" => default(object, &["rules"], Value::Null),
        "Event" => event(kind, object),
        _ => {}
    }
    if object.get("metadata").is_none() {
        set(object, &["metadata"], Value::Object(Map::new()));
    }
}

/// Removes nulls and values that the API server omits when empty.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for value in map.values_mut() {
                tidy(value);
            }
            map.retain(|name, value| match value {
                Value::Null => false,
                Value::Array(items) => !items.is_empty() || KEPT_LISTS.contains(&name.as_str()),
                Value::Object(map) => !map.is_empty() || !OMITTED_MAPS.contains(&name.as_str()),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn each(object: &mut Value, pointer: &str, change: impl Fn(&mut Value)) {
    object.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten().for_each(change);
}

fn pod(object: &mut Value) {
    default(object, &["spec", "enableServiceLinks"], true);
    if let Some(spec) = object.get_mut("spec") {
        pod_spec(spec);
    }
}

fn template(object: &mut Value) {
    default(object, &["spec", "template", "metadata"], json!({}));
    if let Some(spec) = object.pointer_mut("/spec/template/spec") {
        pod_spec(spec);
    }
}

fn pod_spec(spec: &mut Value) {
    default(spec, &["restartPolicy"], "Always");
    default(spec, &["terminationGracePeriodSeconds"], 30);
    default(spec, &["dnsPolicy"], "ClusterFirst");
    default(spec, &["securityContext"], json!({}));
    default(spec, &["schedulerName"], "default-scheduler");
    let account = text(spec, "/serviceAccountName").to_owned();
    if !account.is_empty() {
        default(spec, &["serviceAccount"], account);
    }
    for list in ["/containers", "/initContainers", "/ephemeralContainers"] {
        each(spec, list, container);
    }
    each(spec, "/volumes", volume);
}

fn container(container: &mut Value) {
    default(container, &["resources"], json!({}));
    default(container, &["terminationMessagePath"], "/dev/termination-log");
    default(container, &["terminationMessagePolicy"], "File");
    let image = text(container, "/image");
    let tag = image.rsplit('/').next().unwrap_or_default();
    let moving = !image.contains('@') && (!tag.contains(':') || tag.ends_with(":latest"));
    default(container, &["imagePullPolicy"], if moving { "Always" } else { "IfNotPresent" });
    each(container, "/ports", |port| default(port, &["protocol"], "TCP"));
    each(container, "/env", |variable| {
        if variable.pointer("/valueFrom/fieldRef").is_some() {
            default(variable, &["valueFrom", "fieldRef", "apiVersion"], "v1");
        }
        if variable.pointer("/valueFrom/resourceFieldRef").is_some() {
            default(variable, &["valueFrom", "resourceFieldRef", "divisor"], "0");
        }
    });
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe) else { continue };
        default(probe, &["timeoutSeconds"], 1);
        default(probe, &["periodSeconds"], 10);
        default(probe, &["successThreshold"], 1);
        default(probe, &["failureThreshold"], 3);
        handler(probe);
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = container.pointer_mut(&format!("/lifecycle/{hook}")) {
            handler(hook);
        }
    }
}

fn handler(handler: &mut Value) {
    if handler.get("httpGet").is_some() {
        default(handler, &["httpGet", "path"], "/");
        default(handler, &["httpGet", "scheme"], "HTTP");
    }
    if handler.get("grpc").is_some() {
        default(handler, &["grpc", "service"], "");
    }
}

fn volume(volume: &mut Value) {
    if volume.as_object().is_some_and(|map| map.len() == 1) {
        set(volume, &["emptyDir"], json!({}));
    }
    for source in ["configMap", "secret", "projected", "downwardAPI"] {
        if volume.get(source).is_some() {
            default(volume, &[source, "defaultMode"], 420);
        }
    }
    if volume.get("hostPath").is_some() {
        default(volume, &["hostPath", "type"], "");
    }
    each(volume, "/downwardAPI/items", |item| {
        if item.get("fieldRef").is_some() {
            default(item, &["fieldRef", "apiVersion"], "v1");
        }
    });
    each(volume, "/projected/sources", |source| {
        if source.get("serviceAccountToken").is_some() {
            default(source, &["serviceAccountToken", "expirationSeconds"], 3600);
        }
    });
}

fn stateful_set(object: &mut Value) {
    default(object, &["spec", "replicas"], 1);
    default(object, &["spec", "serviceName"], "");
    default(object, &["spec", "podManagementPolicy"], "OrderedReady");
    default(object, &["spec", "revisionHistoryLimit"], 10);
    default(object, &["spec", "updateStrategy", "type"], "RollingUpdate");
    if text(object, "/spec/updateStrategy/type") == "RollingUpdate" {
        default(object, &["spec", "updateStrategy", "rollingUpdate", "partition"], 0);
    }
    for when in ["whenDeleted", "whenScaled"] {
        default(object, &["spec", "persistentVolumeClaimRetentionPolicy", when], "Retain");
    }
    each(object, "/spec/volumeClaimTemplates", |one| {
        default(one, &["apiVersion"], "v1");
        default(one, &["kind"], "PersistentVolumeClaim");
        default(one, &["spec", "volumeMode"], "Filesystem");
        set(one, &["status"], json!({"phase": "Pending"}));
    });
    template(object);
}

fn claim(object: &mut Value) {
    default(object, &["spec", "volumeMode"], "Filesystem");
    default(object, &["status", "phase"], "Pending");
}

fn service(object: &mut Value) {
    default(object, &["spec", "type"], "ClusterIP");
    default(object, &["spec", "sessionAffinity"], "None");
    default(object, &["status", "loadBalancer"], json!({}));
    each(object, "/spec/ports", |port| {
        default(port, &["protocol"], "TCP");
        let number = port.get("port").cloned().unwrap_or(Value::Null);
        default(port, &["targetPort"], number);
    });
    if text(object, "/spec/type") != "ExternalName" {
        default(object, &["spec", "internalTrafficPolicy"], "Cluster");
    }
}

fn namespace(object: &mut Value) {
    let name = text(object, "/metadata/name").to_owned();
    set(object, &["metadata", "labels", "kubernetes.io/metadata.name"], name);
    default(object, &["spec"], json!({}));
    default(object, &["status", "phase"], "Active");
}

fn autoscaler(object: &mut Value) {
    default(object, &["spec", "minReplicas"], 1);
    if object.pointer("/spec/metrics").is_none() {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        set(
            object,
            &["spec", "metrics"],
            json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]),
        );
    }
}

fn event(kind: &Kind, object: &mut Value) {
    let nulls: &[&str] = if kind.group.is_empty() {
        for name in ["reportingComponent", "reportingInstance"] {
            default(object, &[name], "");
        }
        default(object, &["source"], json!({}));
        default(object, &["involvedObject"], json!({}));
        &["eventTime", "firstTimestamp", "lastTimestamp"]
    } else {
        default(object, &["deprecatedSource"], json!({}));
        default(object, &["regarding"], json!({}));
        &["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"]
    };
    for name in nulls {
        default(object, &[name], Value::Null);
    }
}

fn binding(object: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    default(object, &["roleRef", "apiGroup"], GROUP);
    each(object, "/subjects", |subject| match text(subject, "/kind") {
        "User" | "Group" => default(subject, &["apiGroup"], GROUP),
        _ => {
            unset(subject, &["apiGroup"]);
        }
    });
}
