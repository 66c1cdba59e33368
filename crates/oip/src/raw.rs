//! Raw little-endian elements: REST binary data and gRPC raw contents.

use crate::{Error, Limits};
use bytes::Bytes;
use gantry_tensor::{DataType, Elements, Tensor, shape_product};
use std::fmt::Write as _;

/// Rejects negative dimensions and shapes beyond the limits.
pub(crate) fn checked_shape(
    dims: &[i64],
    datatype: DataType,
    limits: &Limits,
) -> Result<(Vec<usize>, usize), Error> {
    if dims.len() > limits.rank {
        return Err(Error::invalid(format!(
            "a shape of {} dimensions is more than the {} allowed",
            dims.len(),
            limits.rank
        )));
    }
    let shape = dims
        .iter()
        .map(|&d| {
            usize::try_from(d)
                .map_err(|_| Error::invalid(format!("shape {} has a negative dimension", shape_text(dims))))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let Some(count) = shape_product(&shape) else {
        return Err(Error::invalid(format!("the product of shape {} is too large", shape_text(dims))));
    };
    let most = if datatype == DataType::Bytes { limits.bytes_elements } else { limits.elements };
    if count > most {
        return Err(Error::invalid(format!(
            "shape {} has {count} elements, more than the {most} allowed",
            shape_text(dims)
        )));
    }
    Ok((shape, count))
}

pub(crate) fn shape_text<T: std::fmt::Display>(dims: &[T]) -> String {
    let mut text = String::from("[");
    for (i, d) in dims.iter().enumerate() {
        let _ = write!(text, "{}{d}", if i > 0 { "," } else { "" });
    }
    text.push(']');
    text
}

pub(crate) fn parse_datatype(name: &str) -> Result<DataType, Error> {
    DataType::parse(name).ok_or_else(|| {
        let known = DataType::ALL.map(DataType::name).join(", ");
        let shown: String = name.chars().take(40).collect();
        Error::invalid(format!("datatype {shown:?} is not one of {known}"))
    })
}

/// `count` is the product of `shape`.
pub(crate) fn tensor_from_raw(
    name: String,
    shape: Vec<usize>,
    count: usize,
    datatype: DataType,
    raw: &Bytes,
) -> Result<Tensor, Error> {
    if let Some(size) = datatype.size() {
        let needed = count.checked_mul(size);
        if needed != Some(raw.len()) {
            return Err(Error::invalid(format!(
                "shape {} of {datatype} needs {} bytes, got {}",
                shape_text(&shape),
                needed.unwrap_or(usize::MAX),
                raw.len()
            )));
        }
    }
    if datatype == DataType::Bool
        && let Some(at) = raw.iter().position(|&b| b > 1)
    {
        return Err(Error::invalid(format!("element {at} of a BOOL tensor must be a byte 0 or 1")));
    }
    let elements = match Elements::from_raw(datatype, raw) {
        Some(numbers) => numbers,
        None => Elements::Bytes(bytes_elements(raw, count, &shape)?),
    };
    Tensor::new(name, shape, elements).map_err(|e| Error::invalid(e.to_string()))
}

fn bytes_elements(raw: &Bytes, count: usize, shape: &[usize]) -> Result<Vec<Bytes>, Error> {
    // Each element has a four-byte prefix, which bounds the count.
    let mut out = Vec::with_capacity(count.min(raw.len() / 4));
    let mut at = 0usize;
    let mut found = 0usize;
    while at < raw.len() {
        let rest = raw.get(at..).unwrap_or_default();
        let Some((prefix, rest)) = rest.split_first_chunk::<4>() else {
            return Err(Error::invalid(format!(
                "{} bytes where element {found} starts are too few for a length prefix of 4",
                rest.len()
            )));
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > rest.len() {
            return Err(Error::invalid(format!(
                "the length prefix of element {found} is {length} bytes, {} are left",
                rest.len()
            )));
        }
        let start = at + 4;
        at = start + length;
        if found < count {
            out.push(raw.slice(start..at));
        }
        found += 1;
    }
    if found == count {
        return Ok(out);
    }
    Err(Error::invalid(format!("shape {} needs {count} values, got {found}", shape_text(shape))))
}
