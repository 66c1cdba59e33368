//! Indexing operators: slice, gather, top-k, where.

use crate::native::node::{Kernel, Node};
use crate::native::value::{
    Args, OpError, Value, View, around, axis, broadcast, broadcast_indices, pick, strided_indices,
    unsupported_type,
};
use crate::native::watch::Watch;
use gantry_tensor::Elements;
use std::cmp::Ordering;

/// The operators of this file.
pub(crate) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "Gather" => gather(node)?,
        "GatherElements" => gather_elements(node)?,
        "Slice" => slice(node)?,
        "TopK" => top_k(node)?,
        "Where" => Box::new(choose),
        "OneHot" => one_hot(node)?,
        _ => return Ok(None),
    }))
}

/// An index that may count from the end.
fn position(index: i64, size: usize) -> Result<usize, OpError> {
    let from_start = if index < 0 { index.saturating_add(size as i64) } else { index };
    usize::try_from(from_start)
        .ok()
        .filter(|&i| i < size)
        .ok_or_else(|| OpError::Value(format!("index {index} is outside 0..{size}")))
}

fn gather(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", 0)?;
    Ok(Box::new(move |args| {
        let (x, indices) = (args.get(0)?, args.get(1)?);
        let at = axis(at, x.rank())?;
        let (outer, along, inner) = around(x.shape, at);
        let wanted: Vec<usize> =
            indices.integers()?.iter().map(|&i| position(i, along)).collect::<Result<_, _>>()?;
        let mut shape: Vec<usize> = x.shape.iter().take(at).copied().collect();
        shape.extend_from_slice(indices.shape);
        shape.extend(x.shape.iter().skip(at + 1));
        args.room_like(&shape, x.data)?;
        let wanted = &wanted;
        let from = (0..outer).flat_map(move |o| {
            wanted.iter().flat_map(move |&k| {
                let base = (o * along + k) * inner;
                base..base + inner
            })
        });
        Ok(vec![Value::new(shape, pick(args.watch, x.data, from))])
    }))
}

fn gather_elements(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", 0)?;
    Ok(Box::new(move |args| {
        let (x, indices) = (args.get(0)?, args.get(1)?);
        let at = axis(at, x.rank())?;
        let fits = indices.rank() == x.rank()
            && indices.shape.iter().zip(x.shape).enumerate().all(|(i, (a, b))| i == at || a <= b);
        if !fits {
            return Err(OpError::Shape(format!(
                "indices of shape {:?} do not fit data of shape {:?}",
                indices.shape, x.shape
            )));
        }
        let along = x.shape.get(at).copied().unwrap_or(0);
        let mut strides = vec![1usize; x.rank()];
        let mut stride = 1;
        for (s, &d) in strides.iter_mut().zip(x.shape).rev() {
            *s = stride;
            stride *= d;
        }
        let step = strides.get(at).copied().unwrap_or(1);
        if let Some(s) = strides.get_mut(at) {
            *s = 0;
        }
        args.room_like(indices.shape, x.data)?;
        let from: Vec<usize> = strided_indices(args.watch, indices.shape, &strides)
            .into_iter()
            .zip(indices.integers()?.iter())
            .map(|(base, &k)| Ok(base + position(k, along)? * step))
            .collect::<Result<_, OpError>>()?;
        Ok(vec![Value::new(indices.shape, pick(args.watch, x.data, from.into_iter()))])
    }))
}

