//! JSON bodies that the graph itself writes.

use super::json::{is_valid, members, quote, unescape};
use std::collections::BTreeMap;

/// Longest text of a failed step that an ensemble shows.
const MAX_TEXT: usize = 1024;

/// The body of an error, as KServe's router writes it.
pub fn error_body(cause: &str) -> String {
    format!("{{\"error\":\"the inference graph failed\",\"cause\":{}}}", quote(cause))
}

/// The same object with the member `predictions` as `instances`; `None` if it has none.
pub(super) fn map_predictions(body: &[u8]) -> Option<Vec<u8>> {
    if !is_valid(body) || !members(body).any(|(key, _)| unescape(key) == "predictions") {
        return None;
    }
    let mut mapped = Vec::with_capacity(body.len());
    mapped.push(b'{');
    for (key, value) in members(body) {
        let name = unescape(key);
        if name == "instances" {
            continue;
        }
        if mapped.len() > 1 {
            mapped.push(b',');
        }
        mapped.push(b'"');
        mapped.extend_from_slice(if name == "predictions" { b"instances" } else { key });
        mapped.extend_from_slice(b"\":");
        mapped.extend_from_slice(value);
    }
    mapped.push(b'}');
    Some(mapped)
}

/// One object of the responses of an ensemble, by name.
pub(super) fn merge<'a>(responses: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let responses: BTreeMap<&str, &[u8]> = responses.collect();
    let mut merged = vec![b'{'];
    for (key, value) in responses {
        if merged.len() > 1 {
            merged.push(b',');
        }
        merged.extend_from_slice(quote(key).as_bytes());
        merged.push(b':');
        if is_valid(value) {
            merged.extend_from_slice(value.trim_ascii());
        } else {
            let text = String::from_utf8_lossy(value);
            let text: String = text.chars().take(MAX_TEXT).collect();
            merged.extend_from_slice(format!("{{\"error\":{}}}", quote(&text)).as_bytes());
        }
    }
    merged.push(b'}');
    merged
}
