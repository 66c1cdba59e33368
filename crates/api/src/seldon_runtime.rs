//! The kind `SeldonRuntime`: the components of a namespace.

use crate::{k8s_passthrough::optional_object, seldon_config::SeldonConfiguration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Desired components of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeldonRuntimeSpec {
    /// Name of a `SeldonConfig` in the operator's namespace.
    pub seldon_config: String,
    /// Overrides per component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub overrides: Vec<OverrideSpec>,
    /// Settings that override those of the `SeldonConfig`, field by field.
    #[serde(default)]
    pub config: SeldonConfiguration,
    /// Keep the components unchanged when the `SeldonConfig` changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_auto_update: bool,
}

/// Overrides of one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverrideSpec {
    /// Component name, such as `seldon-scheduler`.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Do not deploy the component.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable: bool,
    /// Desired replicas; defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Service type: `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
    /// `PodSpec` merged over the component's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub pod_spec: Option<serde_json::Value>,
}
