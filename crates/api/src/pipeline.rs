//! The kind Pipeline: a graph of models.

mod convert;
mod graph;

pub use graph::Drawing;
pub(crate) use graph::graph_errors;

use crate::{DataflowSpec, Metadata};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap};

/// Annotation of a Pipeline: with `true`, gateways keep the tensors of its last requests for `gantry pipeline inspect`.
pub const KEEP_PAYLOADS: &str = "gantry.dev/keep-payloads";

/// A pipeline: models as steps, connected by tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pipeline {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: PipelineSpec,
    /// Accepted so that the output of `kubectl get -o yaml` can be applied; ignored.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// Desired state of a Pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineSpec {
    /// Input from other pipelines, in addition to requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<PipelineInput>,
    /// Models and their connections.
    #[schemars(length(max = 640), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub steps: Vec<PipelineStep>,
    /// Output of the pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PipelineOutput>,
    /// Kafka topic settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataflow: Option<DataflowSpec>,
    /// Allow cycles between steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_cycles: bool,
    /// How often a step may run again for one request when cycles are allowed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_step_revisits: u32,
}

/// Input from other pipelines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineInput {
    /// Outputs of other pipelines, such as `orders.outputs` or `orders.step.price.outputs.total`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    pub external_inputs: Vec<String>,
    /// Outputs of other pipelines that trigger this one without being passed to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    pub external_triggers: Vec<String>,
    /// Join window for inputs, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_window_ms: Option<u32>,
    /// Join type of inputs: `inner`, `outer` or `any`.
    #[serde(default)]
    pub join_type: JoinType,
    /// Join type of triggers: `inner`, `outer` or `any`.
    #[serde(default)]
    pub triggers_join_type: JoinType,
    /// Tensor renames.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensor_map: BTreeMap<String, String>,
}

/// A step of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineStep {
    /// Name of the model.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Inputs of the step, such as `a`, `a.outputs` or `a.outputs.scores`; the pipeline's inputs when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 512)))]
    pub inputs: Vec<String>,
    /// Join window for inputs, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_window_ms: Option<u32>,
    /// Tensor renames.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensor_map: BTreeMap<String, String>,
    /// Steps that must have produced output before this one runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 512)))]
    pub triggers: Vec<String>,
    /// Join type of inputs: `inner`, `outer` or `any`.
    #[serde(default)]
    pub inputs_join_type: JoinType,
    /// Join type of triggers: `inner`, `outer` or `any`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggers_join_type: Option<JoinType>,
    /// Batching of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<PipelineBatch>,
}

/// Batching of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineBatch {
    /// Batch size in rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Batch window, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u32>,
    /// Start a window with every request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rolling: bool,
}

/// Output of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineOutput {
    /// Steps whose outputs form the response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 640), inner(length(max = 512)))]
    pub steps: Vec<String>,
    /// Join window for outputs, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub join_window_ms: u32,
    /// Join type of outputs: `inner`, `outer` or `any`.
    #[serde(default)]
    pub steps_join: JoinType,
    /// Tensor renames.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensor_map: BTreeMap<String, String>,
}

/// How several inputs are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JoinType {
    /// Wait for all.
    #[default]
    Inner,
    /// Use those that arrive within the window.
    Outer,
    /// Use the first.
    Any,
}

// Not derived: documented variants become `oneOf` constants, which a structural schema forbids.
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
