//! Kubernetes' own types inside ours: kept as they are written, because the API server knows them best.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The schema of a part that Kubernetes defines: any map of fields.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["object", "null"], "x-kubernetes-preserve-unknown-fields": true })
}

/// The same where it must be there.
pub(crate) fn some_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A volume that each replica gets for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeClaimTemplate {
    /// The volume's name, as the containers mount it.
    pub name: String,
    /// A `PersistentVolumeClaimSpec` of Kubernetes.
    #[schemars(schema_with = "some_object")]
    pub spec: serde_json::Value,
}

/// A number or a text: settings of Kafka are written both ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A whole number.
    Int(i64),
    /// A text.
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
