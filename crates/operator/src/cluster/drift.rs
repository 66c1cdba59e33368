//! Drift: comparison of desired and live state, tolerant of defaults and of equivalent notations.

use serde_json::{Map, Value};

/// Whether every field of `desired` is in `live` with the same meaning; `live` may have more.
pub fn is_subset(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.iter().all(|(name, value)| {
            match live.get(name) {
                Some(there) => field_matches(name, value, there),
                // The API server omits empty values.
                None => is_empty(value),
            }
        }),
        (Value::Array(desired), Value::Array(live)) => list(desired, live),
        _ => scalar(desired, live),
    }
}

/// Paths where `live` differs from `desired`, such as `containers[agent].image`.
pub fn drifted_fields(desired: &Value, live: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    collect_drift("", desired, live, &mut paths);
    paths
}

fn collect_drift(path: &str, desired: &Value, live: &Value, paths: &mut Vec<String>) {
    let before = paths.len();
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            let none = Value::Null;
            for (name, value) in desired {
                let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match live.get(name) {
                    Some(there) if field_matches(name, value, there) => {}
                    None if is_empty(value) => {}
                    there => collect_drift(&at, value, there.unwrap_or(&none), paths),
                }
            }
        }
        (Value::Array(desired), Value::Array(live)) => {
            if let Some(key) = key_of(desired) {
                for item in desired {
                    let same = live.iter().find(|there| there.get(key) == item.get(key));
                    let matches = same.is_some_and(|there| is_subset(item, there));
                    let text = item.get(key).map(|k| k.as_str().map_or_else(|| k.to_string(), str::to_owned));
                    let at = format!("{path}[{}]", text.unwrap_or_default());
                    match same {
                        _ if matches => {}
                        Some(there) => collect_drift(&at, item, there, paths),
                        None => paths.push(at),
                    }
                }
            }
        }
        _ => {}
    }
    // No child is more specific.
    if paths.len() == before && !is_subset(desired, live) {
        paths.push(path.to_owned());
    }
}

fn field_matches(name: &str, desired: &Value, live: &Value) -> bool {
    match name {
        // The API server normalizes quantities: 1000m becomes 1.
        "limits" | "requests" | "capacity" | "sizeLimit" => amounts(desired, live),
        _ => is_subset(desired, live),
    }
}

fn amounts(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired
            .iter()
            .all(|(name, amount)| live.get(name).is_some_and(|there| same_amount(amount, there))),
        _ => same_amount(desired, live),
    }
}

fn same_amount(desired: &Value, live: &Value) -> bool {
    scalar(desired, live) || amount(desired).is_some_and(|a| amount(live) == Some(a))
}

/// A quantity in thousandths.
fn amount(value: &Value) -> Option<i128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (number, suffix) = text.split_at(digits.len());
    let thousandths: i128 = match suffix {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "P" => 1_000_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        "Pi" => 1_000 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    digits.checked_mul(thousandths).map(|n| n / scale)
}

/// Lists of named items are compared as maps, others in order.
fn list(desired: &[Value], live: &[Value]) -> bool {
    match key_of(desired) {
        Some(key) => desired.iter().all(|item| {
            live.iter().any(|there| {
                there.get(key).is_some_and(|k| Some(k) == item.get(key)) && is_subset(item, there)
            })
        }),
        None => desired.len() == live.len() && desired.iter().zip(live).all(|(w, l)| is_subset(w, l)),
    }
}

/// The merge key of a list.
pub(super) fn key_of(items: &[Value]) -> Option<&'static str> {
    ["name", "mountPath", "containerPort", "port", "type", "ip", "uid"]
        .into_iter()
        .find(|key| !items.is_empty() && items.iter().all(|item| item.get(key).is_some()))
}

fn scalar(desired: &Value, live: &Value) -> bool {
    desired == live
        || match (desired, live) {
            // An int-or-string field, such as a port.
            (Value::Number(n), Value::String(s)) | (Value::String(s), Value::Number(n)) => {
                n.to_string() == *s
            }
            // The API server writes 1.0 as 1.
            (Value::Number(a), Value::Number(b)) => {
                (a.is_f64() || b.is_f64())
                    && a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a.total_cmp(&b).is_eq())
            }
            _ => false,
        }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => Map::is_empty(fields) || fields.values().all(is_empty),
        Value::Number(number) => number.as_i64() == Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equivalent_state_is_no_drift() {
        for (desired, live) in [
            (json!({"a": 1}), json!({"a": 1, "b": 2})),
            (json!({"a": {}}), json!({})),
            (json!({"hostNetwork": false, "env": []}), json!({})),
            (
                json!({"limits": {"cpu": "1000m", "memory": "1024Mi"}}),
                json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            ),
            (json!({"limits": {"cpu": 0.5}}), json!({"limits": {"cpu": "500m"}})),
            (
                json!([{"name": "a", "image": "x"}]),
                json!([{"name": "b"}, {"name": "a", "image": "x", "tty": true}]),
            ),
            (json!({"targetPort": 9000}), json!({"targetPort": 9000})),
            (json!(["a", "b"]), json!(["a", "b"])),
            (json!({"minimum": 0.0, "maximum": 1.0}), json!({"minimum": 0, "maximum": 1})),
        ] {
            assert!(is_subset(&desired, &live), "{desired} in {live}");
            assert_eq!(drifted_fields(&desired, &live), [""; 0], "{desired} in {live}");
        }
    }

    #[test]
    fn changed_fields_are_drift() {
        for (desired, live) in [
            (json!({"a": 1}), json!({"a": 2})),
            (json!({"a": 1}), json!({})),
            (json!({"limits": {"cpu": "1"}}), json!({"limits": {"cpu": "2"}})),
            (json!({"limits": {"cpu": "1"}}), json!({"limits": {}})),
            (json!([{"name": "a", "image": "x"}]), json!([{"name": "a", "image": "y"}])),
            (json!([{"name": "a"}]), json!([])),
            (json!(["a", "b"]), json!(["b", "a"])),
            (json!(["a"]), json!(["a", "b"])),
            (json!({"requests": {"memory": "1Gi"}}), json!({"requests": {"memory": "1G"}})),
        ] {
            assert!(!is_subset(&desired, &live), "{desired} in {live}");
            assert!(!drifted_fields(&desired, &live).is_empty(), "{desired} in {live}");
        }
    }

    #[test]
    fn drift_has_a_path() {
        let live = json!({"containers": [
            {"name": "agent", "image": "a:1", "env": [{"name": "A", "value": "1"}], "args": ["x"]},
            {"name": "server", "resources": {"limits": {"cpu": "1"}}},
        ]});
        for (desired, paths) in [
            (live.clone(), &[][..]),
            (json!({"containers": [{"name": "agent", "image": "a:2"}]}), &["containers[agent].image"]),
            (
                json!({"containers": [{"name": "agent", "args": ["y"], "env": [{"name": "B", "value": "1"}]}, {"name": "more"}]}),
                &["containers[agent].args", "containers[agent].env[B]", "containers[more]"],
            ),
            (
                json!({"containers": [{"name": "server", "resources": {"limits": {"cpu": "2"}}}], "hostNetwork": true}),
                &["containers[server].resources.limits.cpu", "hostNetwork"],
            ),
            (json!({"containers": [{"name": "server", "resources": {"limits": {"cpu": "1000m"}}}]}), &[]),
        ] {
            assert_eq!(drifted_fields(&desired, &live), paths, "{desired}");
        }
    }
}
