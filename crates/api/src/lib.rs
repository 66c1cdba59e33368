//! Resource kinds as Rust types, with their schemas, CRDs and validation.
//!
//! ```text
//! text ─▶ yaml (nodes with line numbers) ─▶ schema (unknown fields, wrong types)
//!      ─▶ serde (the kind's type) ─▶ validation rules (names, ranges, mutual exclusion) ─▶ Object
//! ```
//!
//! Each step collects all its errors, with file, line, path and remedy; [`parse`] stops after the first step with
//! errors. A new kind is a type with `Deserialize` and `JsonSchema`, plus its validation rules; its
//! `CustomResourceDefinition` is generated from both ([`crd`](fn@crd)).

#![allow(
    missing_docs,
    reason = "CRD fields need a description, which a test checks; other fields are self-explanatory"
)]

mod algorithm;
mod bare_model_files;
mod crd;
mod diagnostic;
mod duration;
mod experiment;
mod k8s_passthrough;
pub mod kserve;
mod manifest_set;
mod model;
mod name;
mod object;
mod parse;
mod pipeline;
mod quantity;
pub mod rollout_policy;
mod scaling;
mod schema;
mod seldon_config;
mod seldon_deployment;
mod seldon_runtime;
mod server;
mod server_config;
mod status;
mod suggest;
mod validation;
mod yaml;

#[cfg(test)]
mod tests;

pub use algorithm::{
    ALGORITHM_V1, AlgorithmAnalysis, AlgorithmDrift, AlgorithmExpose, AlgorithmLifecycle, AlgorithmMetrics,
    AlgorithmPhase, AlgorithmPort, AlgorithmResources, AlgorithmScaling, AlgorithmSpec, AlgorithmStatus,
    AnalysisMethod, EvidenceSource, FailedAlgorithmRevision, MetricQueries, PodTemplate, PrometheusSource,
    RevisionRecord, RevisionTemplate, RollingUpdate,
};
pub use bare_model_files::{ModelFile, model_of_file, runtime_of_file};
pub use crd::{Column, Resource, crd, crd_yaml, resources};
pub use diagnostic::Diagnostic;
pub use duration::SpecDuration;
pub use experiment::{Experiment, ExperimentCandidate, ExperimentMirror, ExperimentSpec, ResourceType};
pub use k8s_passthrough::{IntOrString, VolumeClaimTemplate};
pub use manifest_set::{check_set, resolve_policies};
pub use model::{DataflowSpec, ExplainerSpec, LlmSpec, LoggingSpec, Model, ModelSpec, ParameterSpec};
pub use name::{InvalidName, check_name};
pub use object::{
    API_VERSION, ClusterObject, DEFAULT_NAMESPACE, ForeignObject, INFERENCE_GRAPH, INFERENCE_SERVICE, Kind,
    Manifest, Metadata, Object, Parsed,
};
pub use parse::{parse, parse_manifest};
pub use pipeline::{
    Drawing, JoinType, KEEP_PAYLOADS, Pipeline, PipelineBatch, PipelineInput, PipelineOutput, PipelineSpec,
    PipelineStep,
};
pub use quantity::{Quantity, is_quantity};
pub use rollout_policy::{
    GANTRY_V1ALPHA1, RolloutPolicy, RolloutPolicySpec, RolloutPolicyStatus, RolloutResult, RolloutVersion,
    TargetKind, TargetRollout,
};
pub use scaling::Scaling;
pub use seldon_config::{
    AgentConfig, ComponentSpec, KafkaConfig, KafkaWorkerConfig, ModelScalingConfig, PipelineScalingConfig,
    RcloneConfig, ScalingConfig, SeldonConfigSpec, SeldonConfiguration, ServerScalingConfig, ServiceConfig,
    TracingConfig,
};
pub use seldon_deployment::{Conversion, convert_seldon_deployments, is_convertible};
pub use seldon_runtime::{OverrideSpec, SeldonRuntimeSpec};
pub use server::{ImageOverrides, Server, ServerSpec};
pub use server_config::ServerConfigSpec;
pub use status::{Condition, ModelStatus, PlainStatus, ServerStatus};
pub use suggest::nearest;
pub use validation::{FieldError, switch_errors};
