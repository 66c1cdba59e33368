//! Tensors of the Open Inference Protocol: name, shape, datatype and elements.

#![allow(missing_docs, reason = "variants and accessors are named after the protocol")]

mod cancel;
mod raw;
mod rows;

pub use cancel::CancelToken;

use bytes::Bytes;
use std::{fmt, sync::Arc};

/// The element type of a tensor, with the protocol's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// `BOOL`, one byte an element.
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    /// `FP16`, IEEE 754 half precision.
    Fp16,
    /// `BF16`, the upper half of an `FP32`.
    Bf16,
    Fp32,
    Fp64,
    /// `BYTES`, elements of any length; on the wire each has a four-byte little-endian length before it.
    Bytes,
}

impl DataType {
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// Case-sensitive.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Bytes an element takes on the wire; `None` for `BYTES`, whose elements differ in length.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The elements of a tensor in row-major order.
///
/// `FP16` and `BF16` keep their bits; [`f16_to_f32`] and [`bf16_to_f32`] give their values.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    Bool(Vec<bool>),
    Uint8(Vec<u8>),
    Uint16(Vec<u16>),
    Uint32(Vec<u32>),
    Uint64(Vec<u64>),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    /// `FP16`, as bits.
    Fp16(Vec<u16>),
    /// `BF16`, as bits.
    Bf16(Vec<u16>),
    Fp32(Vec<f32>),
    Fp64(Vec<f64>),
    Bytes(Vec<Bytes>),
}

/// Evaluates an expression on the vector of an [`Elements`].
macro_rules! for_each_elements {
    ($elements:expr, $v:ident => $body:expr) => {
        match $elements {
            $crate::Elements::Bool($v) => $body,
            $crate::Elements::Uint8($v) => $body,
            $crate::Elements::Uint16($v) => $body,
            $crate::Elements::Uint32($v) => $body,
            $crate::Elements::Uint64($v) => $body,
            $crate::Elements::Int8($v) => $body,
            $crate::Elements::Int16($v) => $body,
            $crate::Elements::Int32($v) => $body,
            $crate::Elements::Int64($v) => $body,
            $crate::Elements::Fp16($v) => $body,
            $crate::Elements::Bf16($v) => $body,
            $crate::Elements::Fp32($v) => $body,
            $crate::Elements::Fp64($v) => $body,
            $crate::Elements::Bytes($v) => $body,
        }
    };
}

impl Elements {
    pub const fn datatype(&self) -> DataType {
        match self {
            Self::Bool(_) => DataType::Bool,
            Self::Uint8(_) => DataType::Uint8,
            Self::Uint16(_) => DataType::Uint16,
            Self::Uint32(_) => DataType::Uint32,
            Self::Uint64(_) => DataType::Uint64,
            Self::Int8(_) => DataType::Int8,
            Self::Int16(_) => DataType::Int16,
            Self::Int32(_) => DataType::Int32,
            Self::Int64(_) => DataType::Int64,
            Self::Fp16(_) => DataType::Fp16,
            Self::Bf16(_) => DataType::Bf16,
            Self::Fp32(_) => DataType::Fp32,
            Self::Fp64(_) => DataType::Fp64,
            Self::Bytes(_) => DataType::Bytes,
        }
    }

