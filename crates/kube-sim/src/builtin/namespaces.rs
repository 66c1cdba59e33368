//! Namespace deletion: objects first.

use super::write;
use crate::{
    object::{is_terminating, set},
    request::{Subresource, Verb},
    state::{Key, State},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) fn step(state: &mut State, now: Timestamp) {
    let ending: Vec<(Key, Arc<Value>)> = state
        .objects_at("namespaces", state.revision())
        .into_iter()
        .filter(|(_, namespace)| is_terminating(namespace))
        .collect();
    for (namespace, object) in ending {
        let inside = |key: &Key| key.namespace == namespace.name;
        let left: Vec<(Key, bool)> = state
            .objects()
            .filter(|(key, _)| inside(key))
            .map(|(key, object)| (key.clone(), is_terminating(object)))
            .collect();
        for (key, terminating) in &left {
            if !terminating {
                write(
                    state,
                    key,
                    Verb::Delete,
                    Subresource::Main,
                    json!({"propagationPolicy": "Background"}),
                    now,
                );
            }
        }
        if !state.objects().any(|(key, _)| inside(key)) {
            let mut last = Value::clone(&object);
            set(&mut last, &["spec"], json!({}));
            state.put(namespace.clone(), last);
            state.erase(&namespace);
        }
    }
}
