//! The kind Pipeline: models whose answers are other models' requests.

use crate::DataflowSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap};

/// What is asked of a Pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineSpec {
    /// What flows in besides requests, from other pipelines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<PipelineInput>,
    /// The models and how they are connected.
    #[schemars(length(max = 256))]
    pub steps: Vec<PipelineStep>,
    /// What flows out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PipelineOutput>,
    /// What happens to topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataflow: Option<DataflowSpec>,
    /// A step may lead back to an earlier one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_cycles: bool,
    /// How often a request may come back to a step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_step_revisits: u32,
}

/// What flows into a pipeline besides requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineInput {
    /// Data of other pipelines, such as `orders.outputs` or `orders.step.price.outputs.total`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    pub external_inputs: Vec<String>,
    /// Data of other pipelines that starts this one and is not used otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    pub external_triggers: Vec<String>,
    /// How long inputs wait for each other, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_window_ms: Option<u32>,
    /// How inputs are joined.
    #[serde(default)]
    pub join_type: JoinType,
    /// How triggers are joined.
    #[serde(default)]
    pub triggers_join_type: JoinType,
    /// New names for tensors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensor_map: BTreeMap<String, String>,
}

/// One model of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineStep {
    /// The model's name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// What the model gets, such as `a`, `a.outputs` or `a.outputs.scores`; the pipeline's inputs when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 512)))]
    pub inputs: Vec<String>,
    /// How long inputs wait for each other, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_window_ms: Option<u32>,
    /// New names for tensors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensor_map: BTreeMap<String, String>,
    /// What must have happened before the model runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 512)))]
    pub triggers: Vec<String>,
    /// How inputs are joined.
    #[serde(default)]
    pub inputs_join_type: JoinType,
    /// How triggers are joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggers_join_type: Option<JoinType>,
    /// How requests are put together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<PipelineBatch>,
}

/// How requests are put together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineBatch {
    /// Rows to wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// How long to wait for them, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u32>,
    /// Begin a window with every request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rolling: bool,
}

/// What flows out of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineOutput {
    /// The steps whose answers are the pipeline's answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 512)))]
    pub steps: Vec<String>,
    /// How long answers wait for each other, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub join_window_ms: u32,
    /// How answers are joined.
    #[serde(default)]
    pub steps_join: JoinType,
    /// New names for tensors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensor_map: BTreeMap<String, String>,
}

/// What is waited for when several things flow into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JoinType {
    /// All of them.
    #[default]
    Inner,
    /// Those that come in time.
    Outer,
    /// The first that comes.
    Any,
}

// By hand: documented variants would become a choice of constants, which a structural schema does not allow.
impl JsonSchema for JoinType {
    fn schema_name() -> Cow<'static, str> {
        "JoinType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["inner", "outer", "any"] })
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}
