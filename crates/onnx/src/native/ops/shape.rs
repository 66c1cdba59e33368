//! Operators that change the shape or the order of elements.

use crate::native::node::{Kernel, Node};
use crate::native::ops::cast::cast;
use crate::native::value::{
    OpError, Value, View, around, axis, broadcast, broadcast_indices, pick, strided_indices,
};
use gantry_tensor::{DataType, Elements, shape_product};

/// The operators of this file.
pub(crate) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "Reshape" => reshape(node)?,
        "Flatten" => flatten(node)?,
        "Squeeze" => squeeze(node)?,
        "Unsqueeze" => unsqueeze(node)?,
        "Transpose" => transpose(node)?,
        "Expand" => expand(),
        "Tile" => tile(),
        "Concat" => concat(node)?,
        "Split" => split(node)?,
        "Shape" => shape(node)?,
        "Size" => Box::new(|args| Ok(vec![Value::i64([], vec![args.get(0)?.len() as i64])])),
        "Constant" => constant(node)?,
        "ConstantOfShape" => constant_of_shape(node)?,
        "Range" => range(),
        _ => return Ok(None),
    }))
}

fn reshape(node: &Node<'_>) -> Result<Kernel, OpError> {
    let keep_zero = node.int("allowzero", 0)? != 0;
    // Before opset 5 the shape was an attribute.
    let fixed = node.ints("shape")?.to_vec();
    let from_attribute = node.has("shape");
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let wanted = if from_attribute { fixed.clone() } else { args.get(1)?.integers()?.into_owned() };
        let fault =
            || OpError::Shape(format!("a tensor of shape {:?} does not reshape to {wanted:?}", x.shape));
        let mut result = Vec::with_capacity(wanted.len());
        let mut open = None;
        for (i, &d) in wanted.iter().enumerate() {
            result.push(match d {
                0 if !keep_zero => *x.shape.get(i).ok_or_else(fault)?,
                -1 if open.is_none() => {
                    open = Some(i);
                    1
                }
                d => usize::try_from(d).map_err(|_| fault())?,
            });
        }
        if let Some(slot) = open.and_then(|i| result.get(i).map(|_| i)) {
            let rest = shape_product(&result).ok_or_else(fault)?;
            let size = match (x.len(), rest) {
                (0, 0) => 0,
                (n, rest) if rest > 0 && n % rest == 0 => n / rest,
                _ => return Err(fault()),
            };
            if let Some(d) = result.get_mut(slot) {
                *d = size;
            }
        }
        if shape_product(&result) != Some(x.len()) {
            return Err(fault());
        }
        Ok(vec![Value::new(result, x.data.clone())])
    }))
}

fn flatten(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", 1)?;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let at = if at == x.rank() as i64 { x.rank() } else { axis(at, x.rank())? };
        let outer = x.shape.iter().take(at).product();
        let inner = x.shape.iter().skip(at).product();
        Ok(vec![Value::new([outer, inner], x.data.clone())])
    }))
}

fn squeeze(node: &Node<'_>) -> Result<Kernel, OpError> {
    let fixed = node.ints("axes")?.to_vec();
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let axes = match args.optional(1) {
            Some(axes) => axes.integers()?.into_owned(),
            None => fixed.clone(),
        };
        let named: Vec<usize> = axes.iter().map(|&a| axis(a, x.rank())).collect::<Result<_, _>>()?;
        let goes = |i: usize, d: usize| if axes.is_empty() { d == 1 } else { named.contains(&i) };
        if x.shape.iter().enumerate().any(|(i, &d)| goes(i, d) && d != 1) {
            return Err(OpError::Shape(format!("axes {axes:?} of shape {:?} are not all 1", x.shape)));
        }
        let shape: Vec<usize> =
            x.shape.iter().enumerate().filter(|&(i, &d)| !goes(i, d)).map(|(_, &d)| d).collect();
        Ok(vec![Value::new(shape, x.data.clone())])
    }))
}

