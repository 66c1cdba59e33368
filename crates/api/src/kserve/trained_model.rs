//! The kind `TrainedModel`: a model that an `InferenceService` with several models serves.

use super::status::StatusAddress;
use crate::{Condition, Quantity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model for an `InferenceService`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainedModelSpec {
    /// Name of the `InferenceService` that serves it.
    pub inference_service: String,
    /// The model.
    pub model: TrainedModelArtifact,
}

/// Artifact, framework and memory of a `TrainedModel`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainedModelArtifact {
    /// Location of the model artifact.
    pub storage_uri: String,
    /// Such as sklearn, xgboost or onnx.
    pub framework: String,
    /// Memory that the model needs; cannot be changed.
    pub memory: Quantity,
}

/// Observed state of a `TrainedModel`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainedModelStatus {
    /// Generation of the spec that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, such as `Ready`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// URL for predictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// URL inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<StatusAddress>,
}
