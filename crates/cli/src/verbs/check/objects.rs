//! What is read out of objects.

use serde_json::Value;

/// A text at a path; empty when there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A number at a path; what Kubernetes leaves out is 0.
pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// A list at a path.
pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// `NAME in NAMESPACE`.
pub(super) fn place(object: &Value) -> String {
    format!("{} in {}", text(object, "/metadata/name"), text(object, "/metadata/namespace"))
}

/// An object's condition of a type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|c| text(c, "/type") == kind)
}

/// Why an object is not ready; `None` when it is.
pub(super) fn not_ready(object: &Value) -> Option<String> {
    if !text(object, "/metadata/deletionTimestamp").is_empty() {
        let finalizers: Vec<&str> =
            list(object, "/metadata/finalizers").iter().filter_map(Value::as_str).collect();
        return Some(format!("is being deleted; held by {}", shown(&finalizers)));
    }
    let Some(ready) = condition(object, "Ready") else {
        return Some("nobody has looked at it: does the operator run?".into());
    };
    let (asked, seen) =
        (number(object, "/metadata/generation"), number(object, "/status/observedGeneration"));
    if text(ready, "/status") != "True" {
        let message = text(ready, "/message");
        return Some(if message.is_empty() { text(ready, "/reason").to_owned() } else { message.to_owned() });
    }
    // Seldon's operator does not say which generation it saw.
    if seen > 0 && seen < asked {
        return Some("its last change has not been looked at yet".into());
    }
    None
}

/// Words with commas.
pub(super) fn shown(words: &[&str]) -> String {
    if words.is_empty() { "nothing".into() } else { words.join(", ") }
}
