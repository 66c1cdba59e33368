//! A loaded model, and the choice of the engine that runs it.

use crate::complete::not_run_by_rten;
use crate::error::{LoadError, RunError};
use crate::external::{ExternalFiles, read_limited};
use crate::native::{
    Constants, OpError, Opsets, Plan, PlanError, UnsupportedOp, Value, View, Watch, cast, widen,
};
use crate::ort_engine::{self, OrtModel, RuntimeLibrary};
use crate::proto::{GraphProto, ModelProto, parse};
use crate::rten_engine::{Rejection, RtenModel, representable};
use crate::spec::Interface;
use crate::subprocess::{ModelFiles, RunLimits, SubprocessModel, WorkerCommand};
use gantry_tensor::{CancelToken, DataType, Elements, Tensor, TensorSpec};
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// How models are loaded and run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which engine to use.
    pub engine: EngineChoice,
    /// Threads that one run may use. With one, small models run fastest and concurrent runs do not
    /// compete.
    pub threads: usize,
    /// Where to look for ONNX Runtime.
    pub onnx_runtime: RuntimeLibrary,
    /// Bytes that a model may have, with the files it names.
    pub max_model_bytes: u64,
    /// Bytes that the values of one run may take at one time. For our evaluator and for rten in a worker.
    pub max_run_bytes: usize,
    /// Time limit of one run. For our evaluator and for rten in a worker.
    pub max_run_time: Duration,
    /// Command of rten's worker process. `None` runs rten in this process, without limits.
    pub worker: Option<WorkerCommand>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            threads: 1,
            onnx_runtime: RuntimeLibrary::Search,
            max_model_bytes: 4 << 30,
            max_run_bytes: 1 << 30,
            max_run_time: Duration::from_mins(1),
            worker: None,
        }
    }
}

/// Engine selection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// ONNX Runtime when it is there, else our evaluator when it has all operators, else rten.
    #[default]
    Auto,
    /// Our own evaluator.
    Native,
    /// rten.
    Rten,
    /// ONNX Runtime.
    OnnxRuntime,
}

/// The engine of a loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// Our own evaluator.
    Native,
    /// rten.
    Rten,
    /// ONNX Runtime.
    OnnxRuntime {
        /// The version of the library.
        version: String,
    },
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("built-in"),
            Self::Rten => f.write_str("rten"),
            Self::OnnxRuntime { version } => write!(f, "ONNX Runtime {version}"),
        }
    }
}

enum Loaded {
    Native(Box<Plan>),
    Rten(Box<RtenModel>),
    Subprocess(Box<SubprocessModel>),
    OnnxRuntime(Box<OrtModel>),
}