fn unsqueeze(node: &Node<'_>) -> Result<Kernel, OpError> {
    let fixed = node.ints("axes")?.to_vec();
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let axes = match args.optional(1) {
            Some(axes) => axes.integers()?.into_owned(),
            None => fixed.clone(),
        };
        let rank = x.rank() + axes.len();
        let new: Vec<usize> = axes.iter().map(|&a| axis(a, rank)).collect::<Result<_, _>>()?;
        let mut old = x.shape.iter();
        let shape: Vec<usize> =
            (0..rank).map(|i| if new.contains(&i) { 1 } else { old.next().copied().unwrap_or(1) }).collect();
        if old.next().is_some() {
            return Err(OpError::Shape(format!("axes {axes:?} name one axis twice")));
        }
        Ok(vec![Value::new(shape, x.data.clone())])
    }))
}

fn transpose(node: &Node<'_>) -> Result<Kernel, OpError> {
    let order = node.ints("perm")?.to_vec();
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let rank = x.rank();
        let order: Vec<usize> = if order.is_empty() {
            (0..rank).rev().collect()
        } else {
            order.iter().map(|&a| axis(a, rank)).collect::<Result<_, _>>()?
        };
        let mut seen = order.clone();
        seen.sort_unstable();
        if seen.iter().enumerate().any(|(i, &a)| i != a) || seen.len() != rank {
            return Err(OpError::Shape(format!("perm {order:?} does not order {rank} axes")));
        }
        let mut strides = vec![1usize; rank];
        let mut stride = 1;
        for (s, &d) in strides.iter_mut().zip(x.shape).rev() {
            *s = stride;
            stride *= d;
        }
        let shape: Vec<usize> = order.iter().filter_map(|&a| x.shape.get(a).copied()).collect();
        let moved: Vec<usize> = order.iter().filter_map(|&a| strides.get(a).copied()).collect();
        let data = pick(args.watch, x.data, strided_indices(args.watch, &shape, &moved).into_iter());
        Ok(vec![Value::new(shape, data)])
    }))
}

fn expand() -> Kernel {
    Box::new(|args| {
        let x = args.get(0)?;
        let wanted = sizes(&args.get(1)?.integers()?)?;
        let shape = broadcast(x.shape, &wanted)?;
        args.room_like(&shape, x.data)?;
        let indices = broadcast_indices(args.watch, x.shape, &shape);
        let data = pick(args.watch, x.data, indices.into_iter());
        Ok(vec![Value::new(shape, data)])
    })
}

fn tile() -> Kernel {
    Box::new(|args| {
        let x = args.get(0)?;
        let repeats = sizes(&args.get(1)?.integers()?)?;
        if repeats.len() != x.rank() {
            return Err(OpError::Shape(format!("{} repeats for {} axes", repeats.len(), x.rank())));
        }
        let mut shape = x.shape.to_vec();
        let mut indices: Vec<usize> = (0..x.len()).collect();
        for (at, &n) in repeats.iter().enumerate() {
            let (outer, along, inner) = around(&shape, at);
            let mut grown = shape.clone();
            if let Some(d) = grown.get_mut(at) {
                *d = along.saturating_mul(n);
            }
            args.room_like(&grown, x.data)?;
            let block = along * inner;
            let repeated = (0..outer).flat_map(|o| {
                let block = indices.get(o * block..(o + 1) * block).unwrap_or(&[]);
                std::iter::repeat_n(block, n).flatten().copied()
            });
            indices = args.watch.polled(repeated).collect();
            shape = grown;
        }
        Ok(vec![Value::new(shape, pick(args.watch, x.data, indices.into_iter()))])
    })
}

fn sizes(values: &[i64]) -> Result<Vec<usize>, OpError> {
    values
        .iter()
        .map(|&d| usize::try_from(d).map_err(|_| OpError::Shape(format!("{values:?} has a negative size"))))
        .collect()
}

