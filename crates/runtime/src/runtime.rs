//! Models by name: load, unload, look up.

use crate::{LoadError, Settings, executor::Loaded, model, pool::Pool};
use gantry_oip::{Limits, ModelMetadata, Parameter};
use gantry_tensor::{DataType, Elements, Tensor, TensorSpec};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// Most elements of a tensor that is made only to warm a model up.
const MOST_ZEROS: usize = 1 << 22;

/// How the runtime works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads for models that take longer than a moment.
    pub threads: usize,
    /// Requests that may wait for such a thread.
    pub queue: usize,
    /// What a request may ask for.
    pub limits: Limits,
    /// Where models are that can be loaded by name over the protocol; `None` switches that off.
    pub repository: Option<PathBuf>,
    /// How to start the process that a network runs in which may take more than it should; `None` runs it in this one.
    pub apart: Option<gantry_onnx::Apart>,
    /// Makes spans of requests; off unless somebody takes them.
    pub tracer: gantry_trace::Tracer,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
            queue: 1024,
            limits: Limits::default(),
            repository: None,
            apart: None,
            tracer: gantry_trace::Tracer::off(),
        }
    }
}

/// What there is to say about a model that was loaded.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `onnx`, `xgboost` or `lightgbm`.
    pub platform: &'static str,
    /// Which engine runs it, and why.
    pub engine: String,
    /// About how much memory it takes.
    pub memory_bytes: usize,
}

/// What a model has done so far.
#[derive(Clone, Debug)]
pub struct Usage {
    /// Counts and sums.
    pub statistics: gantry_oip::ModelStatistics,
    /// The time within which half of the requests were answered.
    pub p50: Option<std::time::Duration>,
    /// The time within which 99 of 100 requests were answered.
    pub p99: Option<std::time::Duration>,
}

type Models = HashMap<String, Arc<Loaded>>;

/// The inference server, in this process.
pub struct Runtime {
    models: RwLock<Models>,
    pub(crate) pool: Pool,
    pub(crate) config: Config,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("models", &self.read().len()).finish_non_exhaustive()
    }
}

impl Runtime {
    /// A runtime without models.
    pub fn new(config: Config) -> std::io::Result<Self> {
        let pool = Pool::new(config.threads, config.queue)?;
        Ok(Self { models: RwLock::default(), pool, config })
    }

    /// Loads a model under a name, in the place of one that has it. Reads files: not for a thread that must not wait.
    pub fn load<'a>(
        &self,
        name: &str,
        path: &Path,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<ModelInfo, LoadError> {
        let loaded = prepare(name, path, parameters, self.config.apart.as_ref())?;
        let info = ModelInfo {
            platform: loaded.model.platform(),
            engine: loaded.model.engine(),
            memory_bytes: loaded.model.memory_bytes(),
        };
        tracing::debug!(model = name, engine = %info.engine, bytes = info.memory_bytes, "loaded");
        self.install(loaded);
        Ok(info)
    }

    pub(crate) fn install(&self, loaded: Arc<Loaded>) {
        self.write().insert(loaded.name.clone(), loaded);
    }

    /// Unloads a model; false when there was none. Requests that run on it finish.
    pub fn unload(&self, name: &str) -> bool {
        self.write().remove(name).is_some()
    }

    // The map is whole at every moment, also after a panic elsewhere; the lock is held for one look-up or change.
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

    /// What each model has done so far.
    pub fn usage(&self) -> Vec<Usage> {
        let usage = |m: &Arc<Loaded>| Usage {
            statistics: m.statistics.report(&m.name, &m.version),
            p50: m.statistics.quantile(0.5),
            p99: m.statistics.quantile(0.99),
        };
        self.all().iter().map(usage).collect()
    }

    /// Memory that all models take together.
    pub fn memory_bytes(&self) -> usize {
        self.read().values().map(|m| m.model.memory_bytes()).sum()
    }
}

/// Reads a model and warms it up, without making it known to anybody yet.
pub(crate) fn prepare<'a>(
    name: &str,
    path: &Path,
    parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    apart: Option<&gantry_onnx::Apart>,
) -> Result<Arc<Loaded>, LoadError> {
    let settings = Settings::parse(parameters)?;
    let loaded = Loaded::new(name, model::load(name, path, &settings, apart)?, &settings);
    loaded.warm_up();
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

/// A tensor of zeros that fits, with one row; `None` when it would be large.
pub(crate) fn zeros(spec: &TensorSpec) -> Option<Tensor> {
    let shape: Vec<usize> = spec.shape.iter().map(|&d| usize::try_from(d).unwrap_or(1)).collect();
    let count = gantry_tensor::shape_product(&shape).filter(|n| *n <= MOST_ZEROS)?;
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
