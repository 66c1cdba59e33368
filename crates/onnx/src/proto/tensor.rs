//! Tensors inside a model file, and their way into memory.

use super::ParseError;
use super::wire::Reader;
use bytes::Bytes;
use gantry_tensor::{DataType, Elements, shape_product};

/// A tensor as the file holds it.
#[derive(Debug, Default, Clone)]
pub(crate) struct TensorProto<'a> {
    pub name: &'a str,
    pub dims: Vec<i64>,
    pub data_type: i64,
    pub raw: Option<&'a [u8]>,
    pub external: Option<External<'a>>,
    floats: Vec<f32>,
    ints: Vec<i64>,
    doubles: Vec<f64>,
    strings: Vec<&'a [u8]>,
}

/// Where the bytes of a tensor are when they are not in the model file.
#[derive(Debug, Default, Clone)]
pub(crate) struct External<'a> {
    pub location: &'a str,
    pub offset: u64,
    pub length: Option<u64>,
}

/// Our datatype for ONNX's number.
pub(crate) const fn data_type(number: i64) -> Option<DataType> {
    Some(match number {
        1 => DataType::Fp32,
        2 => DataType::Uint8,
        3 => DataType::Int8,
        4 => DataType::Uint16,
        5 => DataType::Int16,
        6 => DataType::Int32,
        7 => DataType::Int64,
        8 => DataType::Bytes,
        9 => DataType::Bool,
        10 => DataType::Fp16,
        11 => DataType::Fp64,
        12 => DataType::Uint32,
        13 => DataType::Uint64,
        16 => DataType::Bf16,
        _ => return None,
    })
}

/// Why a tensor of a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum TensorFault {
    #[error("dimensions {dims:?} are negative or too large")]
    Dimensions { dims: Vec<i64> },
    #[error("element type {0} is not supported")]
    Type(i64),
    #[error("dimensions {dims:?} of {datatype} need {needed} values, the file has {got}")]
    Count { dims: Vec<usize>, datatype: DataType, needed: usize, got: usize },
    #[error("the values are in another file (external data), which is not available here")]
    External,
}

impl<'a> TensorProto<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut tensor = Self::default();
        let mut external = External::default();
        let mut is_external = false;
        let mut reader = Reader::new(bytes);
        while let Some((number, field)) = reader.field()? {
            match number {
                1 => field.push_ints(&mut tensor.dims)?,
                2 => tensor.data_type = field.int()?,
                4 => field.push_floats(&mut tensor.floats)?,
                5 | 7 | 11 => field.push_ints(&mut tensor.ints)?,
                6 => tensor.strings.push(field.bytes()?),
                8 => tensor.name = field.text()?,
                9 => tensor.raw = Some(field.bytes()?),
                10 => field.push_doubles(&mut tensor.doubles)?,
                13 => external_entry(field.bytes()?, &mut external)?,
                14 => is_external = field.int()? == 1,
                _ => {}
            }
        }
        tensor.external = is_external.then_some(external);
        Ok(tensor)
    }

    /// The dimensions, if they are none negative and their product fits.
    pub(crate) fn shape(&self) -> Result<Vec<usize>, TensorFault> {
        let fault = || TensorFault::Dimensions { dims: self.dims.clone() };
        let shape: Vec<usize> =
            self.dims.iter().map(|&d| usize::try_from(d).map_err(|_| fault())).collect::<Result<_, _>>()?;
        shape_product(&shape).ok_or_else(fault)?;
        Ok(shape)
    }

    /// The shape and the elements; `external` are the bytes when they were in another file.
    pub(crate) fn load(&self, external: Option<&[u8]>) -> Result<(Vec<usize>, Elements), TensorFault> {
        let shape = self.shape()?;
        let needed = shape_product(&shape).unwrap_or(0);
        let datatype = data_type(self.data_type).ok_or(TensorFault::Type(self.data_type))?;
        let raw = match (&self.external, external) {
            (Some(_), None) => return Err(TensorFault::External),
            (Some(_), Some(bytes)) => Some(bytes),
            (None, _) => self.raw,
        };
        let elements = match raw {
            Some(raw) if datatype != DataType::Bytes => from_raw(raw, datatype),
            _ => self.typed_fields(datatype),
        };
        // `from_raw` drops a last incomplete value: its size must fit to the byte.
        let exact = raw.is_none_or(|raw| datatype.size().is_none_or(|size| raw.len() == needed * size));
        if elements.len() != needed || !exact {
            return Err(TensorFault::Count { dims: shape, datatype, needed, got: elements.len() });
        }
        Ok((shape, elements))
    }

    fn typed_fields(&self, datatype: DataType) -> Elements {
        let ints = &self.ints;
        match datatype {
            DataType::Fp32 => Elements::Fp32(self.floats.clone()),
            DataType::Fp64 => Elements::Fp64(self.doubles.clone()),
            DataType::Bool => Elements::Bool(ints.iter().map(|&v| v != 0).collect()),
            DataType::Uint8 => Elements::Uint8(ints.iter().map(|&v| v as u8).collect()),
            DataType::Uint16 => Elements::Uint16(ints.iter().map(|&v| v as u16).collect()),
            DataType::Uint32 => Elements::Uint32(ints.iter().map(|&v| v as u32).collect()),
            DataType::Uint64 => Elements::Uint64(ints.iter().map(|&v| v as u64).collect()),
            DataType::Int8 => Elements::Int8(ints.iter().map(|&v| v as i8).collect()),
            DataType::Int16 => Elements::Int16(ints.iter().map(|&v| v as i16).collect()),
            DataType::Int32 => Elements::Int32(ints.iter().map(|&v| v as i32).collect()),
            DataType::Int64 => Elements::Int64(ints.clone()),
            DataType::Fp16 => Elements::Fp16(ints.iter().map(|&v| v as u16).collect()),
            DataType::Bf16 => Elements::Bf16(ints.iter().map(|&v| v as u16).collect()),
            DataType::Bytes => {
                Elements::Bytes(self.strings.iter().map(|s| Bytes::copy_from_slice(s)).collect())
            }
        }
    }
}

