//! Neural networks through `rten`, a pure-Rust engine with SIMD kernels.
//!
//! rten knows four element types: `f32`, `i32`, `i8` and `u8`. ONNX's `int64` and `bool` become `i32` inside, and
//! come back as what the model declares.

use crate::complete::complete;
use crate::error::RunError;
use crate::native::{Watch, cast};
use crate::spec::Interface;
use gantry_tensor::{CancelToken, DataType, Elements, Tensor, TensorSpec, f16_to_f32};
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::TensorView;
use rten_tensor::prelude::*;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A model that rten runs.
pub(crate) struct RtenModel {
    model: Model,
    inputs: Vec<NodeId>,
    outputs: Vec<NodeId>,
    /// A pool of the model's own; `None` when it shares the lanes.
    pool: Option<Arc<ThreadPool>>,
}

impl RtenModel {
    /// Loads the bytes of an ONNX file; `external` are the files that it names, by name.
    pub(crate) fn load(
        bytes: Vec<u8>,
        external: HashMap<String, Vec<u8>>,
        interface: &Interface,
        threads: usize,
    ) -> Result<Self, Rejection> {
        for (role, specs) in [("input", &interface.inputs), ("output", &interface.outputs)] {
            if let Some(spec) = specs.iter().find(|s| !representable(s.datatype)) {
                return Err(engine(format!("{role} `{}` is {}", spec.name, spec.datatype)));
            }
        }
        let load = || {
            let mut options = ModelOptions::with_all_ops();
            options.prepack_weights(true);
            for (name, bytes) in external {
                options.external_data(&name, bytes);
            }
            options.load(complete(bytes))
        };
        let model = catch_unwind(AssertUnwindSafe(load))
            .map_err(|panic| engine(panic_text(&*panic)))?
            .map_err(|e| Rejection {
                node: e.node().map(str::to_owned),
                operator: e.kind() == rten::LoadErrorKind::OperatorInvalid,
                message: e.to_string(),
            })?;
        let find = |spec: &TensorSpec| {
            model
                .find_node(&spec.name)
                .ok_or_else(|| engine(format!("`{}` is not in the loaded graph", spec.name)))
        };
        Ok(Self {
            inputs: interface.inputs.iter().map(find).collect::<Result<_, _>>()?,
            outputs: interface.outputs.iter().map(find).collect::<Result<_, _>>()?,
            pool: (threads > 1).then(|| Arc::new(ThreadPool::with_num_threads(threads))),
            model,
        })
    }

    /// Bytes that the parameters take, with their copies laid out for the kernels.
    pub(crate) fn bytes(&self) -> usize {
        self.model.total_params().saturating_mul(8)
    }

