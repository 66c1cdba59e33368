//! Patterns of keys and values: `*` is any text, `?` any character, `\` removes the meaning of the next one.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    parts: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Any,
    One,
    Char(char),
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Self {
        let mut parts = Vec::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            parts.push(match c {
                '*' => Token::Any,
                '?' => Token::One,
                '\\' => Token::Char(chars.next().unwrap_or('\\')),
                plain => Token::Char(plain),
            });
        }
        Self { parts }
    }

    /// The number that the pattern is, as an index of an array.
    pub(super) fn index(&self) -> Option<usize> {
        let digit = |token: &Token| match token {
            Token::Char(c) => c.to_digit(10).map(|digit| digit as usize),
            _ => None,
        };
        let add = |number: usize, token| number.checked_mul(10)?.checked_add(digit(token)?);
        if self.parts.is_empty() { None } else { self.parts.iter().try_fold(0, add) }
    }

    /// After a mismatch, only the last `*` takes more text: earlier ones need not.
    pub(super) fn matches(&self, text: &str) -> bool {
        let mut at = 0;
        let mut rest = text.chars();
        let mut retry: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let token = self.parts.get(at).copied();
            if token == Some(Token::Any) {
                at += 1;
                retry = Some((at, rest.clone()));
                continue;
            }
            let Some(c) = rest.next() else {
                return token.is_none();
            };
            if token == Some(Token::One) || token == Some(Token::Char(c)) {
                at += 1;
                continue;
            }
            let Some((after, from)) = &mut retry else { return false };
            if from.next().is_none() {
                return false;
            }
            at = *after;
            rest = from.clone();
        }
    }
}
