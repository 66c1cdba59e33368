//! The built-in inference server: ONNX and tree models over the Open Inference Protocol.
//!
//! ```text
//! files ─▶ detect (which format) ─▶ model (onnx · trees) ─▶ Runtime: models by name
//! request ─▶ service (REST, gRPC) ─▶ executor (inline, pooled or batched) ─▶ model ─▶ response
//! ```
//!
//! Model files are parsed, never executed, unless [`Config::python`] permits models of Python libraries. Models that respond in microseconds run on the calling thread,
//! all others on a pool with a queue for each model, so that no model delays another.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

mod batch;
mod detect;
mod executor;
mod memory;
mod model;
mod onnx;
mod pool;
mod python;
mod runtime;
mod serve;
mod service;
mod settings;
mod statistics;
mod trees;

#[cfg(test)]
mod tests;

pub use detect::{DetectError, FORMATS, Format, detect};
pub use gantry_onnx::{WorkerCommand, serve_worker};
pub use model::{InferenceError, LoadError, Model};
pub use runtime::{Config, ModelInfo, Runtime, Usage};
pub use serve::{ServeError, serve};
pub use settings::{Settings, SettingsError};
