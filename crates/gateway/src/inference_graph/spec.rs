//! The spec of an InferenceGraph, as it arrives in a route.

use super::{Graph, HeaderPatterns, InferenceGraph};
use gantry_core::inference_graph::{Definition, Invalid, Node, Router, Step, Target};
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    nodes: BTreeMap<String, NodeSpec>,
    timeout: Option<u64>,
    #[serde(default)]
    router_timeouts: RouterTimeouts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RouterTimeouts {
    service_client: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSpec {
    router_type: RouterType,
    #[serde(default)]
    steps: Vec<StepSpec>,
}

#[derive(Clone, Copy, Deserialize)]
enum RouterType {
    Sequence,
    Splitter,
    Ensemble,
    Switch,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StepSpec {
    name: Option<String>,
    node_name: String,
    service_name: String,
    service_url: String,
    data: String,
    map_predictions_to_instances: bool,
    weight: Option<i64>,
    condition: Option<String>,
    dependency: String,
}

/// Compiles the spec of a graph; the error lists every violation.
pub(crate) fn compile(
    name: &Arc<str>,
    json: &[u8],
    propagated: HeaderPatterns,
) -> Result<InferenceGraph, String> {
    let spec: Spec = serde_json::from_slice(json).map_err(|error| format!("its spec is invalid: {error}"))?;
    let graph = definition(&spec).and_then(|definition| Graph::compile(&definition)).map_err(|errors| {
        let errors = errors.iter().map(|Invalid { field, message }| format!("spec.{field} {message}"));
        errors.collect::<Vec<_>>().join("; ")
    })?;
    let seconds = |timeout: Option<u64>| timeout.filter(|timeout| *timeout > 0).map(Duration::from_secs);
    Ok(InferenceGraph {
        name: Arc::clone(name),
        graph: Arc::new(graph),
        timeout: seconds(spec.timeout),
        step_timeout: seconds(spec.router_timeouts.service_client),
        propagated,
    })
}

fn definition(spec: &Spec) -> Result<Definition, Vec<Invalid>> {
    let mut nodes = BTreeMap::new();
    let mut errors = Vec::new();
    for (name, node) in &spec.nodes {
        let steps = node.steps.iter().enumerate().filter_map(|(i, step)| {
            let target = step.target().ok_or_else(|| Invalid {
                field: format!("nodes.{name}.steps[{i}]"),
                message: "needs one of nodeName, serviceName and serviceUrl".into(),
            });
            target.map(|target| step.with(target)).map_err(|error| errors.push(error)).ok()
        });
        let steps = steps.collect();
        nodes.insert(name.clone(), Node { router: node.router_type.into(), steps });
    }
    if errors.is_empty() { Ok(Definition { nodes }) } else { Err(errors) }
}

impl StepSpec {
    /// `None` unless there is exactly one.
    fn target(&self) -> Option<Target> {
        let given = |name: &String| (!name.is_empty()).then(|| name.clone());
        let node = given(&self.node_name).map(Target::Node);
        let service = given(&self.service_name).map(Target::Service);
        let url = given(&self.service_url).map(Target::Url);
        let mut targets = node.into_iter().chain(service).chain(url);
        targets.next().filter(|_| targets.next().is_none())
    }

    fn with(&self, target: Target) -> Step {
        Step {
            name: self.name.clone(),
            target,
            takes_response: self.data == "$response",
            maps_predictions: self.map_predictions_to_instances,
            weight: self.weight,
            condition: self.condition.clone(),
            is_hard: self.dependency == "Hard",
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_api::kserve::InferenceGraphSpec;

    fn compiled(json: &serde_json::Value) -> Result<InferenceGraph, String> {
        compile(&"default/pets".into(), json.to_string().as_bytes(), HeaderPatterns::default())
    }

    #[test]
    fn spec_means_the_same_as_the_kind() {
        let json = serde_json::json!({
            "timeout": 7,
            "routerTimeouts": { "serviceClient": 3, "serverRead": 60 },
            "minReplicas": 1,
            "nodes": {
                "root": { "routerType": "Sequence", "steps": [
                    { "name": "a", "serviceName": "s", "dependency": "Hard" },
                    { "nodeName": "b", "serviceName": "", "data": "$response", "mapPredictionsToInstances": true },
                    { "serviceUrl": "http://u", "data": "$request", "condition": "x", "dependency": "Soft" },
                ] },
                "b": { "routerType": "Splitter", "steps": [
                    { "serviceName": "c", "weight": 40 },
                    { "serviceName": "d", "weight": 60 },
                ] },
                "c": { "routerType": "Switch", "steps": [{ "serviceName": "c", "condition": "x.#(y==1)" }] },
                "d": { "routerType": "Ensemble", "steps": [{ "serviceName": "c" }] },
            },
        });
        let graph = compiled(&json).unwrap();
        let kind: InferenceGraphSpec = serde_json::from_value(json).unwrap();
        assert_eq!(*graph.graph, Graph::compile(&kind.definition()).unwrap());
        assert_eq!(
            (graph.timeout, graph.step_timeout),
            (Some(Duration::from_secs(7)), Some(Duration::from_secs(3)))
        );
    }

    #[test]
    fn invalid_spec_says_where() {
        let root = |steps: serde_json::Value| serde_json::json!({ "nodes": { "root": { "routerType": "Sequence", "steps": steps } } });
        for (json, expected) in [
            (
                serde_json::json!({}),
                "spec.nodes has no node root, where requests enter: rename a node to root",
            ),
            (
                root(serde_json::json!([{}])),
                "spec.nodes.root.steps[0] needs one of nodeName, serviceName and serviceUrl",
            ),
            (
                root(serde_json::json!([{ "serviceName": "a", "serviceUrl": "http://b" }])),
                "spec.nodes.root.steps[0] needs one of nodeName, serviceName and serviceUrl",
            ),
            (
                serde_json::json!({ "nodes": { "root": { "routerType": "Random" } } }),
                "its spec is invalid: unknown variant `Random`, expected one of `Sequence`, `Splitter`, `Ensemble`, `Switch` at line 1 column 39",
            ),
        ] {
            assert_eq!(compiled(&json).unwrap_err(), expected);
        }
    }
}
