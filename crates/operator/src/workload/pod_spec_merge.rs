//! Merges pod specs field by field, like a strategic merge patch: the override wins, list items are merged by key.

use serde_json::{Map, Value};

/// How list items are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Items {
    /// By these fields and their defaults.
    Keyed(&'static [(&'static str, &'static str)]),
    /// By equality.
    Whole,
    /// The list is replaced as a whole.
    Atomic,
}

const NAME: Items = Items::Keyed(&[("name", "")]);

/// Lists by field name. Others, such as `args`, are atomic.
fn items(field: &str) -> Items {
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims"
        | "claims"
        | "schedulingGates"
        | "sysctls" => NAME,
        "volumeMounts" => Items::Keyed(&[("mountPath", "")]),
        "volumeDevices" => Items::Keyed(&[("devicePath", "")]),
        "ports" => Items::Keyed(&[("containerPort", ""), ("protocol", "TCP")]),
        "hostAliases" => Items::Keyed(&[("ip", "")]),
        "readinessGates" => Items::Keyed(&[("conditionType", "")]),
        "resizePolicy" => Items::Keyed(&[("resourceName", "")]),
        "topologySpreadConstraints" => Items::Keyed(&[("topologyKey", ""), ("whenUnsatisfiable", "")]),
        "tolerations" | "envFrom" => Items::Whole,
        _ => Items::Atomic,
    }
}

/// Probes and lifecycle hooks have exactly one handler.
const PROBES_AND_HOOKS: [&str; 5] =
    ["livenessProbe", "readinessProbe", "startupProbe", "postStart", "preStop"];
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// Merges `over` into `base`. `null` is ignored. New list items are appended.
pub fn merge(base: &Value, over: &Value) -> Value {
    // Starting from an empty object also merges duplicate items within one of them.
    let mut merged = Value::Object(Map::new());
    merge_value("", &mut merged, base);
    merge_value("", &mut merged, over);
    merged
}

fn merge_value(field: &str, at: &mut Value, over: &Value) {
    match (&mut *at, over) {
        (_, Value::Null) => {}
        (Value::Object(fields), Value::Object(over)) => merge_object(field, fields, over),
        (Value::Array(list), Value::Array(over)) if items(field) != Items::Atomic => {
            for item in over {
                merge_item(field, list, item);
            }
        }
        (_, Value::Object(_)) => {
            *at = Value::Object(Map::new());
            merge_value(field, at, over);
        }
        (_, Value::Array(_)) if items(field) != Items::Atomic => {
            *at = Value::Array(Vec::new());
            merge_value(field, at, over);
        }
        (_, over) => *at = over.clone(),
    }
}

fn merge_object(field: &str, fields: &mut Map<String, Value>, over: &Map<String, Value>) {
    let is_set = |name: &str| over.get(name).is_some_and(|value| !value.is_null());
    // Another handler replaces the existing one.
    if PROBES_AND_HOOKS.contains(&field) && HANDLERS.iter().any(|handler| is_set(handler)) {
        fields.retain(|name, _| !HANDLERS.contains(&name.as_str()) || is_set(name));
    }
    for (name, value) in over.iter().filter(|(_, value)| !value.is_null()) {
        merge_value(name, fields.entry(name.clone()).or_insert(Value::Null), value);
    }
}

fn merge_item(field: &str, list: &mut Vec<Value>, item: &Value) {
    let mut fresh = Value::Object(Map::new());
    merge_value("", &mut fresh, item);
    let known = match items(field) {
        Items::Keyed(keys) => list.iter_mut().find(|there| has_same_keys(keys, there, &fresh)),
        Items::Whole | Items::Atomic => list.iter_mut().find(|there| **there == fresh),
    };
    match known {
        None => list.push(fresh),
        Some(there) if is_union(field) => merge_union(there, &fresh),
        Some(there) => merge_value("", there, &fresh),
    }
}

/// Whether two items have the same keys. An item without a key only matches its equal.
fn has_same_keys(keys: &[(&str, &str)], one: &Value, other: &Value) -> bool {
    let key = |item: &Value, (name, default): (&str, &str)| match item.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ if default.is_empty() => None,
        _ => Some(default.to_owned()),
    };
    one == other || keys.iter().all(|k| key(one, *k).is_some_and(|value| key(other, *k) == Some(value)))
}

/// Items that are a union: a volume has exactly one source.
fn is_union(field: &str) -> bool {
    matches!(field, "volumes" | "env")
}

fn merge_union(there: &mut Value, over: &Value) {
    if let (Value::Object(fields), Value::Object(over)) = (&mut *there, over)
        && over.keys().any(|name| name != "name")
    {
        fields.retain(|name, _| over.contains_key(name));
    }
    merge_value("", there, over);
}

#[cfg(test)]
mod tests;
