//! Observed state of an `InferenceService`.

use crate::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Observed state of an `InferenceService`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceServiceStatus {
    /// Generation of the spec that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, such as `Ready`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Annotations set by controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// URL outside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// URL inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<StatusAddress>,
    /// Components by name: predictor, transformer and explainer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, ComponentStatus>,
    /// State of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_status: Option<ModelStatus>,
    /// State of each canary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub canary_statuses: Vec<CanaryStatus>,
    /// Standard, Knative or `ModelMesh`; never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment_mode: Option<String>,
    /// The `ServingRuntime` in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving_runtime_name: Option<String>,
    /// The `ClusterServingRuntime` in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_serving_runtime_name: Option<String>,
}

/// A URL inside the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusAddress {
    /// The URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// State of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    /// Latest revision that became ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_ready_revision: Option<String>,
    /// Latest revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_created_revision: Option<String>,
    /// Revision before the latest one that had all traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_rolledout_revision: Option<String>,
    /// Latest revision that had all traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_rolledout_revision: Option<String>,
    /// Traffic of each revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficTarget>,
    /// URL outside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// URL of REST outside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_url: Option<String>,
    /// URL of gRPC outside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_url: Option<String>,
    /// URL inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<StatusAddress>,
}

/// Traffic of a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrafficTarget {
    /// The revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
    /// Whether it is the latest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_revision: Option<bool>,
    /// Its share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// `prev` for the previous one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Its own URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// State of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// `UpToDate`, `InProgress`, `BlockedByFailedLoad` or `InvalidSpec`.
    #[serde(default)]
    pub transition_status: String,
    /// States of the active model and of its successor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub states: Option<ModelStates>,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure_info: Option<FailureInfo>,
    /// Numbers of copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<ModelCopies>,
}

/// Pending, Standby, Loading, Loaded or `FailedToLoad`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStates {
    /// Of the model that serves.
    #[serde(default)]
    pub active_model_state: String,
    /// Of the latest model.
    #[serde(default)]
    pub target_model_state: String,
}

/// A failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureInfo {
    /// Pod or runtime of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// `ModelLoadFailed`, `RuntimeUnhealthy`, `RuntimeDisabled`, `NoSupportingRuntime`, `RuntimeNotRecognized` or
    /// `InvalidPredictorSpec`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Revision of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_revision_name: Option<String>,
    /// Time of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Exit code of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// Numbers of copies of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelCopies {
    /// Copies that failed.
    #[serde(default)]
    pub failed_copies: i64,
    /// Copies that serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_copies: Option<i64>,
}

/// State of a canary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStatus {
    /// Name of its predictor.
    #[serde(default)]
    pub name: String,
    /// Whether it can serve.
    #[serde(default)]
    pub ready: bool,
    /// Its share of the traffic.
    #[serde(default)]
    pub traffic_percent: i32,
    /// State of its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub model_status: Option<ModelStatus>,
}
