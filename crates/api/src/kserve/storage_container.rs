//! The kind `ClusterStorageContainer`: the container that downloads artifacts of some URIs.

use crate::{Metadata, k8s_passthrough::required_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A `ClusterStorageContainer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStorageContainer {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: ClusterStorageContainerSpec,
    /// Whether it is not used. Beside the spec, as in KServe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// Accepted so that the output of `kubectl get -o yaml` can be applied; ignored.
    #[serde(skip_serializing)]
    pub status: Option<Value>,
}

/// A container that downloads artifacts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStorageContainerSpec {
    /// The container.
    #[schemars(schema_with = "required_object")]
    pub container: Value,
    /// URIs that it downloads.
    #[schemars(length(max = 64))]
    pub supported_uri_formats: Vec<UriFormat>,
    /// initContainer (default) or localModelDownloadJob.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_type: Option<String>,
    /// Whether it takes several pairs of URI and directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supports_multi_model_download: Option<bool>,
}

/// A prefix or a regular expression of URIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UriFormat {
    /// Such as `s3://`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// A regular expression for the whole URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
}