/// A model that is ready to run, from any number of threads at once.
pub struct Session {
    interface: Interface,
    loaded: Loaded,
    engine: Engine,
    why: String,
    bytes: usize,
    max_run_bytes: usize,
    max_run_time: Duration,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("engine", &self.engine)
            .field("inputs", &self.interface.inputs)
            .field("outputs", &self.interface.outputs)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Loads a model file. Weights in other files are read from the model's directory.
    pub fn load(path: impl AsRef<Path>, options: &Options) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let io = |error| LoadError::Io { path: path.to_path_buf(), error };
        let limit = options.max_model_bytes;
        let bytes =
            read_limited(path, limit).map_err(io)?.map_err(|bytes| LoadError::TooLarge { bytes, limit })?;
        load(&bytes, Some(path), options)
    }

    /// Loads a model from the bytes of its file.
    pub fn from_bytes(bytes: impl AsRef<[u8]>, options: &Options) -> Result<Self, LoadError> {
        let bytes = bytes.as_ref();
        let limit = options.max_model_bytes;
        if bytes.len() as u64 > limit {
            return Err(LoadError::TooLarge { bytes: bytes.len() as u64, limit });
        }
        load(bytes, None, options)
    }

    /// What the model takes.
    #[must_use]
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.interface.inputs
    }

    /// What the model gives. Maps from label to score are a matrix with a column for each label.
    #[must_use]
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.interface.outputs
    }

    /// Which engine runs the model.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Why this engine was chosen.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }

    /// About how many bytes the loaded model takes.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the model runs in a worker process.
    #[must_use]
    pub const fn is_subprocess(&self) -> bool {
        matches!(self.loaded, Loaded::Subprocess(_))
    }

    /// Pid of the worker process, if there is one.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        match &self.loaded {
            Loaded::Subprocess(model) => Some(model.process()),
            _ => None,
        }
    }

    /// Whether rows of several requests may be batched: the first dimension of every input and output is open.
    #[must_use]
    pub const fn batchable(&self) -> bool {
        self.interface.batchable
    }

    /// Checks tensors as a run does, without running.
    pub fn check(&self, inputs: &[Tensor]) -> Result<(), RunError> {
        self.interface.check(inputs).map(drop)
    }

    /// Runs the model. `wanted` are the names of outputs, all when empty; they come back in that order.
    pub fn run(&self, inputs: &[Tensor], wanted: &[&str]) -> Result<Vec<Tensor>, RunError> {
        self.run_until(inputs, wanted, &CancelToken::default())
    }

    /// As [`Self::run`]; a cancelled run ends early with [`RunError::Cancelled`]. rten in this process and ONNX
    /// Runtime only look before they start.
    pub fn run_until(
        &self,
        inputs: &[Tensor],
        wanted: &[&str],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, RunError> {
        let inputs = self.interface.check(inputs)?;
        let wanted = self.interface.wanted(wanted)?;
        match &self.loaded {
            Loaded::Native(plan) => self.run_native(plan, &inputs, &wanted, cancel),
            Loaded::Subprocess(model) => model.run(&inputs, &wanted, cancel),
            _ if cancel.is_cancelled() => Err(RunError::Cancelled),
            Loaded::Rten(model) => model.run(&inputs, &wanted, &self.interface.outputs),
            Loaded::OnnxRuntime(model) => model.run(&inputs, &wanted, &self.interface, cancel),
        }
    }

    fn run_native(
        &self,
        plan: &Plan,
        inputs: &[&Tensor],
        wanted: &[usize],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, RunError> {
        let wide: Vec<Elements>;
        let is_half = |t: &&Tensor| matches!(t.datatype(), DataType::Fp16 | DataType::Bf16);
        let views: Vec<View<'_>> = if inputs.iter().any(is_half) {
            wide = inputs.iter().map(|t| widen(t.elements().clone())).collect();
            inputs.iter().zip(&wide).map(|(t, data)| View { shape: t.shape(), data }).collect()
        } else {
            inputs.iter().map(|t| View { shape: t.shape(), data: t.elements() }).collect()
        };
        let watch = Watch::new(cancel, self.max_run_time);
        let results = plan.run(&views, self.max_run_bytes, &watch).map_err(|e| match e.error {
            OpError::Cancelled => RunError::Cancelled,
            error => RunError::Node { node: e.node, op: e.op, error },
        })?;
        let mut results: Vec<Option<Value>> = results.into_iter().map(Some).collect();
        wanted
            .iter()
            .enumerate()
            .filter_map(|(at, &i)| {
                // An output requested twice is copied the first time.
                let again = wanted.iter().skip(at + 1).any(|&j| j == i);
                let slot = results.get_mut(i)?;
                let value = if again { slot.clone() } else { slot.take() }?;
                Some((value, self.interface.outputs.get(i)?))
            })
            .map(|(value, spec)| {
                let failed = |message: String| RunError::Engine { engine: "built-in", message };
                let data = match (value.data, spec.datatype) {
                    (data @ Elements::Fp32(_), to @ (DataType::Fp16 | DataType::Bf16)) => {
                        cast(&watch, &data, to).map_err(|e| failed(e.to_string()))?
                    }
                    (data, _) => data,
                };
                Tensor::new(spec.name.clone(), value.shape, data).map_err(|e| failed(e.to_string()))
            })
            .collect()
    }
}

/// Whether the graph has an operator that rten does not support.
fn has_ml(graph: &GraphProto<'_>) -> bool {
    graph.nodes.iter().any(|n| n.domain == "ai.onnx.ml")
}

