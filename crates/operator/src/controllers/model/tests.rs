//! Conditions and status of models.

use super::{Snapshot, scheduled::plan};
use crate::{
    cluster::{Custom, Key, Model},
    conditions::{ConditionStatus, READY, RECONCILING, STALLED, condition_status},
    plan::Known,
    schedulers::{LastRequest, ModelView, Operation, SchedulerRequest, ServingVersion},
};
use gantry_api::ModelStatus;
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use std::{sync::Arc, time::Duration};

fn object() -> Custom<Model> {
    let object = json!({
        "metadata": {
            "name": "iris", "namespace": "ml", "uid": "u1", "generation": 3, "finalizers": ["seldon.model.finalizer"],
        },
        "spec": { "storageUri": "gs://models/iris", "requirements": ["sklearn"] },
    });
    serde_json::from_value(object).unwrap()
}

fn view(state: ModelState) -> ModelView {
    let meta = pb::KubernetesMeta { namespace: "ml".into(), generation: 3 };
    ModelView {
        deleted: false,
        manager: "operator:ml".into(),
        serving: None,
        latest: Some(pb::ModelVersionStatus {
            version: 3,
            server_name: "mlserver".into(),
            kubernetes_meta: Some(meta),
            state: Some(pb::ModelStatus { state: state.into(), available_replicas: 1, ..Default::default() }),
            ..Default::default()
        }),
    }
}

fn snapshot(object: Custom<Model>, scheduler: Known<ModelView>) -> Snapshot {
    Snapshot {
        key: Key::new("ml", "iris"),
        object: Some(Arc::new(object)),
        scheduler,
        has_scheduler: true,
        unreachable_for: None,
        last_request: None,
        status_age: None,
        facts: super::Facts::default(),
    }
}

fn status(object: Custom<Model>, state: ModelState) -> ModelStatus {
    plan(&snapshot(object, Known::Present(view(state))), Timestamp::UNIX_EPOCH).status.unwrap()
}

