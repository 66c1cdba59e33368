//! Kinds whose status only reports whether they are valid: nothing is created from them alone.

use super::validation::{build_status, validate};
use crate::{
    caches::Caches,
    cluster::{Custom, CustomKind, Key},
    conditions::{ConditionUpdate, Progress},
    plan::Plan,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

/// The object alone; `None` when it is gone.
#[derive(Clone, Debug)]
pub struct Snapshot<K: CustomKind> {
    pub object: Option<Arc<Custom<K>>>,
}

impl<K: CustomKind> Snapshot<K> {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        Self { object: caches.of::<K>().get(key) }
    }
}

/// Reports validity. Users are not counted: every change there would be a write here.
pub(super) fn plan<K: CustomKind<Status = PlainStatus>>(
    snapshot: &Snapshot<K>,
    now: Timestamp,
) -> Plan<PlainStatus> {
    let mut plan = Plan::default();
    let Some(object) = snapshot.object.as_deref().filter(|object| !object.is_deleted()) else { return plan };
    let condition = match validate(object) {
        Ok(_) => ConditionUpdate::new(true, "Valid", "can be used", Progress::Settled),
        Err(condition) => condition,
    };
    plan.status = Some(build_status(object, &[], &condition, now));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{SeldonConfig, ServerConfig},
        conditions::{ConditionStatus, READY, STALLED, condition_status},
    };
    use serde_json::json;

    fn snapshot<K: CustomKind>(spec: &serde_json::Value) -> Snapshot<K> {
        let object = json!({
            "metadata": {"name": "default", "namespace": "ops", "uid": "c", "generation": 4}, "spec": spec,
        });
        Snapshot { object: Some(Arc::new(serde_json::from_value(object).unwrap())) }
    }

    fn ready<K: CustomKind<Status = PlainStatus>>(snapshot: &Snapshot<K>) -> (ConditionStatus, bool, String) {
        let plan = plan(snapshot, Timestamp::UNIX_EPOCH);
        assert_eq!(plan.actions, []);
        let status = plan.status.unwrap();
        assert_eq!(status.observed_generation, Some(4));
        let ready = status.conditions.iter().find(|c| c.r#type == READY).unwrap();
        let stalled = condition_status(&status.conditions, STALLED).is_some();
        (condition_status(&status.conditions, READY).unwrap(), stalled, ready.message.clone().unwrap())
    }

    #[test]
    fn seldon_config_reports_violations() {
        let valid = json!({"components": [{"name": "seldon-scheduler", "podSpec": {}}]});
        let expected = (ConditionStatus::True, false, "can be used".into());
        assert_eq!(ready(&snapshot::<SeldonConfig>(&valid)), expected);
        let duplicate = json!({"components": [{"name": "a"}, {"name": "a"}]});
        for (spec, text) in
            [(duplicate, "spec.components[1].name"), (json!({"components": 7}), "cannot be read")]
        {
            let (status, stalled, message) = ready(&snapshot::<SeldonConfig>(&spec));
            assert_eq!((status, stalled), (ConditionStatus::False, true));
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn server_config_without_pod_spec_is_invalid() {
        let (status, stalled, message) = ready(&snapshot::<ServerConfig>(&json!({})));
        assert_eq!((status, stalled), (ConditionStatus::False, true));
        assert!(message.contains("podSpec"), "{message}");
    }

    #[test]
    fn deleted_object_has_an_empty_plan() {
        let gone = Snapshot::<SeldonConfig> { object: None };
        assert_eq!(plan(&gone, Timestamp::UNIX_EPOCH), Plan::default());
    }
}