fn load(bytes: &[u8], path: Option<&Path>, options: &Options) -> Result<Session, LoadError> {
    let model = parse(bytes)?;
    let interface = Interface::new(&model)?;
    let left = options.max_model_bytes.saturating_sub(bytes.len() as u64);
    let mut external = ExternalFiles::new(path.and_then(Path::parent).map(directory_or_current), left);
    let constants = constants(&model, &mut external)?;
    let held = bytes.len() + usize::try_from(external.bytes()).unwrap_or(usize::MAX);

    let session = |interface, loaded, engine, why: String, bytes| Session {
        interface,
        loaded,
        engine,
        why,
        bytes,
        max_run_bytes: options.max_run_bytes,
        max_run_time: options.max_run_time,
    };

    let runtime = match options.engine {
        EngineChoice::Auto | EngineChoice::OnnxRuntime => ort_engine::find(&options.onnx_runtime),
        EngineChoice::Native => Err("the built-in evaluator was selected".to_owned()),
        EngineChoice::Rten => Err("rten was selected".to_owned()),
    };
    // Through the binding, ONNX Runtime takes no halves.
    let runtime = match (runtime, ort_engine::check_types(&interface)) {
        (Ok(_), Err(why)) if options.engine == EngineChoice::Auto => Err(why),
        (Ok(_), Err(why)) => return Err(LoadError::OnnxRuntime(why)),
        (runtime, _) => runtime,
    };
    let absent = match runtime {
        Ok(runtime) => {
            let from = path.filter(|_| !external.is_empty());
            let loaded = OrtModel::load(runtime, bytes, from, options.threads)?;
            let engine = Engine::OnnxRuntime { version: runtime.version.clone() };
            let why = format!("ONNX Runtime {} found at {}", runtime.version, runtime.path.display());
            return Ok(session(interface, Loaded::OnnxRuntime(Box::new(loaded)), engine, why, held));
        }
        Err(why) if options.engine == EngineChoice::OnnxRuntime => return Err(LoadError::OnnxRuntime(why)),
        Err(why) => why,
    };

    if let Some(feature) = unknown_feature(&model) {
        return Err(LoadError::Feature { feature });
    }
    check_versions(&model)?;
    let ml = has_ml(&model.graph);
    let wide = options.threads > 1 && !ml && options.engine == EngineChoice::Auto;
    if options.engine != EngineChoice::Rten {
        let names: Vec<&str> = interface.inputs.iter().map(|s| s.name.as_str()).collect();
        match Plan::new(&model.graph, &Opsets::new(&model.opsets), constants, &names) {
            Ok(plan) if !(wide && rten_supports(&model, &interface)) => {
                let size = held + plan.bytes();
                let why = format!("the built-in evaluator has every operator of the model; {absent}");
                return Ok(session(interface, Loaded::Native(Box::new(plan)), Engine::Native, why, size));
            }
            Ok(_) => {}
            Err(PlanError::Unsupported(ops)) => {
                let others_could = !ml && options.engine == EngineChoice::Auto;
                if !others_could || ops.iter().any(|op| !op.domain.is_empty()) {
                    return Err(LoadError::Unsupported { ops });
                }
            }
            // An invalid graph is invalid for rten too.
            Err(error) => return Err(error.into()),
        }
    }
    reject_bombs(&model.graph)?;
    let ops = not_run_by_rten(&model);
    if !ops.is_empty() {
        return Err(LoadError::Unsupported { ops });
    }
    let files = external.into_files();
    let why = if wide {
        format!("{} threads were configured; {absent}", options.threads)
    } else {
        format!("the model needs operators of rten; {absent}")
    };
    let rejected = |rejection| rejected_by_rten(rejection, &model);
    if let Some(command) = options.worker.clone() {
        let limits = RunLimits { run_bytes: options.max_run_bytes, run_time: options.max_run_time };
        let files = ModelFiles { model: bytes.to_vec(), files };
        let source = source(&files, path, options.max_model_bytes);
        let loaded =
            SubprocessModel::load(command, options.threads, limits, &files, source).map_err(rejected)?;
        let size = loaded.bytes();
        let why = format!("{why}; in a worker process");
        return Ok(session(interface, Loaded::Subprocess(Box::new(loaded)), Engine::Rten, why, size));
    }
    let loaded = RtenModel::load(bytes.to_vec(), files, &interface, options.threads).map_err(rejected)?;
    let size = loaded.bytes();
    Ok(session(interface, Loaded::Rten(Box::new(loaded)), Engine::Rten, why, size))
}

/// Reads the model again for a restart of the worker: from its files, or from a copy if it was loaded from bytes.
fn source(
    files: &ModelFiles,
    path: Option<&Path>,
    limit: u64,
) -> Box<dyn Fn() -> Result<ModelFiles, String> + Send + Sync> {
    let Some(path) = path.map(Path::to_path_buf) else {
        let model = files.model.clone();
        return Box::new(move || Ok(ModelFiles { model: model.clone(), files: HashMap::new() }));
    };
    Box::new(move || {
        let model = read_limited(&path, limit)
            .map_err(|e| e.to_string())?
            .map_err(|bytes| format!("the model now has {bytes} bytes"))?;
        let left = limit.saturating_sub(model.len() as u64);
        let mut external = ExternalFiles::new(path.parent().map(directory_or_current), left);
        constants(&parse(&model).map_err(|e| e.to_string())?, &mut external).map_err(|e| e.to_string())?;
        Ok(ModelFiles { files: external.into_files(), model })
    })
}

