//! Kubernetes types embedded in ours, passed through unvalidated: the API server validates them.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Schema of an optional object with arbitrary fields.
pub(crate) fn optional_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["object", "null"], "x-kubernetes-preserve-unknown-fields": true })
}

/// Schema of a required object with arbitrary fields.
pub(crate) fn required_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Schema of an object with arbitrary fields and a name: a container, for example.
pub(crate) fn object_with_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 253, "description": "Its name." } },
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

/// Schema of a list of [`object_with_name`].
pub(crate) fn objects_with_name(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": 64, "items": object_with_name(generator) })
}

/// A volume claimed by each replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeClaimTemplate {
    /// The volume's name, as the containers mount it.
    pub name: String,
    /// A `PersistentVolumeClaimSpec` of Kubernetes.
    #[schemars(schema_with = "required_object")]
    pub spec: serde_json::Value,
}

/// An integer or a string, as in Kafka settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    Int(i64),
    String(String),
}

impl std::fmt::Display for IntOrString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::String(text) => text.fmt(f),
        }
    }
}

impl JsonSchema for IntOrString {
    fn schema_name() -> Cow<'static, str> {
        "IntOrString".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}
