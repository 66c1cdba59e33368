//! Which paths an object has, and which of them differ between two objects.

use super::fields::{FieldSet, Step, canonical};
use crate::shape::{ListKind, Shape};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What differs between an object and its successor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Paths that only the successor has.
    pub added: FieldSet,
    /// Paths that both have, with another value.
    pub modified: FieldSet,
    /// Paths that only the predecessor has.
    pub removed: FieldSet,
}

impl Comparison {
    /// Without these trees: they are not this endpoint's to change.
    #[must_use]
    pub fn without(&self, trees: &FieldSet) -> Self {
        Self {
            added: self.added.without_trees(trees),
            modified: self.modified.without_trees(trees),
            removed: self.removed.without_trees(trees),
        }
    }

    /// What the author of the change takes over.
    pub fn taken(&self) -> FieldSet {
        self.added.union(&self.modified)
    }
}

/// Compares; nothing stands for "is not there".
pub fn compare(old: Option<&Value>, new: Option<&Value>, shape: &Shape) -> Comparison {
    let mut comparison = Comparison::default();
    Walk { comparison: &mut comparison, path: Vec::new() }.visit(old, new, shape);
    comparison
}

struct Walk<'a> {
    comparison: &'a mut Comparison,
    path: Vec<Step>,
}

impl Walk<'_> {
    fn visit(&mut self, old: Option<&Value>, new: Option<&Value>, shape: &Shape) {
        let some = |value: Option<&Value>, is: fn(&Value) -> bool| value.is_some_and(is);
        let types_differ = match (old, new) {
            (Some(old), Some(new)) if !old.is_null() && !new.is_null() => {
                old.is_object() != new.is_object() || old.is_array() != new.is_array()
            }
            _ => false,
        };
        if types_differ {
            self.visit(old, None, shape);
            self.visit(None, new, shape);
            return;
        }
        let inner = if some(old, Value::is_object) || some(new, Value::is_object) {
            !shape.atomic
                && self.object(old.and_then(Value::as_object), new.and_then(Value::as_object), shape)
        } else if some(old, Value::is_array) || some(new, Value::is_array) {
            shape.list != ListKind::Atomic
                && self.list(old.and_then(Value::as_array), new.and_then(Value::as_array), shape)
        } else {
            false
        };
        match (old, new) {
            (None, Some(_)) => self.comparison.added.insert(&self.path),
            (Some(_), None) => self.comparison.removed.insert(&self.path),
            (Some(old), Some(new)) if !inner && canonical(old) != canonical(new) => {
                self.comparison.modified.insert(&self.path);
            }
            _ => {}
        }
    }

    /// False when both are empty: then the object itself is the value.
    fn object(
        &mut self,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
        shape: &Shape,
    ) -> bool {
        let names = old.into_iter().flat_map(Map::keys).chain(new.into_iter().flat_map(Map::keys));
        let names: std::collections::BTreeSet<&String> = names.collect();
        for name in &names {
            self.path.push(Step::Field((*name).clone()));
            self.visit(
                old.and_then(|old| old.get(*name)),
                new.and_then(|new| new.get(*name)),
                shape.field(name),
            );
            self.path.pop();
        }
        !names.is_empty()
    }

    fn list(&mut self, old: Option<&Vec<Value>>, new: Option<&Vec<Value>>, shape: &Shape) -> bool {
        let index = |items: Option<&Vec<Value>>| -> BTreeMap<Step, Value> {
            let items = items.into_iter().flatten();
            items.filter_map(|item| Some((shape.step_of(item)?, item.clone()))).collect()
        };
        let (old, new) = (index(old), index(new));
        let steps: std::collections::BTreeSet<&Step> = old.keys().chain(new.keys()).collect();
        for step in &steps {
            self.path.push((*step).clone());
            self.visit(old.get(step), new.get(step), shape.item());
            self.path.pop();
        }
        !steps.is_empty()
    }
}

/// Every path that an applied configuration speaks about.
pub fn owned(config: &Value, shape: &Shape) -> FieldSet {
    let mut set = FieldSet::default();
    own(config, shape, &mut Vec::new(), &mut set);
    set
}

fn own(value: &Value, shape: &Shape, path: &mut Vec<Step>, set: &mut FieldSet) {
    match value {
        Value::Object(map) if !shape.atomic => {
            for (name, value) in map {
                path.push(Step::Field(name.clone()));
                own(value, shape.field(name), path, set);
                if shape.keys_are_data || value.as_object().is_some_and(Map::is_empty) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        Value::Array(items) if shape.list != ListKind::Atomic => {
            for item in items {
                let Some(step) = shape.step_of(item) else { continue };
                path.push(step);
                own(item, shape.item(), path, set);
                set.insert(path);
                path.pop();
            }
        }
        _ => set.insert(path),
    }
}