fn slice(node: &Node<'_>) -> Result<Kernel, OpError> {
    // Before opset 10 everything was attributes.
    let old = node.opset < 10;
    let (starts, ends, axes) =
        (node.ints("starts")?.to_vec(), node.ints("ends")?.to_vec(), node.ints("axes")?.to_vec());
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let list = |i: usize| -> Result<Vec<i64>, OpError> {
            args.optional(i).map_or_else(|| Ok(Vec::new()), |v| Ok(v.integers()?.into_owned()))
        };
        let (starts, ends, axes, steps) = if old {
            (starts.clone(), ends.clone(), axes.clone(), Vec::new())
        } else {
            (list(1)?, list(2)?, list(3)?, list(4)?)
        };
        let count = starts.len();
        let lengths_fit = ends.len() == count
            && (axes.is_empty() || axes.len() == count)
            && (steps.is_empty() || steps.len() == count);
        if !lengths_fit {
            return Err(OpError::Shape("starts, ends, axes and steps differ in length".to_owned()));
        }
        let mut shape = x.shape.to_vec();
        let mut offset = 0usize;
        // Per axis: how far apart two neighbours of the result are in the input; negative when walked backwards.
        let mut strides: Vec<i64> = vec![1; x.rank()];
        let mut stride = 1i64;
        for (s, &d) in strides.iter_mut().zip(x.shape).rev() {
            *s = stride;
            stride *= d as i64;
        }
        for (i, (&start, &end)) in starts.iter().zip(&ends).enumerate() {
            let at = axis(axes.get(i).copied().unwrap_or(i as i64), x.rank())?;
            let step = steps.get(i).copied().unwrap_or(1);
            let size = x.shape.get(at).copied().unwrap_or(0) as i64;
            let (first, n) = extent(start, end, step, size)?;
            if let (Some(d), Some(s)) = (shape.get_mut(at), strides.get_mut(at)) {
                *d = n;
                offset += first * s.unsigned_abs() as usize;
                *s = s.saturating_mul(step);
            }
        }
        let mut from = vec![offset as i64];
        for (&d, &s) in shape.iter().zip(&strides) {
            let grown = from.iter().flat_map(|base| (0..d as i64).map(move |k| base + k * s));
            from = args.watch.polled(grown).collect();
        }
        let data = pick(args.watch, x.data, from.into_iter().map(|i| i as usize));
        Ok(vec![Value::new(shape, data)])
    }))
}

/// The first index and the number of steps of `start..end` by `step` along an axis of `size`.
fn extent(start: i64, end: i64, step: i64, size: i64) -> Result<(usize, usize), OpError> {
    let resolve = |v: i64| if v < 0 { v.saturating_add(size) } else { v };
    let (low, high) = match step.cmp(&0) {
        Ordering::Greater => (0, size),
        Ordering::Less => (-1, size - 1),
        Ordering::Equal => return Err(OpError::Value("a slice cannot have the step 0".to_owned())),
    };
    // An end far below zero means "to the very start" when walking backwards.
    let start = resolve(start).clamp(low.max(0), high.max(0));
    let end = resolve(end).clamp(low, high);
    let distance = if step > 0 { end - start } else { start - end };
    let n =
        if size == 0 || distance <= 0 { 0 } else { distance.unsigned_abs().div_ceil(step.unsigned_abs()) };
    Ok((start as usize, n as usize))
}

fn top_k(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", -1)?;
    let largest = node.int("largest", 1)? != 0;
    let fixed = node.int("k", 0)?;
    let from_attribute = node.has("k");
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let k = if from_attribute {
            fixed
        } else {
            *args.get(1)?.integers()?.first().ok_or(OpError::MissingInput(1))?
        };
        let at = axis(at, x.rank())?;
        let (outer, along, inner) = around(x.shape, at);
        let k = usize::try_from(k)
            .ok()
            .filter(|&k| k <= along)
            .ok_or_else(|| OpError::Value(format!("k is {k}, axis {at} has {along}")))?;
        let values = x.data.to_f64().ok_or_else(|| unsupported_type(0, &x))?;
        let mut from = vec![0usize; outer * inner * k];
        let mut order = vec![0i64; outer * inner * k];
        for o in 0..outer {
            for i in 0..inner {
                let at = |j: usize| (o * along + j) * inner + i;
                // Adding zero makes the two zeros equal in the total order, which also has a place for NaN.
                let value = |j: usize| values.get(at(j)).copied().unwrap_or(0.0) + 0.0;
                // Equal values keep their order: the lower index wins.
                let ranks = sorted(args.watch, along, |a, b| {
                    let order = value(a).total_cmp(&value(b));
                    if largest { order.reverse() } else { order }
                })?;
                for (j, &rank) in ranks.iter().take(k).enumerate() {
                    let to = (o * k + j) * inner + i;
                    if let (Some(f), Some(n)) = (from.get_mut(to), order.get_mut(to)) {
                        *f = at(rank);
                        *n = rank as i64;
                    }
                }
            }
        }
        let mut shape = x.shape.to_vec();
        if let Some(d) = shape.get_mut(at) {
            *d = k;
        }
        let top = pick(args.watch, x.data, from.into_iter());
        Ok(vec![Value::new(shape.clone(), top), Value::i64(shape, order)])
    }))
}

