//! Operators of one tensor, element by element.

use crate::native::buffer_pool;
use crate::native::node::{Kernel, Node};
use crate::native::value::{Args, OpError, Value, View, around, axis, unsupported_type};
use crate::native::watch::Watch;
use gantry_tensor::Elements;
use rten_simd::SimdUnaryOp;

/// `f32` and `f64` functions of the same meaning; integers where it makes sense. Over whole slices, so that there
/// is one call for all elements.
struct Unary {
    single: fn(&[f32], &mut Vec<f32>),
    double: fn(&[f64], &mut Vec<f64>),
    integer: Option<fn(i64) -> i64>,
}

fn table(op: &str) -> Option<Unary> {
    macro_rules! both {
        (|$x:ident| $f:expr) => {
            both!(|$x| $f, None)
        };
        (|$x:ident| $f:expr, $i:expr) => {
            Unary {
                single: |v, to| to.extend(v.iter().map(|&$x: &f32| $f)),
                double: |v, to| to.extend(v.iter().map(|&$x: &f64| $f)),
                integer: $i,
            }
        };
    }
    Some(match op {
        "Neg" => both!(|x| -x, Some(i64::wrapping_neg)),
        "Abs" => both!(|x| x.abs(), Some(i64::wrapping_abs)),
        "Sign" => both!(
            |x| if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x * 0.0
            },
            Some(i64::signum)
        ),
        "Sqrt" => both!(|x| x.sqrt()),
        "Exp" => both!(|x| x.exp()),
        "Log" => both!(|x| x.ln()),
        "Reciprocal" => both!(|x| 1.0 / x),
        "Floor" => both!(|x| x.floor()),
        "Ceil" => both!(|x| x.ceil()),
        "Round" => both!(|x| x.round_ties_even()),
        "Sin" => both!(|x| x.sin()),
        "Cos" => both!(|x| x.cos()),
        "Relu" => both!(|x| if x < 0.0 { 0.0 } else { x }, Some(|x| x.max(0))),
        "Sigmoid" => both!(|x| if x >= 0.0 {
            1.0 / (1.0 + (-x).exp())
        } else {
            // The other form, so that exp never overflows.
            let e = x.exp();
            e / (1.0 + e)
        }),
        "Tanh" => both!(|x| x.tanh()),
        "Softplus" => both!(|x| if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }),
        _ => return None,
    })
}

/// Vectorised versions for `f32` slices long enough to be worth the call.
fn vectorised(op: &str) -> Option<fn(&mut [f32])> {
    Some(match op {
        "Sigmoid" => |v| {
            rten_vecmath::Sigmoid {}.map_mut(v);
        },
        "Tanh" => |v| {
            rten_vecmath::Tanh {}.map_mut(v);
        },
        _ => return None,
    })
}
const WORTH_VECTORS: usize = 64;
/// Elements between two polls of the watch.
const PIECE: usize = 1 << 14;

/// Plain functions of one element.
pub(crate) fn unary(node: &Node<'_>) -> Option<Kernel> {
    let functions = table(node.proto.op_type)?;
    let vectors = vectorised(node.proto.op_type);
    Some(Box::new(move |args| {
        let x = args.get(0)?;
        let data = match (x.data, functions.integer, vectors) {
            (Elements::Fp32(v), _, Some(f)) if v.len() >= WORTH_VECTORS => {
                let mut v = v.clone();
                for piece in v.chunks_mut(PIECE) {
                    f(piece);
                    args.watch.spend(piece.len())?;
                }
                Elements::Fp32(v)
            }
            (Elements::Fp32(v), ..) => {
                let mut to = buffer_pool::take(v.len());
                for piece in v.chunks(PIECE) {
                    (functions.single)(piece, &mut to);
                    args.watch.spend(piece.len())?;
                }
                Elements::Fp32(to)
            }
            (Elements::Fp64(v), ..) => {
                let mut to = Vec::with_capacity(v.len());
                for piece in v.chunks(PIECE) {
                    (functions.double)(piece, &mut to);
                    args.watch.spend(piece.len())?;
                }
                Elements::Fp64(to)
            }
            (Elements::Int64(v), Some(f), _) => Elements::Int64(args.watch.map(v, |&x| f(x))?),
            (Elements::Int32(v), Some(f), _) => {
                Elements::Int32(args.watch.map(v, |&x| f(i64::from(x)) as i32)?)
            }
            _ => return Err(unsupported_type(0, &x)),
        };
        Ok(vec![Value::new(x.shape, data)])
    }))
}

