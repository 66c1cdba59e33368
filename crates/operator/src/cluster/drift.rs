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

/// Where `wanted` is not in `live`, as people would point at it: `containers[agent].image`. Nothing where it
/// [`holds`].
pub fn lacking(wanted: &Value, live: &Value) -> Vec<String> {
    let mut places = Vec::new();
    lacks("", wanted, live, &mut places);
    places
}

fn lacks(place: &str, wanted: &Value, live: &Value, places: &mut Vec<String>) {
    let before = places.len();
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            let none = Value::Null;
            for (name, value) in wanted {
                let at = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                match live.get(name) {
                    Some(there) if holds_field(name, value, there) => {}
                    None if is_empty(value) => {}
                    there => lacks(&at, value, there.unwrap_or(&none), places),
                }
            }
        }
        (Value::Array(wanted), Value::Array(live)) => {
            if let Some(key) = key_of(wanted) {
                for item in wanted {
                    let same = live.iter().find(|there| there.get(key) == item.get(key));
                    let is_there = same.is_some_and(|there| holds(item, there));
                    let text = item.get(key).map(|k| k.as_str().map_or_else(|| k.to_string(), str::to_owned));
                    let at = format!("{place}[{}]", text.unwrap_or_default());
                    match same {
                        _ if is_there => {}
                        Some(there) => lacks(&at, item, there, places),
                        None => places.push(at),
                    }
                }
            }
        }
        _ => {}
    }
    // Nothing below says it better.
    if places.len() == before && !holds(wanted, live) {
        places.push(place.to_owned());
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
    match key_of(wanted) {
        Some(key) => wanted.iter().all(|item| {
            live.iter()
                .any(|there| there.get(key).is_some_and(|k| Some(k) == item.get(key)) && holds(item, there))
        }),
        None => wanted.len() == live.len() && wanted.iter().zip(live).all(|(w, l)| holds(w, l)),
    }
}

/// What the items of a list are told apart by.
pub(super) fn key_of(items: &[Value]) -> Option<&'static str> {
    ["name", "mountPath", "containerPort", "port", "type", "ip", "uid"]
        .into_iter()
        .find(|key| !items.is_empty() && items.iter().all(|item| item.get(key).is_some()))
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
            assert_eq!(lacking(&wanted, &live), [""; 0], "{wanted} in {live}");
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
            assert!(!lacking(&wanted, &live).is_empty(), "{wanted} in {live}");
        }
    }

    #[test]
    fn a_difference_has_a_place() {
        let live = json!({"containers": [
            {"name": "agent", "image": "a:1", "env": [{"name": "A", "value": "1"}], "args": ["x"]},
            {"name": "server", "resources": {"limits": {"cpu": "1"}}},
        ]});
        for (wanted, places) in [
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
            assert_eq!(lacking(&wanted, &live), places, "{wanted}");
        }
    }
}
