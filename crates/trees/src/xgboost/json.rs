//! JSON as XGBoost writes it: with bare `NaN` and `Infinity`, which `serde_json` rejects
//! (docs/decisions/xgboost-json.md). Number lists are compact and the depth is bounded.

use super::document::{Doc, ListBuilder, MAX_DEPTH, insert};
use crate::error::ParseError;

/// Reads one JSON value and nothing after it.
pub(super) fn parse(bytes: &[u8]) -> Result<Doc, ParseError> {
    let mut reader = Reader { bytes, at: 0 };
    let doc = reader.value(0)?;
    reader.space();
    if reader.at < bytes.len() {
        return Err(reader.error("expected the end of the file"));
    }
    Ok(doc)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError::Syntax { format: "JSON", offset: self.at, message: message.into() }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Steps over a byte if it is the next one after white space.
    fn eat(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), ParseError> {
        if self.eat(byte) { Ok(()) } else { Err(self.error(format!("expected `{}`", byte as char))) }
    }

    fn value(&mut self, depth: usize) -> Result<Doc, ParseError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("nested more than {MAX_DEPTH} levels deep")));
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.map(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Doc::Text(self.text()?)),
            Some(_) => self.scalar(),
            None => Err(self.error("the file ends where a value should be")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Doc, ParseError> {
        let mut map = Vec::new();
        self.expect(b'{')?;
        if self.eat(b'}') {
            return Ok(Doc::Map(map));
        }
        loop {
            self.space();
            let key = self.text()?;
            self.expect(b':')?;
            let value = self.value(depth + 1)?;
            insert(&mut map, key, value);
            if !self.eat(b',') {
                self.expect(b'}')?;
                return Ok(Doc::Map(map));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Doc, ParseError> {
        let mut list = ListBuilder::new();
        self.expect(b'[')?;
        if self.eat(b']') {
            return Ok(list.finish());
        }
        loop {
            list.push(self.value(depth + 1)?);
            if !self.eat(b',') {
                self.expect(b']')?;
                return Ok(list.finish());
            }
        }
    }

    fn text(&mut self) -> Result<String, ParseError> {
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
            let Some(plain) = plain else { return Err(self.error("the file ends within a string")) };
            text.extend_from_slice(rest.get(..plain).unwrap_or_default());
            let quote = rest.get(plain) == Some(&b'"');
            self.at += plain + 1;
            if quote {
                return String::from_utf8(text).map_err(|_| self.error("the string is not UTF-8"));
            }
            let escaped = self.escape()?;
            text.extend_from_slice(escaped.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }

    /// The character of an escape whose backslash was read.
    fn escape(&mut self) -> Result<char, ParseError> {
        let kind = self.peek();
        self.at += 1;
        Ok(match kind {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let high = self.hex()?;
                let code = if (0xd800..0xdc00).contains(&high)
                    && self.bytes.get(self.at..self.at + 2) == Some(b"\\u".as_slice())
                {
                    self.at += 2;
                    let low = self.hex()?;
                    0x1_0000 + ((high & 0x3ff) << 10 | low & 0x3ff)
                } else {
                    high
                };
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(self.error("unknown escape in a string")),
        })
    }

    fn hex(&mut self) -> Result<u32, ParseError> {
        let digits = self.bytes.get(self.at..self.at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += 4;
        code.ok_or_else(|| self.error("expected four hexadecimal digits"))
    }

    /// A number or one of the named values.
    fn scalar(&mut self) -> Result<Doc, ParseError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        let word = rest.get(..length).and_then(|word| std::str::from_utf8(word).ok()).unwrap_or_default();
        let doc = match word {
            "null" => Some(Doc::Null),
            "true" => Some(Doc::Bool(true)),
            "false" => Some(Doc::Bool(false)),
            // Fractions are single precision in XGBoost; reading them as such rounds once, not twice.
            _ if word.contains(['.', 'e', 'E']) => {
                word.parse::<f32>().ok().map(|value| Doc::Number(value.into()))
            }
            _ => word.parse().ok().map(Doc::Number),
        };
        let doc = doc.ok_or_else(|| self.error("expected a value"))?;
        self.at += length;
        Ok(doc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let doc = parse(br#" {"a": [1, 2.5E-1, true], "b": ["x\u00e9\ud83d\ude00\n", []], "c": -Infinity} "#)
            .unwrap();
        assert_eq!(doc.get("a"), Some(&Doc::Numbers(vec![1.0, 0.25, 1.0])));
        let text = Doc::Text("x\u{e9}\u{1f600}\n".into());
        assert_eq!(doc.get("b"), Some(&Doc::List(vec![text, Doc::Numbers(vec![])])));
        assert_eq!(doc.get("c"), Some(&Doc::Number(f64::NEG_INFINITY)));
    }

    #[test]
    fn malformed_text_is_rejected() {
        let deep = "[".repeat(100_000);
        for text in ["", "{", "[1,", "{\"a\" 1}", "\"x", "tru", "1 2", "[1 2]", "\"\\q\"", "\"\\u12\"", &deep]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text:.20}");
        }
    }
}
