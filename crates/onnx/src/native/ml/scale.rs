//! Scalers, imputers and normalizers.

use crate::native::node::{Kernel, Node};
use crate::native::value::{OpError, Value, unsupported_type};
use gantry_tensor::Elements;

/// The operators of this file.
pub(super) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "Scaler" => scaler(node)?,
        "Normalizer" => normalizer(node)?,
        "Imputer" => imputer(node)?,
        "Binarizer" => binarizer(node)?,
        "FeatureVectorizer" => feature_vectorizer(node)?,
        _ => return Ok(None),
    }))
}

/// A value per column, or one for all.
fn fits(values: usize, columns: usize, name: &str) -> Result<(), OpError> {
    if values == 1 || values == columns {
        return Ok(());
    }
    Err(OpError::Shape(format!("{name} has {values} values, the rows have {columns} columns")))
}

fn scaler(node: &Node<'_>) -> Result<Kernel, OpError> {
    let (offset, scale) = (node.floats("offset")?.to_vec(), node.floats("scale")?.to_vec());
    if offset.is_empty() || scale.is_empty() {
        return Err(OpError::attribute("offset", "and scale must both be given"));
    }
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (_, columns) = x.rows()?;
        fits(offset.len(), columns, "offset")?;
        fits(scale.len(), columns, "scale")?;
        let pairs = || offset.iter().cycle().zip(scale.iter().cycle());
        // Doubles are scaled as doubles; the result is always single.
        let result = if let Elements::Fp64(v) = x.data {
            let scale = |(&x, (&o, &s)): (&f64, (&f32, &f32))| ((x - f64::from(o)) * f64::from(s)) as f32;
            args.watch.polled(v.iter().zip(pairs())).map(scale).collect()
        } else {
            let values = x.floats()?;
            args.watch.polled(values.iter().zip(pairs())).map(|(&x, (&o, &s))| (x - o) * s).collect()
        };
        Ok(vec![Value::f32(x.shape, result)])
    }))
}

fn normalizer(node: &Node<'_>) -> Result<Kernel, OpError> {
    let row: fn(&mut [f32]) = match node.text("norm", "MAX")? {
        "MAX" => |row| {
            let top = row.iter().copied().fold(f32::MIN, f32::max);
            if top != 0.0 {
                for x in row.iter_mut() {
                    *x /= top;
                }
            }
        },
        "L1" => |row| {
            let sum: f32 = row.iter().map(|x| x.abs()).sum();
            if sum != 0.0 {
                for x in row.iter_mut() {
                    *x /= sum;
                }
            }
        },
        "L2" => |row| {
            let sum: f32 = row.iter().map(|x| x * x).sum();
            if sum != 0.0 {
                for x in row.iter_mut() {
                    *x = (*x * *x / sum).sqrt().copysign(*x);
                }
            }
        },
        other => return Err(OpError::attribute("norm", format!("is {other:?}, not MAX, L1 or L2"))),
    };
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (_, columns) = x.rows()?;
        let mut result = x.floats()?.into_owned();
        args.watch.polled(result.chunks_mut(columns.max(1))).for_each(row);
        Ok(vec![Value::f32(x.shape, result)])
    }))
}

fn imputer(node: &Node<'_>) -> Result<Kernel, OpError> {
    let (floats, ints) =
        (node.floats("imputed_value_floats")?.to_vec(), node.ints("imputed_value_int64s")?.to_vec());
    let hole = node.float("replaced_value_float", 0.0)?;
    let hole_int = node.int("replaced_value_int64", 0)?;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (_, columns) = x.rows()?;
        #[allow(clippy::float_cmp, reason = "the operator replaces exactly this value")]
        let is_hole = |v: f64| if hole.is_nan() { v.is_nan() } else { v == f64::from(hole) };
        let data = match x.data {
            Elements::Fp32(v) => {
                fits(floats.len(), columns, "imputed_value_floats")?;
                let filled = args.watch.polled(v.iter().zip(floats.iter().cycle()));
                Elements::Fp32(filled.map(|(&x, &f)| if is_hole(f64::from(x)) { f } else { x }).collect())
            }
            Elements::Fp64(v) => {
                fits(floats.len(), columns, "imputed_value_floats")?;
                let filled = args.watch.polled(v.iter().zip(floats.iter().cycle()));
                Elements::Fp64(filled.map(|(&x, &f)| if is_hole(x) { f64::from(f) } else { x }).collect())
            }
            Elements::Int64(v) => {
                fits(ints.len(), columns, "imputed_value_int64s")?;
                let filled = args.watch.polled(v.iter().zip(ints.iter().cycle()));
                Elements::Int64(filled.map(|(&x, &f)| if x == hole_int { f } else { x }).collect())
            }
            _ => return Err(unsupported_type(0, &x)),
        };
        Ok(vec![Value::new(x.shape, data)])
    }))
}

fn binarizer(node: &Node<'_>) -> Result<Kernel, OpError> {
    let threshold = node.float("threshold", 0.0)?;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let data = match x.data {
            Elements::Fp32(v) => {
                Elements::Fp32(args.watch.map(v, |&x| if x > threshold { 1.0 } else { 0.0 })?)
            }
            Elements::Fp64(v) => {
                Elements::Fp64(args.watch.map(v, |&x| if x > f64::from(threshold) { 1.0 } else { 0.0 })?)
            }
            Elements::Int64(v) => Elements::Int64(args.watch.map(v, |&x| i64::from(x as f32 > threshold))?),
            _ => return Err(unsupported_type(0, &x)),
        };
        Ok(vec![Value::new(x.shape, data)])
    }))
}

fn feature_vectorizer(node: &Node<'_>) -> Result<Kernel, OpError> {
    let sizes: Vec<usize> = node
        .ints("inputdimensions")?
        .iter()
        .map(|&n| {
            usize::try_from(n).map_err(|_| OpError::attribute("inputdimensions", "has a negative number"))
        })
        .collect::<Result<_, _>>()?;
    Ok(Box::new(move |args| {
        let parts = args.all()?;
        if parts.len() != sizes.len() {
            return Err(OpError::Shape(format!(
                "{} inputs, inputdimensions has {}",
                parts.len(),
                sizes.len()
            )));
        }
        let rows = parts.first().ok_or(OpError::MissingInput(0))?.rows()?.0;
        let width = sizes.iter().try_fold(0usize, |n, &s| n.checked_add(s)).unwrap_or(usize::MAX);
        let total = args.room(&[rows, width])?;
        let mut result = vec![0.0f32; total];
        let mut start = 0;
        for (part, &size) in parts.iter().zip(&sizes) {
            let (part_rows, columns) = part.rows()?;
            if part_rows != rows {
                return Err(OpError::Shape(format!("inputs have {rows} and {part_rows} rows")));
            }
            let values = part.floats()?;
            let copied = columns.min(size);
            // A shorter input leaves zeros behind it, a longer one is cut.
            for (row, from) in result.chunks_mut(width.max(1)).zip(values.chunks(columns.max(1))) {
                if let (Some(to), Some(from)) = (row.get_mut(start..start + copied), from.get(..copied)) {
                    to.copy_from_slice(from);
                }
            }
            start += size;
        }
        Ok(vec![Value::f32([rows, width], result)])
    }))
}