    pub const fn len(&self) -> usize {
        for_each_elements!(self, v => v.len())
    }

    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as `f32`, without copying when they are `FP32` already. `None` for `BYTES`.
    pub fn to_f32(&self) -> Option<std::borrow::Cow<'_, [f32]>> {
        use std::borrow::Cow;
        Some(match self {
            Self::Fp32(v) => Cow::Borrowed(v.as_slice()),
            Self::Bool(v) => v.iter().map(|&x| f32::from(u8::from(x))).collect(),
            Self::Uint8(v) => v.iter().map(|&x| f32::from(x)).collect(),
            Self::Uint16(v) => v.iter().map(|&x| f32::from(x)).collect(),
            Self::Uint32(v) => v.iter().map(|&x| x as f32).collect(),
            Self::Uint64(v) => v.iter().map(|&x| x as f32).collect(),
            Self::Int8(v) => v.iter().map(|&x| f32::from(x)).collect(),
            Self::Int16(v) => v.iter().map(|&x| f32::from(x)).collect(),
            Self::Int32(v) => v.iter().map(|&x| x as f32).collect(),
            Self::Int64(v) => v.iter().map(|&x| x as f32).collect(),
            Self::Fp16(v) => v.iter().map(|&x| f16_to_f32(x)).collect(),
            Self::Bf16(v) => v.iter().map(|&x| bf16_to_f32(x)).collect(),
            Self::Fp64(v) => v.iter().map(|&x| x as f32).collect(),
            Self::Bytes(_) => return None,
        })
    }

    /// The elements as `f64`, without copying when they are `FP64` already. `None` for `BYTES`.
    pub fn to_f64(&self) -> Option<std::borrow::Cow<'_, [f64]>> {
        use std::borrow::Cow;
        Some(match self {
            Self::Fp64(v) => Cow::Borrowed(v.as_slice()),
            Self::Bool(v) => v.iter().map(|&x| f64::from(u8::from(x))).collect(),
            Self::Uint8(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Self::Uint16(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Self::Uint32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Self::Uint64(v) => v.iter().map(|&x| x as f64).collect(),
            Self::Int8(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Self::Int16(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Self::Int32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Self::Int64(v) => v.iter().map(|&x| x as f64).collect(),
            Self::Fp16(v) => v.iter().map(|&x| f64::from(f16_to_f32(x))).collect(),
            Self::Bf16(v) => v.iter().map(|&x| f64::from(bf16_to_f32(x))).collect(),
            Self::Fp32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Self::Bytes(_) => return None,
        })
    }
}

/// A named tensor.
///
/// The number of elements always equals the product of the shape: [`Tensor::new`] is the only way to make one.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    name: String,
    shape: Vec<usize>,
    elements: Storage,
}

#[derive(Clone, Debug)]
enum Storage {
    Owned(Elements),
    Shared(Arc<Elements>),
}

impl Storage {
    fn elements(&self) -> &Elements {
        match self {
            Self::Owned(elements) => elements,
            Self::Shared(elements) => elements,
        }
    }
}

impl PartialEq for Storage {
    fn eq(&self, other: &Self) -> bool {
        self.elements() == other.elements()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The number of elements is not the product of the shape.
    #[error("shape {} needs {needed} values, got {got}", ShapeText(shape))]
    Count { shape: Vec<usize>, needed: usize, got: usize },
    /// The product of the shape does not fit.
    #[error("the product of shape {} is too large", ShapeText(shape))]
    Overflow { shape: Vec<usize> },
}

struct ShapeText<'a>(&'a [usize]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

/// The number of elements of a shape; `None` when it does not fit.
pub fn shape_product(shape: &[usize]) -> Option<usize> {
    // A zero anywhere makes the tensor empty, however large the other dimensions are.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

impl Tensor {
    /// Fails unless the product of the shape is the number of elements.
    pub fn new(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        elements: Elements,
    ) -> Result<Self, TensorError> {
        let shape = shape.into();
        match shape_product(&shape) {
            None => Err(TensorError::Overflow { shape }),
            Some(needed) if needed != elements.len() => {
                Err(TensorError::Count { needed, got: elements.len(), shape })
            }
            Some(_) => Ok(Self { name: name.into(), shape, elements: Storage::Owned(elements) }),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn renamed(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same tensor; its clones share the elements.
    #[must_use]
    pub fn shared(mut self) -> Self {
        if let Storage::Owned(elements) = self.elements {
            self.elements = Storage::Shared(Arc::new(elements));
        }
        self
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, in row-major order.
    pub fn elements(&self) -> &Elements {
        self.elements.elements()
    }

    pub fn datatype(&self) -> DataType {
        self.elements().datatype()
    }

    /// Copies the elements if other tensors share them.
    pub fn into_parts(self) -> (String, Vec<usize>, Elements) {
        let elements = match self.elements {
            Storage::Owned(elements) => elements,
            Storage::Shared(elements) => Arc::unwrap_or_clone(elements),
        };
        (self.name, self.shape, elements)
    }
}

/// Metadata of a model input or output. A variable dimension is -1, as in the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub datatype: DataType,
    pub shape: Vec<i64>,
}

/// The value of a half-precision float.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    match (exponent, fraction) {
        (0, 0) => f32::from_bits(sign),
        // Subnormal: fraction × 2⁻²⁴, exact in f32.
        (0, _) => {
            let magnitude = fraction as f32 * f32::from_bits(0x3380_0000);
            if sign == 0 { magnitude } else { -magnitude }
        }
        (0x1f, _) => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

/// The nearest half-precision float, ties to even.
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let exponent = ((bits >> 23) & 0xff) as i32;
    let fraction = bits & 0x7f_ffff;
    if exponent == 0xff {
        // Infinity stays; a NaN keeps at least one fraction bit so that it stays a NaN.
        let nan = if fraction == 0 { 0 } else { 0x200 | (fraction >> 13) as u16 };
        return sign | 0x7c00 | nan;
    }
    let unbiased = exponent - 127;
    if unbiased > 15 {
        return sign | 0x7c00;
    }
    let (mantissa, shift) = if unbiased >= -14 {
        (fraction | (((unbiased + 15) as u32) << 23), 13)
    } else if unbiased >= -25 {
        (fraction | 0x80_0000, (13 + (-14 - unbiased)) as u32)
    } else {
        return sign;
    };
    let halfway = 1u32 << (shift - 1);
    let kept = mantissa >> shift;
    let rest = mantissa & ((1 << shift) - 1);
    let round_up = rest > halfway || (rest == halfway && kept & 1 == 1);
    sign | (kept + u32::from(round_up)) as u16
}

/// The value of a `BF16`.
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The nearest `BF16`, ties to even.
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    let round = 0x7fff + ((bits >> 16) & 1);
    (bits.wrapping_add(round) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_round_trips() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits, "{bits:#06x} is {value}");
            }
        }
    }

    #[test]
    fn bf16_round_trips() {
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(value), bits);
            }
        }
    }

    #[test]
    fn f16_rounds_ties_to_even() {
        assert_eq!(f32_to_f16(65504.0), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00, "past the largest half is infinity");
        assert_eq!(f32_to_f16(1.0 + 1.0 / 2048.0), 0x3c00, "a tie goes to the even neighbour");
        assert_eq!(f32_to_f16(1.0 + 3.0 / 2048.0), 0x3c02);
    }

    #[test]
    fn clones_of_a_shared_tensor_do_not_copy_its_elements() {
        let owned = Tensor::new("x", [2], Elements::Fp32(vec![1.0, 2.0])).unwrap();
        let address = |t: &Tensor| std::ptr::from_ref(t.elements());
        assert_ne!(address(&owned), address(&owned.clone()));
        let shared = owned.clone().shared();
        let other = shared.clone().renamed("y");
        assert_eq!(address(&shared), address(&other));
        assert_eq!(shared, owned);
        assert_eq!(other.into_parts().2, *owned.elements());
        assert_eq!(shared.into_parts(), owned.into_parts());
    }

    #[test]
    fn new_rejects_shape_that_does_not_match_elements() {
        assert!(Tensor::new("x", [2, 2], Elements::Fp32(vec![0.0; 4])).is_ok());
        let error = Tensor::new("x", [1, 4], Elements::Fp32(vec![0.0; 3])).unwrap_err();
        assert_eq!(error.to_string(), "shape [1,4] needs 4 values, got 3");
        assert!(matches!(
            Tensor::new("x", [usize::MAX, 2], Elements::Fp32(vec![])),
            Err(TensorError::Overflow { .. })
        ));
        assert!(Tensor::new("x", [usize::MAX, 0, 7], Elements::Fp32(vec![])).is_ok());
    }
}
