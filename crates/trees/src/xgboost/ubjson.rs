//! A reader for Universal Binary JSON as XGBoost writes it: big-endian, with typed and counted arrays.

use super::document::{Doc, ListBuilder, MAX_DEPTH, insert};
use crate::error::ParseError;

/// Reads one UBJSON value and nothing after it.
pub(super) fn parse(bytes: &[u8]) -> Result<Doc, ParseError> {
    let mut reader = Reader { bytes, at: 0 };
    let marker = reader.marker()?;
    let doc = reader.value(marker, 0)?;
    if reader.at < bytes.len() {
        return Err(reader.error("expected the end of the file"));
    }
    Ok(doc)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError::Syntax { format: "UBJSON", offset: self.at, message: message.into() }
    }

    /// The next bytes; a length that the file merely claims fails here, before anything is allocated.
    fn take(&mut self, length: usize) -> Result<&'a [u8], ParseError> {
        let left = self.bytes.len() - self.at;
        let end = self.at.checked_add(length);
        let Some(taken) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(self.error(format!("{length} bytes are announced, but only {left} are left")));
        };
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| self.error("the file is too short"))
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// The next type marker; no-ops are skipped.
    fn marker(&mut self) -> Result<u8, ParseError> {
        loop {
            let [marker] = self.array()?;
            if marker != b'N' {
                return Ok(marker);
            }
        }
    }

    fn number(&mut self, marker: u8) -> Result<f64, ParseError> {
        Ok(match marker {
            b'i' => f64::from(i8::from_be_bytes(self.array()?)),
            b'U' => f64::from(u8::from_be_bytes(self.array()?)),
            b'I' => f64::from(i16::from_be_bytes(self.array()?)),
            b'l' => f64::from(i32::from_be_bytes(self.array()?)),
            b'L' => i64::from_be_bytes(self.array()?) as f64,
            b'd' => f64::from(f32::from_be_bytes(self.array()?)),
            b'D' => f64::from_be_bytes(self.array()?),
            _ => return Err(self.error(format!("`{}` is not a number type", marker.escape_ascii()))),
        })
    }

    fn length(&mut self) -> Result<usize, ParseError> {
        let marker = self.marker()?;
        let length = match marker {
            b'i' => i64::from(i8::from_be_bytes(self.array()?)),
            b'U' => i64::from(u8::from_be_bytes(self.array()?)),
            b'I' => i64::from(i16::from_be_bytes(self.array()?)),
            b'l' => i64::from(i32::from_be_bytes(self.array()?)),
            b'L' => i64::from_be_bytes(self.array()?),
            _ => return Err(self.error(format!("`{}` is not a length type", marker.escape_ascii()))),
        };
        usize::try_from(length).map_err(|_| self.error(format!("the length {length} is negative")))
    }

    fn text(&mut self) -> Result<String, ParseError> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.error("the string is not UTF-8"))
    }

    fn value(&mut self, marker: u8, depth: usize) -> Result<Doc, ParseError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested more than {MAX_DEPTH} levels deep")));
        }
        match marker {
            b'Z' => Ok(Doc::Null),
            b'T' => Ok(Doc::Bool(true)),
            b'F' => Ok(Doc::Bool(false)),
            b'S' | b'H' => Ok(Doc::Text(self.text()?)),
            b'C' => Ok(Doc::Text(char::from(self.array::<1>()?[0]).to_string())),
            b'[' => self.list(depth),
            b'{' => self.map(depth),
            _ => Ok(Doc::Number(self.number(marker)?)),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Doc, ParseError> {
        if self.eat(b'$') {
            let [marker] = self.array()?;
            return self.typed_list(marker);
        }
        let mut list = ListBuilder::new();
        if self.eat(b'#') {
            // Every element takes at least one byte, so a claimed count cannot outrun the file.
            for _ in 0..self.length()? {
                let marker = self.marker()?;
                list.push(self.value(marker, depth + 1)?);
            }
            return Ok(list.finish());
        }
        loop {
            match self.marker()? {
                b']' => return Ok(list.finish()),
                marker => list.push(self.value(marker, depth + 1)?),
            }
        }
    }

    fn typed_list(&mut self, marker: u8) -> Result<Doc, ParseError> {
        let size = match marker {
            b'i' | b'U' => 1,
            b'I' => 2,
            b'l' | b'd' => 4,
            b'L' | b'D' => 8,
            _ => {
                let message = format!("an array of type `{}` is not supported", marker.escape_ascii());
                return Err(self.error(message));
            }
        };
        if !self.eat(b'#') {
            return Err(self.error("a typed array needs a count"));
        }
        let count = self.length()?;
        let bytes =
            count.checked_mul(size).ok_or_else(|| self.error(format!("{count} elements are too many")))?;
        let mut elements = Reader { bytes: self.take(bytes)?, at: 0 };
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            numbers.push(elements.number(marker)?);
        }
        Ok(Doc::Numbers(numbers))
    }

    fn map(&mut self, depth: usize) -> Result<Doc, ParseError> {
        let mut map = Vec::new();
        if self.eat(b'$') {
            return Err(self.error("a typed object is not supported"));
        }
        let mut left = if self.eat(b'#') { Some(self.length()?) } else { None };
        loop {
            match &mut left {
                Some(0) => return Ok(Doc::Map(map)),
                Some(left) => *left -= 1,
                None if self.eat(b'}') => return Ok(Doc::Map(map)),
                None => {}
            }
            let key = self.text()?;
            let marker = self.marker()?;
            let value = self.value(marker, depth + 1)?;
            insert(&mut map, key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let doc = parse(b"{i\x01a[$I#i\x02\x00\x01\xff\xffi\x01b[#U\x02Zd\x3f\x80\x00\x00i\x01c[TNF]i\x01dSi\x02hiU\x01eCx}").unwrap();
        assert_eq!(doc.get("a"), Some(&Doc::Numbers(vec![1.0, -1.0])));
        assert_eq!(doc.get("b"), Some(&Doc::List(vec![Doc::Null, Doc::Number(1.0)])));
        assert_eq!(doc.get("c"), Some(&Doc::Numbers(vec![1.0, 0.0])));
        assert_eq!(doc.get("d"), Some(&Doc::Text("hi".into())));
        assert_eq!(doc.get("e"), Some(&Doc::Text("x".into())));
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        let huge = b"[$d#L\x7f\xff\xff\xff\xff\xff\xff\xff\x00".as_slice();
        let huge_count = b"[#L\x7f\xff\xff\xff\xff\xff\xff\xffi".as_slice();
        let huge_text = b"SL\x7f\xff\xff\xff\xff\xff\xff\xffx".as_slice();
        let negative = b"Sl\xff\xff\xff\xffx".as_slice();
        let weightless = b"[$Z#L\x7f\xff\xff\xff\xff\xff\xff\xff".as_slice();
        let deep = vec![b'['; 100_000];
        let bad: [&[u8]; 13] = [
            b"",
            b"{",
            b"[",
            b"[$",
            b"[$d",
            b"[$di",
            b"ZZ",
            b"Si\x02\xff\xff",
            huge,
            huge_count,
            huge_text,
            negative,
            weightless,
        ];
        for bytes in bad.into_iter().chain([deep.as_slice()]) {
            assert!(parse(bytes).is_err(), "{:?}", bytes.get(..20.min(bytes.len())));
        }
    }
}
