//! Names of the fields of inline pod specs and containers, which have no schema of their own.

use crate::{FieldError, is_quantity, nearest};
use schemars::JsonSchema;
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

/// The own fields of a container without any.
#[derive(JsonSchema)]
pub(super) struct NoFields {}

/// Fields that neither `T` nor a `PodSpec` has, and blocked variables of init containers.
pub(super) fn pod_errors<T: JsonSchema>(pod: &Map<String, Value>, path: &str) -> Vec<FieldError> {
    let mut errors = unknown::<T>(pod, POD, path, "a PodSpec");
    let init = pod.get("initContainers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    errors.extend(container_errors(init, &format!("{path}.initContainers")));
    errors
}

/// Errors of a list of containers.
pub(super) fn container_errors(containers: &[Value], path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name =
        |container: &Value| container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (i, container) in containers.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let own = name(container);
        if !own.is_empty() && !own.contains("{{") && (own.len() > 63 || crate::check_name(&own).is_err()) {
            let message =
                format!("{own:?} is not a DNS label: use up to 63 lower-case letters, digits and '-'");
            errors.push((format!("{path}.name"), message));
        }
        if !own.is_empty() && containers.iter().take(i).any(|other| name(other) == own) {
            errors.push((
                format!("{path}.name"),
                format!("{own} is the name of a container above: rename one of the two"),
            ));
        }
        match container {
            Value::Object(fields) => errors.extend(inline_container_errors::<NoFields>(fields, &path)),
            _ => errors.push((path, "must be an object with the fields of a Container".into())),
        }
    }
    errors
}

/// Errors of a container whose fields are beside those of `T`.
pub(super) fn inline_container_errors<T: JsonSchema>(
    container: &Map<String, Value>,
    path: &str,
) -> Vec<FieldError> {
    let mut errors = unknown::<T>(container, CONTAINER, path, "a Container");
    let env = container.get("env").and_then(Value::as_array).into_iter().flatten();
    for (i, variable) in env.enumerate() {
        if variable.get("name") == Some(&"PYTHONPATH".into()) {
            let message = "PYTHONPATH is not allowed: it would load code from the model's files; put the code into the image";
            errors.push((format!("{path}.env[{i}].name"), message.into()));
        }
        if let Some(value) = variable.get("value").filter(|value| !value.is_string() && !value.is_null()) {
            let message = format!("must be a string, got {value}: put it in quotes");
            errors.push((format!("{path}.env[{i}].value"), message));
        }
    }
    for list in ["limits", "requests"] {
        let amounts = container.get("resources").and_then(|resources| resources.get(list)?.as_object());
        for (resource, amount) in amounts.into_iter().flatten() {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            if !is_quantity(&text) && !text.contains("{{") {
                let message = format!("{text:?} is not a quantity: write an amount such as 500m, 1 or 2Gi");
                errors.push((format!("{path}.resources.{list}.{resource}"), message));
            }
        }
    }
    errors
}

fn unknown<T: JsonSchema>(
    fields: &Map<String, Value>,
    known: &[&str],
    path: &str,
    of: &str,
) -> Vec<FieldError> {
    let unknown: Vec<&String> = fields.keys().filter(|key| !known.contains(&key.as_str())).collect();
    if unknown.is_empty() {
        return Vec::new();
    }
    let schema = schemars::schema_for!(T);
    let own = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let names: Vec<&str> = known.iter().copied().chain(own.map(String::as_str)).collect();
    let part = path.rsplit('.').next().unwrap_or(path);
    let error = |key: &String| {
        let remedy = nearest(key, names.iter().copied())
            .map_or_else(|| ": remove it".to_owned(), |near| format!(". Did you mean {near}?"));
        (format!("{path}.{key}"), format!("is not a field of {part} or {of}{remedy}"))
    };
    unknown.into_iter().map(error).collect()
}
