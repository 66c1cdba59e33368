//! Agent: one per replica of an inference server.
//!
//! ```text
//! scheduler ──orders──▶ agent ──▶ per model version: fetch the artifact ─▶ load it into the server
//!           ◀──events──                              unload it, release the artifact
//! ```
//!
//! As a sidecar of a separate server, it also proxies inference requests:
//!
//! ```text
//! gateway ──▶ proxy ──▶ model_cache (models in the server's memory) ──▶ MLServer, Triton, … (backend)
//! ```
//!
//! [`kserve`] is another sidecar, of `InferenceService` pods: it logs and batches requests.
//!
//! Loaded models survive a disconnect; the next subscription reports them.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

mod admin_server;
mod agent;
mod artifact;
mod backend;
mod connect;
mod drain;
mod inventory;
pub mod kserve;
mod metrics;
mod model_cache;
mod model_server;
mod proxy;
mod reporter;
mod retained;
mod scaling_trigger;
mod sidecar;
mod upstream;

#[cfg(test)]
mod in_memory_tests;
#[cfg(test)]
mod tests;

pub use agent::{Agent, Config, Parts};
pub use artifact::{Artifacts, CONTENT_PARAMETER, Files, SecretStore, Secrets, Source};
pub use backend::{Kind, ServerEnvironment};
pub use connect::{Connect, PlaintextConnector, scheduler_endpoint};
pub use model_cache::Limits;
pub use model_server::{LoadError, LoadOrder, Loaded, LoadedModel, ModelServer, NoopObserver, Observer};
pub use proxy::RequestLimits;
pub use scaling_trigger::Scaling;
pub use sidecar::{Addresses, Ports, Running, Settings, start};
