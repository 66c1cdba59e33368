//! The kind Model: an artifact to be served.

use crate::{API_VERSION, Metadata, Quantity, Refusal, Scaling, scaling::Scaled};
use gantry_proto::scheduler as pb;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Model: where its artifact is, what it needs, how many replicas it wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// `mlops.seldon.io/v1alpha1`
    pub api_version: String,
    /// `Model`
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: ModelSpec,
    /// What Kubernetes reported when the object was read from it; not used.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// What is asked of a Model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelSpec {
    /// Where the artifact is: a path, `s3://…`, `gs://…`, `https://…`, `hf://…`.
    pub storage_uri: String,
    /// The kind of model, such as `onnx`; counts as a requirement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_type: Option<String>,
    /// The version folder to take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_version: Option<u32>,
    /// Accepted for compatibility; not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_uri: Option<String>,
    /// The Secret that holds the storage credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// Capabilities that the server must all have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 1024)))]
    pub requirements: Vec<String>,
    /// Memory that a replica takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Replicas wanted; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Fewest replicas; also the fewest that may be placed when there is no room for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,
    /// Most replicas that autoscaling may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_replicas: Option<i32>,
    /// The server to load onto, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Accepted for compatibility; not used.
    #[serde(default, rename = "preloaded", alias = "preLoaded", skip_serializing_if = "std::ops::Not::not")]
    pub preloaded: bool,
    /// Accepted for compatibility; not used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated: bool,
    /// Payload logging.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logger: Option<LoggingSpec>,
    /// This model explains another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explainer: Option<ExplainerSpec>,
    /// This model is a language model in front of another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub llm: Option<LlmSpec>,
    /// Settings that are passed to the server when the model is loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub parameters: Vec<ParameterSpec>,
    /// What happens to topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataflow: Option<DataflowSpec>,
}

/// Payload logging.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoggingSpec {
    /// Share of requests to log.
    #[serde(skip_serializing_if = "Option::is_none")]
    // Stored objects may hold more: only whether it is there counts, so the API server lets it pass.
    #[schemars(range(min = 0), extend("x-lint-maximum" = 100))]
    pub percent: Option<u32>,
}

/// Which model or pipeline is explained, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainerSpec {
    /// The kind of explainer, such as `anchor_tabular`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    /// The model that is explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ref: Option<String>,
    /// The pipeline that is explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_ref: Option<String>,
}

/// What a language model stands in front of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LlmSpec {
    /// A model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ref: Option<String>,
    /// A pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_ref: Option<String>,
}

/// A setting that is passed to the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParameterSpec {
    /// The setting's name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its value.
    pub value: String,
}

/// What happens to topics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataflowSpec {
    /// Delete the topics together with the object.
    #[serde(default)]
    pub clean_topics_on_delete: bool,
}

impl Scaled for ModelSpec {
    fn written(&self) -> [Option<i32>; 3] {
        [self.replicas, self.min_replicas, self.max_replicas]
    }
}

impl ModelSpec {
    /// How many replicas are wanted; `Err` is a field and what is wrong with it.
    pub fn scaling(&self) -> Result<Scaling, Refusal> {
        let [replicas, min, max] = self.written();
        Scaling::new(replicas, min, max)
    }

