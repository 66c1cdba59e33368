//! What is said of configurations.

#![allow(clippy::needless_pass_by_value, reason = "json!() makes the argument, and nobody else needs it")]

use super::*;
use crate::conditions::{READY, STALLED, Truth, truth_of};
use serde_json::{Value, json};
use std::sync::Arc;

fn seldon_config(spec: Value) -> Snapshot<SeldonConfig> {
    let object = json!({"metadata": {"name": "default", "namespace": "ops", "uid": "c", "generation": 4}, "spec": spec});
    Snapshot { object: Some(Arc::new(serde_json::from_value(object).unwrap())) }
}

fn said<K>(snapshot: &Snapshot<K>) -> (Truth, bool, String)
where
    K: Checked + CustomKind<Status = PlainStatus>,
{
    let plan = plan(snapshot, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.actions, []);
    let status = plan.status.unwrap();
    assert_eq!(status.observed_generation, Some(4));
    let ready = status.conditions.iter().find(|c| c.r#type == READY).unwrap();
    let stalled = truth_of(&status.conditions, STALLED).is_some();
    (truth_of(&status.conditions, READY).unwrap(), stalled, ready.message.clone().unwrap())
}

#[test]
fn a_configuration_is_checked_where_it_is_written() {
    let good = seldon_config(json!({"components": [{"name": "seldon-scheduler", "podSpec": {}}]}));
    assert_eq!(said(&good), (Truth::True, false, "can be used".into()));
    let twice = seldon_config(json!({"components": [{"name": "a"}, {"name": "a"}]}));
    let (truth, stalled, message) = said(&twice);
    assert_eq!((truth, stalled), (Truth::False, true));
    assert!(message.contains("spec.components[1].name"), "{message}");
    let nonsense = seldon_config(json!({"components": 7}));
    let (truth, stalled, message) = said(&nonsense);
    assert_eq!((truth, stalled), (Truth::False, true));
    assert!(message.contains("cannot be read"), "{message}");
}

#[test]
fn a_server_configuration_without_pods_is_refused() {
    let object = json!({"metadata": {"name": "a", "namespace": "ops", "generation": 4}, "spec": {}});
    let snapshot =
        Snapshot::<ServerConfig> { object: Some(Arc::new(serde_json::from_value(object).unwrap())) };
    let (truth, stalled, message) = said(&snapshot);
    assert_eq!((truth, stalled), (Truth::False, true));
    assert!(message.contains("podSpec"), "{message}");
}

#[test]
fn nothing_is_said_of_what_is_gone() {
    let gone = Snapshot::<SeldonConfig> { object: None };
    assert_eq!(plan(&gone, Timestamp::UNIX_EPOCH), Plan::default());
}