fn concat(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", 1)?;
    Ok(Box::new(move |args| {
        let parts = args.all()?;
        let first = parts.first().ok_or(OpError::MissingInput(0))?;
        let at = axis(at, first.rank())?;
        let mut shape = first.shape.to_vec();
        let mut total = 0usize;
        for part in &parts {
            let same = part.rank() == first.rank()
                && part.shape.iter().zip(first.shape).enumerate().all(|(i, (a, b))| i == at || a == b);
            if !same || part.data.datatype() != first.data.datatype() {
                return Err(OpError::Shape(format!(
                    "{} {:?} and {} {:?} do not concatenate along axis {at}",
                    first.data.datatype(),
                    first.shape,
                    part.data.datatype(),
                    part.shape
                )));
            }
            total = total.saturating_add(part.shape.get(at).copied().unwrap_or(0));
        }
        if let Some(d) = shape.get_mut(at) {
            *d = total;
        }
        let room = args.room_like(&shape, first.data)?;
        let outer: usize = shape.iter().take(at).product();
        macro_rules! joined {
            ($variant:ident) => {{
                let mut result = Vec::with_capacity(room);
                for o in 0..outer {
                    for part in &parts {
                        if let Elements::$variant(v) = part.data {
                            let block = part.len() / outer.max(1);
                            result.extend_from_slice(v.get(o * block..(o + 1) * block).unwrap_or(&[]));
                            args.watch.spend(1 + block)?;
                        }
                    }
                }
                Elements::$variant(result)
            }};
        }
        let data = match first.data.datatype() {
            DataType::Fp32 => joined!(Fp32),
            DataType::Fp64 => joined!(Fp64),
            DataType::Int64 => joined!(Int64),
            DataType::Int32 => joined!(Int32),
            DataType::Bool => joined!(Bool),
            DataType::Bytes => joined!(Bytes),
            DataType::Uint8 => joined!(Uint8),
            got => return Err(OpError::Datatype { index: 0, got }),
        };
        Ok(vec![Value::new(shape, data)])
    }))
}

fn split(node: &Node<'_>) -> Result<Kernel, OpError> {
    let at = node.int("axis", 0)?;
    let fixed = node.ints("split")?.to_vec();
    let outputs = node.proto.outputs.len();
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let at = axis(at, x.rank())?;
        let (outer, along, inner) = around(x.shape, at);
        let parts = match args.optional(1) {
            Some(parts) => sizes(&parts.integers()?)?,
            None if !fixed.is_empty() => sizes(&fixed)?,
            None => {
                let each = along.div_ceil(outputs.max(1));
                (0..outputs).map(|i| each.min(along.saturating_sub(each * i))).collect()
            }
        };
        if parts.iter().try_fold(0usize, |n, &p| n.checked_add(p)) != Some(along) {
            return Err(OpError::Shape(format!("parts {parts:?} do not make up {along}")));
        }
        let mut start = 0;
        parts
            .iter()
            .map(|&part| {
                let from = start;
                start += part;
                let mut shape = x.shape.to_vec();
                if let Some(d) = shape.get_mut(at) {
                    *d = part;
                }
                let indices = (0..outer).flat_map(move |o| {
                    let base = (o * along + from) * inner;
                    base..base + part * inner
                });
                Ok(Value::new(shape, pick(args.watch, x.data, indices)))
            })
            .collect()
    }))
}

fn shape(node: &Node<'_>) -> Result<Kernel, OpError> {
    let (start, end) = (node.int("start", 0)?, node.int("end", i64::MAX)?);
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let rank = x.rank() as i64;
        let clamp = |v: i64| (if v < 0 { v.saturating_add(rank) } else { v }).clamp(0, rank) as usize;
        let (from, to) = (clamp(start), clamp(end));
        let dims: Vec<i64> = x.shape.iter().take(to).skip(from).map(|&d| d as i64).collect();
        Ok(vec![Value::i64([dims.len()], dims)])
    }))
}

