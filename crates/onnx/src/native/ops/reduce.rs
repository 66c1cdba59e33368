//! Reductions: sums, extremes, argmin and argmax, norms.

use crate::native::node::{Kernel, Node};
use crate::native::value::{OpError, Value, around, axis, strided_indices, unsupported_type};
use gantry_tensor::Elements;

/// The operators of this file.
pub(crate) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    if let Some(fold) = Fold::of(node.proto.op_type) {
        return reduce(node, fold).map(Some);
    }
    Ok(Some(match node.proto.op_type {
        "ArgMax" => arg(node, true)?,
        "ArgMin" => arg(node, false)?,
        "CumSum" => cum_sum(node)?,
        "LpNormalization" => lp_normalization(node)?,
        _ => return Ok(None),
    }))
}

#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    L1,
    L2,
    SumSquare,
    LogSum,
    LogSumExp,
}

impl Fold {
    fn of(op: &str) -> Option<Self> {
        Some(match op {
            "ReduceSum" => Self::Sum,
            "ReduceMean" => Self::Mean,
            "ReduceMax" => Self::Max,
            "ReduceMin" => Self::Min,
            "ReduceProd" => Self::Prod,
            "ReduceL1" => Self::L1,
            "ReduceL2" => Self::L2,
            "ReduceSumSquare" => Self::SumSquare,
            "ReduceLogSum" => Self::LogSum,
            "ReduceLogSumExp" => Self::LogSumExp,
            _ => return None,
        })
    }
}

macro_rules! fold_floats {
    ($name:ident, $t:ty) => {
        fn $name(fold: Fold, x: impl Iterator<Item = $t> + Clone, n: usize) -> $t {
            match fold {
                Fold::Sum => x.sum(),
                Fold::Mean => x.sum::<$t>() / n as $t,
                Fold::Max => x.fold(<$t>::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a }),
                Fold::Min => x.fold(<$t>::INFINITY, |a, b| if b < a || b.is_nan() { b } else { a }),
                Fold::Prod => x.product(),
                Fold::L1 => x.map(<$t>::abs).sum(),
                Fold::L2 => x.map(|v| v * v).sum::<$t>().sqrt(),
                Fold::SumSquare => x.map(|v| v * v).sum(),
                Fold::LogSum => x.sum::<$t>().ln(),
                Fold::LogSumExp => {
                    let top = x.clone().fold(<$t>::NEG_INFINITY, <$t>::max);
                    // Infinities would become NaN in the subtraction.
                    let top = if top.is_finite() { top } else { 0.0 };
                    x.map(|v| (v - top).exp()).sum::<$t>().ln() + top
                }
            }
        }
    };
}
fold_floats!(fold_f32, f32);
fold_floats!(fold_f64, f64);

fn fold_i64(fold: Fold, x: impl Iterator<Item = i64>, n: usize) -> Option<i64> {
    Some(match fold {
        Fold::Sum => x.fold(0, i64::wrapping_add),
        Fold::Mean => x.fold(0, i64::wrapping_add).checked_div(n as i64)?,
        Fold::Max => x.max()?,
        Fold::Min => x.min()?,
        Fold::Prod => x.fold(1, i64::wrapping_mul),
        Fold::L1 => x.fold(0, |a, b| a.wrapping_add(b.wrapping_abs())),
        Fold::SumSquare => x.fold(0, |a, b| a.wrapping_add(b.wrapping_mul(b))),
        Fold::L2 | Fold::LogSum | Fold::LogSumExp => return None,
    })
}

fn reduce(node: &Node<'_>, fold: Fold) -> Result<Kernel, OpError> {
    let keep = node.int("keepdims", 1)? != 0;
    let fixed = node.ints("axes")?.to_vec();
    let empty_is_nothing = node.int("noop_with_empty_axes", 0)? != 0;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let axes = match args.optional(1) {
            Some(axes) => axes.integers()?.into_owned(),
            None => fixed.clone(),
        };
        if axes.is_empty() && empty_is_nothing {
            return Ok(vec![x.to_value()]);
        }
        let rank = x.rank();
        let gone: Vec<bool> = if axes.is_empty() {
            vec![true; rank]
        } else {
            let named: Vec<usize> = axes.iter().map(|&a| axis(a, rank)).collect::<Result<_, _>>()?;
            (0..rank).map(|i| named.contains(&i)).collect()
        };
        let mut strides = vec![1usize; rank];
        let mut stride = 1;
        for (s, &d) in strides.iter_mut().zip(x.shape).rev() {
            *s = stride;
            stride *= d;
        }
        let part = |wanted: bool| -> (Vec<usize>, Vec<usize>) {
            let axes = x.shape.iter().zip(&strides).zip(&gone);
            axes.filter(|(_, g)| **g == wanted).map(|((&d, &s), _)| (d, s)).unzip()
        };
        let (kept_shape, kept_strides) = part(false);
        let (gone_shape, gone_strides) = part(true);
        let bases = strided_indices(args.watch, &kept_shape, &kept_strides);
        let offsets = strided_indices(args.watch, &gone_shape, &gone_strides);
        let n = offsets.len();
        let shape = if keep {
            x.shape.iter().zip(&gone).map(|(&d, &g)| if g { 1 } else { d }).collect()
        } else {
            kept_shape
        };
        macro_rules! each {
            ($v:expr, $f:expr) => {
                bases
                    .iter()
                    .map(|base| {
                        let offsets = args.watch.polled(offsets.iter());
                        $f(fold, offsets.filter_map(|o| $v.get(base + o).copied()), n)
                    })
                    // A stopped fold has no meaning; the rest would take as long.
                    .take_while(|_| args.watch.check().is_ok())
                    .collect()
            };
        }
        let data = match x.data {
            Elements::Fp32(v) => Elements::Fp32(each!(v, fold_f32)),
            Elements::Fp64(v) => Elements::Fp64(each!(v, fold_f64)),
            Elements::Int64(v) => {
                let folded: Option<Vec<i64>> = each!(v, fold_i64);
                Elements::Int64(folded.ok_or_else(|| unsupported_type(0, &x))?)
            }
            Elements::Int32(v) => {
                let wide: Vec<i64> = v.iter().map(|&x| i64::from(x)).collect();
                let folded: Option<Vec<i64>> = each!(wide, fold_i64);
                let folded = folded.ok_or_else(|| unsupported_type(0, &x))?;
                Elements::Int32(folded.into_iter().map(|x| x as i32).collect())
            }
            _ => return Err(unsupported_type(0, &x)),
        };
        Ok(vec![Value::new(shape, data)])
    }))
}

