//! Controllers: one folder per kind (snapshot, plan, status), and the registry of them.

pub mod algorithm;
mod cached;
pub mod experiment;
pub mod inference_graph;
pub mod inference_service;
pub mod model;
pub mod pipeline;
mod registry;
pub mod rollout_policy;
pub mod scheduled;
pub mod seldon_config;
pub mod seldon_runtime;
pub mod server;
pub mod server_config;
pub mod trained_model;
mod validate_only;
mod validation;

pub use registry::{RbacRule, Registration, Registry};
