//! The kinds of KServe (`serving.kserve.io`): names, fields and states are those of KServe.
//!
//! Inline `PodSpec`s and `Container`s are kept as they are written: their fields have no schema in the CRD, and only
//! their names are checked.

mod component;
mod inference_graph;
mod inference_service;
mod pod_fields;
mod predictor;
mod rules;
mod serving_runtime;
mod status;
mod storage_container;
mod to_model;
mod trained_model;

pub use component::{
    AutoScalingSpec, BatcherSpec, ComponentSpec, LoggerSpec, MetricSource, MetricSpec, MetricTarget,
};
pub use inference_graph::{
    GraphNode, GraphStep, InferenceGraphSpec, InferenceGraphStatus, RouterTimeouts, RouterType,
    StepDependency,
};
pub use inference_service::{CanarySpec, ExplainerComponent, InferenceServiceSpec, TransformerComponent};
pub use predictor::{
    ConfidentialSpec, Framework, FrameworkSpec, ModelFormat, PredictorModel, PredictorSpec, StorageSpec,
    StorageUri, WorkerSpec,
};
pub(crate) use rules::{
    CLUSTER_STORAGE_CONTAINER, INFERENCE_GRAPH, INFERENCE_SERVICE, SERVING_RUNTIME, TRAINED_MODEL,
    inference_graph_errors, inference_service_errors, inference_service_warnings, name_rule,
    serving_runtime_errors, storage_container_errors, trained_model_errors,
};
pub use serving_runtime::{ServingRuntimeSpec, SupportedModelFormat};
pub use status::{
    CanaryStatus, ComponentStatus, FailureInfo, InferenceServiceStatus, ModelCopies, ModelStates,
    ModelStatus, StatusAddress, TrafficTarget,
};
pub use storage_container::{ClusterStorageContainer, ClusterStorageContainerSpec, UriFormat};
pub use trained_model::{TrainedModelArtifact, TrainedModelSpec, TrainedModelStatus};

/// Group and version of `InferenceService`.
pub const KSERVE_V1BETA1: &str = "serving.kserve.io/v1beta1";
/// Group and version of the other kinds.
pub const KSERVE_V1ALPHA1: &str = "serving.kserve.io/v1alpha1";
