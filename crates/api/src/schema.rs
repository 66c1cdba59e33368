//! Checks a YAML tree against a kind's JSON schema: unknown fields, missing fields, wrong types.
//!
//! Supports only the subset of JSON schema that schemars generates for our types.

use crate::{
    Diagnostic, Quantity, SpecDuration,
    suggest::nearest,
    yaml::{Node, Value},
};
use serde_json::Value as Json;

pub(crate) fn check(node: &Node, schema: &Json, kind: &str) -> Vec<Diagnostic> {
    let mut walk = Walk { root: schema, kind, errors: Vec::new() };
    walk.value(node, schema, "");
    walk.errors
}

struct Walk<'a> {
    root: &'a Json,
    kind: &'a str,
    errors: Vec<Diagnostic>,
}

impl<'a> Walk<'a> {
    fn error(&mut self, node: &Node, path: &str, message: impl Into<String>) {
        self.errors.push(Diagnostic::new(node.line, path, message));
    }

    fn resolve(&self, schema: &'a Json) -> &'a Json {
        let Some(target) = schema.get("$ref").and_then(Json::as_str) else {
            return schema;
        };
        let name = target.rsplit('/').next().unwrap_or_default();
        self.root.get("$defs").and_then(|defs| defs.get(name)).unwrap_or(schema)
    }

    fn value(&mut self, node: &Node, schema: &'a Json, path: &str) {
        let schema = self.resolve(schema);
        // schemars generates anyOf [T, null] for `Option<T>`.
        if let Some(options) = schema.get("anyOf").and_then(Json::as_array) {
            let optional = options.iter().any(|o| o.get("type").and_then(Json::as_str) == Some("null"));
            if optional && matches!(node.value, Value::Null) {
                return;
            }
            if let Some(main) = options.iter().find(|o| o.get("type").and_then(Json::as_str) != Some("null"))
            {
                self.value(node, main, path);
            }
            return;
        }
        let is_optional =
            schema.get("enum").and_then(Json::as_array).is_some_and(|e| e.contains(&Json::Null));
        if is_optional && matches!(node.value, Value::Null) {
            return;
        }
        if let Some(allowed) = schema.get("enum").and_then(Json::as_array) {
            self.one_of(node, allowed, path);
            return;
        }
        if schema.get("format").and_then(Json::as_str) == Some("quantity") {
            self.quantity(node, path);
            return;
        }
        if schema.get("format").and_then(Json::as_str) == Some("spec-duration") {
            self.duration(node, schema, path);
            return;
        }
        if schema.get("x-kubernetes-int-or-string").is_some() {
            self.int_or_string(node, path);
            return;
        }
        let types: Vec<&str> = match schema.get("type") {
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(many)) => many.iter().filter_map(Json::as_str).collect(),
            _ => return,
        };
        if matches!(node.value, Value::Null) && types.contains(&"null") {
            return;
        }
        match (types.iter().find(|t| **t != "null").copied().unwrap_or("null"), &node.value) {
            ("object", Value::Map(entries)) => self.object(node, entries, schema, path),
            ("array", Value::List(items)) => {
                self.at_most(node, items.len(), "entries", schema.get("maxItems"), path);
                if let Some(of) = schema.get("items") {
                    for (i, item) in items.iter().enumerate() {
                        self.value(item, of, &format!("{path}[{i}]"));
                    }
                }
            }
            ("string", Value::String(text)) => {
                self.at_most(node, text.chars().count(), "characters", schema.get("maxLength"), path);
            }
            ("boolean", Value::Bool(_)) => {}
            ("number", Value::Number(n)) => self.number(node, n, schema, path),
            ("integer", Value::Number(n)) => self.integer(node, n, schema, path),
            (wanted, _) => {
                let wanted = match wanted {
                    "object" => "an object",
                    "array" => "a list",
                    "string" => "a string",
                    "boolean" => "true or false",
                    "integer" => "an integer",
                    "number" => "a number",
                    other => other,
                };
                // YAML reads an unquoted version, port or `yes` as a number or a boolean.
                let hint = match &node.value {
                    Value::Number(_) | Value::Bool(_) if wanted == "a string" => ": put it in quotes",
                    Value::String(s) if wanted == "a list" && !s.is_empty() => {
                        ": write it as [x] or as lines starting with -"
                    }
                    _ => "",
                };
                self.error(node, path, format!("must be {wanted}, got {}{hint}", node.describe()));
            }
        }
    }

    fn quantity(&mut self, node: &Node, path: &str) {
        let parsed = match &node.value {
            Value::String(text) => Quantity::parse(text),
            Value::Number(n) => Quantity::parse(&n.to_string()),
            _ => Err(format!("must be a quantity such as 100Ki or 2Gi, got {}", node.describe())),
        };
        if let Err(message) = parsed {
            self.error(node, path, message);
        }
    }

    fn duration(&mut self, node: &Node, schema: &Json, path: &str) {
        let is_optional = schema.get("type").is_some_and(Json::is_array);
        let parsed = match &node.value {
            Value::Null if is_optional => return,
            Value::String(text) => SpecDuration::parse(text),
            _ => Err(format!("must be a duration such as 30s, 10m or 1h30m, got {}", node.describe())),
        };
        if let Err(message) = parsed {
            self.error(node, path, message);
        }
    }

    fn number(&mut self, node: &Node, n: &serde_json::Number, schema: &Json, path: &str) {
        let bound = |key: &str| schema.get(key).and_then(Json::as_f64);
        let Some(value) = n.as_f64().filter(|value| value.is_finite()) else {
            self.error(node, path, format!("must be a number, got {n}"));
            return;
        };
        if let Some(low) = bound("minimum").filter(|low| value < *low) {
            self.error(node, path, format!("must be at least {low}, got {n}"));
        } else if let Some(high) = bound("maximum").filter(|high| value > *high) {
            self.error(node, path, format!("must be at most {high}, got {n}"));
        }
    }

