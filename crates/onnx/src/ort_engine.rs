//! ONNX Runtime, if its shared library is found.
//!
//! The library is searched once per process. A missing or invalid library is not an error: the built-in engines serve
//! instead, and [`find`] returns the reason.

use crate::error::{LoadError, RunError};
use crate::spec::{Interface, MapLabels};
use gantry_tensor::{CancelToken, DataType, Elements, Tensor, TensorSpec};
use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::{DynMapValueType, DynValue, TensorElementType, TensorRef};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Location of the library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuntimeLibrary {
    /// `ORT_DYLIB_PATH`, then a `libonnxruntime` beside the executable.
    #[default]
    Search,
    /// Do not use ONNX Runtime.
    Never,
    /// This file.
    At(PathBuf),
}

/// The library, loaded.
pub(crate) struct Runtime {
    environment: Environment,
    pub version: String,
    pub path: PathBuf,
}

/// The library, or the reason for its absence. The first call decides for the process: it can only be loaded once.
pub(crate) fn find(library: &RuntimeLibrary) -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let path = match library {
        RuntimeLibrary::Never => return Err("ONNX Runtime is switched off".to_owned()),
        RuntimeLibrary::At(path) => path.clone(),
        RuntimeLibrary::Search => search()?,
    };
    match RUNTIME.get_or_init(|| open(&path)) {
        Ok(runtime) if runtime.path == path => Ok(runtime),
        Ok(runtime) => {
            Err(format!("another ONNX Runtime is loaded already, from {}", runtime.path.display()))
        }
        Err(why) => Err(why.clone()),
    }
}

fn search() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH").filter(|p| !p.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    beside.as_deref().and_then(library_in).ok_or_else(|| {
        "ORT_DYLIB_PATH is not set and no ONNX Runtime library is beside the executable".to_owned()
    })
}

/// A file named like the library; the plain name before versioned ones.
fn library_in(directory: &Path) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
            name.starts_with("libonnxruntime.so")
                || (name.starts_with("libonnxruntime.") && path.extension().is_some_and(|e| e == "dylib"))
                || name == "onnxruntime.dll"
        })
        .collect();
    found.sort();
    found.into_iter().next()
}

fn open(path: &Path) -> Result<Runtime, String> {
    let shown = path.display();
    if !path.is_file() {
        return Err(format!("no ONNX Runtime library at {shown}"));
    }
    // The binding panics if the file is not ONNX Runtime.
    let attempt = catch_unwind(AssertUnwindSafe(|| -> Result<Runtime, String> {
        let environment = ort::init_from(path)
            .map_err(|e| e.to_string())?
            .with_name("gantry")
            .with_telemetry(false)
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Runtime { environment, version: version(path), path: path.to_path_buf() })
    }));
    match attempt {
        Ok(Ok(runtime)) => Ok(runtime),
        Ok(Err(why)) => Err(format!("the ONNX Runtime library at {shown} is not usable: {why}")),
        Err(_) => Err(format!("the ONNX Runtime library at {shown} is not usable")),
    }
}

/// The version, from the library's file name or its build info.
fn version(path: &Path) -> String {
    let numbers = |text: &str| -> Option<String> {
        let digits: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let digits = digits.trim_matches('.');
        digits.contains('.').then(|| digits.to_owned())
    };
    let name = path.canonicalize().ok();
    let name = name.as_deref().and_then(Path::file_name).and_then(|n| n.to_str()).unwrap_or("");
    name.split_once(".so.")
        .and_then(|(_, rest)| numbers(rest))
        .or_else(|| ort::info().split_once("git-branch=rel-").and_then(|(_, rest)| numbers(rest)))
        .unwrap_or_else(|| "of unknown version".to_owned())
}

/// A model that ONNX Runtime runs.
pub(crate) struct OrtModel {
    // The binding requires exclusive access to a session; runs of one model are serialized.
    session: Mutex<Session>,
}

impl OrtModel {
    pub(crate) fn load(
        runtime: &Runtime,
        bytes: &[u8],
        path: Option<&Path>,
        threads: usize,
    ) -> Result<Self, LoadError> {
        let load = || -> Result<Session, String> {
            let mut builder = Session::builder(&runtime.environment)
                .map_err(|e| e.to_string())?
                .with_intra_threads(threads.max(1))
                .map_err(|e| e.to_string())?
                .with_intra_op_spinning(false)
                .map_err(|e| e.to_string())?;
            match path {
                // Weights beside the model are found only from its path.
                Some(path) => builder.commit_from_file(path).map_err(|e| e.to_string()),
                None => builder.commit_from_memory(bytes).map_err(|e| e.to_string()),
            }
        };
        let session = catch_unwind(AssertUnwindSafe(load))
            .map_err(|_| LoadError::OnnxRuntime("the library gave up on the model".to_owned()))?
            .map_err(LoadError::OnnxRuntime)?;
        Ok(Self { session: Mutex::new(session) })
    }

