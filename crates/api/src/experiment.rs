//! The kind Experiment: traffic split between models or pipelines.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Desired state of an Experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentSpec {
    /// Candidate whose traffic is split.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub default: Option<String>,
    /// Models or pipelines that share the traffic.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub candidates: Vec<ExperimentCandidate>,
    /// Model or pipeline that receives a copy of the requests; its responses are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<ExperimentMirror>,
    /// Kind of the candidates: `model` or `pipeline`.
    #[serde(default)]
    pub resource_type: ResourceType,
}

/// A target with a share of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentCandidate {
    /// Name of a model or pipeline.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Share of traffic, relative to the sum of all weights.
    pub weight: u32,
}

/// A target with a copy of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentMirror {
    /// Name of a model or pipeline.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Percentage of requests to copy.
    pub percent: u32,
}

/// Kind of the candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResourceType {
    #[default]
    Model,
    Pipeline,
}

// Not derived: documented variants become `oneOf` constants, which a structural schema forbids.
impl JsonSchema for ResourceType {
    fn schema_name() -> Cow<'static, str> {
        "ResourceType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["model", "pipeline"] })
    }
}
