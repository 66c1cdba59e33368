//! Structural schemas for CRDs: no references, one type per value.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// Non-negative Kubernetes quantities.
const QUANTITY: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$";

pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    structural(schema)
}

fn structural(schema: Value) -> Value {
    let Value::Object(schema) = schema else {
        return json!({ "x-kubernetes-preserve-unknown-fields": true });
    };
    let mut schema = without_null(schema);
    for keyword in ["$schema", "title", "x-lint-maximum"] {
        schema.remove(keyword);
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        // Only the first paragraph is for `kubectl explain`.
        *description = description.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    }
    if schema.get("default").is_some_and(is_zero_value) {
        schema.remove("default");
    }
    if schema.contains_key("x-kubernetes-int-or-string") {
        int_or_string(&mut schema);
    }
    // The pattern of a duration and the type of a number remain.
    if matches!(schema.get("format").and_then(Value::as_str), Some("spec-duration" | "double")) {
        schema.remove("format");
    }
    if schema.get("format").and_then(Value::as_str) == Some("uint32") {
        schema.insert("format".into(), "int64".into());
        schema.entry("minimum").or_insert(0.into());
        schema.entry("maximum").or_insert(u32::MAX.into());
    }
    if schema.get("format").and_then(Value::as_str) == Some("double") {
        schema.remove("format");
    }
    if let Some(kept) = schema.remove("x-crd-fields") {
        only_fields(&mut schema, &kept);
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            *property = structural(property.take());
        }
    }
    // Inline pods and containers: their fields stand beside ours.
    if schema.get("additionalProperties") == Some(&Value::Bool(true)) && schema.contains_key("properties") {
        schema.remove("additionalProperties");
        schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    for below in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(below) {
            *inner = structural(inner.take());
        }
    }
    Value::Object(schema)
}

/// Drops the schemas of all fields but these, which keeps the CRD small. `gantry lint`, the scheduler and the operator
/// check the others.
fn only_fields(schema: &mut Map<String, Value>, kept: &Value) {
    let is_kept = |name: &str| kept.as_array().is_some_and(|kept| kept.iter().any(|k| k == name));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| is_kept(name));
        if properties.is_empty() {
            schema.remove("properties");
        }
    }
    for keyword in ["additionalProperties", "required"] {
        schema.remove(keyword);
    }
    schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
}

/// Optional fields may be absent, but not `null`.
fn without_null(mut schema: Map<String, Value>) -> Map<String, Value> {
    let is_null = |v: &Value| v.get("type").and_then(Value::as_str) == Some("null");
    if let Some(Value::Array(options)) = schema.remove("anyOf")
        && let Some(Value::Object(mut main)) = options.into_iter().find(|o| !is_null(o))
    {
        main.extend(schema);
        schema = main;
    }
    if let Some(Value::Array(types)) = schema.get("type") {
        let main = types.iter().find(|t| t.as_str() != Some("null")).cloned();
        schema.extend(main.map(|t| ("type".to_owned(), t)));
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
    schema
}

/// Defaults equal to an absent field are omitted.
fn is_zero_value(default: &Value) -> bool {
    match default {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.values().all(is_zero_value),
        Value::Bool(true) => false,
    }
}

fn int_or_string(schema: &mut Map<String, Value>) {
    schema.remove("type");
    schema.insert("anyOf".into(), json!([{ "type": "integer" }, { "type": "string" }]));
    if schema.remove("format").is_some_and(|f| f == "quantity") {
        schema.insert("pattern".into(), QUANTITY.into());
    }
}

/// Adds a rule at a location such as `spec.steps[].name`.
pub(super) fn add_rule(schema: &mut Value, at: &str, rule: Value) {
    let Some(node) = node_at(schema, at).and_then(Value::as_object_mut) else { return };
    let rules = node.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let Some(rules) = rules.as_array_mut() {
        rules.push(rule);
    }
}

fn node_at<'a>(schema: &'a mut Value, at: &str) -> Option<&'a mut Value> {
    let mut here = schema;
    for part in at.split('.').filter(|p| !p.is_empty()) {
        let (field, of_items) = part.strip_suffix("[]").map_or((part, false), |field| (field, true));
        here = here.get_mut("properties")?.get_mut(field)?;
        if of_items {
            here = here.get_mut("items")?;
        }
    }
    Some(here)
}
