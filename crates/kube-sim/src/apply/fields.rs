//! Sets of field paths and their `fieldsV1` encoding.

use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// One element of a path.
///
/// Keys and values are canonical JSON, so that equal keys are equal elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A field of an object (`f:`).
    Field(String),
    /// The item of a list whose key fields have these values (`k:`).
    Key(String),
    /// The item of a set that has this value (`v:`).
    Value(String),
}

impl Step {
    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(key) => format!("k:{key}"),
            Self::Value(value) => format!("v:{value}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let canonical = |json: &str| serde_json::from_str::<Value>(json).ok().map(|value| canonical(&value));
        match text.split_once(':')? {
            ("f", name) => Some(Self::Field(name.to_owned())),
            ("k", key) => canonical(key).map(Self::Key),
            ("v", value) => canonical(value).map(Self::Value),
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Key(key) => {
                let fields: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", fields.join(","))
            }
        }
    }
}

/// Canonical JSON: sorted keys, integers without a decimal point.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().collect();
            let fields: Vec<String> = sorted
                .iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9.0e15 => {
                (float as i64).to_string()
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// A trie of paths: a node is a member, has children, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    member: bool,
    children: BTreeMap<Step, FieldSet>,
}

impl FieldSet {
    /// Ignores the empty path.
    pub fn insert(&mut self, path: &[Step]) {
        let mut node = self;
        for step in path {
            node = node.children.entry(step.clone()).or_default();
        }
        if !path.is_empty() {
            node.member = true;
        }
    }

    /// Whether the path itself is a member, regardless of its children.
    pub fn has(&self, path: &[Step]) -> bool {
        path.iter().try_fold(self, |node, step| node.children.get(step)).is_some_and(|node| node.member)
    }

    pub fn below(&self, step: &Step) -> Option<&Self> {
        self.children.get(step)
    }

    pub const fn is_member(&self) -> bool {
        self.member
    }

    pub fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    fn combine(&self, other: &Self, keep: &impl Fn(bool, bool) -> bool) -> Self {
        let nothing = Self::default();
        let steps: BTreeSet<&Step> = self.children.keys().chain(other.children.keys()).collect();
        let children = steps
            .into_iter()
            .map(|step| {
                let mine = self.children.get(step).unwrap_or(&nothing);
                let theirs = other.children.get(step).unwrap_or(&nothing);
                (step.clone(), mine.combine(theirs, keep))
            })
            .filter(|(_, node)| !node.is_empty())
            .collect();
        Self { member: keep(self.member, other.member), children }
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.combine(other, &|mine, theirs| mine || theirs)
    }

    /// A member's children are members of their own.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, &|mine, theirs| mine && !theirs)
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, &|mine, theirs| mine && theirs)
    }

    #[must_use]
    pub fn without_trees(&self, roots: &Self) -> Self {
        let children = self
            .children
            .iter()
            .filter_map(|(step, node)| match roots.children.get(step) {
                Some(root) if root.member => None,
                Some(root) => Some((step.clone(), node.without_trees(root))),
                None => Some((step.clone(), node.clone())),
            })
            .filter(|(_, node)| !node.is_empty())
            .collect();
        Self { member: self.member, children }
    }

    /// Adds the parent objects of members: the owner of a field keeps them in existence.
    #[must_use]
    pub fn with_parents(&self) -> Self {
        let children = self
            .children
            .iter()
            .map(|(step, node)| {
                let mut node = node.with_parents();
                node.member |= matches!(step, Step::Field(_)) && !node.is_empty();
                (step.clone(), node)
            })
            .collect();
        Self { member: self.member, children }
    }

    pub fn paths(&self) -> Vec<Vec<Step>> {
        let mut found = Vec::new();
        self.collect(&mut Vec::new(), &mut found);
        found
    }

    fn collect(&self, path: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
        if self.member {
            found.push(path.clone());
        }
        for (step, node) in &self.children {
            path.push(step.clone());
            node.collect(path, found);
            path.pop();
        }
    }

    /// The `fieldsV1` encoding.
    pub fn to_fields_v1(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".into(), Value::Object(Map::new()));
        }
        for (step, node) in &self.children {
            map.insert(step.encode(), node.to_fields_v1());
        }
        Value::Object(map)
    }

    /// `None` for an invalid element.
    pub fn from_fields_v1(value: &Value) -> Option<Self> {
        let mut root = Self::node(value)?;
        root.member = value.get(".").is_some();
        Some(root)
    }

    fn node(value: &Value) -> Option<Self> {
        let map = value.as_object()?;
        let mut node = Self { member: map.is_empty() || map.contains_key("."), ..Self::default() };
        for (text, below) in map {
            if text != "." {
                node.children.insert(Step::decode(text)?, Self::node(below)?);
            }
        }
        Some(node)
    }
}

/// Such as `.spec.containers[name="web"].image`.
pub fn shown(path: &[Step]) -> String {
    path.iter().map(ToString::to_string).collect()
}
