//! Models of Python libraries, each in a Python process of its own. Only with the user's permission.

use crate::{InferenceError, LoadError, Model, Settings, model::file_name, runtime::zeros};
use gantry_python::{Environments, Host, HostConfig, HostError, Loader, Recognised, Requirements};
use gantry_tensor::{CancelToken, DataType, Tensor, TensorSpec};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Memory of a process while it loads: a library, the file, and what becomes of it.
const LOAD_MEMORY: u64 = 8 << 30;
const COPIES: u64 = 8;
/// Large libraries take most of it.
const LOAD_TIME: Duration = Duration::from_mins(5);

pub(crate) struct PythonModel {
    host: Host,
    platform: &'static str,
    engine: String,
    outputs: Vec<TensorSpec>,
}

impl PythonModel {
    pub(crate) fn load(
        name: &str,
        model: &Recognised,
        loader: Loader,
        requirements: &Requirements,
        settings: &Settings,
        environments: &Environments,
    ) -> Result<Self, LoadError> {
        let file = || file_name(&model.file);
        let environment = environments
            .prepare(requirements, &mut |line| tracing::info!(model = name, "{line}"))
            // The index may answer the next time.
            .map_err(|e| LoadError::Io { file: file(), source: std::io::Error::other(e.to_string()) })?;
        let size = std::fs::metadata(&model.file).map_or(0, |meta| meta.len());
        let config = HostConfig {
            model: name.to_owned(),
            python: environment.python(),
            loader: loader.name(),
            // The process has a working directory of its own.
            file: absolute(&model.file),
            import_path: model.import_path().as_deref().map(absolute),
            threads: settings.threads,
            load_memory: LOAD_MEMORY.saturating_add(COPIES.saturating_mul(size)),
            run_memory: settings.max_run_memory as u64,
            load_time: LOAD_TIME,
            run_time: settings.max_run_time,
        };
        let host =
            Host::start(config).map_err(|e| LoadError::Invalid { file: file(), reason: e.to_string() })?;
        let library = library(requirements, &environment);
        let network = if host.description().isolated { "without network" } else { "with network" };
        let engine = format!("Python {}: {library}, in a process {network}", environment.version());
        let outputs = outputs(&host);
        Ok(Self { host, platform: loader.platform(), engine, outputs })
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The first package, as it is installed.
fn library(requirements: &Requirements, environment: &gantry_python::Environment) -> String {
    let end = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    let name =
        requirements.packages.first().and_then(|package| package.split(end).next()).unwrap_or_default();
    let version = environment.installed(name).unwrap_or_default();
    format!("{name} {version}").trim().to_owned()
}

/// Shapes and datatypes of the outputs, by a run on zeros. Its failure is reported by the warm-up.
fn outputs(host: &Host) -> Vec<TensorSpec> {
    let description = host.description();
    let inputs: Option<Vec<Tensor>> = description.inputs.iter().map(zeros).collect();
    let found = inputs.and_then(|inputs| host.infer(&inputs, &[], &CancelToken::default()).ok());
    let spec = |tensor: &Tensor| {
        let mut shape: Vec<i64> =
            tensor.shape().iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect();
        if let Some(rows) = shape.first_mut() {
            *rows = -1;
        }
        TensorSpec { name: tensor.name().to_owned(), datatype: tensor.datatype(), shape }
    };
    let unknown =
        |name: &String| TensorSpec { name: name.clone(), datatype: DataType::Fp64, shape: vec![-1] };
    found.map_or_else(
        || description.outputs.iter().map(unknown).collect(),
        |tensors| tensors.iter().map(spec).collect(),
    )
}

impl Model for PythonModel {
    fn inputs(&self) -> &[TensorSpec] {
        &self.host.description().inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn platform(&self) -> &'static str {
        self.platform
    }

    fn engine(&self) -> String {
        self.engine.clone()
    }

    fn memory_bytes(&self) -> usize {
        self.host.description().memory
    }

    fn batchable(&self) -> bool {
        let by_rows = |spec: &TensorSpec| spec.shape.first() == Some(&-1);
        self.inputs().iter().all(by_rows) && self.outputs.iter().all(by_rows)
    }

    fn may_block(&self) -> bool {
        true
    }

    fn infer(
        &self,
        inputs: &[Tensor],
        wanted: &[&str],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, InferenceError> {
        self.host.infer(inputs, wanted, cancel).map_err(|error| match error {
            HostError::Request(reason) => InferenceError::Request(reason),
            HostError::Model(reason) | HostError::Load(reason) => InferenceError::Model(reason),
            HostError::Unavailable(reason) => InferenceError::Unavailable(reason),
            HostError::Cancelled => InferenceError::Cancelled,
        })
    }
}
