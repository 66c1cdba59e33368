//! ONNX models.

use crate::{InferenceError, LoadError, Model, Settings};
use gantry_onnx::{Options, RunError, Session, WorkerCommand};
use gantry_tensor::{CancelToken, Tensor, TensorSpec};
use std::path::Path;

pub(crate) struct OnnxModel {
    name: String,
    session: Session,
}

impl OnnxModel {
    pub(crate) fn load(
        name: &str,
        file: &Path,
        settings: &Settings,
        worker: Option<&WorkerCommand>,
    ) -> Result<Self, LoadError> {
        let options = Options {
            threads: settings.threads,
            max_run_bytes: settings.max_run_memory,
            max_run_time: settings.max_run_time,
            worker: worker.cloned(),
            ..Options::default()
        };
        let session = Session::load(file, &options)
            .map_err(|e| LoadError::Invalid { file: crate::model::file_name(file), reason: e.to_string() })?;
        Ok(Self { name: name.to_owned(), session })
    }
}

impl Model for OnnxModel {
    fn inputs(&self) -> &[TensorSpec] {
        self.session.inputs()
    }

    fn outputs(&self) -> &[TensorSpec] {
        self.session.outputs()
    }

    fn platform(&self) -> &'static str {
        "onnx"
    }

    fn engine(&self) -> String {
        format!("{}: {}", self.session.engine(), self.session.why())
    }

    fn memory_bytes(&self) -> usize {
        self.session.memory_bytes()
    }

    fn batchable(&self) -> bool {
        self.session.batchable()
    }

    fn may_block(&self) -> bool {
        self.session.is_subprocess()
    }

    fn infer(
        &self,
        inputs: &[Tensor],
        wanted: &[&str],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, InferenceError> {
        self.session.run_until(inputs, wanted, cancel).map_err(|error| match &error {
            RunError::Cancelled => InferenceError::Cancelled,
            RunError::Unavailable { .. } => InferenceError::Unavailable(error.to_string()),
            RunError::Node { .. } | RunError::Engine { .. } => InferenceError::Model(error.to_string()),
            RunError::Ended { reason } => {
                // Internal names are `<model>_<version>`.
                let number = |v: &str| v.bytes().all(|b| b.is_ascii_digit());
                let (model, version) =
                    self.name.rsplit_once('_').filter(|(_, v)| number(v)).unwrap_or((&self.name, "1"));
                tracing::warn!(model, version, reason, "onnx worker process ended");
                InferenceError::Model(error.to_string())
            }
            _ => InferenceError::Request(error.to_string()),
        })
    }
}
