//! Structural schemas: pruning, defaulting and validation.
//!
//! Patterns, formats and CEL rules are not evaluated.

use super::failure::Cause;
use serde_json::{Map, Value};

/// An `openAPIV3Schema`.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema(Value);

impl Schema {
    pub fn new(schema: Value) -> Self {
        Self(schema)
    }

    pub fn admit(&self, object: &mut Value) {
        let Some(map) = object.as_object_mut() else { return };
        let properties = self.0.get("properties").and_then(Value::as_object);
        let open = preserves(&self.0);
        map.retain(|name, value| {
            if ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                return true;
            }
            let Some(schema) = properties.and_then(|properties| properties.get(name)) else { return open };
            keep(value, schema)
        });
        self.fill(object);
    }

    /// A null of a non-nullable field is replaced by the default.
    pub fn fill(&self, object: &mut Value) {
        let Some(map) = object.as_object_mut() else { return };
        for (name, schema) in self.0.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if name != "metadata" {
                fill(map, name, schema);
            }
        }
    }

    pub fn unknown(&self, object: &Value) -> Option<String> {
        let mut object = object.clone();
        for name in ["apiVersion", "kind", "metadata"] {
            object.as_object_mut()?.remove(name);
        }
        unknown(&object, &self.0, "")
    }

    pub fn problems(&self, object: &Value) -> Vec<Cause> {
        let mut found = Vec::new();
        let properties = self.0.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            if let Some(value) = object.get(name).filter(|_| name != "metadata") {
                check(value, schema, name, &mut found);
            }
        }
        required(object, &self.0, "", &mut found);
        found
    }
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn preserves(schema: &Value) -> bool {
    flag(schema, "x-kubernetes-preserve-unknown-fields")
}

/// False when the value itself is pruned: a null in a non-nullable field.
fn keep(value: &mut Value, schema: &Value) -> bool {
    match value {
        Value::Null => flag(schema, "nullable"),
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let others = schema.get("additionalProperties");
            let open = preserves(schema) || others.and_then(Value::as_bool).unwrap_or(false);
            let embedded = flag(schema, "x-kubernetes-embedded-resource");
            map.retain(|name, value| {
                let known = properties.and_then(|properties| properties.get(name));
                match known.or_else(|| others.filter(|others| others.is_object())) {
                    Some(schema) => keep(value, schema),
                    None => open || (embedded && ["apiVersion", "kind", "metadata"].contains(&name.as_str())),
                }
            });
            true
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    keep(item, schema);
                }
            }
            true
        }
        _ => true,
    }
}

fn fill(map: &mut Map<String, Value>, name: &str, schema: &Value) {
    let missing = map.get(name).is_none_or(|value| value.is_null() && !flag(schema, "nullable"));
    if let (true, Some(default)) = (missing, schema.get("default")) {
        map.insert(name.to_owned(), default.clone());
    }
    if let Some(value) = map.get_mut(name) {
        fill_below(value, schema);
    }
}

fn fill_below(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                fill(map, name, schema);
            }
            if let Some(others) = schema.get("additionalProperties").filter(|others| others.is_object()) {
                map.values_mut().for_each(|value| fill_below(value, others));
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    fill_below(item, schema);
                }
            }
        }
        _ => {}
    }
}

fn unknown(value: &Value, schema: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(map) => {
            let others = schema.get("additionalProperties").filter(|others| others.is_object());
            map.iter().find_map(|(name, value)| {
                let path = format!("{path}.{name}");
                let known = schema.get("properties").and_then(|properties| properties.get(name));
                match known.or(others) {
                    Some(schema) => unknown(value, schema, &path),
                    None if preserves(schema)
                        || schema.get("additionalProperties") == Some(&Value::Bool(true)) =>
                    {
                        None
                    }
                    None => Some(path),
                }
            })
        }
        Value::Array(items) => {
            let schema = schema.get("items")?;
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| unknown(item, schema, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

fn required(object: &Value, schema: &Value, path: &str, found: &mut Vec<Cause>) {
    let names = schema.get("required").and_then(Value::as_array);
    for name in names.into_iter().flatten().filter_map(Value::as_str) {
        if object.get(name).is_none() {
            let field = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            found.push(Cause::new("FieldValueRequired", &field, "a value is required: write this field"));
        }
    }
}

fn check(value: &Value, schema: &Value, path: &str, found: &mut Vec<Cause>) {
    if value.is_null() && flag(schema, "nullable") {
        return;
    }
    if let Some(wanted) = schema.get("type").and_then(Value::as_str)
        && !is_type(value, wanted)
    {
        let said = format!("must be of type {wanted}");
        found.push(Cause::new("FieldValueTypeInvalid", path, &said));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        found.push(Cause::new(
            "FieldValueNotSupported",
            path,
            &format!("must be one of {}", allowed.join(", ")),
        ));
    }
    bounds(value, schema, path, found);
    match value {
        Value::Object(map) => {
            required(value, schema, path, found);
            let properties = schema.get("properties");
            let others = schema.get("additionalProperties").filter(|others| others.is_object());
            for (name, value) in map {
                let known = properties.and_then(|properties| properties.get(name));
                if let Some(schema) = known.or(others) {
                    check(value, schema, &format!("{path}.{name}"), found);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    check(item, schema, &format!("{path}[{index}]"), found);
                }
            }
        }
        _ => {}
    }
}

fn bounds(value: &Value, schema: &Value, path: &str, found: &mut Vec<Cause>) {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let (size, least, most) = match value {
        Value::Number(number) => (number.as_f64(), bound("minimum"), bound("maximum")),
        Value::String(text) => (Some(text.chars().count() as f64), bound("minLength"), bound("maxLength")),
        Value::Array(items) => (Some(items.len() as f64), bound("minItems"), bound("maxItems")),
        Value::Object(map) => (Some(map.len() as f64), bound("minProperties"), bound("maxProperties")),
        _ => return,
    };
    let Some(size) = size else { return };
    if let Some(least) = least.filter(|least| size < *least) {
        found.push(Cause::new("FieldValueInvalid", path, &format!("{size} is less than {least}")));
    }
    if let Some(most) = most.filter(|most| size > *most) {
        let reason = if value.is_number() { "FieldValueInvalid" } else { "FieldValueTooLong" };
        found.push(Cause::new(reason, path, &format!("{size} is more than {most}")));
    }
}

fn is_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    }
}
