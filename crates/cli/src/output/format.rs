//! The value of `-o`.

use super::JsonPath;
use crate::failure::Failure;
use serde_json::{Value, json};
use std::str::FromStr;

/// How objects are printed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Format {
    /// Columns.
    Table,
    /// More columns.
    Wide,
    /// JSON, indented.
    Json,
    /// YAML.
    Yaml,
    /// `kind/name`, one a line.
    Name,
    /// Parts of the JSON.
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
            "jsonpath" => Err("the path is missing: write jsonpath={.status.version}".into()),
            _ => match text.strip_prefix("jsonpath=") {
                Some(path) => JsonPath::parse(path).map(Self::JsonPath),
                None => Err("formats are table, wide, json, yaml, name and jsonpath={.path}".into()),
            },
        }
    }
}

/// Several objects as one: a `List`, as kubectl has it.
pub(crate) fn documents(objects: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": objects })
}

/// One object as text, in one of the formats for objects.
pub(crate) fn document(value: &Value, format: &Format) -> Result<String, Failure> {
    let broken = |e: &dyn std::fmt::Display| Failure::failed(format!("cannot be written: {e}"));
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
