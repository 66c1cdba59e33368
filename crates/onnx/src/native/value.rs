//! Tensors inside a run, and the errors of operators.

use super::watch::Watch;
use gantry_tensor::{DataType, Elements, shape_product};
use std::borrow::Cow;
use std::time::Duration;

/// An operator could not be prepared or run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum OpError {
    #[error("input {0} is missing")]
    MissingInput(usize),
    #[error("input {index} is {got}, which this operator does not take")]
    Datatype { index: usize, got: DataType },
    #[error("{0}")]
    Shape(String),
    #[error("a result of shape {shape:?} is larger than the limit of {limit} bytes")]
    TooLarge { shape: Vec<usize>, limit: usize },
    #[error("attribute `{name}` {problem}")]
    Attribute { name: String, problem: String },
    #[error("{0}")]
    Value(String),
    #[error("the run was cancelled")]
    Cancelled,
    #[error(
        "the run exceeded the time limit of {} s and was stopped; raise the parameter max_run_time",
        .0.as_secs_f64()
    )]
    TimeLimit(Duration),
}

impl OpError {
    pub(crate) fn attribute(name: &str, problem: impl Into<String>) -> Self {
        Self::Attribute { name: name.to_owned(), problem: problem.into() }
    }
}

/// A tensor that a run owns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value {
    pub shape: Vec<usize>,
    pub data: Elements,
}

impl Value {
    pub(crate) fn new(shape: impl Into<Vec<usize>>, data: Elements) -> Self {
        Self { shape: shape.into(), data }
    }

    pub(crate) fn f32(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Self {
        Self::new(shape, Elements::Fp32(data))
    }

    pub(crate) fn i64(shape: impl Into<Vec<usize>>, data: Vec<i64>) -> Self {
        Self::new(shape, Elements::Int64(data))
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { shape: &self.shape, data: &self.data }
    }

    /// Bytes of memory that the elements take.
    pub(crate) fn bytes(&self) -> usize {
        match &self.data {
            Elements::Bytes(texts) => {
                size_of_val(texts.as_slice()) + texts.iter().map(bytes::Bytes::len).sum::<usize>()
            }
            other => other.len() * other.datatype().size().unwrap_or(0),
        }
    }
}

/// A borrowed tensor: of the caller, a constant of the model, or the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub shape: &'a [usize],
    pub data: &'a Elements,
}

impl<'a> View<'a> {
    pub(crate) fn to_value(self) -> Value {
        Value { shape: self.shape.to_vec(), data: self.data.clone() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.data.len()
    }

    pub(crate) const fn rank(&self) -> usize {
        self.shape.len()
    }

    /// As rows and columns: one dimension is a single row, as the `ai.onnx.ml` operators have it.
    pub(crate) fn rows(&self) -> Result<(usize, usize), OpError> {
        match *self.shape {
            [columns] => Ok((1, columns)),
            [rows, columns] => Ok((rows, columns)),
            _ => Err(OpError::Shape(format!("expected one or two dimensions, got shape {:?}", self.shape))),
        }
    }

    /// As `f32`; a copy when the elements are other numbers.
    pub(crate) fn floats(&self) -> Result<Cow<'a, [f32]>, OpError> {
        self.data.to_f32().ok_or(OpError::Datatype { index: 0, got: DataType::Bytes })
    }

    /// Integers as shapes, axes or indices.
    pub(crate) fn integers(&self) -> Result<Cow<'a, [i64]>, OpError> {
        match self.data {
            Elements::Int64(v) => Ok(Cow::Borrowed(v)),
            Elements::Int32(v) => Ok(v.iter().map(|&x| i64::from(x)).collect()),
            Elements::Bool(v) => Ok(v.iter().map(|&x| i64::from(x)).collect()),
            other => Err(OpError::Shape(format!("expected integers, got {}", other.datatype()))),
        }
    }
}

/// Inputs and limits of an operator in a run.
pub(crate) struct Args<'a> {
    pub inputs: &'a [Option<View<'a>>],
    /// Bytes that one result may take.
    pub limit: usize,
    pub watch: &'a Watch<'a>,
}

impl<'a> Args<'a> {
    pub(crate) fn get(&self, index: usize) -> Result<View<'a>, OpError> {
        self.optional(index).ok_or(OpError::MissingInput(index))
    }

    pub(crate) fn optional(&self, index: usize) -> Option<View<'a>> {
        self.inputs.get(index).copied().flatten()
    }

    /// All inputs of an operator that takes any number of them.
    pub(crate) fn all(&self) -> Result<Vec<View<'a>>, OpError> {
        self.inputs.iter().enumerate().map(|(i, v)| v.ok_or(OpError::MissingInput(i))).collect()
    }

    /// The number of elements of a result, if it is within the limit.
    pub(crate) fn room(&self, shape: &[usize]) -> Result<usize, OpError> {
        self.room_for(shape, NUMBER_BYTES)
    }

    /// The same for a result with the elements of `data`.
    pub(crate) fn room_like(&self, shape: &[usize], data: &Elements) -> Result<usize, OpError> {
        let text = matches!(data, Elements::Bytes(_));
        self.room_for(shape, if text { size_of::<bytes::Bytes>() } else { NUMBER_BYTES })
    }

    /// The same for elements of so many bytes.
    pub(crate) fn room_for(&self, shape: &[usize], element: usize) -> Result<usize, OpError> {
        if fits(shape, element, self.limit) {
            return Ok(shape_product(shape).unwrap_or(0));
        }
        Err(OpError::TooLarge { shape: shape.to_vec(), limit: self.limit })
    }
}

