//! The kind Model: a model artifact to serve.

use crate::{
    API_VERSION, FieldError, INFERENCE_SERVICE, Metadata, Quantity, Scaling, kserve::KSERVE_V1BETA1,
    object::DEFAULT_NAMESPACE, scaling::ReplicaFields,
};
use gantry_proto::scheduler as pb;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model: artifact location, requirements and replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: ModelSpec,
    /// Accepted so that the output of `kubectl get -o yaml` can be applied; ignored.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// Desired state of a Model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelSpec {
    /// Location of the artifact: a path, `s3://…`, `gs://…`, `https://…`, `hf://…`.
    pub storage_uri: String,
    /// Model format, such as `onnx`; added to the requirements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_type: Option<String>,
    /// Version folder of the artifact to load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_version: Option<u32>,
    /// Accepted for compatibility; not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_uri: Option<String>,
    /// Name of the Secret with the storage credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// Capabilities that the server must have, such as `onnx` or `sklearn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 1024)))]
    pub requirements: Vec<String>,
    /// Memory required by one replica, such as `512Mi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Desired replicas; defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Minimum replicas; fewer than `replicas` are placed when capacity is short, but not fewer than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,
    /// Maximum replicas for autoscaling; 0 or unset means unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_replicas: Option<i32>,
    /// Name of the Server to load the model onto.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Accepted for compatibility; not used.
    #[serde(default, rename = "preloaded", alias = "preLoaded", skip_serializing_if = "std::ops::Not::not")]
    pub preloaded: bool,
    /// Accepted for compatibility; not used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated: bool,
    /// Request and response logging.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logger: Option<LoggingSpec>,
    /// Marks the model as an explainer of another model or pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explainer: Option<ExplainerSpec>,
    /// Marks the model as a language model in front of another model or pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub llm: Option<LlmSpec>,
    /// Parameters passed to the server when it loads the model. The last of several with one name counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub parameters: Vec<ParameterSpec>,
    /// Kafka topic settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataflow: Option<DataflowSpec>,
}

/// Request and response logging.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoggingSpec {
    /// Percentage of requests to log.
    #[serde(skip_serializing_if = "Option::is_none")]
    // Only its presence matters and stored objects may exceed 100, so the CRD sets no maximum.
    #[schemars(range(min = 0), extend("x-lint-maximum" = 100))]
    pub percent: Option<u32>,
}

/// Explainer settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainerSpec {
    /// Explainer type, such as `anchor_tabular`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    /// Name of the explained model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ref: Option<String>,
    /// Name of the explained pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_ref: Option<String>,
}

/// Language model settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LlmSpec {
    /// Name of the model behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_ref: Option<String>,
    /// Name of the pipeline behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_ref: Option<String>,
}

/// A parameter passed to the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParameterSpec {
    /// Parameter name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Parameter value.
    pub value: String,
}

/// Kafka topic settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataflowSpec {
    /// Delete the topics when the object is deleted.
    #[serde(default)]
    pub clean_topics_on_delete: bool,
}

impl ReplicaFields for ModelSpec {
    fn replica_fields(&self) -> [Option<i32>; 3] {
        [self.replicas, self.min_replicas, self.max_replicas]
    }
}

impl ModelSpec {
    pub fn scaling(&self) -> Result<Scaling, FieldError> {
        let [replicas, min, max] = self.replica_fields();
        Scaling::new(replicas, min, max)
    }

    /// The model in the scheduler's gRPC API; the spec must be valid. A namespace marks a Kubernetes object.
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
                max_replicas: scaling.max_in_proto(),
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
    /// A model without a manifest.
    pub fn named(name: impl Into<String>, storage_uri: impl Into<String>) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: "Model".into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec: ModelSpec { storage_uri: storage_uri.into(), ..ModelSpec::default() },
            status: None,
        }
    }

    /// The model in the scheduler's gRPC API; the spec must be valid.
    pub fn to_proto(&self) -> pb::Model {
        let meta = &self.metadata;
        let mut model = self.spec.to_proto(&meta.name, meta.namespace.as_deref(), meta.generation);
        if self.kind == INFERENCE_SERVICE
            && let Some(proto) = &mut model.meta
        {
            let namespace = meta.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
            proto.kind = Some(INFERENCE_SERVICE.to_owned());
            // Without a generation it is no object of an API server.
            let generation = meta.generation.unwrap_or(0);
            proto.kubernetes_meta = Some(pb::KubernetesMeta { namespace, generation });
        }
        model
    }

    /// The manifest of a model reported by the scheduler.
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
        manifest.metadata.set_kubernetes(meta.kubernetes_meta.as_ref());
        if meta.kind.as_deref() == Some(INFERENCE_SERVICE) {
            (manifest.api_version, manifest.kind) = (KSERVE_V1BETA1.into(), INFERENCE_SERVICE.into());
            manifest.metadata.generation = manifest.metadata.generation.filter(|generation| *generation > 0);
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
