//! The kind Experiment: traffic divided between models or pipelines.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What is asked of an Experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentSpec {
    /// The candidate whose own traffic is divided.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub default: Option<String>,
    /// What the traffic is divided between.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub candidates: Vec<ExperimentCandidate>,
    /// What gets a copy of the requests; its answers are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<ExperimentMirror>,
    /// Whether models or pipelines are compared.
    #[serde(default)]
    pub resource_type: ResourceType,
}

/// One that gets a share of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentCandidate {
    /// The name of a model or a pipeline.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its share, of the sum of all weights.
    pub weight: u32,
}

/// One that gets a copy of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentMirror {
    /// The name of a model or a pipeline.
    #[schemars(length(max = 253))]
    pub name: String,
    /// How many of a hundred requests are copied.
    pub percent: u32,
}

/// What an experiment compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResourceType {
    /// Models.
    #[default]
    Model,
    /// Pipelines.
    Pipeline,
}

// By hand: documented variants would become a choice of constants, which a structural schema does not allow.
impl JsonSchema for ResourceType {
    fn schema_name() -> Cow<'static, str> {
        "ResourceType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["model", "pipeline"] })
    }
}
