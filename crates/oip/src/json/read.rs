//! A JSON cursor: typed reads, skips unknown values, no recursion.

use super::Number;
use crate::Error;
use std::{borrow::Cow, ops::Range};

#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Location of a string and whether it has escapes.
pub(crate) struct StringToken {
    /// Between the quotes.
    pub(crate) range: Range<usize>,
    pub(crate) escaped: bool,
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    pub(crate) const fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(crate) const fn at(&self, position: usize) -> Self {
        Self { bytes: self.bytes, at: position }
    }

    pub(crate) fn error(&self, what: &str) -> Error {
        if self.at >= self.bytes.len() {
            return Error::invalid(format!("the body is not valid JSON: it ends where {what} was expected"));
        }
        Error::invalid(format!("the body is not valid JSON: expected {what} at byte {}", self.at))
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn bump(&mut self) {
        self.at += 1;
    }

    /// The next byte that is not white space.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.byte() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.bump(),
                other => return other,
            }
        }
    }

    /// Consumes this byte if it is next.
    #[inline]
    pub(crate) fn eat(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.bump();
        }
        found
    }

    pub(crate) fn expect(&mut self, wanted: u8, what: &str) -> Result<(), Error> {
        if self.eat(wanted) { Ok(()) } else { Err(self.error(what)) }
    }

    /// Consumes this word if it is next.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes()));
        if found {
            self.at += word.len();
        }
        found
    }

    /// Only white space may follow.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        if self.peek().is_none() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the body is not valid JSON: unexpected data after the end, at byte {}",
            self.at
        )))
    }

    /// After a member or the opening brace: the next key, or `None` at the closing brace.
    pub(crate) fn next_key(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>, Error> {
        if self.eat(b'}') {
            return Ok(None);
        }
        if !std::mem::replace(first, false) {
            self.expect(b',', "',' or '}'")?;
        }
        if self.peek() != Some(b'"') {
            return Err(self.error("a key in quotes"));
        }
        let key = self.string("a key")?;
        self.expect(b':', "':'")?;
        Ok(Some(key))
    }

    /// After an element or the opening bracket: whether another element follows.
    pub(crate) fn next_element(&mut self, first: &mut bool) -> Result<bool, Error> {
        if self.eat(b']') {
            return Ok(false);
        }
        if !std::mem::replace(first, false) {
            self.expect(b',', "',' or ']'")?;
        }
        Ok(true)
    }

    /// `what` names the string in errors.
    pub(crate) fn string(&mut self, what: &str) -> Result<Cow<'a, str>, Error> {
        let token = self.string_token(what)?;
        let raw = self.bytes.get(token.range.clone()).unwrap_or_default();
        if token.escaped {
            return self.unescape(&token).map(Cow::Owned);
        }
        match std::str::from_utf8(raw) {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(_) => Err(not_utf8(token.range.start)),
        }
    }

    /// Skips a string without validating UTF-8.
    pub(crate) fn string_token(&mut self, what: &str) -> Result<StringToken, Error> {
        if self.peek() != Some(b'"') {
            return Err(Error::invalid(format!("{what} must be a string (at byte {})", self.at)));
        }
        self.bump();
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.byte() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.at += 2;
                }
                Some(0..=0x1f) => {
                    return Err(Error::invalid(format!(
                        "the body is not valid JSON: a control character in a string must be escaped, at byte {}",
                        self.at
                    )));
                }
                Some(_) => self.bump(),
                None => {
                    self.at = self.bytes.len();
                    return Err(self.error("the end of a string"));
                }
            }
        }
        let range = start..self.at;
        self.bump();
        Ok(StringToken { range, escaped })
    }

    /// Decodes a string with escapes.
    pub(crate) fn unescape(&self, token: &StringToken) -> Result<String, Error> {
        let raw = self.bytes.get(token.range.clone()).unwrap_or_default();
        let bad = |offset: usize, what: &str| {
            Error::invalid(format!(
                "the body is not valid JSON: {what} in the string at byte {}",
                token.range.start + offset
            ))
        };
        let mut out = Vec::with_capacity(raw.len());
        let mut i = 0;
        while let Some(&byte) = raw.get(i) {
            if byte != b'\\' {
                out.push(byte);
                i += 1;
                continue;
            }
            let plain = match raw.get(i + 1) {
                Some(b'"') => b'"',
                Some(b'\\') => b'\\',
                Some(b'/') => b'/',
                Some(b'b') => 8,
                Some(b'f') => 12,
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'u') => {
                    let high =
                        hex4(raw.get(i + 2..i + 6)).ok_or_else(|| bad(i, "\\u needs four hex digits"))?;
                    i += 6;
                    let code = if (0xd800..0xdc00).contains(&high) {
                        let low = match raw.get(i..i + 2) {
                            Some(b"\\u") => hex4(raw.get(i + 2..i + 6)),
                            _ => None,
                        }
                        .filter(|low| (0xdc00..0xe000).contains(low))
                        .ok_or_else(|| bad(i, "half of a surrogate pair"))?;
                        i += 6;
                        0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
                    } else {
                        high
                    };
                    let c = char::from_u32(code).ok_or_else(|| bad(i, "half of a surrogate pair"))?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
                _ => return Err(bad(i, "an unknown escape")),
            };
            out.push(plain);
            i += 2;
        }
        String::from_utf8(out).map_err(|_| not_utf8(token.range.start))
    }

    /// `None` if there is no number here; then the position is unchanged.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<Number<'a>> {
        self.peek();
        let start = self.at;
        let number = self.scan_number(start);
        if number.is_none() {
            self.at = start;
        }
        number
    }

    fn scan_number(&mut self, start: usize) -> Option<Number<'a>> {
        let negative = self.byte() == Some(b'-');
        if negative {
            self.bump();
        }
        let mut number = Number { text: &[], negative, mantissa: 0, exponent: 0, overflow: false };
        let whole = self.at;
        self.digits(&mut number);
        match self.at - whole {
            0 => return None,
            1 => {}
            _ if self.bytes.get(whole) == Some(&b'0') => return None,
            _ => {}
        }
        if self.byte() == Some(b'.') {
            self.bump();
            let fraction = self.at;
            self.digits(&mut number);
            let count = self.at - fraction;
            if count == 0 {
                return None;
            }
            number.exponent = i32::try_from(count).unwrap_or(i32::MAX).saturating_neg();
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.bump();
            let down = self.byte() == Some(b'-');
            if down || self.byte() == Some(b'+') {
                self.bump();
            }
            let from = self.at;
            let mut power = 0i32;
            while let Some(digit @ b'0'..=b'9') = self.byte() {
                power = power.saturating_mul(10).saturating_add(i32::from(digit - b'0'));
                self.bump();
            }
            if self.at == from {
                return None;
            }
            let power = if down { power.saturating_neg() } else { power };
            number.exponent = number.exponent.saturating_add(power);
        }
        number.text = self.bytes.get(start..self.at)?;
        Some(number)
    }

    #[inline]
    fn digits(&mut self, number: &mut Number<'a>) {
        while let Some(byte @ b'0'..=b'9') = self.byte() {
            let digit = u64::from(byte - b'0');
            // One more digit always fits.
            if number.mantissa < 1_000_000_000_000_000_000 {
                number.mantissa = number.mantissa * 10 + digit;
            } else {
                match number.mantissa.checked_mul(10).and_then(|m| m.checked_add(digit)) {
                    Some(mantissa) => number.mantissa = mantissa,
                    None => number.overflow = true,
                }
            }
            self.bump();
        }
    }

    /// Skips one value of any type, nested up to `depth`.
    pub(crate) fn skip(&mut self, depth: usize) -> Result<(), Error> {
        // Open containers, innermost last: true for an object.
        let mut open: Vec<bool> = Vec::new();
        loop {
            // A value is expected.
            match self.peek() {
                Some(b'{' | b'[') => {
                    if open.len() >= depth {
                        return Err(too_deep(depth));
                    }
                    let object = self.byte() == Some(b'{');
                    self.bump();
                    open.push(object);
                    if object {
                        if self.peek() != Some(b'}') {
                            self.skip_key()?;
                            continue;
                        }
                    } else if self.peek() != Some(b']') {
                        continue;
                    }
                }
                Some(b'"') => {
                    self.string("a value")?;
                }
                Some(b'-' | b'0'..=b'9') => {
                    if self.number().is_none() {
                        return Err(self.error("a number"));
                    }
                }
                _ if self.eat_word("true") || self.eat_word("false") || self.eat_word("null") => {}
                _ => return Err(self.error("a value")),
            }
            // A value has ended: close containers.
            loop {
                match open.last() {
                    None => return Ok(()),
                    Some(true) if self.eat(b'}') => {}
                    Some(false) if self.eat(b']') => {}
                    Some(&object) => {
                        self.expect(b',', if object { "',' or '}'" } else { "',' or ']'" })?;
                        if object {
                            self.skip_key()?;
                        }
                        break;
                    }
                }
                open.pop();
            }
        }
    }

    fn skip_key(&mut self) -> Result<(), Error> {
        if self.peek() != Some(b'"') {
            return Err(self.error("a key in quotes"));
        }
        self.string("a key")?;
        self.expect(b':', "':'")
    }
}

