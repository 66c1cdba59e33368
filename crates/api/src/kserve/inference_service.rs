//! The kind `InferenceService`: a predictor, and optionally a transformer, an explainer and canaries.

use super::{
    component::ComponentSpec,
    predictor::{PredictorSpec, StorageUri},
};
use crate::k8s_passthrough::{objects_with_name, optional_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Desired state of an `InferenceService`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceServiceSpec {
    /// The component that runs the model.
    pub predictor: PredictorSpec,
    /// The component that requests pass before and after the predictor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transformer: Option<TransformerComponent>,
    /// The component that answers `:explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explainer: Option<ExplainerComponent>,
    /// Predictors that run beside `predictor` and get a share of its traffic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub canary: Vec<CanarySpec>,
}

/// A predictor that gets a share of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanarySpec {
    /// A whole predictor; `name` is required.
    #[schemars(extend("x-crd-fields" = ["name"]))]
    pub predictor: PredictorSpec,
    /// Share of the traffic; 0 runs it without traffic.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub traffic_percent: i32,
}

/// A transformer: containers that call the predictor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransformerComponent {
    /// Containers; the first one receives requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "objects_with_name")]
    pub containers: Vec<Value>,
    /// Artifacts and the directories they are mounted at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub storage_uris: Vec<StorageUri>,
    #[serde(flatten)]
    pub component: ComponentSpec,
    /// Other fields of a `PodSpec`.
    #[serde(flatten)]
    pub pod: Map<String, Value>,
}

/// An explainer: containers, or the Adversarial Robustness Toolbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainerComponent {
    /// The Adversarial Robustness Toolbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub art: Option<Value>,
    /// Containers; the first one receives requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "objects_with_name")]
    pub containers: Vec<Value>,
    /// Artifacts and the directories they are mounted at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub storage_uris: Vec<StorageUri>,
    #[serde(flatten)]
    pub component: ComponentSpec,
    /// Other fields of a `PodSpec`.
    #[serde(flatten)]
    pub pod: Map<String, Value>,
}
