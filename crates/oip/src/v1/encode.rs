//! V1 responses.

use crate::{Error, InferTensor, json::write_string, rest::write_data};
use bytes::Bytes;
use gantry_tensor::{Elements, Tensor, shape_product};

/// Arrays of a tensor without elements: its shape alone bounds them.
const MAX_EMPTY_ARRAYS: usize = 1 << 20;

/// The body of `GET /v1/models`.
pub fn encode_names(names: &[String]) -> Bytes {
    let mut out = b"{\"models\":[".to_vec();
    for (i, name) in names.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_string(&mut out, name);
    }
    out.extend_from_slice(b"]}");
    out.into()
}

/// `{"predictions":…}`: the rows of one output; of several outputs an object per row with their names, or, if they
/// differ in their number of rows, one object with all rows of each.
///
/// Fails only if a `BYTES` element is not UTF-8, or for an absurd shape.
pub fn encode_response(outputs: &[InferTensor]) -> Result<Bytes, Error> {
    let elements: usize = outputs.iter().map(|output| output.tensor.elements().len()).sum();
    let mut out = Vec::with_capacity(32 + elements.saturating_mul(12).min(1 << 20));
    for tensor in outputs.iter().map(|output| &output.tensor) {
        let arrays = tensor.shape().split_last().map_or(Some(1), |(_, outer)| shape_product(outer));
        if tensor.elements().is_empty() && arrays.is_none_or(|arrays| arrays > MAX_EMPTY_ARRAYS) {
            return Err(Error::internal(format!("output {} has too many empty rows", tensor.name())));
        }
    }
    out.extend_from_slice(b"{\"predictions\":");
    match outputs {
        [only] => {
            let tensor = &only.tensor;
            let shape = if tensor.shape().is_empty() { &[1] } else { tensor.shape() };
            write_nested(&mut out, tensor.elements(), shape, 0).map_err(|error| at(error, tensor))?;
        }
        several => match common_rows(several) {
            Some(rows) => write_rows(&mut out, several, rows)?,
            None => write_columns(&mut out, several)?,
        },
    }
    out.push(b'}');
    Ok(out.into())
}

/// The first dimension, if all outputs have the same one.
fn common_rows(outputs: &[InferTensor]) -> Option<usize> {
    let mut rows = outputs.iter().map(|output| output.tensor.shape().first().copied());
    let first = rows.next().unwrap_or(Some(0))?;
    rows.all(|other| other == Some(first)).then_some(first)
}

fn write_rows(out: &mut Vec<u8>, outputs: &[InferTensor], rows: usize) -> Result<(), Error> {
    out.push(b'[');
    for row in 0..rows {
        if row > 0 {
            out.push(b',');
        }
        out.push(b'{');
        for (i, output) in outputs.iter().enumerate() {
            name(out, i, &output.tensor);
            let shape = output.tensor.shape().get(1..).unwrap_or_default();
            let start = row * shape_product(shape).unwrap_or(0);
            write_nested(out, output.tensor.elements(), shape, start)
                .map_err(|error| at(error, &output.tensor))?;
        }
        out.push(b'}');
    }
    out.push(b']');
    Ok(())
}

fn write_columns(out: &mut Vec<u8>, outputs: &[InferTensor]) -> Result<(), Error> {
    out.push(b'{');
    for (i, InferTensor { tensor, .. }) in outputs.iter().enumerate() {
        name(out, i, tensor);
        write_nested(out, tensor.elements(), tensor.shape(), 0).map_err(|error| at(error, tensor))?;
    }
    out.push(b'}');
    Ok(())
}

fn name(out: &mut Vec<u8>, index: usize, tensor: &Tensor) {
    if index > 0 {
        out.push(b',');
    }
    write_string(out, tensor.name());
    out.push(b':');
}

/// The elements of this shape from `start` on. The depth of the recursion is the number of dimensions.
fn write_nested(out: &mut Vec<u8>, elements: &Elements, shape: &[usize], start: usize) -> Result<(), Error> {
    match shape {
        [] => write_data(out, elements, start..start + 1),
        [length] => {
            out.push(b'[');
            write_data(out, elements, start..start + length)?;
            out.push(b']');
            Ok(())
        }
        [length, inner @ ..] => {
            let step = shape_product(inner).unwrap_or(0);
            out.push(b'[');
            for i in 0..*length {
                if i > 0 {
                    out.push(b',');
                }
                write_nested(out, elements, inner, start + i * step)?;
            }
            out.push(b']');
            Ok(())
        }
    }
}

fn at(error: Error, tensor: &Tensor) -> Error {
    error.at(format_args!("output {}", tensor.name()))
}
