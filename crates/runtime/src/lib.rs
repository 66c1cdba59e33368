//! The built-in inference server: ONNX and tree models over the Open Inference Protocol.
//!
//! ```text
//! files ─▶ detect (which format) ─▶ model (onnx · trees) ─▶ Runtime: models by name
//! request ─▶ service (REST, gRPC) ─▶ executor (here, pooled or batched) ─▶ model ─▶ response
//! ```
//!
//! Models are parsed, never executed: there is no Python here. A model that answers in microseconds runs on the
//! thread that took the request; anything longer runs on a pool of its own, so that it cannot hold up other requests.

mod batch;
mod detect;
mod executor;
mod model;
mod onnx;
mod pool;
mod runtime;
mod serve;
mod service;
mod settings;
mod statistics;
mod trees;

#[cfg(test)]
mod tests;

pub use detect::{DetectError, FORMATS, Format, detect};
pub use gantry_onnx::{Apart, serve_apart};
pub use model::{InferenceError, LoadError, Model};
pub use runtime::{Config, ModelInfo, Runtime, Usage};
pub use serve::{ServeError, serve};
pub use settings::{Settings, SettingsError};