pub(crate) fn too_deep(depth: usize) -> Error {
    Error::invalid(format!("the JSON is nested deeper than {depth} levels"))
}

fn not_utf8(at: usize) -> Error {
    Error::invalid(format!("the body is not valid JSON: the string at byte {at} is not UTF-8"))
}

fn hex4(digits: Option<&[u8]>) -> Option<u32> {
    digits?.iter().try_fold(0, |n, &d| Some(n << 4 | char::from(d).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn skip_accepts_only_valid_json() {
        for good in
            ["{}", "[]", "[1,[2,{\"a\":[]}],\"x\\u00e9\",true,null,-1.5e3]", " { \"a\" : { \"b\" : 1 } } "]
        {
            let mut cursor = Cursor::new(good.as_bytes());
            assert_eq!(cursor.skip(8).and_then(|()| cursor.end()), Ok(()), "{good}");
        }
        for bad in [
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "[1 2]",
            "nul",
            "01",
            "1.",
            "1e",
            "-",
            "\"\\x\"",
            "\"\\ud800\"",
            "[}",
            "{]",
            "{1:2}",
        ] {
            let mut cursor = Cursor::new(bad.as_bytes());
            assert!(cursor.skip(8).and_then(|()| cursor.end()).is_err(), "{bad}");
        }
        assert!(Cursor::new("[".repeat(100_000).as_bytes()).skip(64).is_err());
    }

    proptest! {
        #[test]
        fn skip_agrees_with_serde_json(bytes in prop::collection::vec(
            prop::sample::select(b"{}[]\",:\\ 0123456789.eE+-truefalsn\xc3\xa9u".to_vec()), 0..24)) {
            let mut cursor = Cursor::new(&bytes);
            let ours = cursor.skip(64).and_then(|()| cursor.end()).is_ok();
            // serde_json rejects numbers out of f64's range; only the syntax matters here.
            match serde_json::from_slice::<serde_json::Value>(&bytes) {
                Ok(_) => prop_assert!(ours),
                Err(e) if e.to_string().contains("number out of range") => {}
                Err(_) => prop_assert!(!ours),
            }
        }
    }
}
