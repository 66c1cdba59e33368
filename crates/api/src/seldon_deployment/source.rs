//! The fields of a `SeldonDeployment` that are read; the others are listed as not carried over.

use crate::Metadata;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
pub(super) struct SeldonDeployment {
    #[serde(default)]
    pub(super) metadata: Metadata,
    pub(super) spec: DeploymentSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeploymentSpec {
    /// The name in `metadata` counts.
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(default)]
    pub(super) predictors: Vec<Predictor>,
    pub(super) replicas: Option<i32>,
    pub(super) protocol: Option<String>,
    /// REST and gRPC are served on one port.
    #[serde(default, rename = "transport")]
    _transport: Option<String>,
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Predictor {
    #[serde(default)]
    pub(super) name: String,
    /// Decoded unit by unit: the depth is chosen by the file.
    #[serde(default)]
    pub(super) graph: Value,
    #[serde(default)]
    pub(super) component_specs: Vec<ComponentSpec>,
    pub(super) replicas: Option<i32>,
    pub(super) traffic: Option<u32>,
    #[serde(default)]
    pub(super) shadow: bool,
    pub(super) explainer: Option<Explainer>,
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ComponentSpec {
    pub(super) spec: PodSpec,
    pub(super) replicas: Option<i32>,
    pub(super) hpa_spec: Option<HpaSpec>,
    #[serde(rename = "metadata")]
    _metadata: Option<Value>,
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) containers: Vec<Container>,
    /// Settings of the pod, which a Server takes as they are.
    #[serde(flatten)]
    pub(super) settings: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: Option<String>,
    /// Settings of the container, which a Server takes as they are.
    #[serde(flatten)]
    pub(super) settings: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HpaSpec {
    pub(super) min_replicas: Option<i32>,
    pub(super) max_replicas: Option<i32>,
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explainer {
    #[serde(default)]
    pub(super) r#type: String,
    #[serde(default)]
    pub(super) model_uri: String,
    pub(super) env_secret_ref_name: Option<String>,
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

/// A node of the graph, without its children.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unit {
    #[serde(default)]
    pub(super) name: String,
    pub(super) r#type: Option<String>,
    pub(super) implementation: Option<String>,
    #[serde(default)]
    pub(super) parameters: Vec<Parameter>,
    #[serde(default)]
    pub(super) model_uri: String,
    pub(super) env_secret_ref_name: Option<String>,
    pub(super) logger: Option<Value>,
    /// Set by the old orchestrator.
    #[serde(default, rename = "endpoint")]
    _endpoint: Option<Value>,
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Parameter {
    #[serde(default)]
    pub(super) name: String,
    /// A string whatever its type.
    #[serde(default)]
    pub(super) value: String,
}

/// Why a field has no counterpart.
pub(super) fn reason(field: &str) -> Option<&'static str> {
    Some(match field {
        "svcOrchSpec" | "engineResources" => {
            "the gateway executes the graph, without an orchestrator container"
        }
        "ssl" => "TLS is a setting of the installation",
        "progressDeadlineSeconds" => "the status of the Model names what it waits for",
        "annotations" | "labels" => "set them on the new objects",
        "serverType" => "requests are synchronous",
        "kedaSpec" | "pdbSpec" => "create that object for the Server",
        "metrics" | "metricsv2" | "behavior" => "Models scale by their load",
        "initContainers" => "the agent downloads artifacts",
        "methods" => "its type decides",
        "serviceAccountName" => "set it in podSpec of a Server",
        "oauth_key" | "oauth_secret" => "authentication belongs in front of the gateway",
        _ => return None,
    })
}
