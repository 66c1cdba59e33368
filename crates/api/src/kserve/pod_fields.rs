//! Names of the fields of inline pod specs and containers, which have no schema of their own.

use crate::{FieldError, nearest};
use serde_json::{Map, Value};

/// Fields of a `PodSpec`.
const POD: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resourceClaims",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];

/// Fields of a Container.
const CONTAINER: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "restartPolicyRules",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];

/// Fields that a `PodSpec` does not have, and the remedy for blocked variables of its containers.
pub(super) fn pod_errors(pod: &Map<String, Value>, path: &str, own: &[&str]) -> Vec<FieldError> {
    let mut errors = unknown(pod, POD, own, path, "a PodSpec");
    let init = pod.get("initContainers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    errors.extend(container_errors(init, &format!("{path}.initContainers")));
    errors
}

/// Errors of a list of containers.
pub(super) fn container_errors(containers: &[Value], path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (i, container) in containers.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match container {
            Value::Object(fields) => errors.extend(inline_container_errors(fields, &path, &[])),
            _ => errors.push((path, "must be an object with the fields of a Container".into())),
        }
    }
    errors
}

/// Errors of a container whose fields stand beside `own` ones.
pub(super) fn inline_container_errors(
    container: &Map<String, Value>,
    path: &str,
    own: &[&str],
) -> Vec<FieldError> {
    let mut errors = unknown(container, CONTAINER, own, path, "a Container");
    let env = container.get("env").and_then(Value::as_array).into_iter().flatten();
    for (i, _) in env.enumerate().filter(|(_, variable)| variable.get("name") == Some(&"PYTHONPATH".into())) {
        let message = "PYTHONPATH is not allowed: it would load code from the model's files; put the code into the image";
        errors.push((format!("{path}.env[{i}].name"), message.into()));
    }
    errors
}

fn unknown(
    fields: &Map<String, Value>,
    known: &[&str],
    own: &[&str],
    path: &str,
    of: &str,
) -> Vec<FieldError> {
    let names = || known.iter().chain(own).copied();
    let unknown = fields.keys().filter(|key| !names().any(|name| name == key.as_str()));
    let error = |key: &String| {
        let meant = nearest(key, names()).map(|near| format!(". Did you mean {near}?")).unwrap_or_default();
        (format!("{path}.{key}"), format!("is neither a field of this component nor of {of}{meant}"))
    };
    unknown.map(error).collect()
}
