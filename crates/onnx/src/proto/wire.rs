//! The protobuf wire format: fields one after another, each with its number, borrowed from the file's bytes.

use super::ParseError;

/// The payload of one field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub(crate) fn int(self) -> Result<i64, ParseError> {
        match self {
            Self::Varint(v) => Ok(v as i64),
            _ => Err(ParseError::WireType { wanted: "an integer" }),
        }
    }

    pub(crate) fn float(self) -> Result<f32, ParseError> {
        match self {
            Self::Fixed32(v) => Ok(f32::from_bits(v)),
            _ => Err(ParseError::WireType { wanted: "a float" }),
        }
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], ParseError> {
        match self {
            Self::Bytes(v) => Ok(v),
            _ => Err(ParseError::WireType { wanted: "bytes" }),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, ParseError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| ParseError::NotUtf8)
    }

    /// A repeated integer, packed or not.
    pub(crate) fn push_ints(self, into: &mut Vec<i64>) -> Result<(), ParseError> {
        match self {
            Self::Varint(v) => into.push(v as i64),
            Self::Bytes(packed) => {
                let mut reader = Reader::new(packed);
                while !reader.is_empty() {
                    into.push(reader.varint()? as i64);
                }
            }
            _ => return Err(ParseError::WireType { wanted: "integers" }),
        }
        Ok(())
    }

    /// A repeated float, packed or not.
    pub(crate) fn push_floats(self, into: &mut Vec<f32>) -> Result<(), ParseError> {
        match self {
            Self::Fixed32(v) => into.push(f32::from_bits(v)),
            Self::Bytes(packed) => {
                let (chunks, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(ParseError::Truncated);
                }
                into.extend(chunks.iter().map(|c| f32::from_le_bytes(*c)));
            }
            _ => return Err(ParseError::WireType { wanted: "floats" }),
        }
        Ok(())
    }

    /// A repeated double, packed or not.
    pub(crate) fn push_doubles(self, into: &mut Vec<f64>) -> Result<(), ParseError> {
        match self {
            Self::Fixed64(v) => into.push(f64::from_bits(v)),
            Self::Bytes(packed) => {
                let (chunks, rest) = packed.as_chunks::<8>();
                if !rest.is_empty() {
                    return Err(ParseError::Truncated);
                }
                into.extend(chunks.iter().map(|c| f64::from_le_bytes(*c)));
            }
            _ => return Err(ParseError::WireType { wanted: "doubles" }),
        }
        Ok(())
    }
}

/// Reads the fields of one message.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next field and its number; `None` at the end.
    pub(crate) fn field(&mut self) -> Result<Option<(u64, Field<'a>)>, ParseError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| ParseError::Truncated)?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(ParseError::NotProtobuf),
        };
        match tag >> 3 {
            0 => Err(ParseError::NotProtobuf),
            number => Ok(Some((number, field))),
        }
    }

    fn varint(&mut self) -> Result<u64, ParseError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(ParseError::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ParseError::NotProtobuf)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ParseError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(ParseError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }
}
