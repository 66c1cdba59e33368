//! Objects: kind, metadata and source position.

use crate::{Diagnostic, Model, Server};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Group and version of the kinds shared with Seldon Core v2.
pub const API_VERSION: &str = "mlops.seldon.io/v1alpha1";

/// Kinds accepted by a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Server,
    Model,
}

impl Kind {
    /// All kinds, in the order in which they are applied.
    pub const ALL: [Self; 2] = [Self::Server, Self::Model];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Server => "Server",
        }
    }

    /// Parses `model`, `models`, `Model` or `mlm`.
    pub fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "model" | "models" | "mlm" => Some(Self::Model),
            "server" | "servers" | "mls" => Some(Self::Server),
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

#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Model(Box<Model>),
    Server(Box<Server>),
}

impl Object {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Model(_) => Kind::Model,
            Self::Server(_) => Kind::Server,
        }
    }

    pub const fn metadata(&self) -> &Metadata {
        match self {
            Self::Model(m) => &m.metadata,
            Self::Server(s) => &s.metadata,
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

/// A validated object of a kind that only the operator handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterObject {
    pub kind: &'static str,
    pub name: String,
    pub namespace: Option<String>,
    pub file: String,
    /// First line of the object.
    pub line: u32,
}

impl ClusterObject {
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

/// The objects of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// Objects for a scheduler.
    pub objects: Vec<Parsed>,
    /// Objects for the operator.
    pub cluster: Vec<ClusterObject>,
}
