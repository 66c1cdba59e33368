//! What people write and read: every kind as a Rust type, its schema, its validation.
//!
//! ```text
//! text ─▶ yaml (a tree that knows its lines) ─▶ schema (unknown fields, wrong types)
//!      ─▶ the kind's type (serde) ─▶ its own rules (names, ranges, what excludes what) ─▶ Object
//! ```
//!
//! Each step collects every problem it finds, with file, line, path and remedy; [`parse`] stops at the first
//! step that found any. A new kind is a type with `Deserialize` and `JsonSchema`, and its rules; its
//! `CustomResourceDefinition` is made from the same two ([`crd`](fn@crd)).

mod convention;
mod crd;
mod embedded;
mod experiment;
mod model;
mod name;
mod object;
mod pipeline;
mod problem;
mod quantity;
mod read;
mod rules;
mod scaling;
mod schema;
mod seldon_config;
mod seldon_runtime;
mod server;
mod server_config;
mod status;
mod suggest;
mod yaml;

#[cfg(test)]
mod tests;

pub use convention::{ModelFile, model_of_file, runtime_of_file};
pub use crd::{Column, Resource, crd, crd_yaml, resources};
pub use embedded::{IntOrString, VolumeClaimTemplate};
pub use experiment::{ExperimentCandidate, ExperimentMirror, ExperimentSpec, ResourceType};
pub use model::{DataflowSpec, ExplainerSpec, LlmSpec, LoggingSpec, Model, ModelSpec, ParameterSpec};
pub use name::{NameProblem, check_name};
pub use object::{API_VERSION, ClusterObject, Kind, Manifest, Metadata, Object, Parsed};
pub use pipeline::{JoinType, PipelineBatch, PipelineInput, PipelineOutput, PipelineSpec, PipelineStep};
pub use problem::Problem;
pub use quantity::Quantity;
pub use read::{parse, read};
pub use rules::Refusal;
pub use scaling::Scaling;
pub use seldon_config::{
    AgentConfig, ComponentSpec, KafkaConfig, ModelScalingConfig, PipelineScalingConfig, RcloneConfig,
    ScalingConfig, SeldonConfigSpec, SeldonConfiguration, ServerScalingConfig, ServiceConfig, TracingConfig,
};
pub use seldon_runtime::{OverrideSpec, SeldonRuntimeSpec};
pub use server::{ImageOverrides, Server, ServerSpec};
pub use server_config::ServerConfigSpec;
pub use status::{Condition, ModelStatus, PlainStatus, ServerStatus};
pub use suggest::nearest;
