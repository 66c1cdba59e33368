//! The predictor: the component that runs the model.

use super::component::ComponentSpec;
use crate::{Quantity, k8s_passthrough::objects_with_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The component that runs the model: one of the frameworks, `model`, or containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PredictorSpec {
    /// A scikit-learn model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub sklearn: Option<FrameworkSpec>,
    /// An `XGBoost` model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub xgboost: Option<FrameworkSpec>,
    /// A `TensorFlow` model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub tensorflow: Option<FrameworkSpec>,
    /// A `PyTorch` model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub pytorch: Option<FrameworkSpec>,
    /// A repository of Triton. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub triton: Option<FrameworkSpec>,
    /// An ONNX model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub onnx: Option<FrameworkSpec>,
    /// A Hugging Face model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub huggingface: Option<FrameworkSpec>,
    /// A PMML model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub pmml: Option<FrameworkSpec>,
    /// A `LightGBM` model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub lightgbm: Option<FrameworkSpec>,
    /// A `PaddlePaddle` model. Deprecated: use `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub paddle: Option<FrameworkSpec>,
    /// A model of any format, run by a `ServingRuntime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PredictorModel>,
    /// Name of this predictor, in the names of its objects; a canary needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Artifacts and the directories they are mounted at, instead of `storageUri`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub storage_uris: Vec<StorageUri>,
    /// The `ClusterStorageContainer` that downloads the artifacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_container_name: Option<String>,
    /// Worker nodes of a model that needs several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_spec: Option<WorkerSpec>,
    /// Containers of a custom predictor, or beside the model's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "objects_with_name")]
    pub containers: Vec<Value>,
    #[serde(flatten)]
    pub component: ComponentSpec,
    /// Other fields of a `PodSpec`.
    #[serde(flatten)]
    pub pod: Map<String, Value>,
}

impl PredictorSpec {
    /// The frameworks that are set, in KServe's order.
    pub fn frameworks(&self) -> impl Iterator<Item = (Framework, &FrameworkSpec)> {
        let all = [
            (Framework::XgBoost, &self.xgboost),
            (Framework::PyTorch, &self.pytorch),
            (Framework::Triton, &self.triton),
            (Framework::SkLearn, &self.sklearn),
            (Framework::TensorFlow, &self.tensorflow),
            (Framework::Onnx, &self.onnx),
            (Framework::Pmml, &self.pmml),
            (Framework::LightGbm, &self.lightgbm),
            (Framework::Paddle, &self.paddle),
            (Framework::HuggingFace, &self.huggingface),
        ];
        all.into_iter().filter_map(|(framework, spec)| spec.as_ref().map(|spec| (framework, spec)))
    }

    /// The model, also of a framework field; `None` for a custom predictor. The spec itself is not changed.
    pub fn model(&self) -> Option<PredictorModel> {
        if let Some(model) = &self.model {
            let mut model = model.clone();
            if matches!(model.model_format.name.as_str(), "triton" | "vLLM") {
                model.framework.protocol_version.get_or_insert_with(|| "v2".into());
            }
            return Some(model);
        }
        let (framework, spec) = self.frameworks().next()?;
        let mut spec = spec.clone();
        if matches!(framework, Framework::Triton | Framework::Onnx | Framework::HuggingFace) {
            spec.protocol_version.get_or_insert_with(|| "v2".into());
        }
        let model_format = ModelFormat { name: framework.as_str().into(), version: None };
        Some(PredictorModel { model_format, runtime: None, framework: spec })
    }

    /// Whether `TrainedModels` bring its models: it has no artifact, or a custom container has `MULTI_MODEL_SERVER`. Servers of
    /// Hugging Face download the model that an argument names.
    pub fn is_multi_model(&self) -> bool {
        if let Some(first) = self.containers.first() {
            let variables = first.get("env").and_then(Value::as_array);
            let text = |variable: &Value, field: &str, expected: &str| {
                variable.get(field).and_then(Value::as_str) == Some(expected)
            };
            return variables
                .into_iter()
                .flatten()
                .any(|v| text(v, "name", "MULTI_MODEL_SERVER") && text(v, "value", "true"));
        }
        self.model().is_some_and(|model| {
            let PredictorModel { model_format, framework, .. } = model;
            model_format.name != Framework::HuggingFace.as_str()
                && framework.storage_uri.is_none()
                && framework.storage.is_none()
                && self.storage_uris.is_empty()
        })
    }

    /// The memory limit of the container that runs the model.
    pub fn memory_limit(&self) -> Option<Quantity> {
        let model = self.model().map(|model| Value::Object(model.framework.container));
        let container = self.containers.first().cloned().or(model)?;
        serde_json::from_value(container.pointer("/resources/limits/memory")?.clone()).ok()
    }
}

/// A framework with a field of its own in the predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    SkLearn,
    XgBoost,
    TensorFlow,
    PyTorch,
    Triton,
    Onnx,
    HuggingFace,
    Pmml,
    LightGbm,
    Paddle,
}

impl Framework {
    /// Name of the field and of the model format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SkLearn => "sklearn",
            Self::XgBoost => "xgboost",
            Self::TensorFlow => "tensorflow",
            Self::PyTorch => "pytorch",
            Self::Triton => "triton",
            Self::Onnx => "onnx",
            Self::HuggingFace => "huggingface",
            Self::Pmml => "pmml",
            Self::LightGbm => "lightgbm",
            Self::Paddle => "paddle",
        }
    }
}

/// A model artifact, and changes of the runtime's container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrameworkSpec {
    /// Location of the model artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_uri: Option<String>,
    /// Tag of the runtime's image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_version: Option<String>,
    /// Inference protocol: v1, v2, grpc-v1 or grpc-v2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// Location and credentials by reference to a Secret, instead of `storageUri`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    /// Decryption of the artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidential: Option<ConfidentialSpec>,
    /// Fields of a Container, merged over the runtime's container.
    #[serde(flatten)]
    pub container: Map<String, Value>,
}

/// A model of any format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PredictorModel {
    /// Format of the model, which selects the runtime.
    pub model_format: ModelFormat,
    /// Name of a `ServingRuntime` or `ClusterServingRuntime`; selected by format if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    #[serde(flatten)]
    pub framework: FrameworkSpec,
}

/// Name and version of a model format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelFormat {
    /// Such as sklearn, xgboost or onnx.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Version of the format.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub version: Option<String>,
}

/// A location by reference to an entry of the Secret `storage-config`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Path of the model in the storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Overrides of the entry, such as `type` and `bucket`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Key of the Secret's entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Path of the model's schema in the storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_path: Option<String>,
}

/// Decryption of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfidentialSpec {
    /// Whether the artifact is encrypted.
    #[serde(default)]
    pub enabled: bool,
    /// Key, such as `kbs:///repository/type/tag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<String>,
}

/// An artifact and the directory it is mounted at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageUri {
    /// Location of the artifact.
    #[schemars(length(max = 2048))]
    pub uri: String,
    /// Absolute path in the containers; `/mnt/models` if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub mount_path: Option<String>,
}

/// Worker nodes of a model that needs several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerSpec {
    /// Stages of the pipeline: the number of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pipeline_parallel_size: Option<i32>,
    /// GPUs that share each layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tensor_parallel_size: Option<i32>,
    /// Containers of a worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "objects_with_name")]
    pub containers: Vec<Value>,
    /// Other fields of a `PodSpec`.
    #[serde(flatten)]
    pub pod: Map<String, Value>,
}