    pub(crate) fn run(
        &self,
        inputs: &[&Tensor],
        wanted: &[usize],
        specs: &[TensorSpec],
    ) -> Result<Vec<Tensor>, RunError> {
        let given: Vec<(NodeId, ValueOrView<'_>)> = self
            .inputs
            .iter()
            .zip(inputs)
            .map(|(&id, tensor)| Ok((id, value(tensor)?)))
            .collect::<Result<_, RunError>>()?;
        let outputs: Vec<NodeId> = wanted.iter().filter_map(|&i| self.outputs.get(i).copied()).collect();
        let lane = self.pool.is_none().then(Lane::take);
        let pool = self.pool.clone().or_else(|| lane.as_ref().map(|l| Arc::clone(&l.lane.pool)));
        let options = RunOptions::default().with_thread_pool(pool);
        let results = catch_unwind(AssertUnwindSafe(|| self.model.run(given, &outputs, Some(options))))
            .map_err(|panic| failed(panic_text(&*panic)))?
            .map_err(|e| failed(e.to_string()))?;
        results
            .into_iter()
            .zip(wanted.iter().filter_map(|&i| specs.get(i)))
            .map(|(value, spec)| tensor(value, spec))
            .collect()
    }
}

/// Threads that each run one model at a time. A small model runs faster on one thread than on several, and
/// requests run beside each other.
struct Lane {
    pool: Arc<ThreadPool>,
    busy: AtomicUsize,
}

/// A lane in use.
struct Taken {
    lane: &'static Lane,
}

impl Lane {
    fn take() -> Taken {
        static LANES: OnceLock<Vec<Lane>> = OnceLock::new();
        static FALLBACK: OnceLock<Lane> = OnceLock::new();
        let make = || Lane { pool: Arc::new(ThreadPool::with_num_threads(1)), busy: AtomicUsize::new(0) };
        let lanes = LANES.get_or_init(|| {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            (0..count).map(|_| make()).collect()
        });
        let lane = lanes
            .iter()
            .min_by_key(|l| l.busy.load(Ordering::Relaxed))
            .unwrap_or_else(|| FALLBACK.get_or_init(make));
        lane.busy.fetch_add(1, Ordering::Relaxed);
        Taken { lane }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.lane.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether values of this type can be given to rten and come back.
pub(crate) const fn representable(datatype: DataType) -> bool {
    !matches!(datatype, DataType::Fp64 | DataType::Bytes | DataType::Uint64 | DataType::Bf16)
}

/// rten's reason for rejecting a model.
pub(crate) struct Rejection {
    /// The rejected node.
    pub node: Option<String>,
    /// Whether the operator of that node is the reason.
    pub operator: bool,
    pub message: String,
}

const fn engine(message: String) -> Rejection {
    Rejection { node: None, operator: false, message }
}

fn failed(message: String) -> RunError {
    RunError::rten(message)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the engine gave up: {}", text.unwrap_or_default())
}

/// The caller's tensor as rten takes it, without a copy where the types agree.
fn value(tensor: &Tensor) -> Result<ValueOrView<'_>, RunError> {
    fn view<'a, T>(tensor: &'a Tensor, data: &'a [T]) -> Result<TensorView<'a, T>, RunError> {
        TensorView::try_from_data(tensor.shape(), data).map_err(|e| failed(format!("{e:?}")))
    }
    let narrow = |values: Vec<i32>| -> Result<ValueOrView<'_>, RunError> {
        let owned = rten_tensor::Tensor::try_from_data(tensor.shape(), values);
        Ok(Value::from(owned.map_err(|e| failed(format!("{e:?}")))?).into())
    };
    match tensor.elements() {
        Elements::Fp32(v) => Ok(view(tensor, v)?.into()),
        Elements::Int32(v) => Ok(view(tensor, v)?.into()),
        Elements::Int8(v) => Ok(view(tensor, v)?.into()),
        Elements::Uint8(v) => Ok(view(tensor, v)?.into()),
        Elements::Int64(v) => {
            let small: Result<Vec<i32>, _> = v.iter().map(|&x| i32::try_from(x)).collect();
            narrow(small.map_err(|_| {
                failed(format!("input {} has a value that does not fit in 32 bits", tensor.name()))
            })?)
        }
        Elements::Bool(v) => narrow(v.iter().map(|&x| i32::from(x)).collect()),
        Elements::Int16(v) => narrow(v.iter().map(|&x| i32::from(x)).collect()),
        Elements::Uint16(v) => narrow(v.iter().map(|&x| i32::from(x)).collect()),
        Elements::Uint32(v) => {
            let small: Result<Vec<i32>, _> = v.iter().map(|&x| i32::try_from(x)).collect();
            narrow(small.map_err(|_| {
                failed(format!("input {} has a value that does not fit in 31 bits", tensor.name()))
            })?)
        }
        Elements::Fp16(v) => {
            let wide: Vec<f32> = v.iter().map(|&x| f16_to_f32(x)).collect();
            let owned = rten_tensor::Tensor::try_from_data(tensor.shape(), wide);
            Ok(Value::from(owned.map_err(|e| failed(format!("{e:?}")))?).into())
        }
        other => Err(failed(format!("{} is not a type of this engine", other.datatype()))),
    }
}

/// rten's result in the datatype that the model declares.
fn tensor(value: Value, spec: &TensorSpec) -> Result<Tensor, RunError> {
    let (shape, elements) = match value {
        Value::FloatTensor(t) => (t.shape().to_vec(), Elements::Fp32(t.into_data())),
        Value::Int32Tensor(t) => (t.shape().to_vec(), Elements::Int32(t.into_data())),
        Value::Int8Tensor(t) => (t.shape().to_vec(), Elements::Int8(t.into_data())),
        Value::UInt8Tensor(t) => (t.shape().to_vec(), Elements::Uint8(t.into_data())),
        _ => return Err(failed(format!("output {} is no tensor", spec.name))),
    };
    let elements = if elements.datatype() == spec.datatype {
        elements
    } else {
        let unlimited = CancelToken::default();
        cast(&Watch::new(&unlimited, Duration::MAX), &elements, spec.datatype)
            .map_err(|e| failed(e.to_string()))?
    };
    Tensor::new(spec.name.clone(), shape, elements).map_err(|e| failed(e.to_string()))
}
