//! A protobuf writer and reader.

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A varint field.
    pub(crate) fn number(mut self, field: u32, value: u64) -> Self {
        varint(&mut self.0, u64::from(field) << 3);
        varint(&mut self.0, value);
        self
    }

    /// A length-delimited field.
    pub(crate) fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        varint(&mut self.0, u64::from(field) << 3 | 2);
        varint(&mut self.0, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub(crate) fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order; ends at the first malformed one.
pub(crate) fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u32, Value<'_>)> {
    std::iter::from_fn(move || {
        let key = take_varint(&mut rest)?;
        let field = u32::try_from(key >> 3).ok()?;
        let fixed = |rest: &mut &'_ [u8], size: usize| {
            let (value, after) = rest.split_at_checked(size)?;
            *rest = after;
            Some(value.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
        };
        match key & 7 {
            0 => Some((field, Value::Number(take_varint(&mut rest)?))),
            1 => Some((field, Value::Number(fixed(&mut rest, 8)?))),
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                let (value, after) = rest.split_at_checked(length)?;
                rest = after;
                Some((field, Value::Bytes(value)))
            }
            5 => Some((field, Value::Number(fixed(&mut rest, 4)?))),
            _ => None,
        }
    })
}

/// The bytes of the first field with this number.
pub(crate) fn find(message: &[u8], wanted: u32) -> Option<&[u8]> {
    fields(message).find_map(|(field, value)| match value {
        Value::Bytes(bytes) if field == wanted => Some(bytes),
        _ => None,
    })
}

/// The number in the first field with this number; 0 when it is not there.
pub(crate) fn number(message: &[u8], wanted: u32) -> u64 {
    let found = fields(message).find_map(|(field, value)| match value {
        Value::Number(number) if field == wanted => Some(number),
        _ => None,
    });
    found.unwrap_or(0)
}

pub(crate) fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let inner = Message::new().text(1, "iris").number(2, 300);
        let bytes = Message::new().message(5, &inner).number(7, u64::MAX).done();
        let inner = find(&bytes, 5).unwrap();
        assert_eq!(find(inner, 1), Some(&b"iris"[..]));
        assert_eq!((number(inner, 2), number(&bytes, 7), number(&bytes, 9)), (300, u64::MAX, 0));
        assert_eq!(fields(bytes.get(..3).unwrap()).count(), 0);
    }
}
