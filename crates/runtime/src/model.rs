//! Common interface of all model formats.

use crate::{Settings, detect::DetectError, onnx::OnnxModel, trees::TreeModel};
use gantry_onnx::WorkerCommand;
use gantry_tensor::{CancelToken, Tensor, TensorSpec};
use std::path::Path;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Detect(#[from] DetectError),
    #[error("{file} cannot be read: {source}")]
    Io { file: String, source: std::io::Error },
    #[error("{file}: {reason}")]
    Invalid { file: String, reason: String },
    #[error(transparent)]
    Settings(#[from] crate::SettingsError),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferenceError {
    #[error("{0}")]
    Request(String),
    #[error("{0}")]
    Model(String),
    #[error("the runtime is busy: {waiting} requests are queued")]
    Busy { waiting: usize },
    #[error("the request was cancelled or its deadline has passed")]
    Cancelled,
    /// The model cannot run now; it will again.
    #[error("{0}")]
    Unavailable(String),
}

pub trait Model: Send + Sync {
    fn inputs(&self) -> &[TensorSpec];

    /// Default outputs.
    fn outputs(&self) -> &[TensorSpec];

    /// `onnx`, `xgboost` or `lightgbm`.
    fn platform(&self) -> &'static str;

    /// The engine and the reason for its choice.
    fn engine(&self) -> String;

    /// Estimate.
    fn memory_bytes(&self) -> usize;

    /// Whether rows of several requests can share one run.
    fn batchable(&self) -> bool;

    /// Whether `infer` may block, so that it must run on the pool.
    fn may_block(&self) -> bool {
        false
    }

    /// `wanted` selects outputs by name; empty means the default outputs. A long run polls `cancel` and returns
    /// [`InferenceError::Cancelled`].
    fn infer(
        &self,
        inputs: &[Tensor],
        wanted: &[&str],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, InferenceError>;
}

/// The file name without its directory in the cache.
pub(crate) fn file_name(file: &Path) -> String {
    file.file_name().map_or_else(|| file.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Loads the model at a path: a file, or a directory with one.
pub(crate) fn load(
    name: &str,
    path: &Path,
    settings: &Settings,
    worker: Option<&WorkerCommand>,
) -> Result<Box<dyn Model>, LoadError> {
    let (file, format) = crate::detect(path)?;
    Ok(match format {
        crate::Format::Onnx => Box::new(OnnxModel::load(name, &file, settings, worker)?),
        crate::Format::Trees(format) => Box::new(TreeModel::load(&file, format, settings)?),
    })
}
