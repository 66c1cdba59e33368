//! The kinds `ServingRuntime` and `ClusterServingRuntime`: pod templates of model servers.

use super::predictor::WorkerSpec;
use crate::k8s_passthrough::{objects_with_name, optional_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A model server, and the model formats that it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingRuntimeSpec {
    /// Formats of the models that it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub supported_model_formats: Vec<SupportedModelFormat>,
    /// Whether one server runs several models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multi_model: Option<bool>,
    /// Whether it is not selected for any model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// Inference protocols: v1, v2, grpc-v1 or grpc-v2. None means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub protocol_versions: Vec<String>,
    /// Worker nodes of models that need several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_spec: Option<WorkerSpec>,
    /// Containers; `kserve-container` is the model server.
    #[schemars(schema_with = "objects_with_name")]
    pub containers: Vec<Value>,
    /// Labels of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Endpoint of the model management API, of runtimes with several models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_endpoint: Option<String>,
    /// Endpoint of gRPC inference, of runtimes with several models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_data_endpoint: Option<String>,
    /// Endpoint of REST inference, of runtimes with several models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_data_endpoint: Option<String>,
    /// Replicas, of runtimes with several models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Download of models, of runtimes with several models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub storage_helper: Option<Value>,
    /// Adapter for a known model server, of runtimes with several models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub built_in_adapter: Option<Value>,
    /// Other fields of a `PodSpec`: volumes, nodeSelector, affinity, tolerations, imagePullSecrets and others.
    #[serde(flatten)]
    pub pod: Map<String, Value>,
}

/// A model format that a runtime runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SupportedModelFormat {
    /// Such as sklearn, xgboost or onnx.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Version of the format.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub version: Option<String>,
    /// Whether the runtime is selected for models that name no runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_select: Option<bool>,
    /// Higher is preferred among the runtimes of a scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub priority: Option<i32>,
}
