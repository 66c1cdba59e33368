//! Document model of XGBoost's JSON and UBJSON files.

use crate::error::ParseError;

/// Deepest nesting of lists and maps that is read; real models need eight levels.
pub(super) const MAX_DEPTH: usize = 32;

/// Large arrays that evaluation does not need; they are skipped.
const UNUSED: [&str; 4] = ["loss_changes", "parents", "sum_hessian", "sorted_idx"];

/// One value of a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Doc {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    /// A list of nothing but numbers and booleans (as 0 and 1); also the empty list.
    Numbers(Vec<f64>),
    List(Vec<Doc>),
    Map(Vec<(String, Doc)>),
}

/// Builds a list whose element type is not known in advance.
#[derive(Debug)]
pub(super) struct ListBuilder(Doc);

impl ListBuilder {
    pub(super) fn new() -> Self {
        Self(Doc::Numbers(Vec::new()))
    }

    pub(super) fn push(&mut self, value: Doc) {
        match (&mut self.0, value) {
            (Doc::Numbers(numbers), Doc::Number(number)) => numbers.push(number),
            (Doc::Numbers(numbers), Doc::Bool(flag)) => numbers.push(f64::from(u8::from(flag))),
            (Doc::Numbers(numbers), value) => {
                let mut list: Vec<Doc> = numbers.iter().copied().map(Doc::Number).collect();
                list.push(value);
                self.0 = Doc::List(list);
            }
            (Doc::List(list), value) => list.push(value),
            _ => {}
        }
    }

    pub(super) fn finish(self) -> Doc {
        self.0
    }
}

/// Adds an entry to a map unless evaluation has no use for it.
pub(super) fn insert(map: &mut Vec<(String, Doc)>, key: String, value: Doc) {
    if !UNUSED.contains(&key.as_str()) {
        map.push((key, value));
    }
}

impl Doc {
    pub(super) fn get(&self, key: &str) -> Option<&Doc> {
        match self {
            Self::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::Numbers(_) | Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

/// A value with its path, for error messages.
#[derive(Debug, Clone)]
pub(super) struct At<'a> {
    doc: &'a Doc,
    path: String,
}

impl<'a> At<'a> {
    pub(super) fn root(doc: &'a Doc) -> Self {
        Self { doc, path: String::new() }
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key, if there is one.
    pub(super) fn find(&self, key: &str) -> Option<Self> {
        self.doc.get(key).map(|doc| At { doc, path: self.join(key) })
    }

    /// The value of a key that must be there.
    pub(super) fn key(&self, key: &str) -> Result<Self, ParseError> {
        self.find(key).ok_or_else(|| ParseError::field(self.join(key), "is missing"))
    }

    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError::field(self.path.clone(), message)
    }

    fn unexpected(&self, expected: &str) -> ParseError {
        self.error(format!("expected {expected}, found {}", self.doc.kind()))
    }

    pub(super) fn text(&self) -> Result<&'a str, ParseError> {
        match self.doc {
            Doc::Text(text) => Ok(text),
            _ => Err(self.unexpected("a string")),
        }
    }

    pub(super) fn numbers(&self) -> Result<&'a [f64], ParseError> {
        match self.doc {
            Doc::Numbers(numbers) => Ok(numbers),
            _ => Err(self.unexpected("a list of numbers")),
        }
    }

    pub(super) fn list(&self) -> Result<Vec<Self>, ParseError> {
        match self.doc {
            Doc::List(list) => {
                let at = |(index, doc)| At { doc, path: format!("{}[{index}]", self.path) };
                Ok(list.iter().enumerate().map(at).collect())
            }
            Doc::Numbers(numbers) if numbers.is_empty() => Ok(Vec::new()),
            _ => Err(self.unexpected("a list")),
        }
    }

    /// A list of strings.
    pub(super) fn texts(&self) -> Result<Vec<String>, ParseError> {
        self.list()?.iter().map(|at| at.text().map(str::to_owned)).collect()
    }

    /// A count, spelled as a number or, as XGBoost does it for parameters, as a string.
    pub(super) fn count(&self) -> Result<usize, ParseError> {
        let parsed = match self.doc {
            Doc::Text(text) => text.trim().parse().ok(),
            Doc::Number(number) if number.fract() == 0.0 && (0.0..9e15).contains(number) => {
                Some(*number as usize)
            }
            _ => None,
        };
        parsed.ok_or_else(|| self.error("expected a count, a whole number that is not negative"))
    }
}
