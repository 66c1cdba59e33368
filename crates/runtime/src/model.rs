//! Common interface of all model formats.

use crate::{
    Settings, detect::DetectError, onnx::OnnxModel, python::PythonModel, runtime::Config, trees::TreeModel,
};
use gantry_python::{Recognised, Route};
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

    /// `onnx`, `xgboost`, `lightgbm`, or the library of a model in Python.
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
    config: &Config,
) -> Result<Box<dyn Model>, LoadError> {
    // Folders of MLflow and others contain files that look like models.
    let whole = path.is_dir().then(|| gantry_python::recognise(path)).flatten();
    let found = match whole {
        Some(Recognised { route: Route::Builtin(_), file, .. }) => crate::detect(&file),
        Some(model) => return load_python(name, &model, settings, config),
        None => crate::detect(path),
    };
    let (file, format) = match found {
        Ok(found) => found,
        Err(error @ DetectError::NoModel { .. }) => match gantry_python::recognise_artifact(path) {
            Some(model) if !matches!(model.route, Route::Builtin(_)) => {
                return load_python(name, &model, settings, config);
            }
            _ => return Err(error.into()),
        },
        Err(error) => return Err(error.into()),
    };
    Ok(match format {
        crate::Format::Onnx => Box::new(OnnxModel::load(name, &file, settings, config.onnx_worker.as_ref())?),
        crate::Format::Trees(format) => Box::new(TreeModel::load(&file, format, settings)?),
    })
}

fn load_python(
    name: &str,
    model: &Recognised,
    settings: &Settings,
    config: &Config,
) -> Result<Box<dyn Model>, LoadError> {
    if let (Route::Python { loader, requirements }, Some(environments)) = (&model.route, &config.python) {
        let model = PythonModel::load(name, model, *loader, requirements, settings, environments)?;
        return Ok(Box::new(model));
    }
    let file = file_name(&model.file);
    Err(LoadError::Invalid { reason: model.refusal(&file), file })
}