/// The widest number, so that a later cast cannot pass the limit unseen.
const NUMBER_BYTES: usize = 8;

/// Whether a shape stays within `limit` bytes, with every dimension counted as at least 1: an empty tensor with
/// another huge dimension would grow as soon as the empty one is folded away.
pub(crate) fn spans(shape: &[usize], limit: usize) -> bool {
    fits(shape, NUMBER_BYTES, limit)
}

fn fits(shape: &[usize], element: usize, limit: usize) -> bool {
    let bytes = shape.iter().try_fold(element, |n, &d| n.checked_mul(d.max(1)));
    bytes.is_some_and(|bytes| bytes <= limit)
}

/// The error for a datatype that an operator does not take.
pub(crate) const fn unsupported_type(index: usize, view: &View<'_>) -> OpError {
    OpError::Datatype { index, got: view.data.datatype() }
}

/// An axis that may count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let resolved = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(resolved)
        .ok()
        .filter(|&a| a < rank)
        .ok_or_else(|| OpError::Shape(format!("axis {axis} is outside a tensor of {rank} dimensions")))
}

/// The elements around one axis: how many before it, along it, after it.
pub(crate) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    let outer = shape.iter().take(axis).product();
    let along = shape.get(axis).copied().unwrap_or(1);
    let inner = shape.iter().skip(axis + 1).product();
    (outer, along, inner)
}

/// The shape of two tensors stretched to each other.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, OpError> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], i: usize| {
        (i + shape.len()).checked_sub(rank).and_then(|j| shape.get(j).copied()).unwrap_or(1)
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(OpError::Shape(format!("shapes {a:?} and {b:?} do not broadcast"))),
        })
        .collect()
}

/// For each element of a broadcast result, in order, the index of the element of a tensor of `shape` behind it.
pub(crate) fn broadcast_indices(watch: &Watch<'_>, shape: &[usize], result: &[usize]) -> Vec<usize> {
    let missing = result.len().saturating_sub(shape.len());
    let mut stride = 1;
    let mut strides = vec![0; result.len()];
    for (i, &d) in shape.iter().enumerate().rev() {
        if let Some(s) = strides.get_mut(missing + i) {
            *s = if d == 1 { 0 } else { stride };
        }
        stride *= d;
    }
    strided_indices(watch, result, &strides)
}

/// The indices that a walk over `shape` with `strides` visits, in row-major order.
pub(crate) fn strided_indices(watch: &Watch<'_>, shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let total = shape_product(shape).unwrap_or(0);
    let mut indices = Vec::with_capacity(total);
    let mut position = vec![0usize; shape.len()];
    let mut index = 0usize;
    for _ in watch.polled(0..total) {
        indices.push(index);
        for ((p, &d), &s) in position.iter_mut().zip(shape).zip(strides).rev() {
            *p += 1;
            index += s;
            if *p < d {
                break;
            }
            index -= s * d;
            *p = 0;
        }
    }
    indices
}

/// Picks elements by index; every index must be inside.
pub(crate) fn pick(watch: &Watch<'_>, data: &Elements, indices: impl Iterator<Item = usize>) -> Elements {
    let indices = watch.polled(indices);
    macro_rules! picked {
        ($v:expr) => {
            indices.filter_map(|i| $v.get(i).cloned()).collect()
        };
    }
    match data {
        Elements::Bool(v) => Elements::Bool(picked!(v)),
        Elements::Uint8(v) => Elements::Uint8(picked!(v)),
        Elements::Uint16(v) => Elements::Uint16(picked!(v)),
        Elements::Uint32(v) => Elements::Uint32(picked!(v)),
        Elements::Uint64(v) => Elements::Uint64(picked!(v)),
        Elements::Int8(v) => Elements::Int8(picked!(v)),
        Elements::Int16(v) => Elements::Int16(picked!(v)),
        Elements::Int32(v) => Elements::Int32(picked!(v)),
        Elements::Int64(v) => Elements::Int64(picked!(v)),
        Elements::Fp16(v) => Elements::Fp16(picked!(v)),
        Elements::Bf16(v) => Elements::Bf16(picked!(v)),
        Elements::Fp32(v) => Elements::Fp32(picked!(v)),
        Elements::Fp64(v) => Elements::Fp64(picked!(v)),
        Elements::Bytes(v) => Elements::Bytes(picked!(v)),
    }
}
