//! Whether what is wanted is there already, although the API server fills in defaults and writes things its own way.

use serde_json::{Map, Value};

/// Whether every field of `wanted` is in `live` with the same meaning. What `live` has besides is somebody else's.
pub fn holds(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted.iter().all(|(name, value)| {
            match live.get(name) {
                Some(there) => holds_field(name, value, there),
                // What is empty is left out by the API server.
                None => is_empty(value),
            }
        }),
        (Value::Array(wanted), Value::Array(live)) => list(wanted, live),
        _ => scalar(wanted, live),
    }
}

fn holds_field(name: &str, wanted: &Value, live: &Value) -> bool {
    match name {
        // The API server writes amounts in their shortest form: 1000m becomes 1.
        "limits" | "requests" | "capacity" | "sizeLimit" => amounts(wanted, live),
        _ => holds(wanted, live),
    }
}

fn amounts(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            wanted.iter().all(|(name, amount)| live.get(name).is_some_and(|there| same_amount(amount, there)))
        }
        _ => same_amount(wanted, live),
    }
}

fn same_amount(wanted: &Value, live: &Value) -> bool {
    scalar(wanted, live) || amount(wanted).is_some_and(|a| amount(live) == Some(a))
}

/// An amount in thousandths.
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

/// Lists of objects with a name are maps to Kubernetes; others are taken as they stand.
fn list(wanted: &[Value], live: &[Value]) -> bool {
    let key = ["name", "mountPath", "containerPort", "port", "type", "ip", "uid"]
        .into_iter()
        .find(|key| !wanted.is_empty() && wanted.iter().all(|item| item.get(key).is_some()));
    match key {
        Some(key) => wanted.iter().all(|item| {
            live.iter()
                .any(|there| there.get(key).is_some_and(|k| Some(k) == item.get(key)) && holds(item, there))
        }),
        None => wanted.len() == live.len() && wanted.iter().zip(live).all(|(w, l)| holds(w, l)),
    }
}

fn scalar(wanted: &Value, live: &Value) -> bool {
    wanted == live
        || match (wanted, live) {
            // A number where a text may stand too, such as a port.
            (Value::Number(n), Value::String(s)) | (Value::String(s), Value::Number(n)) => {
                n.to_string() == *s
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
    fn what_is_there_is_recognised() {
        for (wanted, live) in [
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
        ] {
            assert!(holds(&wanted, &live), "{wanted} in {live}");
        }
    }

    #[test]
    fn drift_is_seen() {
        for (wanted, live) in [
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
            assert!(!holds(&wanted, &live), "{wanted} in {live}");
        }
    }
}
