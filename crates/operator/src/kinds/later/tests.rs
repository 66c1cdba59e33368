//! What is said of objects that are not run yet.

use super::*;
use crate::{
    cluster::Custom,
    conditions::{READY, STALLED, Truth, truth_of},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn pipeline(change: impl FnOnce(&mut Value)) -> Plan<PlainStatus> {
    let mut object = json!({
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", "generation": 2},
        "spec": {"steps": [{"name": "a"}, {"name": "b", "inputs": ["a"]}], "output": {"steps": ["b"]}},
    });
    change(&mut object);
    let object: Custom<Pipeline> = serde_json::from_value(object).unwrap();
    plan(&Snapshot { object: Some(Arc::new(object)) }, Timestamp::UNIX_EPOCH)
}

fn reason(plan: &Plan<PlainStatus>) -> String {
    let status = plan.status.as_ref().unwrap();
    assert_eq!(status.observed_generation, Some(2));
    assert_eq!(truth_of(&status.conditions, READY), Some(Truth::False));
    assert_eq!(truth_of(&status.conditions, STALLED), Some(Truth::True), "nobody need wait for it");
    status.conditions.iter().find(|c| c.r#type == READY).unwrap().reason.clone().unwrap()
}

#[test]
fn a_good_one_is_told_that_it_is_not_run_and_a_bad_one_what_is_wrong() {
    assert_eq!(reason(&pipeline(|_| {})), "NotSupportedYet");
    assert_eq!(reason(&pipeline(|p| p["spec"]["steps"] = json!([]))), "InvalidSpec");
    let object = json!({"metadata": {"name": "e", "generation": 2}, "spec": {"candidates": [{"name": "a", "weight": 1}]}});
    let object: Custom<Experiment> = serde_json::from_value(object).unwrap();
    assert_eq!(
        reason(&plan(&Snapshot { object: Some(Arc::new(object)) }, Timestamp::UNIX_EPOCH)),
        "NotSupportedYet"
    );
}

#[test]
fn what_another_operator_said_does_not_stay_true() {
    let ran = json!({"conditions": [{"type": "ModelsReady", "status": "True"}, {"type": "Audited", "status": "True"}]});
    let status = pipeline(|p| p["status"] = ran).status.unwrap();
    for (name, truth) in
        [("PipelineReady", Truth::False), ("ModelsReady", Truth::False), ("Audited", Truth::True)]
    {
        assert_eq!(truth_of(&status.conditions, name), Some(truth), "{name}");
    }
    assert_eq!(truth_of(&status.conditions, "PipelineGwReady"), None);
}

#[test]
fn nothing_is_held_and_what_was_held_is_let_go() {
    assert_eq!(pipeline(|p| p["metadata"]["finalizers"] = json!(["seldon.pipeline.finalizer"])).actions, []);
    let deleted = |finalizer: &str| {
        pipeline(|p| {
            p["metadata"]["finalizers"] = json!([finalizer]);
            p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        })
    };
    let held = deleted("seldon.pipeline.finalizer");
    assert_eq!(held.actions, [Action::RemoveFinalizer("seldon.pipeline.finalizer")]);
    assert_eq!(deleted("somebody/else").actions, []);
    let invalid = pipeline(|p| {
        p["spec"] = json!({"steps": "nonsense"});
        p["metadata"]["finalizers"] = json!(["seldon.pipeline.finalizer"]);
        p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    assert_eq!(invalid.actions.len(), 1, "what is invalid can be deleted, too");
}
