//! What is reported about an object on Kubernetes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One aspect of an object: whether it holds, since when, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The aspect, such as `Ready`.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// How bad it is when the condition does not hold; empty for an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// When the status changed last, as RFC 3339 has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// One word for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The generation of the spec that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What is reported about a Model.
///
/// Numbers and conditions are written also when they are zero or empty: a `kubectl wait` on an object without
/// conditions fails instead of waiting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far the object is.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Notes of controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Replicas that are placed.
    #[serde(default)]
    pub replicas: i32,
    /// Replicas that take requests.
    #[serde(default)]
    pub available_replicas: i32,
    /// Selects the pods behind the replicas, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// How far gateways are with the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelgw_ready: Option<String>,
}

/// What is reported about a Server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far the object is.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Notes of controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Models that the replicas hold.
    #[serde(default)]
    pub loaded_models: i32,
    /// Replicas that run.
    #[serde(default)]
    pub replicas: i32,
    /// Selects the pods of the replicas, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// What is reported about an object of any other kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlainStatus {
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far the object is.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Notes of controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}
