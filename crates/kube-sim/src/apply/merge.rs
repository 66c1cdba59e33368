//! Merges an applied configuration into an object, and removes paths.

use super::fields::{FieldSet, Step};
use crate::merge_schema::{ListKind, MergeSchema};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Fields that the configuration does not contain stay unchanged.
pub fn merge(live: &Value, config: &Value, merge_schema: &MergeSchema) -> Value {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) if !merge_schema.atomic => {
            let mut merged = live.clone();
            for (name, value) in config {
                let value = match live.get(name) {
                    Some(old) => merge(old, value, merge_schema.field(name)),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(live), Value::Array(config)) if merge_schema.list != ListKind::Atomic => {
            Value::Array(merge_lists(live, config, merge_schema))
        }
        _ => config.clone(),
    }
}

/// Shared items take the order of the configuration; items of one side keep their neighbours.
fn merge_lists(live: &[Value], config: &[Value], merge_schema: &MergeSchema) -> Vec<Value> {
    let stepped = |items: &[Value]| -> Vec<(Option<Step>, Value)> {
        items.iter().map(|item| (merge_schema.step_of(item), item.clone())).collect()
    };
    let (live, config) = (stepped(live), stepped(config));
    let steps_of = |items: &[(Option<Step>, Value)]| -> BTreeSet<Step> {
        items.iter().filter_map(|(step, _)| step.clone()).collect()
    };
    let (in_live, in_config) = (steps_of(&live), steps_of(&config));
    let find =
        |step: &Step| live.iter().find(|(other, _)| other.as_ref() == Some(step)).map(|(_, item)| item);

    let mut shared = config.iter().filter_map(|(step, _)| step.clone()).filter(|step| in_live.contains(step));
    let mut next_shared = shared.next();
    let mut done: BTreeSet<Step> = BTreeSet::new();
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let (mut left, mut right) = (live.iter().peekable(), config.iter().peekable());
    while left.peek().is_some() || right.peek().is_some() {
        if let Some((step, item)) = left.peek() {
            let both = step.as_ref().filter(|step| in_config.contains(step));
            let Some(step) = both else {
                merged.push(item.clone());
                left.next();
                continue;
            };
            let meets = right.peek().is_some_and(|(other, _)| other.as_ref() == Some(step));
            let not_its_turn = next_shared.is_some() && next_shared.as_ref() != Some(step);
            if right.peek().is_some() && !meets && not_its_turn {
                left.next();
                continue;
            }
            if done.contains(step) {
                left.next();
            }
        }
        // The right side is empty only after the last shared item; then the left side has advanced above.
        let Some((step, item)) = right.next() else { continue };
        match step {
            Some(step) => {
                merged.push(
                    find(step).map_or_else(|| item.clone(), |old| merge(old, item, merge_schema.item())),
                );
                if left.peek().is_some_and(|(other, _)| other.as_ref() == Some(step)) {
                    left.next();
                }
                if next_shared.as_ref() == Some(step) {
                    next_shared = shared.next();
                }
                done.insert(step.clone());
            }
            None => merged.push(item.clone()),
        }
    }
    merged
}

/// Removes the members of a set, with everything below them.
///
/// A value that becomes empty is null, as on the API server; a schema may reject that.
pub fn remove(value: &Value, gone: &FieldSet, merge_schema: &MergeSchema) -> Value {
    match value {
        Value::Object(map) if !merge_schema.atomic => {
            let mut kept = Map::new();
            for (name, value) in map {
                match gone.below(&Step::Field(name.clone())) {
                    Some(below) if below.is_member() => {}
                    Some(below) => {
                        kept.insert(name.clone(), remove(value, below, merge_schema.field(name)));
                    }
                    None => {
                        kept.insert(name.clone(), value.clone());
                    }
                }
            }
            if kept.is_empty() && !map.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(items) if merge_schema.list != ListKind::Atomic => {
            let kept = items.iter().filter_map(|item| {
                let below = merge_schema.step_of(item).and_then(|step| gone.below(&step));
                match below {
                    Some(below) if below.is_member() => None,
                    Some(below) => Some(remove(item, below, merge_schema.item())),
                    None => Some(item.clone()),
                }
            });
            let kept: Vec<Value> = kept.collect();
            if kept.is_empty() && !items.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        other => other.clone(),
    }
}
