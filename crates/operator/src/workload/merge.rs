//! One pod specification over another: what is said last wins, field by field, and nothing is there twice.

use serde_json::{Map, Value};

/// How the items of a list are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Items {
    /// By these fields; an item that says nothing of one of them has its default.
    Keyed(&'static [(&'static str, &'static str)]),
    /// By all that they say.
    Whole,
    /// They are not: the list is one value.
    Atomic,
}

const NAME: Items = Items::Keyed(&[("name", "")]);

/// Lists of a pod, by the name of their field. Others, such as `args`, are one value.
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

/// Where a container is asked for something, and the ways to ask, of which there is one.
const QUESTIONS: [&str; 5] = ["livenessProbe", "readinessProbe", "startupProbe", "postStart", "preStop"];
const WAYS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];

/// A pod specification with another over it. What is `null` says nothing. Items come in the order of `base`, new ones
/// after them.
pub fn merge(base: &Value, over: &Value) -> Value {
    // What is twice in one of them comes together, too.
    let mut merged = Value::Object(Map::new());
    lay("", &mut merged, base);
    lay("", &mut merged, over);
    merged
}

fn lay(field: &str, at: &mut Value, over: &Value) {
    match (&mut *at, over) {
        (_, Value::Null) => {}
        (Value::Object(fields), Value::Object(over)) => object(field, fields, over),
        (Value::Array(list), Value::Array(over)) if items(field) != Items::Atomic => {
            for item in over {
                add(field, list, item);
            }
        }
        (_, Value::Object(_)) => {
            *at = Value::Object(Map::new());
            lay(field, at, over);
        }
        (_, Value::Array(_)) if items(field) != Items::Atomic => {
            *at = Value::Array(Vec::new());
            lay(field, at, over);
        }
        (_, over) => *at = over.clone(),
    }
}

fn object(field: &str, fields: &mut Map<String, Value>, over: &Map<String, Value>) {
    let is_said = |name: &str| over.get(name).is_some_and(|value| !value.is_null());
    // Another way to ask replaces the way that was there.
    if QUESTIONS.contains(&field) && WAYS.iter().any(|way| is_said(way)) {
        fields.retain(|name, _| !WAYS.contains(&name.as_str()) || is_said(name));
    }
    for (name, value) in over.iter().filter(|(_, value)| !value.is_null()) {
        lay(name, fields.entry(name.clone()).or_insert(Value::Null), value);
    }
}

fn add(field: &str, list: &mut Vec<Value>, item: &Value) {
    let mut fresh = Value::Object(Map::new());
    lay("", &mut fresh, item);
    let known = match items(field) {
        Items::Keyed(keys) => list.iter_mut().find(|there| same(keys, there, &fresh)),
        Items::Whole | Items::Atomic => list.iter_mut().find(|there| **there == fresh),
    };
    match known {
        None => list.push(fresh),
        Some(there) if is_choice(field) => choose(there, &fresh),
        Some(there) => lay("", there, &fresh),
    }
}

/// Whether two items are the same by their keys. One without a key is the same as its equal only.
fn same(keys: &[(&str, &str)], one: &Value, other: &Value) -> bool {
    let key = |item: &Value, (name, usual): (&str, &str)| match item.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ if usual.is_empty() => None,
        _ => Some(usual.to_owned()),
    };
    one == other || keys.iter().all(|k| key(one, *k).is_some_and(|value| key(other, *k) == Some(value)))
}

/// Items that have a name and one of many forms: a volume is an empty directory or a claim, not both.
fn is_choice(field: &str) -> bool {
    matches!(field, "volumes" | "env")
}

fn choose(there: &mut Value, over: &Value) {
    if let (Value::Object(fields), Value::Object(over)) = (&mut *there, over)
        && over.keys().any(|name| name != "name")
    {
        fields.retain(|name, _| over.contains_key(name));
    }
    lay("", there, over);
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
