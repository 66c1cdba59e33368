//! The suites, one file each.

pub(crate) mod attack;
pub(crate) mod auth;
pub(crate) mod dashboard;
pub(crate) mod ensemble;
pub(crate) mod fairness;
pub(crate) mod gateway;
pub(crate) mod inference_graph;
pub(crate) mod iris;
pub(crate) mod kafka;
pub(crate) mod memory;
pub(crate) mod onnx;
pub(crate) mod operator;
pub(crate) mod pipelines;
pub(crate) mod rollouts;
pub(crate) mod scheduler;
pub(crate) mod start;
pub(crate) mod trees;
