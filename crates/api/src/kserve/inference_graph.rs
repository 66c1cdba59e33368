//! The kind `InferenceGraph`: a graph of `InferenceService`s.

use crate::{Condition, k8s_passthrough::optional_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Desired state of an `InferenceGraph`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceGraphSpec {
    /// Nodes by name; requests enter at `root`.
    pub nodes: BTreeMap<String, GraphNode>,
    /// Resources of a router pod. Gantry's gateway executes graphs and has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub resources: Option<Value>,
    /// Affinity of a router pod. Gantry's gateway executes graphs and has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub affinity: Option<Value>,
    /// Seconds until a request fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Timeouts of connections and of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_timeouts: Option<RouterTimeouts>,
    /// Smallest number of router pods. Gantry's gateway executes graphs and has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// Largest number of router pods. Gantry's gateway executes graphs and has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// Target value of `scaleMetric`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_target: Option<i32>,
    /// Metric that an autoscaler of router pods follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_metric: Option<String>,
    /// Tolerations of a router pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::k8s_passthrough::objects_with_name")]
    pub tolerations: Vec<Value>,
    /// Node labels of a router pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Node of a router pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Account of a router pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// A node of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GraphNode {
    /// How the steps are executed.
    pub router_type: RouterType,
    /// Steps, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub steps: Vec<GraphStep>,
}

/// How the steps of a node are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum RouterType {
    Sequence,
    Splitter,
    Ensemble,
    Switch,
}

/// A step: a call of a service, a URL or another node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GraphStep {
    /// Name of the step, unique in its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The node that is executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The `InferenceService` that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// The URL that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
    /// `$request` (default) sends the graph's request, `$response` the previous step's response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Renames `predictions` of the previous response to `instances`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_predictions_to_instances: Option<bool>,
    /// Share of the requests, of a Splitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i64>,
    /// A path that must exist in the JSON body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Hard: a failure ends the request. Soft (default): the next step runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependency: Option<StepDependency>,
}

/// Whether a failed step ends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum StepDependency {
    Soft,
    Hard,
}

/// Timeouts in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouterTimeouts {
    /// Reading a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_read: Option<i64>,
    /// Writing a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_write: Option<i64>,
    /// An idle connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_idle: Option<i64>,
    /// The call of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_client: Option<i64>,
}

/// Observed state of an `InferenceGraph`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceGraphStatus {
    /// Generation of the spec that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, such as `Ready`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// URL of the graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// How the graph is deployed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment_mode: Option<String>,
}