fn from_raw(raw: &[u8], datatype: DataType) -> Elements {
    macro_rules! chunks {
        ($kind:ty, $size:literal) => {
            raw.as_chunks::<$size>().0.iter().map(|c| <$kind>::from_le_bytes(*c)).collect()
        };
    }
    match datatype {
        DataType::Fp32 => Elements::Fp32(chunks!(f32, 4)),
        DataType::Fp64 => Elements::Fp64(chunks!(f64, 8)),
        DataType::Bool => Elements::Bool(raw.iter().map(|&b| b != 0).collect()),
        DataType::Uint8 => Elements::Uint8(raw.to_vec()),
        DataType::Uint16 => Elements::Uint16(chunks!(u16, 2)),
        DataType::Uint32 => Elements::Uint32(chunks!(u32, 4)),
        DataType::Uint64 => Elements::Uint64(chunks!(u64, 8)),
        DataType::Int8 => Elements::Int8(chunks!(i8, 1)),
        DataType::Int16 => Elements::Int16(chunks!(i16, 2)),
        DataType::Int32 => Elements::Int32(chunks!(i32, 4)),
        DataType::Int64 => Elements::Int64(chunks!(i64, 8)),
        DataType::Fp16 => Elements::Fp16(chunks!(u16, 2)),
        DataType::Bf16 => Elements::Bf16(chunks!(u16, 2)),
        DataType::Bytes => Elements::Bytes(Vec::new()),
    }
}

fn external_entry<'a>(bytes: &'a [u8], external: &mut External<'a>) -> Result<(), ParseError> {
    let (mut key, mut value) = ("", "");
    let mut reader = Reader::new(bytes);
    while let Some((number, field)) = reader.field()? {
        match number {
            1 => key = field.text()?,
            2 => value = field.text()?,
            _ => {}
        }
    }
    let number = || {
        value.parse::<u64>().map_err(|_| ParseError::WireType { wanted: "an external data offset or length" })
    };
    match key {
        "location" => external.location = value,
        "offset" => external.offset = number()?,
        "length" => external.length = Some(number()?),
        _ => {}
    }
    Ok(())
}
