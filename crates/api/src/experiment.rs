//! The kind Experiment: traffic split between models or pipelines.

use crate::{API_VERSION, Metadata};
use gantry_proto::scheduler as pb;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// An experiment: a traffic split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Experiment {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: ExperimentSpec,
    /// Accepted so that the output of `kubectl get -o yaml` can be applied; ignored.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// Desired state of an Experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentSpec {
    /// Candidate whose traffic is split.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub default: Option<String>,
    /// Models or pipelines that share the traffic.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub candidates: Vec<ExperimentCandidate>,
    /// Model or pipeline that receives a copy of the requests; its responses are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<ExperimentMirror>,
    /// Kind of the candidates: `model` or `pipeline`.
    #[serde(default)]
    pub resource_type: ResourceType,
}

/// A target with a share of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentCandidate {
    /// Name of a model or pipeline.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Share of traffic, relative to the sum of all weights.
    pub weight: u32,
}

/// A target with a copy of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExperimentMirror {
    /// Name of a model or pipeline.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Percentage of requests to copy.
    // A rule and not a maximum in the schema: stored objects may exceed it, and rules exempt those.
    pub percent: u32,
}

/// Kind of the candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResourceType {
    #[default]
    Model,
    Pipeline,
}

// Not derived: documented variants become `oneOf` constants, which a structural schema forbids.
impl JsonSchema for ResourceType {
    fn schema_name() -> Cow<'static, str> {
        "ResourceType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["model", "pipeline"] })
    }
}

impl ExperimentSpec {
    /// The experiment in the scheduler's gRPC API. A namespace marks a Kubernetes object.
    pub fn to_proto(&self, name: &str, namespace: Option<&str>, generation: Option<i64>) -> pb::Experiment {
        pb::Experiment {
            name: name.to_owned(),
            default: self.default.clone(),
            candidates: self
                .candidates
                .iter()
                .map(|c| pb::ExperimentCandidate { name: c.name.clone(), weight: c.weight })
                .collect(),
            mirror: self
                .mirror
                .as_ref()
                .map(|m| pb::ExperimentMirror { name: m.name.clone(), percent: m.percent }),
            config: None,
            kubernetes_meta: namespace.map(|namespace| pb::KubernetesMeta {
                namespace: namespace.to_owned(),
                generation: generation.unwrap_or(1),
            }),
            resource_type: match self.resource_type {
                ResourceType::Model => pb::ResourceType::Model,
                ResourceType::Pipeline => pb::ResourceType::Pipeline,
            }
            .into(),
        }
    }
}

impl Experiment {
    pub fn named(name: impl Into<String>, spec: ExperimentSpec) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: "Experiment".into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec,
            status: None,
        }
    }

    /// The experiment in the scheduler's gRPC API.
    pub fn to_proto(&self) -> pb::Experiment {
        let meta = &self.metadata;
        self.spec.to_proto(&meta.name, meta.namespace.as_deref(), meta.generation)
    }

    /// The manifest of an experiment reported by the scheduler.
    pub fn from_proto(experiment: &pb::Experiment) -> Self {
        let candidate =
            |c: &pb::ExperimentCandidate| ExperimentCandidate { name: c.name.clone(), weight: c.weight };
        let spec = ExperimentSpec {
            default: experiment.default.clone(),
            candidates: experiment.candidates.iter().map(candidate).collect(),
            mirror: experiment
                .mirror
                .as_ref()
                .map(|m| ExperimentMirror { name: m.name.clone(), percent: m.percent }),
            resource_type: match experiment.resource_type() {
                pb::ResourceType::Model => ResourceType::Model,
                pb::ResourceType::Pipeline => ResourceType::Pipeline,
            },
        };
        let mut manifest = Self::named(&experiment.name, spec);
        manifest.metadata.set_kubernetes(experiment.kubernetes_meta.as_ref());
        manifest
    }
}
