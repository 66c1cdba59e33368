//! Kinds that are validated and stored, but not run yet. Their objects get no finalizer, and a finalizer of Seldon's
//! operator is removed on deletion.

use super::{
    validate_only::Snapshot,
    validation::{build_status, validate},
};
use crate::{
    cluster::CustomKind,
    conditions::{ConditionUpdate, Progress},
    plan::{ClusterAction, Plan},
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

/// A kind that this version does not run.
pub(super) trait Unsupported: CustomKind<Status = PlainStatus> {
    /// The finalizer of Seldon's operator.
    const FINALIZER: &'static str;
    /// Conditions of Seldon's operator. The first is always reported; the others replace those it left behind.
    const CONDITIONS: &'static [&'static str];
    /// What to use instead.
    const WORKAROUND: &'static str;
}

pub(super) fn plan<K: Unsupported>(snapshot: &Snapshot<K>, now: Timestamp) -> Plan<PlainStatus> {
    let mut plan = Plan::default();
    let Some(object) = snapshot.object.as_deref() else { return plan };
    if object.is_deleted() {
        if object.has_finalizer(K::FINALIZER) {
            plan.push(ClusterAction::RemoveFinalizer(K::FINALIZER));
        }
        return plan;
    }
    let condition = match validate(object) {
        Ok(_) => ConditionUpdate::new(false, "NotSupportedYet", K::WORKAROUND, Progress::Stalled),
        Err(condition) => condition,
    };
    let before = object.status.iter().flat_map(|s| &s.conditions);
    let reported: Vec<&str> = before.map(|c| c.r#type.as_str()).collect();
    let is_ours = |(i, name): &(usize, &&'static str)| *i == 0 || reported.contains(*name);
    let own: Vec<(&str, &ConditionUpdate)> =
        K::CONDITIONS.iter().enumerate().filter(is_ours).map(|(_, name)| (*name, &condition)).collect();
    plan.status = Some(build_status(object, &own, &condition, now));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Custom, Experiment, Pipeline},
        conditions::{ConditionStatus, READY, STALLED, condition_status},
        plan::Action,
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
        assert_eq!(condition_status(&status.conditions, READY), Some(ConditionStatus::False));
        assert_eq!(condition_status(&status.conditions, STALLED), Some(ConditionStatus::True));
        status.conditions.iter().find(|c| c.r#type == READY).unwrap().reason.clone().unwrap()
    }

    #[test]
    fn valid_object_is_not_supported_yet_and_invalid_object_is_invalid() {
        assert_eq!(reason(&pipeline(|_| {})), "NotSupportedYet");
        assert_eq!(reason(&pipeline(|p| p["spec"]["steps"] = json!([]))), "InvalidSpec");
        let object = json!({"metadata": {"name": "e", "generation": 2}, "spec": {"candidates": [{"name": "a", "weight": 1}]}});
        let object: Custom<Experiment> = serde_json::from_value(object).unwrap();
        let plan = plan(&Snapshot { object: Some(Arc::new(object)) }, Timestamp::UNIX_EPOCH);
        assert_eq!(reason(&plan), "NotSupportedYet");
    }

    #[test]
    fn conditions_of_seldons_operator_are_replaced() {
        let ran = json!({"conditions": [{"type": "ModelsReady", "status": "True"}, {"type": "Audited", "status": "True"}]});
        let status = pipeline(|p| p["status"] = ran).status.unwrap();
        for (name, expected) in [
            ("PipelineReady", Some(ConditionStatus::False)),
            ("ModelsReady", Some(ConditionStatus::False)),
            ("Audited", Some(ConditionStatus::True)),
            ("PipelineGwReady", None),
        ] {
            assert_eq!(condition_status(&status.conditions, name), expected, "{name}");
        }
    }

    #[test]
    fn finalizer_of_seldons_operator_is_removed_on_deletion_only() {
        assert_eq!(pipeline(|p| p["metadata"]["finalizers"] = json!([Pipeline::FINALIZER])).actions, []);
        let deleted = |finalizer: &str, spec: Option<Value>| {
            pipeline(|p| {
                p["metadata"]["finalizers"] = json!([finalizer]);
                p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                if let Some(spec) = spec {
                    p["spec"] = spec;
                }
            })
        };
        let release: [Action; 1] = [ClusterAction::RemoveFinalizer(Pipeline::FINALIZER).into()];
        assert_eq!(deleted(Pipeline::FINALIZER, None).actions, release);
        assert_eq!(deleted(Pipeline::FINALIZER, Some(json!({"steps": "nonsense"}))).actions, release);
        assert_eq!(deleted("example.com/hold", None).actions, []);
    }
}
