//! Loaded models by name.

use crate::{
    LoadError, Settings,
    executor::Loaded,
    memory::MemoryBudget,
    model,
    pool::{Pool, Queue},
};
use gantry_oip::{Limits, ModelMetadata, Parameter};
use gantry_tensor::{CancelToken, DataType, Elements, Tensor, TensorSpec};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// The first run of a model may take longer than the others.
const MIN_WARM_UP_TIME: std::time::Duration = std::time::Duration::from_secs(5);
/// Element limit of warm-up tensors.
const MAX_WARM_UP_ELEMENTS: usize = 1 << 22;

#[derive(Clone, Debug)]
pub struct Config {
    /// Cores that models may use which do not run inline.
    pub threads: usize,
    /// Queue limit of a model.
    pub queue: usize,
    pub limits: Limits,
    /// Limit of the bytes that large requests in flight need once they are decoded.
    pub request_memory: usize,
    /// Model repository for load requests; `None` disables them.
    pub repository: Option<PathBuf>,
    /// Runs networks without a memory bound in a subprocess; `None` runs them in process.
    pub onnx_worker: Option<gantry_onnx::WorkerCommand>,
    /// Where environments for models of Python libraries are kept; `None` refuses these models.
    pub python: Option<gantry_python::Environments>,
    /// Disabled unless an exporter is configured.
    pub tracer: gantry_trace::Tracer,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
            queue: 1024,
            limits: Limits::default(),
            request_memory: 1 << 30,
            repository: None,
            onnx_worker: None,
            python: None,
            tracer: gantry_trace::Tracer::off(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `onnx`, `xgboost`, `lightgbm`, or the library of a model in Python.
    pub platform: &'static str,
    /// The engine and the reason for its choice.
    pub engine: String,
    /// Estimate.
    pub memory_bytes: usize,
}

#[derive(Clone, Debug)]
pub struct Usage {
    pub statistics: gantry_oip::ModelStatistics,
    pub p50: Option<std::time::Duration>,
    pub p99: Option<std::time::Duration>,
}

type Models = HashMap<String, Arc<Loaded>>;

pub struct Runtime {
    models: RwLock<Models>,
    pub(crate) pool: Pool,
    /// Loads of the repository.
    pub(crate) loads: Queue,
    /// Unloaded models.
    frees: Queue,
    pub(crate) memory: MemoryBudget,
    pub(crate) config: Config,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("models", &self.read().len()).finish_non_exhaustive()
    }
}

impl Runtime {
    pub fn new(config: Config) -> std::io::Result<Self> {
        let pool = Pool::new(config.threads, config.queue)?;
        let memory = MemoryBudget::new(config.request_memory);
        let (loads, frees) = (Queue::new(false), Queue::new(false));
        Ok(Self { models: RwLock::default(), pool, loads, frees, memory, config })
    }

    /// Loads or replaces a model. Blocking.
    pub fn load<'a>(
        &self,
        name: &str,
        path: &Path,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<ModelInfo, LoadError> {
        let loaded = prepare(name, path, parameters, &self.config)?;
        let info = ModelInfo {
            platform: loaded.model.platform(),
            engine: loaded.model.engine(),
            memory_bytes: loaded.model.memory_bytes(),
        };
        tracing::debug!(model = name, engine = %info.engine, bytes = info.memory_bytes, "loaded");
        self.install(loaded);
        Ok(info)
    }

    /// Runs a loaded model on the calling thread, for its default outputs. Blocking.
    pub fn evaluate(&self, name: &str, inputs: &[Tensor]) -> Result<Vec<Tensor>, crate::InferenceError> {
        let loaded = self
            .get(name)
            .ok_or_else(|| crate::InferenceError::Request(format!("there is no model \"{name}\"")))?;
        loaded.run(inputs, &[], &CancelToken::default())
    }

    /// Requests in flight for a replaced model finish.
    pub(crate) fn install(&self, loaded: Arc<Loaded>) {
        let replaced = self.write().insert(loaded.name.clone(), loaded);
        self.free(replaced);
    }

