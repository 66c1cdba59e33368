//! How objects of a kind merge: which lists have keys, which values are one unit.

use super::apply::fields::{Step, canonical};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::LazyLock};

/// How a list merges.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListKind {
    /// The list is one value.
    #[default]
    Atomic,
    /// Items are scalars, each its own.
    Set,
    /// Items are objects that these fields tell apart; a field may have a value it takes when it is not written.
    Keyed(Vec<(String, Option<Value>)>),
}

/// How a value and what is below it merge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// For a list.
    pub list: ListKind,
    /// An object that is one value.
    pub atomic: bool,
    /// An object whose keys are data: each key is owned as such, also when its value is an object.
    pub keys_are_data: bool,
    fields: BTreeMap<String, Shape>,
    item: Option<Box<Shape>>,
}

static PLAIN: LazyLock<Shape> = LazyLock::new(Shape::default);
static FREE: LazyLock<Shape> = LazyLock::new(|| Shape { keys_are_data: true, ..Shape::default() });

impl Shape {
    /// An object of which no schema knows the fields.
    pub fn free() -> Self {
        FREE.clone()
    }

    /// The shape of a field.
    pub fn field(&self, name: &str) -> &Self {
        if let Some(shape) = self.fields.get(name) {
            return shape;
        }
        match (&self.item, self.keys_are_data) {
            (Some(item), _) => item,
            (None, true) => &FREE,
            (None, false) => &PLAIN,
        }
    }

    /// The shape of a list's items.
    pub fn item(&self) -> &Self {
        self.item.as_deref().unwrap_or(&PLAIN)
    }

    /// The step that leads to an item of this list; none where the list is one value or the item lacks a key.
    pub fn step_of(&self, item: &Value) -> Option<Step> {
        match &self.list {
            ListKind::Atomic => None,
            ListKind::Set => Some(Step::Value(canonical(item))),
            ListKind::Keyed(keys) => {
                let mut key = Map::new();
                for (name, default) in keys {
                    if let Some(value) = item.get(name).or(default.as_ref()) {
                        key.insert(name.clone(), value.clone());
                    }
                }
                (!key.is_empty()).then(|| Step::Key(canonical(&Value::Object(key))))
            }
        }
    }

    /// Sets a rule at a path such as `spec.containers[].ports`.
    ///
    /// Rules: `keyed name port=TCP`, `set`, `unit` (an object that is one value).
    #[must_use]
    pub fn with(mut self, path: &str, rule: &str) -> Self {
        let node = self.at(path);
        let mut words = rule.split(' ');
        match words.next() {
            Some("keyed") => {
                node.list = ListKind::Keyed(
                    words
                        .map(|word| match word.split_once('=') {
                            Some((name, default)) => (name.to_owned(), Some(Value::from(default))),
                            None => (word.to_owned(), None),
                        })
                        .collect(),
                );
            }
            Some("set") => node.list = ListKind::Set,
            _ => node.atomic = true,
        }
        self
    }

    /// All of a table.
    #[must_use]
    pub fn with_all(self, table: &[(&str, &str)]) -> Self {
        table.iter().fold(self, |shape, (path, rule)| shape.with(path, rule))
    }

    /// Puts another shape at a path.
    #[must_use]
    pub fn graft(mut self, path: &str, other: &Self) -> Self {
        *self.at(path) = other.clone();
        self
    }

    fn at(&mut self, path: &str) -> &mut Self {
        let mut node = self;
        for part in path.split('.') {
            let (name, items) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
            node = node.fields.entry(name.to_owned()).or_default();
            if items {
                node = node.item.get_or_insert_default();
            }
        }
        node
    }

    /// Every rule, as [`Self::with`] takes it.
    pub fn rules(&self) -> BTreeMap<String, String> {
        let mut rules = BTreeMap::new();
        self.collect_rules("", &mut rules);
        rules
    }

    fn collect_rules(&self, path: &str, rules: &mut BTreeMap<String, String>) {
        let rule = match &self.list {
            ListKind::Set => Some("set".to_owned()),
            ListKind::Keyed(keys) => {
                let key = |(name, default): &(String, Option<Value>)| match default {
                    Some(Value::String(default)) => format!("{name}={default}"),
                    Some(default) => format!("{name}={default}"),
                    None => name.clone(),
                };
                Some(format!("keyed {}", keys.iter().map(key).collect::<Vec<_>>().join(" ")))
            }
            ListKind::Atomic => self.atomic.then(|| "unit".to_owned()),
        };
        rules.extend(rule.map(|rule| (path.to_owned(), rule)));
        if self.atomic {
            return;
        }
        for (name, field) in &self.fields {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            field.collect_rules(&below, rules);
        }
        if let Some(item) = &self.item {
            item.collect_rules(&format!("{path}[]"), rules);
        }
    }

    /// From a structural schema, with Kubernetes' extensions for lists and maps.
    pub fn from_schema(schema: &Value) -> Self {
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        let is = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        let mut shape = Self { atomic: text("x-kubernetes-map-type") == Some("atomic"), ..Self::default() };
        shape.list = match text("x-kubernetes-list-type") {
            Some("set") => ListKind::Set,
            Some("map") => ListKind::Keyed(keys_of(schema)),
            _ => ListKind::Atomic,
        };
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            shape.fields =
                properties.iter().map(|(name, field)| (name.clone(), Self::from_schema(field))).collect();
        }
        let below = schema
            .get("items")
            .or_else(|| schema.get("additionalProperties"))
            .filter(|below| below.is_object());
        shape.item = below.map(|below| Box::new(Self::from_schema(below)));
        let free = is("x-kubernetes-preserve-unknown-fields") && shape.fields.is_empty();
        shape.keys_are_data = free || schema.get("additionalProperties").is_some();
        shape
    }
}

fn keys_of(schema: &Value) -> Vec<(String, Option<Value>)> {
    let names = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    let default = |name: &str| schema.pointer(&format!("/items/properties/{name}/default")).cloned();
    names
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|name| (name.to_owned(), default(name)))
        .collect()
}