/// Functions of one element with parameters, or from one datatype to another.
pub(crate) fn parametric(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    let kernel: Kernel = match node.proto.op_type {
        "Identity" | "Dropout" => Box::new(|args| Ok(vec![args.get(0)?.to_value()])),
        "Not" => Box::new(|args| {
            let x = args.get(0)?;
            let Elements::Bool(v) = x.data else {
                return Err(unsupported_type(0, &x));
            };
            Ok(vec![Value::new(x.shape, Elements::Bool(args.watch.map(v, |b| !b)?))])
        }),
        "IsNaN" => Box::new(|args| {
            let x = args.get(0)?;
            let result = match x.data {
                Elements::Fp32(v) => args.watch.map(v, |x| x.is_nan())?,
                Elements::Fp64(v) => args.watch.map(v, |x| x.is_nan())?,
                _ => return Err(unsupported_type(0, &x)),
            };
            Ok(vec![Value::new(x.shape, Elements::Bool(result))])
        }),
        "IsInf" => Box::new(|args| {
            let x = args.get(0)?;
            let result = match x.data {
                Elements::Fp32(v) => args.watch.map(v, |x| x.is_infinite())?,
                Elements::Fp64(v) => args.watch.map(v, |x| x.is_infinite())?,
                _ => return Err(unsupported_type(0, &x)),
            };
            Ok(vec![Value::new(x.shape, Elements::Bool(result))])
        }),
        "LeakyRelu" => {
            let alpha = node.float("alpha", 0.01)?;
            floats(move |x| if x < 0.0 { alpha * x } else { x })
        }
        "Elu" => {
            let alpha = node.float("alpha", 1.0)?;
            floats(move |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
        }
        "Clip" => clip(node)?,
        "Softmax" => softmax(node, false)?,
        "LogSoftmax" => softmax(node, true)?,
        _ => return Ok(None),
    };
    Ok(Some(kernel))
}

fn floats(f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Kernel {
    Box::new(move |args| {
        let x = args.get(0)?;
        let Elements::Fp32(v) = x.data else {
            return Err(unsupported_type(0, &x));
        };
        Ok(vec![Value::f32(x.shape, args.watch.map(v, |&x| f(x))?)])
    })
}

fn clip(node: &Node<'_>) -> Result<Kernel, OpError> {
    // Bounds were attributes before opset 11, inputs since.
    let (low, high) = (node.float("min", f32::MIN)?, node.float("max", f32::MAX)?);
    let as_attributes = node.opset < 11;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let bound = |i: usize| -> Result<Option<f64>, OpError> {
            let Some(b) = args.optional(i) else {
                return Ok(None);
            };
            let b = b.data.to_f64().ok_or_else(|| unsupported_type(i, &b))?;
            Ok(b.first().copied())
        };
        let (low, high) = if as_attributes {
            (Some(f64::from(low)), Some(f64::from(high)))
        } else {
            (bound(1)?, bound(2)?)
        };
        let low = low.unwrap_or(f64::NEG_INFINITY);
        let high = high.unwrap_or(f64::INFINITY);
        let data = match x.data {
            // `min` of `max`, in this order: what happens when the bounds cross is part of the operator.
            Elements::Fp32(v) => {
                let (low, high) = (low as f32, high as f32);
                Elements::Fp32(args.watch.map(v, |&x| clamp32(x, low, high))?)
            }
            Elements::Fp64(v) => {
                let clamp = |&x: &f64| if x.is_nan() { x } else { x.max(low).min(high) };
                Elements::Fp64(args.watch.map(v, clamp)?)
            }
            Elements::Int64(v) => {
                let (low, high) = (low as i64, high as i64);
                Elements::Int64(args.watch.map(v, |&x| x.max(low).min(high))?)
            }
            _ => return Err(unsupported_type(0, &x)),
        };
        Ok(vec![Value::new(x.shape, data)])
    }))
}

const fn clamp32(x: f32, low: f32, high: f32) -> f32 {
    if x.is_nan() { x } else { x.max(low).min(high) }
}

fn softmax(node: &Node<'_>, log: bool) -> Result<Kernel, OpError> {
    // Before opset 13 everything from the axis on was one vector, and the axis defaulted to 1.
    let flat = node.opset < 13;
    let along = node.int("axis", if flat { 1 } else { -1 })?;
    Ok(Box::new(move |args: &Args<'_>| {
        let x = args.get(0)?;
        let at = if x.rank() == 0 { 0 } else { axis(along, x.rank())? };
        let (outer, length, inner) = if flat {
            let outer: usize = x.shape.iter().take(at).product();
            (outer, x.shape.iter().skip(at).product(), 1)
        } else {
            around(x.shape, at)
        };
        let data = match x.data {
            Elements::Fp32(v) => {
                let shape = (outer, length, inner);
                Elements::Fp32(softmax_of(args.watch, v, shape, log, f32::exp, f32::ln)?)
            }
            Elements::Fp64(v) => {
                let shape = (outer, length, inner);
                Elements::Fp64(softmax_of(args.watch, v, shape, log, f64::exp, f64::ln)?)
            }
            _ => return Err(unsupported_type(0, &x)),
        };
        Ok(vec![Value::new(x.shape, data)])
    }))
}

#[allow(clippy::indexing_slicing, reason = "outer × length × inner is the number of elements")]
fn softmax_of<T>(
    watch: &Watch<'_>,
    x: &[T],
    (outer, length, inner): (usize, usize, usize),
    log: bool,
    exp: impl Fn(T) -> T,
    ln: impl Fn(T) -> T,
) -> Result<Vec<T>, OpError>
where
    T: Copy + PartialOrd + std::ops::Sub<Output = T> + std::ops::Div<Output = T> + std::iter::Sum,
{
    let mut result = x.to_vec();
    for o in 0..outer {
        watch.check()?;
        for i in watch.polled(0..inner) {
            let at = |k: usize| (o * length + k) * inner + i;
            let Some(mut top) = x.get(at(0)).copied() else { continue };
            for k in 1..length {
                if x[at(k)] > top {
                    top = x[at(k)];
                }
            }
            let sum: T = watch.polled(0..length).map(|k| exp(x[at(k)] - top)).sum();
            for k in watch.polled(0..length) {
                let shifted = x[at(k)] - top;
                result[at(k)] = if log { shifted - ln(sum) } else { exp(shifted) / sum };
            }
        }
    }
    Ok(result)
}

/// Used by operators that need a row-wise view of floats.
pub(crate) fn as_f32<'a>(view: &View<'a>, index: usize) -> Result<&'a [f32], OpError> {
    match view.data {
        Elements::Fp32(v) => Ok(v),
        _ => Err(unsupported_type(index, view)),
    }
}
