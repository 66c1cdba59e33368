//! Interface to the inference server, and observation of the agent's work.

use futures::future::BoxFuture;
use gantry_artifacts::ProgressSink;
use gantry_proto::{agent::ModelVersion, scheduler};
use std::{path::PathBuf, sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct LoadOrder {
    /// `<model>_<version>`
    pub name: String,
    /// The version folder of the artifact, or its root.
    pub directory: PathBuf,
    /// The artifact root: `directory` or an ancestor.
    pub root: PathBuf,
    /// In manifest order.
    pub parameters: Vec<(String, String)>,
    /// The scheduler's order.
    pub definition: ModelVersion,
    /// Whether to send scaling triggers for this model.
    pub autoscaling: bool,
}

impl LoadOrder {
    pub fn spec(&self) -> scheduler::ModelSpec {
        self.definition.model.as_ref().and_then(|m| m.model_spec.clone()).unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Such as `onnx`.
    pub platform: String,
    pub engine: String,
    /// 0 if unknown.
    pub memory_bytes: u64,
    /// Number of copies, if known.
    pub runtime_info: Option<scheduler::ModelRuntimeInfo>,
}

/// A model that the server has loaded already.
#[derive(Clone, Debug)]
pub struct LoadedModel {
    pub definition: ModelVersion,
    pub memory_bytes: u64,
}

/// Why a model could not be fetched or loaded. The message becomes the model's status reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    pub message: String,
    /// The same load fails again until the definition, the artifact or the server changes.
    pub permanent: bool,
}

impl LoadError {
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), permanent: true }
    }

    /// May succeed later without any change.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), permanent: false }
    }
}

/// A message about the model's files or settings, which do not change by themselves.
impl From<String> for LoadError {
    fn from(message: String) -> Self {
        Self::permanent(message)
    }
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// An inference server.
pub trait ModelServer: Send + Sync + 'static {
    /// Returns when the model is ready.
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, LoadError>>;

    /// Idempotent. The error becomes the model's status reason.
    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>>;

    /// Waits until the server accepts models and returns the loaded ones; `None` if its lifetime is that of the
    /// agent.
    fn wait_ready(&self) -> BoxFuture<'_, Option<Vec<LoadedModel>>> {
        Box::pin(async { None })
    }

    /// Waits until the server is lost and returns the reason. Its models count as unloaded until the next
    /// `wait_ready`.
    fn wait_lost(&self) -> BoxFuture<'_, String> {
        Box::pin(std::future::pending())
    }

    /// Whether loaded models need their files.
    fn needs_files(&self) -> bool {
        true
    }
}

/// Progress callbacks, for console output.
pub trait Observer: Send + Sync + 'static {
    fn fetching(&self, model: &str, version: u32) -> Arc<dyn ProgressSink>;

    fn finished(&self, model: &str, version: u32, result: Result<&Loaded, &str>, took: Duration);
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoopObserver;

impl Observer for NoopObserver {
    fn fetching(&self, _: &str, _: u32) -> Arc<dyn ProgressSink> {
        Arc::new(gantry_artifacts::Silent)
    }

    fn finished(&self, _: &str, _: u32, _: Result<&Loaded, &str>, _: Duration) {}
}
