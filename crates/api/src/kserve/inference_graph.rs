//! The kind `InferenceGraph`: a graph of `InferenceService`s.

use crate::{Condition, k8s_passthrough::optional_object};
use gantry_core::inference_graph::{Definition, Node, Router, Step, Target};
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

impl InferenceGraphSpec {
    /// The graph, for `core`. Not validated: a step without a target calls a service without a name.
    pub fn definition(&self) -> Definition {
        let step = |step: &GraphStep| Step {
            name: step.name.clone(),
            target: step.targets().next().unwrap_or_else(|| Target::Service(String::new())),
            takes_response: step.data.as_deref() == Some("$response"),
            maps_predictions: step.map_predictions_to_instances.unwrap_or_default(),
            weight: step.weight,
            condition: step.condition.clone(),
            is_hard: step.dependency == Some(StepDependency::Hard),
        };
        let node = |(name, node): (&String, &GraphNode)| {
            let steps = node.steps.iter().map(step).collect();
            (name.clone(), Node { router: node.router_type.into(), steps })
        };
        Definition { nodes: self.nodes.iter().map(node).collect() }
    }
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

impl GraphStep {
    /// Its targets; a valid step has one.
    pub(crate) fn targets(&self) -> impl Iterator<Item = Target> {
        let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
        let node = given(&self.node_name).map(Target::Node);
        let service = given(&self.service_name).map(Target::Service);
        let url = given(&self.service_url).map(Target::Url);
        node.into_iter().chain(service).chain(url)
    }
}

impl From<RouterType> for Router {
    fn from(router: RouterType) -> Self {
        match router {
            RouterType::Sequence => Self::Sequence,
            RouterType::Splitter => Self::Splitter,
            RouterType::Ensemble => Self::Ensemble,
            RouterType::Switch => Self::Switch,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_has_targets_data_and_dependencies() {
        let spec: InferenceGraphSpec = serde_json::from_value(serde_json::json!({ "nodes": { "root": {
            "routerType": "Sequence",
            "steps": [
                { "name": "a", "serviceName": "s", "dependency": "Hard" },
                { "nodeName": "b", "serviceName": "", "data": "$response", "mapPredictionsToInstances": true },
                { "serviceUrl": "http://u", "data": "$request", "condition": "x", "weight": 5, "dependency": "Soft" },
            ],
        } } }))
        .unwrap();
        let definition = spec.definition();
        let root = definition.nodes.get("root").unwrap();
        let plain = Step {
            name: None,
            target: Target::Service("s".into()),
            takes_response: false,
            maps_predictions: false,
            weight: None,
            condition: None,
            is_hard: false,
        };
        let expected = [
            Step { name: Some("a".into()), is_hard: true, ..plain.clone() },
            Step {
                target: Target::Node("b".into()),
                takes_response: true,
                maps_predictions: true,
                ..plain.clone()
            },
            Step {
                target: Target::Url("http://u".into()),
                condition: Some("x".into()),
                weight: Some(5),
                ..plain
            },
        ];
        assert_eq!((root.router, root.steps.as_slice()), (Router::Sequence, expected.as_slice()));
    }
}
