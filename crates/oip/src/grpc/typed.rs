//! Typed contents: one repeated field per family of datatypes.

use crate::{Error, raw::shape_text};
use gantry_proto::inference::InferTensorContents;
use gantry_tensor::{DataType, Elements};

pub(super) const fn is_empty(contents: &InferTensorContents) -> bool {
    contents.bool_contents.is_empty()
        && contents.int_contents.is_empty()
        && contents.int64_contents.is_empty()
        && contents.uint_contents.is_empty()
        && contents.uint64_contents.is_empty()
        && contents.fp32_contents.is_empty()
        && contents.fp64_contents.is_empty()
        && contents.bytes_contents.is_empty()
}

/// `None` for datatypes without a typed form.
pub(super) fn to_contents(elements: Elements) -> Option<InferTensorContents> {
    let mut contents = InferTensorContents::default();
    match elements {
        Elements::Bool(v) => contents.bool_contents = v,
        Elements::Uint8(v) => contents.uint_contents = v.into_iter().map(u32::from).collect(),
        Elements::Uint16(v) => contents.uint_contents = v.into_iter().map(u32::from).collect(),
        Elements::Uint32(v) => contents.uint_contents = v,
        Elements::Uint64(v) => contents.uint64_contents = v,
        Elements::Int8(v) => contents.int_contents = v.into_iter().map(i32::from).collect(),
        Elements::Int16(v) => contents.int_contents = v.into_iter().map(i32::from).collect(),
        Elements::Int32(v) => contents.int_contents = v,
        Elements::Int64(v) => contents.int64_contents = v,
        Elements::Fp32(v) => contents.fp32_contents = v,
        Elements::Fp64(v) => contents.fp64_contents = v,
        Elements::Bytes(v) => contents.bytes_contents = v,
        Elements::Fp16(_) | Elements::Bf16(_) => return None,
    }
    Some(contents)
}

pub(super) fn from_contents(
    contents: InferTensorContents,
    datatype: DataType,
    count: usize,
    shape: &[usize],
) -> Result<Elements, Error> {
    let (field, length) = match datatype {
        DataType::Fp16 | DataType::Bf16 => {
            return Err(Error::invalid(format!(
                "{datatype} has no typed contents: send it in raw_input_contents"
            )));
        }
        DataType::Bool => ("bool_contents", contents.bool_contents.len()),
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => {
            ("uint_contents", contents.uint_contents.len())
        }
        DataType::Uint64 => ("uint64_contents", contents.uint64_contents.len()),
        DataType::Int8 | DataType::Int16 | DataType::Int32 => ("int_contents", contents.int_contents.len()),
        DataType::Int64 => ("int64_contents", contents.int64_contents.len()),
        DataType::Fp32 => ("fp32_contents", contents.fp32_contents.len()),
        DataType::Fp64 => ("fp64_contents", contents.fp64_contents.len()),
        DataType::Bytes => ("bytes_contents", contents.bytes_contents.len()),
    };
    if length == 0 && !is_empty(&contents) {
        return Err(Error::invalid(format!("{datatype} belongs in {field}, which is empty")));
    }
    if length != count {
        return Err(Error::invalid(format!(
            "shape {} needs {count} values, got {length}",
            shape_text(shape)
        )));
    }
    Ok(match datatype {
        DataType::Bool => Elements::Bool(contents.bool_contents),
        DataType::Uint8 => Elements::Uint8(narrow(contents.uint_contents, datatype)?),
        DataType::Uint16 => Elements::Uint16(narrow(contents.uint_contents, datatype)?),
        DataType::Uint32 => Elements::Uint32(contents.uint_contents),
        DataType::Uint64 => Elements::Uint64(contents.uint64_contents),
        DataType::Int8 => Elements::Int8(narrow(contents.int_contents, datatype)?),
        DataType::Int16 => Elements::Int16(narrow(contents.int_contents, datatype)?),
        DataType::Int32 => Elements::Int32(contents.int_contents),
        DataType::Int64 => Elements::Int64(contents.int64_contents),
        DataType::Fp32 => Elements::Fp32(contents.fp32_contents),
        DataType::Fp64 => Elements::Fp64(contents.fp64_contents),
        DataType::Fp16 => Elements::Fp16(Vec::new()),
        DataType::Bf16 => Elements::Bf16(Vec::new()),
        DataType::Bytes => Elements::Bytes(contents.bytes_contents),
    })
}

fn narrow<W, N: TryFrom<W>>(values: Vec<W>, datatype: DataType) -> Result<Vec<N>, Error> {
    values
        .into_iter()
        .enumerate()
        .map(|(i, value)| {
            N::try_from(value)
                .map_err(|_| Error::invalid(format!("element {i} is out of the range of {datatype}")))
        })
        .collect()
}
