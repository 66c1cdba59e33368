//! Objects: kind, metadata and source position.

use crate::{
    Diagnostic, Experiment, Model, Pipeline, RolloutPolicy, Server, is_convertible,
    kserve::InferenceGraphSpec,
};
use gantry_proto::scheduler as pb;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Group and version of the kinds shared with Seldon Core v2.
pub const API_VERSION: &str = "mlops.seldon.io/v1alpha1";

/// The kind of an object of KServe that is served as a model.
pub const INFERENCE_SERVICE: &str = "InferenceService";

/// The kind of a graph of InferenceServices.
pub const INFERENCE_GRAPH: &str = "InferenceGraph";

/// The namespace of an InferenceService that has none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Kinds accepted by a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Server,
    /// Before the models, whose updates it governs.
    RolloutPolicy,
    Model,
    Pipeline,
    Experiment,
}

impl Kind {
    /// All kinds, in the order in which they are applied.
    pub const ALL: [Self; 5] =
        [Self::Server, Self::RolloutPolicy, Self::Model, Self::Pipeline, Self::Experiment];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Server => "Server",
            Self::Pipeline => "Pipeline",
            Self::Experiment => "Experiment",
            Self::RolloutPolicy => "RolloutPolicy",
        }
    }

    /// Parses `model`, `models`, `Model` or `mlm`. An InferenceService is a model of a scheduler.
    pub fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "model" | "models" | "mlm" | "isvc" | "inferenceservice" | "inferenceservices" => {
                Some(Self::Model)
            }
            "server" | "servers" | "mls" => Some(Self::Server),
            "pipeline" | "pipelines" | "mlp" => Some(Self::Pipeline),
            "experiment" | "experiments" | "mlx" => Some(Self::Experiment),
            "rolloutpolicy" | "rolloutpolicies" | "rp" => Some(Self::RolloutPolicy),
            _ => None,
        }
    }
}

/// Object metadata. Fields set by the API server are accepted so that `kubectl get -o yaml` can be applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    #[serde(default)]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    #[serde(skip_serializing)]
    pub uid: Option<String>,
    #[serde(skip_serializing)]
    pub resource_version: Option<String>,
    #[serde(skip_serializing)]
    pub creation_timestamp: Option<String>,
    #[serde(skip_serializing)]
    pub deletion_timestamp: Option<String>,
    #[serde(skip_serializing)]
    pub deletion_grace_period_seconds: Option<i64>,
    #[serde(skip_serializing)]
    pub finalizers: Option<Vec<String>>,
    #[serde(skip_serializing)]
    pub owner_references: Option<serde_json::Value>,
    #[serde(skip_serializing)]
    pub managed_fields: Option<serde_json::Value>,
    #[serde(skip_serializing)]
    pub self_link: Option<String>,
    #[serde(skip_serializing)]
    pub generate_name: Option<String>,
}

impl Metadata {
    /// Namespace and generation of a Kubernetes object.
    pub(crate) fn set_kubernetes(&mut self, kubernetes: Option<&pb::KubernetesMeta>) {
        if let Some(kubernetes) = kubernetes {
            self.namespace = Some(kubernetes.namespace.clone());
            self.generation = Some(kubernetes.generation);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Object {
    Model(Box<Model>),
    Server(Box<Server>),
    Pipeline(Box<Pipeline>),
    Experiment(Box<Experiment>),
    RolloutPolicy(Box<RolloutPolicy>),
}

impl Object {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Model(_) => Kind::Model,
            Self::Server(_) => Kind::Server,
            Self::Pipeline(_) => Kind::Pipeline,
            Self::Experiment(_) => Kind::Experiment,
            Self::RolloutPolicy(_) => Kind::RolloutPolicy,
        }
    }

    pub const fn metadata(&self) -> &Metadata {
        match self {
            Self::Model(m) => &m.metadata,
            Self::Server(s) => &s.metadata,
            Self::Pipeline(p) => &p.metadata,
            Self::Experiment(e) => &e.metadata,
            Self::RolloutPolicy(p) => &p.metadata,
        }
    }

    pub fn name(&self) -> &str {
        &self.metadata().name
    }
}

/// An object and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    pub object: Object,
    pub file: String,
    /// First line of the object.
    pub line: u32,
}

/// A validated object of a kind that only the operator handles, or that becomes another one without it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterObject {
    pub kind: &'static str,
    pub name: String,
    pub namespace: Option<String>,
    pub file: String,
    /// First line of the object.
    pub line: u32,
    /// The model of an InferenceService, or why it needs a cluster.
    pub model: Option<Result<Box<Model>, Vec<Diagnostic>>>,
    /// The spec of an InferenceGraph.
    pub graph: Option<Box<InferenceGraphSpec>>,
}

impl ClusterObject {
    /// The object that a scheduler takes instead.
    pub fn into_scheduled(self) -> Result<Parsed, Vec<Diagnostic>> {
        match self.model {
            Some(Ok(model)) => Ok(Parsed { object: Object::Model(model), file: self.file, line: self.line }),
            Some(Err(errors)) => Err(errors),
            None => Err(vec![self.unsupported()]),
        }
    }

    /// The error for an object that was submitted to a scheduler.
    pub fn unsupported(&self) -> Diagnostic {
        Diagnostic {
            file: self.file.clone(),
            line: self.line,
            path: "kind".into(),
            message: format!(
                "{} is handled by the Kubernetes operator: use kubectl apply -f {}",
                self.kind, self.file
            ),
        }
    }
}

/// An object of another API group, which a manifest may contain beside ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignObject {
    pub kind: String,
    pub api_version: String,
    pub file: String,
    /// First line of the object.
    pub line: u32,
}

impl ForeignObject {
    /// The error for an object that was submitted to a scheduler.
    pub fn unsupported(&self) -> Diagnostic {
        let (kind, version) = (self.kind.escape_debug(), self.api_version.escape_debug());
        let remedy = self.conversion().unwrap_or_else(|| format!("use kubectl apply -f {}", self.file));
        Diagnostic {
            file: self.file.clone(),
            line: self.line,
            path: "kind".into(),
            message: format!("{kind} of {version} is not handled by gantry: {remedy}"),
        }
    }

    /// The command that converts the object, if there is one.
    pub fn conversion(&self) -> Option<String> {
        let file = if self.file == "stdin" { "-" } else { &self.file };
        is_convertible(&self.kind, &self.api_version).then(|| format!("convert it: gantry convert -f {file}"))
    }
}

/// The objects of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// Objects for a scheduler.
    pub objects: Vec<Parsed>,
    /// Objects for the operator.
    pub cluster: Vec<ClusterObject>,
    /// Objects for others; unchecked.
    pub foreign: Vec<ForeignObject>,
    /// Valid fields that are mistakes more often than not.
    pub warnings: Vec<Diagnostic>,
}
