//! A model of any format, behind one interface.

use crate::{Settings, detect::DetectError, onnx::OnnxModel, trees::TreeModel};
use gantry_onnx::Apart;
use gantry_tensor::{Tensor, TensorSpec};
use std::path::Path;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no file that can be run.
    #[error(transparent)]
    Detect(#[from] DetectError),
    /// The file cannot be read.
    #[error("{file} cannot be read: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not a valid model.
    #[error("{file}: {reason}")]
    Invalid {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A parameter makes no sense.
    #[error(transparent)]
    Settings(#[from] crate::SettingsError),
}

/// Why a model could not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferenceError {
    /// The request does not fit the model.
    #[error("{0}")]
    Request(String),
    /// The model failed on a request that fits.
    #[error("{0}")]
    Model(String),
    /// Too many requests wait for a thread.
    #[error("the runtime is busy: {waiting} requests wait already")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
}

/// A model that can answer. Any number of threads may ask it at once.
pub trait Model: Send + Sync {
    /// What it takes.
    fn inputs(&self) -> &[TensorSpec];

    /// What it gives when nobody asks for anything in particular.
    fn outputs(&self) -> &[TensorSpec];

    /// The kind of model: `onnx`, `xgboost` or `lightgbm`.
    fn platform(&self) -> &'static str;

    /// Which engine runs it, and why.
    fn engine(&self) -> String;

    /// About how much memory it takes.
    fn memory_bytes(&self) -> usize;

    /// Whether rows of several requests can share one run.
    fn batchable(&self) -> bool;

    /// Whether an answer may be waited for, so that a thread that serves others must not ask.
    fn waits(&self) -> bool {
        false
    }

    /// Answers. `wanted` names outputs; all that [`Model::outputs`] lists when it is empty.
    fn infer(&self, inputs: &[Tensor], wanted: &[&str]) -> Result<Vec<Tensor>, InferenceError>;
}

/// A file's name without its place, which is somewhere in a cache and tells nobody anything.
pub(crate) fn shown(file: &Path) -> String {
    file.file_name().map_or_else(|| file.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Loads whatever model is at a path: a file, or a directory with one.
pub(crate) fn load(
    name: &str,
    path: &Path,
    settings: &Settings,
    apart: Option<&Apart>,
) -> Result<Box<dyn Model>, LoadError> {
    let (file, format) = crate::detect(path)?;
    Ok(match format {
        crate::Format::Onnx => Box::new(OnnxModel::load(name, &file, settings, apart)?),
        crate::Format::Trees(format) => Box::new(TreeModel::load(&file, format, settings)?),
    })
}
