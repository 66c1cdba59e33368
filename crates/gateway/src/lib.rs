//! Inference gateway (data plane): one port for REST and gRPC in front of the model servers.
//!
//! [`Gateway::bind`] opens the port, [`Gateway::serve`] serves it. [`Routes`] maps models to replicas and is updated
//! by [`control::subscribe_routes`]. A request takes its route on arrival and never waits for the control plane.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

mod body;
mod config;
pub mod control;
mod gateway;
pub mod inference_graph;
#[cfg(feature = "kafka")]
pub mod kafka;
mod metrics;
mod pipeline;
pub mod policy;
mod routes;
mod serve;
mod upstream;

pub use config::{Config, DEFAULT_INGRESS_DOMAIN};
pub use gateway::{BindError, Gateway};
pub use routes::{Demand, Removed, Routes, TestRequest};