fn arg(node: &Node<'_>, largest: bool) -> Result<Kernel, OpError> {
    let at = node.int("axis", 0)?;
    let keep = node.int("keepdims", 1)? != 0;
    let last = node.int("select_last_index", 0)? != 0;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let at = axis(at, x.rank())?;
        let (outer, along, inner) = around(x.shape, at);
        if along == 0 {
            return Err(OpError::Shape(format!("axis {at} of shape {:?} is empty", x.shape)));
        }
        macro_rules! positions {
            ($v:expr) => {{
                let mut result = Vec::with_capacity(outer * inner);
                for o in 0..outer {
                    args.watch.check()?;
                    for i in args.watch.polled(0..inner) {
                        let mut best = (0usize, None);
                        for k in args.watch.polled(0..along) {
                            let value = $v.get((o * along + k) * inner + i);
                            let better = match (best.1, value) {
                                (None, _) => true,
                                (Some(b), Some(v)) if largest => {
                                    if last {
                                        v >= b
                                    } else {
                                        v > b
                                    }
                                }
                                (Some(b), Some(v)) => {
                                    if last {
                                        v <= b
                                    } else {
                                        v < b
                                    }
                                }
                                (Some(_), None) => false,
                            };
                            if better {
                                best = (k, value);
                            }
                        }
                        result.push(best.0 as i64);
                    }
                }
                result
            }};
        }
        let result = match x.data {
            Elements::Fp32(v) => positions!(v),
            Elements::Fp64(v) => positions!(v),
            Elements::Int64(v) => positions!(v),
            Elements::Int32(v) => positions!(v),
            _ => return Err(unsupported_type(0, &x)),
        };
        let mut shape = x.shape.to_vec();
        if keep {
            if let Some(d) = shape.get_mut(at) {
                *d = 1;
            }
        } else {
            shape.remove(at);
        }
        Ok(vec![Value::i64(shape, result)])
    }))
}

fn cum_sum(node: &Node<'_>) -> Result<Kernel, OpError> {
    let exclusive = node.int("exclusive", 0)? != 0;
    let reverse = node.int("reverse", 0)? != 0;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let at = *args.get(1)?.integers()?.first().ok_or(OpError::MissingInput(1))?;
        let at = axis(at, x.rank())?;
        let (outer, along, inner) = around(x.shape, at);
        macro_rules! sums {
            ($v:expr, $zero:expr) => {{
                let mut result = $v.clone();
                for o in 0..outer {
                    args.watch.check()?;
                    for i in args.watch.polled(0..inner) {
                        let mut sum = $zero;
                        for k in args.watch.polled(0..along) {
                            let k = if reverse { along - 1 - k } else { k };
                            if let Some(slot) = result.get_mut((o * along + k) * inner + i) {
                                let value = *slot;
                                if exclusive {
                                    *slot = sum;
                                }
                                sum += value;
                                if !exclusive {
                                    *slot = sum;
                                }
                            }
                        }
                    }
                }
                result
            }};
        }
        let data = match x.data {
            Elements::Fp32(v) => Elements::Fp32(sums!(v, 0.0)),
            Elements::Fp64(v) => Elements::Fp64(sums!(v, 0.0)),
            _ => return Err(unsupported_type(0, &x)),
        };
        Ok(vec![Value::new(x.shape, data)])
    }))
}

fn lp_normalization(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", -1)?;
    let p = node.int("p", 2)?;
    if !(1..=2).contains(&p) {
        return Err(OpError::attribute("p", "must be 1 or 2"));
    }
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let Elements::Fp32(v) = x.data else {
            return Err(unsupported_type(0, &x));
        };
        let at = axis(at, x.rank())?;
        let (outer, along, inner) = around(x.shape, at);
        let mut result = v.clone();
        for o in 0..outer {
            args.watch.check()?;
            for i in args.watch.polled(0..inner) {
                let values = args.watch.polled(0..along).filter_map(|k| v.get((o * along + k) * inner + i));
                let norm = if p == 1 {
                    values.map(|x| x.abs()).sum::<f32>()
                } else {
                    values.map(|x| x * x).sum::<f32>().sqrt()
                };
                if norm == 0.0 {
                    continue;
                }
                for k in args.watch.polled(0..along) {
                    if let Some(slot) = result.get_mut((o * along + k) * inner + i) {
                        *slot /= norm;
                    }
                }
            }
        }
        Ok(vec![Value::f32(x.shape, result)])
    }))
}
