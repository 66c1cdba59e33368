//! YAML (and JSON) as a tree with line numbers.

use crate::Diagnostic;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;

/// A Kubernetes object has at most 1.5 MiB.
pub(crate) const MAX_SIZE: usize = 4 << 20;

/// A pod has about 15 levels. Decoding takes up to 35 kB of stack for each, in a thread with 2 MiB.
const MAX_DEPTH: usize = 40;

/// A value and its line.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) line: u32,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    String(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// Parses all documents, skipping empty ones.
pub(crate) fn parse(text: &str) -> Result<Vec<Node>, Diagnostic> {
    if text.len() > MAX_SIZE {
        let message = format!("has {} bytes, at most {MAX_SIZE} are read: split it", text.len());
        return Err(Diagnostic::new(0, "", message));
    }
    let options = serde_saphyr::options! { budget: serde_saphyr::budget! { max_depth: MAX_DEPTH } };
    match serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options) {
        Ok(documents) => {
            Ok(documents.into_iter().map(Node::from).filter(|n| !matches!(n.value, Value::Null)).collect())
        }
        Err(error) => {
            let line = error.location().map_or(0, |l| u32::try_from(l.line()).unwrap_or(0));
            let full = error.without_snippet().to_string();
            let first = full.lines().next().unwrap_or("cannot be read");
            Err(Diagnostic::new(line, "", format!("is not valid YAML: {}", simplify_error(first))))
        }
    }
}

/// The parser's message without the names of its settings.
fn simplify_error(message: &str) -> String {
    if message.contains("budget") {
        return "too deeply nested, or too many aliases".into();
    }
    if message.contains("duplicate mapping key") {
        let sentence = message.split(", set ").next().unwrap_or(message);
        let sentence = sentence.split("; set ").next().unwrap_or(sentence);
        return sentence.split(" (set ").next().unwrap_or(sentence).to_owned();
    }
    message.to_owned()
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self { line: u32::try_from(spanned.referenced.line()).unwrap_or(0), value: spanned.value }
    }
}

impl Node {
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The line of the deepest part of `path` (`a.b[2].c`) that exists.
    pub(crate) fn line_of(&self, path: &str) -> u32 {
        // The rest of a path may be a key with dots, as of an annotation.
        if let Some(node) = self.get(path) {
            return node.line;
        }
        let (part, rest) = path.split_once(['.', '[']).unwrap_or((path, ""));
        let next = match (part.strip_suffix(']').map(str::parse::<usize>), &self.value) {
            (Some(Ok(index)), Value::List(items)) => items.get(index),
            _ => self.get(part),
        };
        next.map_or(self.line, |next| next.line_of(rest))
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Number(n) => serde_json::Value::Number(n.clone()),
            Value::String(s) => s.as_str().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                serde_json::Value::Object(entries.iter().map(|(k, v)| (k.clone(), v.to_json())).collect())
            }
        }
    }

    /// The value as shown in error messages.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".into(),
            Value::Bool(b) => b.to_string(),
            Value::Number(n) => n.to_string(),
            Value::String(s) if s.chars().count() > 40 => "a string".into(),
            Value::String(s) => format!("\"{}\"", s.escape_debug()),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "an object".into(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(v)
            .map(Value::Number)
            .ok_or_else(|| E::custom("infinity and not-a-number are not allowed here"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        Value::deserialize(d)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<Value>>()? {
            items.push(item.into());
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let value: Spanned<Value> = map.next_value()?;
            entries.push((key, value.into()));
        }
        Ok(Value::Map(entries))
    }
}
