//! Objects of every kind.

use crate::{Model, Problem, Server};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The group and version of the kinds that are shared with Seldon Core v2.
pub const API_VERSION: &str = "mlops.seldon.io/v1alpha1";

/// The kinds that can be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A Server: replicas that models are loaded onto.
    Server,
    /// A Model: an artifact to be served.
    Model,
}

impl Kind {
    /// Every kind, in the order in which they are to be applied.
    pub const ALL: [Self; 2] = [Self::Server, Self::Model];

    /// The kind's name in a manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Server => "Server",
        }
    }

    /// The kind that a person means by `model`, `models`, `Model` or `mlm`.
    pub fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "model" | "models" | "mlm" => Some(Self::Model),
            "server" | "servers" | "mls" => Some(Self::Server),
            _ => None,
        }
    }
}

/// What every object has: its name, and what Kubernetes adds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The name, unique among objects of the kind.
    #[serde(default)]
    pub name: String,
    /// The Kubernetes namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels to select by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Grows with each change of the spec; set by the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Set by the API server; accepted so that `kubectl get -o yaml` can be applied.
    #[serde(skip_serializing)]
    pub uid: Option<String>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub resource_version: Option<String>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub creation_timestamp: Option<String>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub deletion_timestamp: Option<String>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Set by controllers.
    #[serde(skip_serializing)]
    pub finalizers: Option<Vec<String>>,
    /// Set by controllers.
    #[serde(skip_serializing)]
    pub owner_references: Option<serde_json::Value>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub managed_fields: Option<serde_json::Value>,
    /// Set by the API server.
    #[serde(skip_serializing)]
    pub self_link: Option<String>,
    /// A prefix from which Kubernetes makes a name.
    #[serde(skip_serializing)]
    pub generate_name: Option<String>,
}

/// An object of one of the kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Model.
    Model(Box<Model>),
    /// A Server.
    Server(Box<Server>),
}

impl Object {
    /// The object's kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Model(_) => Kind::Model,
            Self::Server(_) => Kind::Server,
        }
    }

    /// The object's metadata.
    pub const fn metadata(&self) -> &Metadata {
        match self {
            Self::Model(m) => &m.metadata,
            Self::Server(s) => &s.metadata,
        }
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        &self.metadata().name
    }
}

/// An object and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The object.
    pub object: Object,
    /// The file, as the user named it.
    pub file: String,
    /// The line where the object begins.
    pub line: u32,
}

/// An object that belongs to Kubernetes: what it says was checked, but a scheduler has no use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterObject {
    /// The object's kind.
    pub kind: &'static str,
    /// The object's name.
    pub name: String,
    /// The namespace, when one is written.
    pub namespace: Option<String>,
    /// The file, as the user named it.
    pub file: String,
    /// The line where the object begins.
    pub line: u32,
}

impl ClusterObject {
    /// What to say when somebody gives it to a scheduler.
    pub fn refusal(&self) -> Problem {
        Problem {
            file: self.file.clone(),
            line: self.line,
            path: "kind".into(),
            message: format!(
                "{} belongs to Kubernetes, where the operator acts on it: use kubectl apply -f {}",
                self.kind, self.file
            ),
        }
    }
}

/// Everything that a text holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// What a scheduler takes.
    pub objects: Vec<Parsed>,
    /// What belongs to Kubernetes.
    pub cluster: Vec<ClusterObject>,
}