    fn int_or_string(&mut self, node: &Node, path: &str) {
        let whole = |n: &serde_json::Number| n.is_i64() || n.is_u64();
        if !matches!(&node.value, Value::String(_)) && !matches!(&node.value, Value::Number(n) if whole(n)) {
            let hint = if matches!(node.value, Value::Bool(_) | Value::Number(_)) {
                ": put it in quotes"
            } else {
                ""
            };
            let got = node.describe();
            self.error(node, path, format!("must be an integer or a string, got {got}{hint}"));
        }
    }

    fn at_most(&mut self, node: &Node, count: usize, of: &str, most: Option<&Json>, path: &str) {
        if let Some(most) = most.and_then(Json::as_u64).filter(|most| count as u64 > *most) {
            self.error(node, path, format!("has {count} {of}, at most {most} are allowed"));
        }
    }

    fn one_of(&mut self, node: &Node, allowed: &[Json], path: &str) {
        let words: Vec<&str> = allowed.iter().filter_map(Json::as_str).collect();
        let fits = node.text().is_some_and(|t| words.contains(&t));
        if !fits {
            let meant = node
                .text()
                .and_then(|t| nearest(t, words.iter().copied()))
                .map(|m| format!(". Did you mean {m}?"))
                .unwrap_or_default();
            self.error(
                node,
                path,
                format!("must be one of {}, got {}{meant}", words.join(", "), node.describe()),
            );
        }
    }

    fn integer(&mut self, node: &Node, n: &serde_json::Number, schema: &Json, path: &str) {
        let Some(value) = n.as_i128() else {
            self.error(node, path, format!("must be an integer, got {n}"));
            return;
        };
        let bound = |key: &str| schema.get(key).and_then(Json::as_f64).map(|b| b as i128);
        let (low, high) = match schema.get("format").and_then(Json::as_str) {
            Some("uint32") => (0, i128::from(u32::MAX)),
            Some("int32") => (i128::from(i32::MIN), i128::from(i32::MAX)),
            _ => (i128::from(i64::MIN), i128::from(u64::MAX)),
        };
        let low = bound("minimum").unwrap_or(low);
        let high = bound("maximum").or_else(|| bound("x-lint-maximum")).unwrap_or(high);
        if value < low {
            self.error(node, path, format!("must be at least {low}, got {value}"));
        } else if value > high {
            self.error(node, path, format!("must be at most {high}, got {value}"));
        }
    }

    fn object(&mut self, node: &Node, entries: &[(String, Node)], schema: &'a Json, path: &str) {
        let known = schema.get("properties").and_then(Json::as_object);
        let open = schema.get("additionalProperties");
        let is_preserved = schema.get("x-kubernetes-preserve-unknown-fields").is_some();
        let join = |key: &str| {
            if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
        };
        let required = schema.get("required").and_then(Json::as_array).into_iter().flatten();
        let required: Vec<&str> = required.filter_map(Json::as_str).collect();
        for (key, value) in entries {
            if matches!(value.value, Value::Null) && required.contains(&key.as_str()) {
                self.error(value, &join(key), "is required");
                continue;
            }
            if let Some(of) = known.and_then(|k| k.get(key)) {
                self.value(value, of, &join(key));
            } else if let Some(of) = open.filter(|o| o.is_object()) {
                self.value(value, of, &join(key));
            } else if known.is_some() && open.and_then(Json::as_bool) != Some(true) && !is_preserved {
                let names = known.into_iter().flat_map(|k| k.keys()).map(String::as_str);
                let of = if path.is_empty() || path == "spec" { self.kind } else { path };
                let meant = nearest(key, names.clone()).map_or_else(
                    || format!("Its fields are {}.", names.collect::<Vec<_>>().join(", ")),
                    |near| format!("Did you mean {near}?"),
                );
                self.error(value, &join(key), format!("is not a field of {of}. {meant}"));
            }
        }
        for name in required.into_iter().filter(|name| !entries.iter().any(|(key, _)| key == name)) {
            // An object that is open for fields of Kubernetes does not report a misspelt one.
            let is_open = open.and_then(Json::as_bool) == Some(true);
            let unknown = entries.iter().map(|(key, _)| key.as_str());
            let unknown = unknown.filter(|key| is_open && !known.is_some_and(|k| k.contains_key(*key)));
            let misspelt = nearest(name, unknown).map(|key| format!(": {key} is not a field"));
            self.error(node, &join(name), format!("is required{}", misspelt.unwrap_or_default()));
        }
        if is_preserved {
            self.variables(node, path);
        }
    }

    /// Environment variables of a `PodSpec`, whose other fields are left to the API server: YAML reads an unquoted number
    /// or boolean as such, which the API server rejects only when the pod is created.
    fn variables(&mut self, pod: &Node, path: &str) {
        let list = |node: &'_ Node, key: &str| match node.get(key).map(|n| n.value.clone()) {
            Some(Value::List(items)) => items,
            _ => Vec::new(),
        };
        for containers in ["containers", "initContainers"] {
            for (c, container) in list(pod, containers).iter().enumerate() {
                for (v, variable) in list(container, "env").iter().enumerate() {
                    let Some(value) = variable.get("value") else { continue };
                    if !matches!(value.value, Value::String(_) | Value::Null) {
                        let at = format!("{path}.{containers}[{c}].env[{v}].value");
                        let got = value.describe();
                        self.error(value, &at, format!("must be a string, got {got}: put it in quotes"));
                    }
                }
            }
        }
    }
}