/// The directory of a file named without one is the current directory.
fn directory_or_current(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() { Path::new(".") } else { directory }
}

fn constants(model: &ModelProto<'_>, external: &mut ExternalFiles) -> Result<Constants, LoadError> {
    let mut constants = Constants::with_capacity(model.graph.initializers.len());
    for tensor in &model.graph.initializers {
        let bytes = external.get(tensor)?;
        let (shape, data) =
            tensor.load(bytes).map_err(|fault| LoadError::Tensor { name: tensor.name.to_owned(), fault })?;
        if constants.insert(tensor.name.to_owned(), Value::new(shape, widen(data))).is_some() {
            return Err(PlanError::Duplicate(tensor.name.to_owned()).into());
        }
    }
    Ok(constants)
}

/// The newest versions whose operators were compared with the reference.
const MAX_IR_VERSION: i64 = 13;
const MAX_OPSETS: [(&str, i64); 2] = [("ai.onnx", 25), ("ai.onnx.ml", 5)];

/// A newer version may have changed the meaning of an operator.
fn check_versions(model: &ModelProto<'_>) -> Result<(), LoadError> {
    let ir = ("IR version".to_owned(), model.ir_version, 0, MAX_IR_VERSION);
    let opsets = model.opsets.iter().filter_map(|&(domain, version)| {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        let (_, newest) = MAX_OPSETS.iter().find(|(d, _)| *d == domain)?;
        Some((format!("opset of {domain}"), version, 1, *newest))
    });
    match std::iter::once(ir)
        .chain(opsets)
        .find(|(_, version, oldest, newest)| !(*oldest..=*newest).contains(version))
    {
        None => Ok(()),
        Some((what, version, _, newest)) => Err(LoadError::Version { what, version, newest }),
    }
}

fn unknown_feature(model: &ModelProto<'_>) -> Option<&'static str> {
    if model.functions > 0 {
        Some("functions of its own (ModelProto.functions)")
    } else if model.graph.sparse_initializers > 0 {
        Some("sparse initializers")
    } else {
        None
    }
}

/// Whether rten has the datatypes of the model's inputs and outputs, and no operator that it cannot run.
fn rten_supports(model: &ModelProto<'_>, interface: &Interface) -> bool {
    let mut specs = interface.inputs.iter().chain(&interface.outputs);
    specs.all(|s| representable(s.datatype)) && not_run_by_rten(model).is_empty()
}

/// Elements that a constant of a network may have when the file gives only its shape.
const MAX_MADE_ELEMENTS: i64 = 1 << 28;

/// rten does not limit allocations. A constant shape larger than any real model needs is rejected here with the node's
/// name; the worker could only report that it ran out of memory.
fn reject_bombs(graph: &GraphProto<'_>) -> Result<(), LoadError> {
    for node in &graph.nodes {
        let shape_input = match node.op_type {
            "ConstantOfShape" => 0,
            "Expand" | "Tile" | "Resize" | "Upsample" | "Pad" | "Range" => 1,
            _ => continue,
        };
        let Some(&name) = node.inputs.get(shape_input) else { continue };
        let Some(tensor) = graph.initializers.iter().find(|t| t.name == name) else { continue };
        let Ok((_, Elements::Int64(sizes))) = tensor.load(None) else { continue };
        let product = sizes.iter().try_fold(1i64, |n, &d| n.checked_mul(d.saturating_abs().max(1)));
        if product.is_none_or(|n| n > MAX_MADE_ELEMENTS) {
            return Err(LoadError::Engine {
                engine: "rten",
                message: format!("node `{}` ({}) requests the size {sizes:?}", node.name, node.op_type),
            });
        }
    }
    Ok(())
}

/// Adds the operator and its version to the node that rten names.
fn rejected_by_rten(rejection: Rejection, model: &ModelProto<'_>) -> LoadError {
    let named = rejection.node.as_deref().unwrap_or("");
    match model.graph.nodes.iter().find(|n| n.name == named) {
        Some(node) if rejection.operator => LoadError::Unsupported {
            ops: vec![UnsupportedOp {
                op: node.op_type.to_owned(),
                domain: node.domain.to_owned(),
                opset: Opsets::new(&model.opsets).version(node.domain),
                node: named.to_owned(),
            }],
        },
        _ => LoadError::Engine { engine: "rten", message: rejection.message },
    }
}
