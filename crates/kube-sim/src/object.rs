//! Helpers for JSON objects.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// Empty when absent.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn texts<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Creates missing parents; does nothing if a parent is not an object.
pub(super) fn set(object: &mut Value, path: &[&str], value: impl Into<Value>) {
    let Some((last, way)) = path.split_last() else { return };
    let mut node = object;
    for name in way {
        let Some(map) = node.as_object_mut() else { return };
        let next = map.entry((*name).to_owned()).or_insert_with(|| Value::Object(Map::new()));
        if next.is_null() {
            *next = Value::Object(Map::new());
        }
        node = next;
    }
    if let Some(map) = node.as_object_mut() {
        map.insert((*last).to_owned(), value.into());
    }
}

pub(super) fn default(object: &mut Value, path: &[&str], value: impl Into<Value>) {
    let pointer = pointer(path);
    if object.pointer(&pointer).is_none_or(Value::is_null) {
        set(object, path, value);
    }
}

pub(super) fn pointer(path: &[&str]) -> String {
    path.iter().fold(String::new(), |pointer, name| pointer + "/" + name)
}

pub(super) fn unset(object: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, way) = path.split_last()?;
    let mut node = object;
    for name in way {
        node = node.get_mut(*name)?;
    }
    node.as_object_mut()?.remove(*last)
}

/// Copies the value at `path` from `other`, or removes it.
pub(super) fn copy(object: &mut Value, other: &Value, path: &[&str]) {
    let pointer = pointer(path);
    match other.pointer(&pointer) {
        Some(value) => set(object, path, value.clone()),
        None => {
            unset(object, path);
        }
    }
}

/// RFC 3339, in seconds.
pub(super) fn time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Without `managedFields`.
pub(super) fn without_managers(object: &Value) -> Value {
    let mut object = object.clone();
    unset(&mut object, &["metadata", "managedFields"]);
    object
}

/// Whether `deletionTimestamp` is set.
pub(super) fn is_terminating(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}