#[test]
fn ready_of_every_state() {
    use ConditionStatus::{False, True, Unknown};
    for (state, expected, reason, progress) in [
        (ModelState::ModelAvailable, True, "ModelAvailable", None),
        (ModelState::ModelScaledDown, True, "ModelScaledDown", None),
        (ModelState::ModelProgressing, False, "ModelProgressing", Some(RECONCILING)),
        (ModelState::ScheduleFailed, False, "ScheduleFailed", Some(RECONCILING)),
        (ModelState::ModelFailed, False, "ModelFailed", Some(STALLED)),
        (ModelState::ModelTerminating, False, "ModelTerminating", Some(RECONCILING)),
        (ModelState::ModelTerminated, False, "ModelTerminated", Some(RECONCILING)),
        (ModelState::Unknown, Unknown, "ModelStateUnknown", Some(RECONCILING)),
    ] {
        let status = status(object(), state);
        for name in [READY, "ModelReady"] {
            let condition = status.conditions.iter().find(|c| c.r#type == name).unwrap();
            let found = (condition_status(&status.conditions, name).unwrap(), condition.reason.as_deref());
            assert_eq!(found, (expected, Some(reason)), "{state:?} {name}");
        }
        let found = [RECONCILING, STALLED]
            .into_iter()
            .find(|name| condition_status(&status.conditions, name) == Some(ConditionStatus::True));
        assert_eq!(found, progress, "{state:?}");
    }
}

#[test]
fn status_waits_only_for_a_model_that_is_being_loaded() {
    for (state, waits) in [
        (ModelState::ModelCreate, true),
        (ModelState::ModelProgressing, true),
        (ModelState::ScheduleFailed, false),
        (ModelState::ModelFailed, false),
        (ModelState::ModelAvailable, false),
    ] {
        let request = SchedulerRequest::new(Operation::Load, Some(&object()));
        let sent = LastRequest {
            at: tokio::time::Instant::now(),
            request,
            attempts: 1,
            was_accepted: false,
            rejection: None,
            failure: None,
        };
        let loaded_a_moment_ago = Snapshot {
            last_request: Some((sent, Duration::ZERO)),
            ..snapshot(object(), Known::Present(view(state)))
        };
        let plan = plan(&loaded_a_moment_ago, Timestamp::UNIX_EPOCH);
        assert_eq!((plan.status.is_none(), plan.requeue_after.is_some()), (waits, waits), "{state:?}");
    }
}

#[test]
fn replicas_are_kept_while_the_scheduler_is_unreachable() {
    let mut object = object();
    let before = status(object.clone(), ModelState::ModelAvailable);
    object.status = Some(before.clone());
    let away = Snapshot {
        unreachable_for: Some(Duration::from_secs(30)),
        ..snapshot(object, Known::Unknown("connection refused".into()))
    };
    let after = plan(&away, Timestamp::UNIX_EPOCH).status.unwrap();
    assert_eq!(condition_status(&after.conditions, READY), Some(ConditionStatus::Unknown));
    assert_eq!((before.available_replicas, &before.selector), (after.available_replicas, &after.selector));
}

#[test]
fn rollouts_name_the_version_that_serves() {
    let rolling = "rolled out to 20 % of the requests";
    for (state, code, reason, serving, expected, available) in [
        (
            ModelState::ModelProgressing,
            "RollingOut",
            rolling,
            Some(2),
            "version 3 is rolled out to 20 % of the requests; version 2 serves the others",
            3,
        ),
        (
            ModelState::ModelProgressing,
            "RollingOut",
            "waits for the end of a rollback",
            Some(2),
            "version 3 waits for the end of a rollback; version 2 serves the others",
            3,
        ),
        (
            ModelState::ModelProgressing,
            "RollingOut",
            rolling,
            None,
            "version 3 is rolled out to 20 % of the requests",
            1,
        ),
        (
            ModelState::ModelFailed,
            "RolledBack",
            "rolled back: 5 of 10 requests failed",
            Some(2),
            "version 3 was rolled back: 5 of 10 requests failed; version 2 serves: change the Model, or allow it again with \
             `gantry rollout retry`",
            3,
        ),
        // The promoted version is the latest one.
        (ModelState::ModelAvailable, "", "", Some(3), "serves version 3 on mlserver", 1),
    ] {
        let mut view = view(state);
        let report = view.latest.as_mut().unwrap().state.as_mut().unwrap();
        (report.reason_code, report.reason) = (code.into(), reason.into());
        view.serving = serving.map(|version| ServingVersion { version, available: 2 });
        let plan = plan(&snapshot(object(), Known::Present(view)), Timestamp::UNIX_EPOCH);
        let status = plan.status.unwrap();
        let ready = status.conditions.iter().find(|c| c.r#type == READY).unwrap();
        assert_eq!(ready.message.as_deref(), Some(expected));
        assert_eq!(ready.status == "True", state == ModelState::ModelAvailable);
        assert_eq!(status.available_replicas, available, "{expected}");
    }
}

#[test]
fn changed_model_waits_for_its_policy_if_an_earlier_version_serves() {
    let facts = || super::Facts { awaited_policy: Some("careful".into()) };
    let mut changed = object();
    changed.metadata.generation = Some(4);
    let serving = || Known::Present(view(ModelState::ModelAvailable));
    let held =
        plan(&Snapshot { facts: facts(), ..snapshot(changed.clone(), serving()) }, Timestamp::UNIX_EPOCH);
    assert_eq!((held.actions.len(), held.requeue_after), (0, Some(Duration::from_secs(1))));
    let status = held.status.unwrap();
    let ready = status.conditions.iter().find(|c| c.r#type == READY).unwrap();
    assert_eq!(ready.reason.as_deref(), Some("WaitingForPolicy"));
    assert_eq!(status.observed_generation, Some(4));
    for (object, scheduler, facts) in [
        (changed.clone(), serving(), super::Facts::default()),
        // The first version has nothing to be compared with.
        (changed, Known::Absent, facts()),
    ] {
        let sent = plan(&Snapshot { facts, ..snapshot(object, scheduler) }, Timestamp::UNIX_EPOCH);
        assert_eq!(sent.actions.len(), 1, "{sent:?}");
    }
}