    /// The model as the scheduler's contract has it. Call it on a spec whose rules hold.
    ///
    /// A model that has a namespace comes from Kubernetes: the scheduler is told so, and its generation.
    pub fn to_proto(&self, name: &str, namespace: Option<&str>, generation: Option<i64>) -> pb::Model {
        let scaling = self.scaling().unwrap_or_default();
        let special = match (&self.explainer, &self.llm) {
            (Some(e), _) => Some(pb::model_spec::ModelSpec::Explainer(pb::ExplainerSpec {
                r#type: e.r#type.clone().unwrap_or_default(),
                model_ref: e.model_ref.clone(),
                pipeline_ref: e.pipeline_ref.clone(),
            })),
            (None, Some(l)) => Some(pb::model_spec::ModelSpec::Llm(pb::LlmSpec {
                model_ref: l.model_ref.clone(),
                pipeline_ref: l.pipeline_ref.clone(),
            })),
            (None, None) => None,
        };
        let kubernetes_meta = namespace.map(|namespace| pb::KubernetesMeta {
            namespace: namespace.to_owned(),
            generation: generation.unwrap_or(1),
        });
        pb::Model {
            meta: Some(pb::MetaData { name: name.to_owned(), kind: None, version: None, kubernetes_meta }),
            model_spec: Some(pb::ModelSpec {
                uri: self.storage_uri.clone(),
                artifact_version: self.artifact_version,
                storage_config: self.secret_name.clone().map(|secret| pb::StorageConfig {
                    config: Some(pb::storage_config::Config::StorageSecretName(secret)),
                }),
                requirements: self
                    .requirements
                    .iter()
                    .chain(&self.model_type)
                    .map(|r| r.trim().to_owned())
                    .collect(),
                memory_bytes: self.memory.as_ref().map(Quantity::bytes),
                server: self.server.clone(),
                parameters: self
                    .parameters
                    .iter()
                    .map(|p| pb::ParameterSpec { name: p.name.clone(), value: p.value.clone() })
                    .collect(),
                model_runtime_info: None,
                model_spec: special,
            }),
            deployment_spec: Some(pb::DeploymentSpec {
                replicas: scaling.replicas,
                min_replicas: scaling.min,
                max_replicas: scaling.max_on_the_wire(),
                log_payloads: self.logger.is_some(),
            }),
            stream_spec: None,
            dataflow_spec: self
                .dataflow
                .as_ref()
                .map(|d| pb::DataflowSpec { clean_topics_on_delete: d.clean_topics_on_delete }),
        }
    }
}

impl Model {
    /// A model by name and place, for models that have no manifest.
    pub fn named(name: impl Into<String>, storage_uri: impl Into<String>) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: "Model".into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec: ModelSpec { storage_uri: storage_uri.into(), ..ModelSpec::default() },
            status: None,
        }
    }

    /// The model as the scheduler's contract has it. Call it on a model whose rules hold.
    pub fn to_proto(&self) -> pb::Model {
        let meta = &self.metadata;
        self.spec.to_proto(&meta.name, meta.namespace.as_deref(), meta.generation)
    }

    /// The manifest of a model that the scheduler knows.
    pub fn from_proto(model: &pb::Model) -> Self {
        let meta = model.meta.clone().unwrap_or_default();
        let spec = model.model_spec.clone().unwrap_or_default();
        let deployment =
            model.deployment_spec.unwrap_or(pb::DeploymentSpec { replicas: 1, ..Default::default() });
        let (explainer, llm) = match spec.model_spec {
            Some(pb::model_spec::ModelSpec::Explainer(e)) => (
                Some(ExplainerSpec {
                    r#type: Some(e.r#type),
                    model_ref: e.model_ref,
                    pipeline_ref: e.pipeline_ref,
                }),
                None,
            ),
            Some(pb::model_spec::ModelSpec::Llm(l)) => {
                (None, Some(LlmSpec { model_ref: l.model_ref, pipeline_ref: l.pipeline_ref }))
            }
            None => (None, None),
        };
        let some_replicas = |n: u32| (n > 0).then(|| i32::try_from(n).unwrap_or(i32::MAX));
        let mut manifest = Self::named(meta.name, spec.uri);
        if let Some(kubernetes) = meta.kubernetes_meta {
            manifest.metadata.namespace = Some(kubernetes.namespace);
            manifest.metadata.generation = Some(kubernetes.generation);
        }
        manifest.spec = ModelSpec {
            artifact_version: spec.artifact_version,
            secret_name: spec.storage_config.and_then(|c| match c.config {
                Some(pb::storage_config::Config::StorageSecretName(name)) => Some(name),
                _ => None,
            }),
            requirements: spec.requirements,
            memory: spec.memory_bytes.map(Quantity::from_bytes),
            replicas: Some(i32::try_from(deployment.replicas).unwrap_or(i32::MAX)),
            min_replicas: some_replicas(deployment.min_replicas),
            max_replicas: some_replicas(deployment.max_replicas),
            server: spec.server,
            logger: deployment.log_payloads.then(LoggingSpec::default),
            explainer,
            llm,
            parameters: spec
                .parameters
                .into_iter()
                .map(|p| ParameterSpec { name: p.name, value: p.value })
                .collect(),
            dataflow: model
                .dataflow_spec
                .map(|d| DataflowSpec { clean_topics_on_delete: d.clean_topics_on_delete }),
            ..manifest.spec
        };
        manifest
    }
}
