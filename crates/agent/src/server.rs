//! What an agent needs from an inference server, and whom it tells about its work.

use futures::future::BoxFuture;
use gantry_artifacts::ProgressSink;
use gantry_proto::{agent::ModelVersion, scheduler};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// A model version to be loaded.
#[derive(Clone, Debug)]
pub struct LoadOrder {
    /// The name under which the server knows it: `<model>_<version>`.
    pub name: String,
    /// The model's files: its version folder if it has one.
    pub directory: PathBuf,
    /// Everything that came with the model: `directory`, or the directory above it.
    pub root: PathBuf,
    /// The model's parameters, in the order in which they were written.
    pub parameters: Vec<(String, String)>,
    /// What was ordered, as the scheduler said it.
    pub definition: ModelVersion,
    /// Whether the scheduler wants to hear when the model has too much or too little to do.
    pub autoscaling: bool,
}

impl LoadOrder {
    /// What the model asks for; empty when the order says nothing.
    pub fn spec(&self) -> scheduler::ModelSpec {
        self.definition.model.as_ref().and_then(|m| m.model_spec.clone()).unwrap_or_default()
    }
}

/// What a server says of a model that it has loaded.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The kind of model, such as `onnx`.
    pub platform: String,
    /// Which engine runs it.
    pub engine: String,
    /// Memory that it takes; 0 when the server does not say.
    pub memory_bytes: u64,
    /// How many copies the server keeps, when it says so.
    pub runtime_info: Option<scheduler::ModelRuntimeInfo>,
}

/// A model version that a server holds without having been asked in this session.
#[derive(Clone, Debug)]
pub struct Held {
    /// What was ordered at the time.
    pub definition: ModelVersion,
    /// Memory that it takes.
    pub memory_bytes: u64,
}

/// An inference server that models are loaded into. An error is a sentence for the person who asked for the model.
pub trait ModelServer: Send + Sync + 'static {
    /// Loads a model; it can answer when this returns.
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, String>>;

    /// Unloads a model. One that is not there counts as unloaded.
    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>>;

    /// Waits until the server can take models, and says what it holds; `None` means that it holds what it was asked
    /// to, because it lives and dies with the agent.
    fn settle(&self) -> BoxFuture<'_, Option<Vec<Held>>> {
        Box::pin(async { None })
    }

    /// Waits until the server is gone, and says how that was noticed. Until it has settled again, nothing that it held
    /// counts as loaded.
    fn lost(&self) -> BoxFuture<'_, String> {
        Box::pin(std::future::pending())
    }

    /// Whether the files of a loaded model must stay where they are.
    fn needs_files(&self) -> bool {
        true
    }
}

/// Somebody who watches the agent work, to show it to a person.
pub trait Observer: Send + Sync + 'static {
    /// A model's files are about to be fetched; the bytes go to what is returned.
    fn fetching(&self, model: &str, version: u32) -> Arc<dyn ProgressSink>;

    /// A model is loaded, or the reason why it is not.
    fn finished(&self, model: &str, version: u32, result: Result<&Loaded, &str>, took: Duration);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn fetching(&self, _: &str, _: u32) -> Arc<dyn ProgressSink> {
        Arc::new(gantry_artifacts::Silent)
    }

    fn finished(&self, _: &str, _: u32, _: Result<&Loaded, &str>, _: Duration) {}
}
