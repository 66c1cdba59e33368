//! Fields of Kubernetes objects.

use serde_json::Value;

/// A string at a path, or empty.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A number at a path; Kubernetes omits zeros.
pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// `NAME in NAMESPACE`.
pub(super) fn qualified_name(object: &Value) -> String {
    format!("{} in {}", text(object, "/metadata/name"), text(object, "/metadata/namespace"))
}

pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|c| text(c, "/type") == kind)
}

/// The reason why an object is not ready; `None` if it is ready.
pub(super) fn not_ready(object: &Value) -> Option<String> {
    if !text(object, "/metadata/deletionTimestamp").is_empty() {
        let finalizers: Vec<&str> =
            list(object, "/metadata/finalizers").iter().filter_map(Value::as_str).collect();
        return Some(format!("is being deleted; finalizers: {}", join(&finalizers)));
    }
    let Some(ready) = condition(object, "Ready") else {
        return Some("has no status: is the operator running?".into());
    };
    let (generation, observed) =
        (number(object, "/metadata/generation"), number(object, "/status/observedGeneration"));
    if text(ready, "/status") != "True" {
        let message = text(ready, "/message");
        return Some(if message.is_empty() { text(ready, "/reason").to_owned() } else { message.to_owned() });
    }
    // Seldon's operator does not set observedGeneration.
    if observed > 0 && observed < generation {
        return Some("latest change not reconciled yet".into());
    }
    None
}

/// Comma-separated, or `none`.
pub(super) fn join(items: &[&str]) -> String {
    if items.is_empty() { "none".into() } else { items.join(", ") }
}