    pub(crate) fn run(
        &self,
        inputs: &[&Tensor],
        wanted: &[usize],
        interface: &Interface,
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, RunError> {
        let run = || -> Result<Vec<Tensor>, RunError> {
            let given: Vec<(String, SessionInputValue<'_>)> = inputs
                .iter()
                .map(|t| Ok((t.name().to_owned(), input(t)?)))
                .collect::<Result<_, RunError>>()?;
            let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            // The wait for other runs may have been long.
            if cancel.is_cancelled() {
                return Err(RunError::Cancelled);
            }
            let outputs = session.run(given).map_err(failed)?;
            wanted
                .iter()
                .filter_map(|&i| interface.outputs.get(i).zip(interface.map_labels.get(i)))
                .map(|(spec, labels)| {
                    let value = outputs
                        .get(&spec.name)
                        .ok_or_else(|| failed(format!("missing output {}", spec.name)))?;
                    output(value, spec, labels.as_ref())
                })
                .collect()
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(failed("the library gave up")))
    }
}

fn failed(message: impl std::fmt::Display) -> RunError {
    RunError::Engine { engine: "ONNX Runtime", message: message.to_string() }
}

/// The caller's tensor, borrowed where ONNX Runtime takes the type.
fn input(tensor: &Tensor) -> Result<SessionInputValue<'_>, RunError> {
    macro_rules! borrowed {
        ($v:expr) => {
            TensorRef::from_array_view((tensor.shape(), $v.as_slice())).map_err(failed)?.into()
        };
    }
    Ok(match tensor.elements() {
        Elements::Fp32(v) => borrowed!(v),
        Elements::Fp64(v) => borrowed!(v),
        Elements::Int64(v) => borrowed!(v),
        Elements::Int32(v) => borrowed!(v),
        Elements::Int16(v) => borrowed!(v),
        Elements::Int8(v) => borrowed!(v),
        Elements::Uint64(v) => borrowed!(v),
        Elements::Uint32(v) => borrowed!(v),
        Elements::Uint16(v) => borrowed!(v),
        Elements::Uint8(v) => borrowed!(v),
        Elements::Bool(v) => borrowed!(v),
        Elements::Bytes(v) => {
            let texts: Vec<String> = v
                .iter()
                .map(|t| {
                    std::str::from_utf8(t)
                        .map(str::to_owned)
                        .map_err(|_| failed(format!("input {} is not UTF-8", tensor.name())))
                })
                .collect::<Result<_, _>>()?;
            ort::value::Tensor::from_string_array((tensor.shape(), texts.as_slice())).map_err(failed)?.into()
        }
        Elements::Fp16(_) | Elements::Bf16(_) => {
            return Err(failed(format!("input {}: {} is not supported", tensor.name(), tensor.datatype())));
        }
    })
}

fn output(value: &DynValue, spec: &TensorSpec, labels: Option<&MapLabels>) -> Result<Tensor, RunError> {
    macro_rules! extracted {
        ($t:ty, $variant:ident) => {{
            let (shape, data) = value.try_extract_tensor::<$t>().map_err(failed)?;
            (sizes(shape), Elements::$variant(data.to_vec()))
        }};
    }
    let (shape, elements) = match value.dtype().tensor_type() {
        None => rows_of_maps(value, labels)?,
        Some(TensorElementType::Float32) => extracted!(f32, Fp32),
        Some(TensorElementType::Float64) => extracted!(f64, Fp64),
        Some(TensorElementType::Int64) => extracted!(i64, Int64),
        Some(TensorElementType::Int32) => extracted!(i32, Int32),
        Some(TensorElementType::Int16) => extracted!(i16, Int16),
        Some(TensorElementType::Int8) => extracted!(i8, Int8),
        Some(TensorElementType::Uint64) => extracted!(u64, Uint64),
        Some(TensorElementType::Uint32) => extracted!(u32, Uint32),
        Some(TensorElementType::Uint16) => extracted!(u16, Uint16),
        Some(TensorElementType::Uint8) => extracted!(u8, Uint8),
        Some(TensorElementType::Bool) => extracted!(bool, Bool),
        Some(TensorElementType::String) => {
            let (shape, texts) = value.try_extract_strings().map_err(failed)?;
            (sizes(shape), Elements::Bytes(texts.into_iter().map(Into::into).collect()))
        }
        Some(other) => return Err(failed(format!("output {}: {other} is not supported", spec.name))),
    };
    Tensor::new(spec.name.clone(), shape, elements).map_err(failed)
}

fn sizes(shape: &[i64]) -> Vec<usize> {
    shape.iter().map(|&d| usize::try_from(d).unwrap_or(0)).collect()
}

/// A sequence of maps from label to score, one map for each row, as a matrix with the columns in label order.
fn rows_of_maps(value: &DynValue, labels: Option<&MapLabels>) -> Result<(Vec<usize>, Elements), RunError> {
    let unknown = || failed("an output is neither a tensor nor a sequence of label maps");
    let labels = labels.ok_or_else(unknown)?;
    let maps = value
        .view()
        .downcast::<ort::value::DynSequenceValueType>()
        .map_err(failed)?
        .try_extract_sequence::<DynMapValueType>()
        .map_err(failed)?;
    let mut scores = Vec::new();
    for map in &maps {
        let row: Vec<Option<f32>> = match labels {
            MapLabels::Ints(labels) => {
                let map = map.try_extract_map::<i64, f32>().map_err(failed)?;
                labels.iter().map(|l| map.get(l).copied()).collect()
            }
            MapLabels::Texts(labels) => {
                let map = map.try_extract_map::<String, f32>().map_err(failed)?;
                labels.iter().map(|l| map.get(l).copied()).collect()
            }
        };
        for score in row {
            scores.push(score.ok_or_else(unknown)?);
        }
    }
    let width = scores.len().checked_div(maps.len()).unwrap_or(0);
    Ok((vec![maps.len(), width], Elements::Fp32(scores)))
}

/// Whether ONNX Runtime can be given and give back these types.
pub(crate) fn check_types(interface: &Interface) -> Result<(), String> {
    let specs = interface.inputs.iter().chain(&interface.outputs);
    match specs.into_iter().find(|s| matches!(s.datatype, DataType::Fp16 | DataType::Bf16)) {
        None => Ok(()),
        Some(spec) => {
            Err(format!("`{}` is {}, which is not supported through ONNX Runtime", spec.name, spec.datatype))
        }
    }
}