fn constant(node: &Node<'_>) -> Result<Kernel, OpError> {
    let value = if let Some(value) = node.tensor("value")? {
        value
    } else if node.has("value_int") {
        Value::i64([], vec![node.int("value_int", 0)?])
    } else if node.has("value_float") {
        Value::f32([], vec![node.float("value_float", 0.0)?])
    } else if node.has("value_ints") {
        let v = node.ints("value_ints")?.to_vec();
        Value::i64([v.len()], v)
    } else if node.has("value_floats") {
        let v = node.floats("value_floats")?.to_vec();
        Value::f32([v.len()], v)
    } else if node.has("value_strings") {
        let v: Vec<_> =
            node.texts("value_strings")?.iter().map(|s| bytes::Bytes::copy_from_slice(s)).collect();
        Value::new([v.len()], Elements::Bytes(v))
    } else {
        return Err(OpError::attribute("value", "is missing"));
    };
    Ok(Box::new(move |_| Ok(vec![value.clone()])))
}

fn constant_of_shape(node: &Node<'_>) -> Result<Kernel, OpError> {
    let fill = node.tensor("value")?.unwrap_or_else(|| Value::f32([1], vec![0.0]));
    if fill.data.len() != 1 {
        return Err(OpError::attribute("value", "must hold one element"));
    }
    Ok(Box::new(move |args| {
        let shape = sizes(&args.get(0)?.integers()?)?;
        let n = args.room_like(&shape, &fill.data)?;
        Ok(vec![Value::new(shape, pick(args.watch, &fill.data, std::iter::repeat_n(0, n)))])
    }))
}

/// In the datatype of its three inputs, which must be the same.
fn range() -> Kernel {
    Box::new(|args| {
        let (start, end, step) = (args.get(0)?, args.get(1)?, args.get(2)?);
        let no_step = || OpError::Value("a range cannot have the step 0".to_owned());
        let single = |v: &[f32]| v.first().copied().map(f64::from);
        let data = match (start.data, end.data, step.data) {
            (Elements::Fp32(a), Elements::Fp32(b), Elements::Fp32(c)) => {
                let (a, b, c) = scalars(single(a), single(b), single(c))?;
                let n = steps(b - a, c).ok_or_else(no_step)?;
                args.room(&[n])?;
                // As the reference computes it: in single precision.
                let (a, c) = (a as f32, c as f32);
                Elements::Fp32(args.watch.polled(0..n).map(|i| a + i as f32 * c).collect())
            }
            (Elements::Fp64(a), Elements::Fp64(b), Elements::Fp64(c)) => {
                let (a, b, c) = scalars(a.first().copied(), b.first().copied(), c.first().copied())?;
                let n = steps(b - a, c).ok_or_else(no_step)?;
                args.room(&[n])?;
                Elements::Fp64(args.watch.polled(0..n).map(|i| a + i as f64 * c).collect())
            }
            _ => {
                let scalar = |v: &View<'_>| v.integers().map(|v| v.first().copied().map(i128::from));
                let (start, end, step) = scalars(scalar(&start)?, scalar(&end)?, scalar(&step)?)?;
                if step == 0 {
                    return Err(no_step());
                }
                let n = ((end - start + step - step.signum()) / step).max(0);
                let n = usize::try_from(n).unwrap_or(usize::MAX);
                args.room(&[n])?;
                let values = args.watch.polled(0..n as i128).map(|i| (start + i * step) as i64);
                let values = Elements::Int64(values.collect());
                // The number of values does not change: the result is stopped, not short.
                cast(args.watch, &values, args.get(0)?.data.datatype())?
            }
        };
        Ok(vec![Value::new([data.len()], data)])
    })
}

fn scalars<T>(a: Option<T>, b: Option<T>, c: Option<T>) -> Result<(T, T, T), OpError> {
    Ok((
        a.ok_or(OpError::MissingInput(0))?,
        b.ok_or(OpError::MissingInput(1))?,
        c.ok_or(OpError::MissingInput(2))?,
    ))
}

/// How many steps of this size fit the span; `None` when there is no number of them.
fn steps(span: f64, step: f64) -> Option<usize> {
    let n = (span / step).ceil();
    // Saturates beyond the largest number; the memory limit rejects it.
    (step != 0.0 && !n.is_nan()).then_some(n.max(0.0) as usize)
}
