//! The kind `SeldonRuntime`: the components of one namespace.

use crate::{embedded::any_object, seldon_config::SeldonConfiguration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What runs in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeldonRuntimeSpec {
    /// The `SeldonConfig` to start from, in the operator's namespace.
    pub seldon_config: String,
    /// What differs from it, component by component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub overrides: Vec<OverrideSpec>,
    /// Settings that win over those of the configuration, field by field.
    #[serde(default)]
    pub config: SeldonConfiguration,
    /// Do not follow changes of the configuration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_auto_update: bool,
}

/// What differs for one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverrideSpec {
    /// The component's name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Leave the component out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable: bool,
    /// Replicas wanted; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
    /// A `PodSpec` that is merged over the component's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub pod_spec: Option<serde_json::Value>,
}
