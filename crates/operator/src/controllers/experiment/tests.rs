//! Conditions of experiments.

use super::{Snapshot, scheduled::plan};
use crate::{
    cluster::{Custom, Experiment, Key},
    conditions::{READY, RECONCILING},
    plan::Known,
    schedulers::{ExperimentView, LoadedView as _},
};
use gantry_api::{Condition, PlainStatus};
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

const OWN: [&str; 3] = ["ExperimentReady", "CandidatesReady", "MirrorReady"];

fn object(mirror: Option<Value>) -> Custom<Experiment> {
    let mut object = json!({
        "metadata": {
            "name": "split", "namespace": "ml", "uid": "u1", "generation": 3,
            "finalizers": ["seldon.experiment.finalizer"],
        },
        "spec": { "candidates": [{ "name": "iris-a", "weight": 90 }, { "name": "iris-b", "weight": 10 }] },
    });
    if let Some(mirror) = mirror {
        object["spec"]["mirror"] = mirror;
    }
    serde_json::from_value(object).unwrap()
}

fn mirrored() -> Custom<Experiment> {
    object(Some(json!({ "name": "iris-c", "percent": 10 })))
}

fn view(active: bool, candidates_ready: bool, mirror_ready: bool, why: &str) -> ExperimentView {
    ExperimentView(pb::ExperimentStatusResponse {
        experiment_name: "split".into(),
        active,
        candidates_ready,
        mirror_ready,
        status_description: why.into(),
        kubernetes_meta: Some(pb::KubernetesMeta { namespace: "ml".into(), generation: 3 }),
        manager: "operator:ml".into(),
        ..Default::default()
    })
}

fn status(object: Custom<Experiment>, scheduler: Known<ExperimentView>) -> PlainStatus {
    let snapshot = Snapshot {
        key: Key::new("ml", "split"),
        object: Some(Arc::new(object)),
        scheduler,
        has_scheduler: true,
        unreachable_for: None,
        last_request: None,
        status_age: None,
        facts: (),
    };
    plan(&snapshot, Timestamp::UNIX_EPOCH).status.unwrap()
}

fn condition<'a>(status: &'a PlainStatus, name: &str) -> &'a Condition {
    status.conditions.iter().find(|c| c.r#type == name).unwrap_or_else(|| panic!("{name}: {status:?}"))
}

fn message(status: &PlainStatus, name: &str) -> String {
    condition(status, name).message.clone().unwrap()
}

#[test]
fn ready_of_every_state() {
    // Active, candidates ready, mirror ready: own conditions, reason of Ready.
    for (view, expected, reason) in [
        ((true, true, true), ["True", "True", "True"], "ExperimentReady"),
        ((false, false, true), ["False", "False", "True"], "CandidatesNotReady"),
        ((false, true, false), ["False", "True", "False"], "MirrorNotReady"),
        ((false, false, false), ["False", "False", "False"], "CandidatesNotReady"),
        // A gateway does not have the route yet.
        ((false, true, true), ["False", "True", "True"], "ExperimentNotActive"),
        // A candidate without traffic.
        ((true, false, true), ["True", "False", "True"], "CandidatesNotReady"),
    ] {
        let found = status(mirrored(), Known::Present(self::view(view.0, view.1, view.2, "")));
        assert_eq!(OWN.map(|name| condition(&found, name).status.as_str()), expected, "{view:?}");
        let ready = condition(&found, READY);
        assert_eq!(
            (ready.reason.as_deref(), ready.status == "True"),
            (Some(reason), expected == ["True"; 3])
        );
        let is_reconciling = found.conditions.iter().any(|c| c.r#type == RECONCILING);
        assert_eq!(is_reconciling, ready.status != "True", "{view:?}");
    }
}

#[test]
fn message_of_an_active_experiment_has_its_weights() {
    let active = || Known::Present(view(true, true, true, "experiment active"));
    let split = "splits requests: iris-a 90, iris-b 10";
    assert_eq!(message(&status(object(None), active()), READY), split);
    assert_eq!(message(&status(mirrored(), active()), READY), format!("{split}; mirror iris-c 10 %"));
}

#[test]
fn message_names_the_target_that_is_not_ready() {
    let of = |view| status(mirrored(), Known::Present(view));
    let reason = "model iris-b is not available: no server has capability xgboost";
    let not_ready = of(view(false, false, true, reason));
    assert_eq!([READY, "CandidatesReady"].map(|name| message(&not_ready, name)), [reason; 2]);
    let reason = "mirror iris-c is not available";
    assert_eq!(message(&of(view(false, true, false, reason)), READY), reason);
    let unnamed = of(view(false, false, false, "not ready"));
    let text = "a candidate is not ready: see the Models iris-a, iris-b";
    assert_eq!([READY, "CandidatesReady"].map(|name| message(&unnamed, name)), [text; 2]);
    assert_eq!(message(&unnamed, "MirrorReady"), "the mirror is not ready: see the Models iris-c");
}

#[test]
fn experiment_without_a_mirror_does_not_wait_for_one() {
    // Seldon's scheduler reports a missing mirror as ready, others may not.
    let found = status(object(None), Known::Present(view(true, true, false, "")));
    assert_eq!(condition(&found, "MirrorReady").reason.as_deref(), Some("NoMirror"));
    assert_eq!(condition(&found, READY).status, "True");
}

#[test]
fn conditions_without_a_report_of_the_scheduler_are_unknown() {
    let waiting = status(mirrored(), Known::Unknown("connection refused".into()));
    assert_eq!(OWN.map(|name| condition(&waiting, name).status.as_str()), ["Unknown"; 3]);
}

#[test]
fn stopped_experiment_differs_from_one_that_waits_for_its_candidates() {
    let stopped = |change: fn(&mut pb::ExperimentStatusResponse)| {
        let mut view = view(false, true, true, "");
        change(&mut view.0);
        (view.is_deleted(), view.has_ended())
    };
    assert_eq!(stopped(|_| {}), (false, true), "it waits for a gateway");
    assert_eq!(stopped(|v| v.deleted = true), (true, true));
    assert_eq!(stopped(|v| (v.deleted, v.active) = (true, true)), (true, false));
    assert_eq!(stopped(|v| v.manager.clear()), (true, true), "as Seldon's scheduler reports it");
    assert_eq!(
        stopped(|v| {
            v.manager.clear();
            v.candidates_ready = false;
        }),
        (false, true)
    );
}