    /// Returns whether the model was loaded. Requests in flight are cancelled.
    pub fn unload(&self, name: &str) -> bool {
        let removed = self.write().remove(name);
        if let Some(loaded) = &removed {
            loaded.close(&self.pool);
        }
        let found = removed.is_some();
        self.free(removed);
        found
    }

    /// Frees a large model on the pool: neither under the lock nor on the event loop.
    fn free(&self, loaded: Option<Arc<Loaded>>) {
        if let Some(loaded) = loaded {
            let _ = self.pool.submit(&self.frees, CancelToken::default(), move |_| drop(loaded));
        }
    }

    // The map stays consistent after a panic: each lock covers a single operation.
    fn read(&self) -> RwLockReadGuard<'_, Models> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Models> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Loaded>> {
        self.read().get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Loaded>> {
        let mut all: Vec<_> = self.read().values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    pub fn usage(&self) -> Vec<Usage> {
        let usage = |m: &Arc<Loaded>| Usage {
            statistics: m.statistics.report(&m.name, &m.version),
            p50: m.statistics.quantile(0.5),
            p99: m.statistics.quantile(0.99),
        };
        self.all().iter().map(usage).collect()
    }

    pub fn memory_bytes(&self) -> usize {
        self.read().values().map(|m| m.model.memory_bytes()).sum()
    }
}

/// Loads and warms up a model without publishing it.
pub(crate) fn prepare<'a>(
    name: &str,
    path: &Path,
    parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    config: &Config,
) -> Result<Arc<Loaded>, LoadError> {
    let settings = Settings::parse(parameters)?;
    let loaded = Loaded::new(name, model::load(name, path, &settings, config)?, &settings);
    loaded.warm_up(settings.max_run_time.max(MIN_WARM_UP_TIME)).map_err(|reason| {
        let file = crate::detect(path).map_or_else(|_| path.to_path_buf(), |(file, _)| file);
        LoadError::Invalid { file: model::file_name(&file), reason }
    })?;
    Ok(Arc::new(loaded))
}

pub(crate) fn metadata(loaded: &Loaded) -> ModelMetadata {
    let engine = Parameter::String(loaded.model.engine());
    ModelMetadata {
        name: loaded.name.clone(),
        versions: vec![loaded.version.clone()],
        platform: loaded.model.platform().to_owned(),
        inputs: loaded.model.inputs().to_vec(),
        outputs: loaded.model.outputs().to_vec(),
        parameters: [("engine".to_owned(), engine)].into(),
    }
}

/// A one-row tensor of zeros for a spec; `None` if too large.
pub(crate) fn zeros(spec: &TensorSpec) -> Option<Tensor> {
    let shape: Vec<usize> = spec.shape.iter().map(|&d| usize::try_from(d).unwrap_or(1)).collect();
    let count = gantry_tensor::shape_product(&shape).filter(|n| *n <= MAX_WARM_UP_ELEMENTS)?;
    let elements = match spec.datatype {
        DataType::Bool => Elements::Bool(vec![false; count]),
        DataType::Uint8 => Elements::Uint8(vec![0; count]),
        DataType::Uint16 => Elements::Uint16(vec![0; count]),
        DataType::Uint32 => Elements::Uint32(vec![0; count]),
        DataType::Uint64 => Elements::Uint64(vec![0; count]),
        DataType::Int8 => Elements::Int8(vec![0; count]),
        DataType::Int16 => Elements::Int16(vec![0; count]),
        DataType::Int32 => Elements::Int32(vec![0; count]),
        DataType::Int64 => Elements::Int64(vec![0; count]),
        DataType::Fp16 => Elements::Fp16(vec![0; count]),
        DataType::Bf16 => Elements::Bf16(vec![0; count]),
        DataType::Fp32 => Elements::Fp32(vec![0.0; count]),
        DataType::Fp64 => Elements::Fp64(vec![0.0; count]),
        DataType::Bytes => Elements::Bytes(vec![bytes::Bytes::new(); count]),
    };
    Tensor::new(&spec.name, shape, elements).ok()
}