/// `0..n` in order, equal ones by number. Sorts pieces and merges them, so that a long sort can be stopped.
fn sorted(
    watch: &Watch<'_>,
    n: usize,
    order: impl Fn(usize, usize) -> Ordering,
) -> Result<Vec<usize>, OpError> {
    const PIECE: usize = 1 << 12;
    let mut ranks: Vec<usize> = (0..n).collect();
    for piece in ranks.chunks_mut(PIECE) {
        piece.sort_by(|&a, &b| order(a, b));
        // Each element takes part in about as many comparisons as a piece has bits.
        watch.spend(piece.len() * 12)?;
    }
    let mut size = PIECE;
    while size < n {
        let mut merged = Vec::with_capacity(n);
        for pair in ranks.chunks(size * 2) {
            let (mut a, mut b) = pair.split_at(size.min(pair.len()));
            for _ in watch.polled(0..pair.len()) {
                let from_b = match (a.first(), b.first()) {
                    (Some(&x), Some(&y)) => order(y, x).is_lt(),
                    (x, _) => x.is_none(),
                };
                let from = if from_b { &mut b } else { &mut a };
                merged.extend(from.split_off_first());
            }
        }
        watch.check()?;
        ranks = merged;
        size *= 2;
    }
    Ok(ranks)
}

fn choose(args: &Args<'_>) -> Result<Vec<Value>, OpError> {
    let (condition, a, b) = (args.get(0)?, args.get(1)?, args.get(2)?);
    let Elements::Bool(flags) = condition.data else {
        return Err(unsupported_type(0, &condition));
    };
    let shape = broadcast(&broadcast(condition.shape, a.shape)?, b.shape)?;
    args.room_like(&shape, a.data)?;
    let at = |view: &View<'_>| broadcast_indices(args.watch, view.shape, &shape);
    let (c, i, j) = (at(&condition), at(&a), at(&b));
    macro_rules! chosen {
        ($x:expr, $y:expr) => {
            args.watch
                .polled(c.iter().zip(i.iter().zip(&j)))
                .filter_map(
                    |(&c, (&i, &j))| if *flags.get(c)? { $x.get(i).cloned() } else { $y.get(j).cloned() },
                )
                .collect()
        };
    }
    let data = match (a.data, b.data) {
        (Elements::Fp32(x), Elements::Fp32(y)) => Elements::Fp32(chosen!(x, y)),
        (Elements::Fp64(x), Elements::Fp64(y)) => Elements::Fp64(chosen!(x, y)),
        (Elements::Int64(x), Elements::Int64(y)) => Elements::Int64(chosen!(x, y)),
        (Elements::Int32(x), Elements::Int32(y)) => Elements::Int32(chosen!(x, y)),
        (Elements::Bool(x), Elements::Bool(y)) => Elements::Bool(chosen!(x, y)),
        (Elements::Bytes(x), Elements::Bytes(y)) => Elements::Bytes(chosen!(x, y)),
        _ => return Err(unsupported_type(1, &a)),
    };
    Ok(vec![Value::new(shape, data)])
}

fn one_hot(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", -1)?;
    Ok(Box::new(move |args| {
        let (x, depth, values) = (args.get(0)?, args.get(1)?, args.get(2)?);
        let depth = depth.data.to_f64().and_then(|d| d.first().copied()).unwrap_or(0.0) as usize;
        let at = axis(at, x.rank() + 1)?;
        let mut shape = x.shape.to_vec();
        shape.insert(at, depth);
        let n = args.room_like(&shape, values.data)?;
        if values.len() != 2 {
            return Err(OpError::Shape("OneHot needs the two values off and on".to_owned()));
        }
        let indices = x.data.to_f64().ok_or_else(|| unsupported_type(0, &x))?;
        let (_, _, inner) = around(&shape, at);
        let from = (0..n).map(|i| {
            let (o, k, r) = (i / (depth * inner), i / inner % depth, i % inner);
            let wanted = indices.get(o * inner + r).copied().unwrap_or(-1.0);
            let wanted = if wanted < 0.0 { wanted + depth as f64 } else { wanted };
            usize::from(wanted as i64 == k as i64)
        });
        Ok(vec![Value::new(shape, pick(args.watch, values.data, from))])
    }))
}
