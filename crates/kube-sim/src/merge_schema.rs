//! How objects merge: keyed lists, sets and atomic values.

use super::apply::fields::{Step, canonical};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::LazyLock};

#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListKind {
    #[default]
    Atomic,
    Set,
    /// Items are objects with these key fields and their defaults.
    Keyed(Vec<(String, Option<Value>)>),
}

/// Merge rules of a value and its children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeSchema {
    pub list: ListKind,
    /// An atomic object.
    pub atomic: bool,
    /// A map: each key is owned, even when its value is an object.
    pub keys_are_data: bool,
    fields: BTreeMap<String, MergeSchema>,
    item: Option<Box<MergeSchema>>,
}

static PLAIN: LazyLock<MergeSchema> = LazyLock::new(MergeSchema::default);
static FREE: LazyLock<MergeSchema> =
    LazyLock::new(|| MergeSchema { keys_are_data: true, ..MergeSchema::default() });

impl MergeSchema {
    /// An object without a schema.
    pub fn free() -> Self {
        FREE.clone()
    }

    pub fn field(&self, name: &str) -> &Self {
        if let Some(merge_schema) = self.fields.get(name) {
            return merge_schema;
        }
        match (&self.item, self.keys_are_data) {
            (Some(item), _) => item,
            (None, true) => &FREE,
            (None, false) => &PLAIN,
        }
    }

    pub fn item(&self) -> &Self {
        self.item.as_deref().unwrap_or(&PLAIN)
    }

    /// The path element of an item; `None` for atomic lists and items without a key.
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
    /// Rules: `keyed name port=TCP`, `set`, `unit` (an atomic object).
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

    #[must_use]
    pub fn with_all(self, table: &[(&str, &str)]) -> Self {
        table.iter().fold(self, |merge_schema, (path, rule)| merge_schema.with(path, rule))
    }

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

    /// Every rule in the syntax of [`Self::with`].
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

    /// From a structural schema with `x-kubernetes-*` extensions.
    pub fn from_schema(schema: &Value) -> Self {
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        let is = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        let mut merge_schema =
            Self { atomic: text("x-kubernetes-map-type") == Some("atomic"), ..Self::default() };
        merge_schema.list = match text("x-kubernetes-list-type") {
            Some("set") => ListKind::Set,
            Some("map") => ListKind::Keyed(keys_of(schema)),
            _ => ListKind::Atomic,
        };
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            merge_schema.fields =
                properties.iter().map(|(name, field)| (name.clone(), Self::from_schema(field))).collect();
        }
        let below = schema
            .get("items")
            .or_else(|| schema.get("additionalProperties"))
            .filter(|below| below.is_object());
        merge_schema.item = below.map(|below| Box::new(Self::from_schema(below)));
        let free = is("x-kubernetes-preserve-unknown-fields") && merge_schema.fields.is_empty();
        merge_schema.keys_are_data = free || schema.get("additionalProperties").is_some();
        merge_schema
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
