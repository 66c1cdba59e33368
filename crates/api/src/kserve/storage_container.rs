//! The kind `ClusterStorageContainer`: the container that downloads artifacts of some URIs.

use crate::k8s_passthrough::required_object;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
