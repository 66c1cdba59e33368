//! Paths of an object, and differences between two objects.

use super::fields::{FieldSet, Step, canonical};
use crate::merge_schema::{ListKind, MergeSchema};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

impl Comparison {
    /// Without trees that belong to another endpoint.
    #[must_use]
    pub fn without(&self, trees: &FieldSet) -> Self {
        Self {
            added: self.added.without_trees(trees),
            modified: self.modified.without_trees(trees),
            removed: self.removed.without_trees(trees),
        }
    }

    /// Fields that the author of the change owns afterwards.
    pub fn taken(&self) -> FieldSet {
        self.added.union(&self.modified)
    }
}

/// `None` is absent.
pub fn compare(old: Option<&Value>, new: Option<&Value>, merge_schema: &MergeSchema) -> Comparison {
    let mut comparison = Comparison::default();
    Walk { comparison: &mut comparison, path: Vec::new() }.visit(old, new, merge_schema);
    comparison
}

struct Walk<'a> {
    comparison: &'a mut Comparison,
    path: Vec<Step>,
}

impl Walk<'_> {
    fn visit(&mut self, old: Option<&Value>, new: Option<&Value>, merge_schema: &MergeSchema) {
        let some = |value: Option<&Value>, is: fn(&Value) -> bool| value.is_some_and(is);
        let types_differ = match (old, new) {
            (Some(old), Some(new)) if !old.is_null() && !new.is_null() => {
                old.is_object() != new.is_object() || old.is_array() != new.is_array()
            }
            _ => false,
        };
        if types_differ {
            self.visit(old, None, merge_schema);
            self.visit(None, new, merge_schema);
            return;
        }
        let inner = if some(old, Value::is_object) || some(new, Value::is_object) {
            !merge_schema.atomic
                && self.object(old.and_then(Value::as_object), new.and_then(Value::as_object), merge_schema)
        } else if some(old, Value::is_array) || some(new, Value::is_array) {
            merge_schema.list != ListKind::Atomic
                && self.list(old.and_then(Value::as_array), new.and_then(Value::as_array), merge_schema)
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

    /// False when both are empty: then the object itself is compared.
    fn object(
        &mut self,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
        merge_schema: &MergeSchema,
    ) -> bool {
        let names = old.into_iter().flat_map(Map::keys).chain(new.into_iter().flat_map(Map::keys));
        let names: std::collections::BTreeSet<&String> = names.collect();
        for name in &names {
            self.path.push(Step::Field((*name).clone()));
            self.visit(
                old.and_then(|old| old.get(*name)),
                new.and_then(|new| new.get(*name)),
                merge_schema.field(name),
            );
            self.path.pop();
        }
        !names.is_empty()
    }

    fn list(
        &mut self,
        old: Option<&Vec<Value>>,
        new: Option<&Vec<Value>>,
        merge_schema: &MergeSchema,
    ) -> bool {
        let index = |items: Option<&Vec<Value>>| -> BTreeMap<Step, Value> {
            let items = items.into_iter().flatten();
            items.filter_map(|item| Some((merge_schema.step_of(item)?, item.clone()))).collect()
        };
        let (old, new) = (index(old), index(new));
        let steps: std::collections::BTreeSet<&Step> = old.keys().chain(new.keys()).collect();
        for step in &steps {
            self.path.push((*step).clone());
            self.visit(old.get(step), new.get(step), merge_schema.item());
            self.path.pop();
        }
        !steps.is_empty()
    }
}

/// Every path in an applied configuration.
pub fn owned(config: &Value, merge_schema: &MergeSchema) -> FieldSet {
    let mut set = FieldSet::default();
    own(config, merge_schema, &mut Vec::new(), &mut set);
    set
}

fn own(value: &Value, merge_schema: &MergeSchema, path: &mut Vec<Step>, set: &mut FieldSet) {
    match value {
        Value::Object(map) if !merge_schema.atomic => {
            for (name, value) in map {
                path.push(Step::Field(name.clone()));
                own(value, merge_schema.field(name), path, set);
                if merge_schema.keys_are_data || value.as_object().is_some_and(Map::is_empty) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        Value::Array(items) if merge_schema.list != ListKind::Atomic => {
            for item in items {
                let Some(step) = merge_schema.step_of(item) else { continue };
                path.push(step);
                own(item, merge_schema.item(), path, set);
                set.insert(path);
                path.pop();
            }
        }
        _ => set.insert(path),
    }
}
