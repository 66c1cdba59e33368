//! JSON without a tree: validity, and the members of objects and arrays as slices.

use std::borrow::Cow;

/// Deeper documents are invalid.
const MAX_DEPTH: usize = 512;

/// Whether the text is one JSON value. As in the reference, strings may hold any bytes.
pub fn is_valid(text: &[u8]) -> bool {
    let mut scanner = Scanner { text, at: 0 };
    let is_value = scanner.skip_value();
    scanner.skip_space();
    is_value && scanner.at == text.len()
}

/// The members of an object, with keys as they are written, without quotes. Ends at an error.
pub(super) fn members(object: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut scanner = Scanner { text: object, at: 0 };
    let mut is_open = scanner.eat_after_space(b'{');
    std::iter::from_fn(move || {
        scanner.skip_space();
        if !is_open || scanner.peek() == Some(b'}') {
            return None;
        }
        let start = scanner.at + 1;
        let key = scanner.skip_string().then(|| scanner.text.get(start..scanner.at - 1)).flatten()?;
        let value = scanner.eat_after_space(b':').then(|| scanner.value()).flatten()?;
        is_open = scanner.eat_after_space(b',');
        Some((key, value))
    })
}

/// The elements of an array. Ends at an error.
pub(super) fn elements(array: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut scanner = Scanner { text: array, at: 0 };
    let mut is_open = scanner.eat_after_space(b'[');
    std::iter::from_fn(move || {
        scanner.skip_space();
        if !is_open || scanner.peek() == Some(b']') {
            return None;
        }
        let value = scanner.value()?;
        is_open = scanner.eat_after_space(b',');
        Some(value)
    })
}

/// The content of a string without its quotes. Invalid parts are replaced.
pub(super) fn unescape(raw: &[u8]) -> Cow<'_, str> {
    if !raw.contains(&b'\\') {
        return String::from_utf8_lossy(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        let Some((&escaped, after)) = rest.split_first() else { break };
        rest = after;
        match escaped {
            b'b' => text.push(8),
            b'f' => text.push(12),
            b'n' => text.push(b'\n'),
            b'r' => text.push(b'\r'),
            b't' => text.push(b'\t'),
            b'u' => {
                let (character, after) = unicode(rest);
                rest = after;
                text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            plain => text.push(plain),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&text).into_owned())
}

/// The character of the digits after `\u`, which may be a surrogate pair.
fn unicode(digits: &[u8]) -> (char, &[u8]) {
    let unit = |digits: &[u8]| {
        let text = std::str::from_utf8(digits.get(..4)?).ok()?;
        u32::from_str_radix(text, 16).ok()
    };
    let Some(high) = unit(digits) else { return (char::REPLACEMENT_CHARACTER, digits) };
    let rest = digits.get(4..).unwrap_or_default();
    if let Some(low) = rest.strip_prefix(b"\\u").and_then(unit)
        && (0xD800..0xDC00).contains(&high)
        && (0xDC00..0xE000).contains(&low)
    {
        let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        return (
            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
            rest.get(6..).unwrap_or_default(),
        );
    }
    (char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), rest)
}

/// The text as a JSON string, with quotes.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn eat_after_space(&mut self, byte: u8) -> bool {
        self.skip_space();
        self.eat(byte)
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let start = self.at;
        if self.skip_value() { self.text.get(start..self.at) } else { None }
    }

    /// Skips a value; false if it is invalid. Not recursive, because documents come from outside.
    fn skip_value(&mut self) -> bool {
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.skip_space();
            let is_valid = match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    if !self.eat_after_space(b'}') {
                        if open.len() >= MAX_DEPTH || !self.skip_key() {
                            return false;
                        }
                        open.push(b'}');
                        continue;
                    }
                    true
                }
                Some(b'[') => {
                    self.at += 1;
                    if !self.eat_after_space(b']') {
                        if open.len() >= MAX_DEPTH {
                            return false;
                        }
                        open.push(b']');
                        continue;
                    }
                    true
                }
                Some(b'"') => self.skip_string(),
                Some(b't') => self.skip_word(b"true"),
                Some(b'f') => self.skip_word(b"false"),
                Some(b'n') => self.skip_word(b"null"),
                _ => self.skip_number(),
            };
            if !is_valid {
                return false;
            }
            loop {
                let Some(close) = open.last().copied() else { return true };
                if self.eat_after_space(close) {
                    open.pop();
                } else if self.eat(b',') && (close == b']' || self.skip_key()) {
                    break;
                } else {
                    return false;
                }
            }
        }
    }

    /// A key and its colon.
    fn skip_key(&mut self) -> bool {
        self.skip_space();
        self.skip_string() && self.eat_after_space(b':')
    }

    fn skip_word(&mut self, word: &[u8]) -> bool {
        let is_next = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word));
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    fn skip_string(&mut self) -> bool {
        if !self.eat(b'"') {
            return false;
        }
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'"' => return true,
                b'\\' => match self.peek() {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                    Some(b'u') => {
                        let digits = self.text.get(self.at + 1..self.at + 5);
                        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                            return false;
                        }
                        self.at += 5;
                    }
                    _ => return false,
                },
                0..=0x1F => return false,
                _ => {}
            }
        }
        false
    }

    fn skip_digits(&mut self) -> bool {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at > start
    }

    fn skip_number(&mut self) -> bool {
        self.eat(b'-');
        let is_whole = self.eat(b'0') || self.skip_digits();
        if !is_whole || (self.eat(b'.') && !self.skip_digits()) {
            return false;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _is_signed = self.eat(b'+') || self.eat(b'-');
            return self.skip_digits();
        }
        true
    }
}
