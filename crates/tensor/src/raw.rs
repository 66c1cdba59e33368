//! Elements as raw little-endian bytes.

use super::{DataType, Elements};

impl Elements {
    /// Number of bytes that [`write_raw`](Self::write_raw) appends.
    pub fn raw_len(&self) -> usize {
        match self {
            Self::Bytes(v) => v.iter().map(|e| e.len().saturating_add(4)).sum(),
            numbers => numbers.len() * numbers.datatype().size().unwrap_or(1),
        }
    }

    /// Appends the raw bytes of these elements. `BYTES` elements are length-prefixed.
    pub fn write_raw(&self, out: &mut Vec<u8>) {
        macro_rules! numbers {
            ($v:expr) => {
                out.extend($v.iter().flat_map(|x| x.to_le_bytes()))
            };
        }
        match self {
            Self::Bool(v) => out.extend(v.iter().map(|&b| u8::from(b))),
            Self::Uint8(v) => out.extend_from_slice(v),
            Self::Int8(v) => out.extend(v.iter().map(|&b| b.cast_unsigned())),
            Self::Uint16(v) | Self::Fp16(v) | Self::Bf16(v) => numbers!(v),
            Self::Int16(v) => numbers!(v),
            Self::Uint32(v) => numbers!(v),
            Self::Int32(v) => numbers!(v),
            Self::Fp32(v) => numbers!(v),
            Self::Uint64(v) => numbers!(v),
            Self::Int64(v) => numbers!(v),
            Self::Fp64(v) => numbers!(v),
            Self::Bytes(v) => {
                for element in v {
                    // Bodies are limited far below 4 GiB.
                    let length = u32::try_from(element.len()).unwrap_or(u32::MAX);
                    out.extend_from_slice(&length.to_le_bytes());
                    out.extend(element.iter().take(length as usize));
                }
            }
        }
    }

    /// Decodes raw bytes; an incomplete element at the end is ignored, and any non-zero byte is `true`. `None` for
    /// `BYTES`, whose elements vary in size.
    pub fn from_raw(datatype: DataType, raw: &[u8]) -> Option<Self> {
        macro_rules! numbers {
            ($size:literal, $variant:ident, $read:expr) => {{
                let (chunks, _) = raw.as_chunks::<$size>();
                Self::$variant(chunks.iter().map(|c| $read(*c)).collect())
            }};
        }
        Some(match datatype {
            DataType::Bool => Self::Bool(raw.iter().map(|&b| b != 0).collect()),
            DataType::Uint8 => Self::Uint8(raw.to_vec()),
            DataType::Int8 => Self::Int8(raw.iter().map(|&b| b.cast_signed()).collect()),
            DataType::Uint16 => numbers!(2, Uint16, u16::from_le_bytes),
            DataType::Int16 => numbers!(2, Int16, i16::from_le_bytes),
            DataType::Fp16 => numbers!(2, Fp16, u16::from_le_bytes),
            DataType::Bf16 => numbers!(2, Bf16, u16::from_le_bytes),
            DataType::Uint32 => numbers!(4, Uint32, u32::from_le_bytes),
            DataType::Int32 => numbers!(4, Int32, i32::from_le_bytes),
            DataType::Fp32 => numbers!(4, Fp32, f32::from_le_bytes),
            DataType::Uint64 => numbers!(8, Uint64, u64::from_le_bytes),
            DataType::Int64 => numbers!(8, Int64, i64::from_le_bytes),
            DataType::Fp64 => numbers!(8, Fp64, f64::from_le_bytes),
            DataType::Bytes => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let table = [
            Elements::Bool(vec![true, false]),
            Elements::Int8(vec![-1, 7]),
            Elements::Uint16(vec![1, u16::MAX]),
            Elements::Fp16(vec![0x3c00]),
            Elements::Int32(vec![i32::MIN, 5]),
            Elements::Fp32(vec![0.1, f32::INFINITY]),
            Elements::Int64(vec![-2, i64::MAX]),
            Elements::Fp64(vec![0.1]),
        ];
        for elements in table {
            let mut raw = Vec::new();
            elements.write_raw(&mut raw);
            assert_eq!(raw.len(), elements.raw_len());
            assert_eq!(Elements::from_raw(elements.datatype(), &raw), Some(elements));
        }
        assert_eq!(Elements::from_raw(DataType::Bytes, &[]), None);
    }
}
