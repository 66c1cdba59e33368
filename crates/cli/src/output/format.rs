//! The value of `-o`.

use super::JsonPath;
use crate::error::CommandError;
use serde_json::{Value, json};
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
    /// `kind/name`, one per line.
    Name,
    JsonPath(JsonPath),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => Ok(Self::Table),
            "wide" => Ok(Self::Wide),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            "name" => Ok(Self::Name),
            "jsonpath" => Err("path missing: write jsonpath={.status.version}".into()),
            _ => match text.strip_prefix("jsonpath=") {
                Some(path) => JsonPath::parse(path).map(Self::JsonPath),
                None => Err("formats are table, wide, json, yaml, name and jsonpath={.path}".into()),
            },
        }
    }
}

/// A `List` object, as kubectl prints several objects.
pub(crate) fn list_document(objects: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": objects })
}

/// Serializes one object as JSON, YAML or JSONPath output.
pub(crate) fn document(value: &Value, format: &Format) -> Result<String, CommandError> {
    let broken = |e: &dyn std::fmt::Display| CommandError::failed(format!("cannot serialize: {e}"));
    match format {
        Format::Yaml => {
            let mut text = serde_saphyr::to_string(value).map_err(|e| broken(&e))?;
            if !text.ends_with('\n') {
                text.push('\n');
            }
            Ok(text)
        }
        Format::JsonPath(path) => Ok(path.render(value)),
        _ => serde_json::to_string_pretty(value).map(|t| t + "\n").map_err(|e| broken(&e)),
    }
}
