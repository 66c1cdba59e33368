//! Conditions of pipelines.

use super::{Facts, Snapshot, scheduled::plan};
use crate::{
    cluster::{Custom, Key, Pipeline},
    conditions::{READY, RECONCILING, STALLED},
    plan::Known,
    schedulers::{LoadedView as _, PipelineView},
};
use gantry_api::{Condition, PlainStatus};
use gantry_proto::{
    gantry::{FailedRevision, RevisionStatus, RolloutStatus},
    scheduler::{self as pb, pipeline_version_state::PipelineStatus},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use std::{sync::Arc, time::Duration};

const OWN: [&str; 3] = ["PipelineReady", "PipelineGwReady", "ModelsReady"];

fn object() -> Custom<Pipeline> {
    let object = json!({
        "metadata": {
            "name": "chain", "namespace": "ml", "uid": "u1", "generation": 3,
            "finalizers": ["seldon.pipeline.finalizer"],
        },
        "spec": { "steps": [{ "name": "scale" }, { "name": "classify", "inputs": ["scale"] }] },
    });
    serde_json::from_value(object).unwrap()
}

fn view(status: PipelineStatus, gateways: PipelineStatus, models_ready: bool, reason: &str) -> PipelineView {
    let pipeline = object().spec.unwrap().to_proto("chain", Some("ml"), Some(3));
    let state = pb::PipelineVersionState {
        pipeline_version: 7,
        status: status.into(),
        pipeline_gw_status: gateways.into(),
        models_ready,
        reason: reason.into(),
        ..Default::default()
    };
    PipelineView { manager: "operator:ml".into(), pipeline, state }
}

fn snapshot(object: Custom<Pipeline>, scheduler: Known<PipelineView>) -> Snapshot {
    Snapshot {
        key: Key::new("ml", "chain"),
        object: Some(Arc::new(object)),
        scheduler,
        has_scheduler: true,
        unreachable_for: None,
        last_request: None,
        status_age: None,
        facts: Facts::default(),
    }
}

fn status(scheduler: Known<PipelineView>) -> PlainStatus {
    plan(&snapshot(object(), scheduler), Timestamp::UNIX_EPOCH).status.unwrap()
}

fn condition<'a>(status: &'a PlainStatus, name: &str) -> &'a Condition {
    status.conditions.iter().find(|c| c.r#type == name).unwrap_or_else(|| panic!("{name}: {status:?}"))
}

#[test]
fn ready_of_every_state() {
    use PipelineStatus::{
        PipelineCreate, PipelineCreating, PipelineFailed, PipelineReady, PipelineRebalancing, Unknown,
    };
    let cases = [
        // State, state of the gateways, models ready: own conditions, reason of Ready, progress.
        (PipelineReady, PipelineReady, true, ["True", "True", "True"], "PipelineReady", None),
        (PipelineReady, PipelineReady, false, ["True", "True", "False"], "ModelsNotReady", Some(RECONCILING)),
        (
            PipelineReady,
            PipelineCreating,
            true,
            ["True", "False", "True"],
            "PipelineCreating",
            Some(RECONCILING),
        ),
        (
            PipelineCreating,
            PipelineCreate,
            false,
            ["False", "False", "False"],
            "ModelsNotReady",
            Some(RECONCILING),
        ),
        (
            PipelineCreate,
            PipelineReady,
            true,
            ["False", "True", "True"],
            "PipelineCreating",
            Some(RECONCILING),
        ),
        (
            PipelineReady,
            PipelineRebalancing,
            true,
            ["True", "False", "True"],
            "PipelineRebalancing",
            Some(RECONCILING),
        ),
        (PipelineFailed, PipelineCreate, false, ["False", "False", "False"], "PipelineFailed", Some(STALLED)),
        (PipelineReady, PipelineFailed, false, ["True", "False", "False"], "PipelineFailed", Some(STALLED)),
        (
            Unknown,
            PipelineReady,
            true,
            ["Unknown", "True", "True"],
            "PipelineStateUnknown",
            Some(RECONCILING),
        ),
    ];
    for (state, gateways, models, expected, reason, progress) in cases {
        let case = format!("{state:?} {gateways:?} {models}");
        let status = status(Known::Present(view(state, gateways, models, "")));
        assert_eq!(OWN.map(|name| condition(&status, name).status.as_str()), expected, "{case}");
        let ready = condition(&status, READY);
        assert_eq!(ready.reason.as_deref(), Some(reason), "{case}");
        assert_eq!(ready.status == "True", expected == ["True"; 3], "{case}");
        let found =
            [RECONCILING, STALLED].into_iter().find(|n| status.conditions.iter().any(|c| c.r#type == *n));
        assert_eq!(found, progress, "{case}");
    }
}

#[test]
fn message_names_the_step_whose_model_is_not_available() {
    use PipelineStatus::PipelineReady;
    let message = |reason: &str| {
        let status = status(Known::Present(view(PipelineReady, PipelineReady, false, reason)));
        let ready = condition(&status, READY).message.clone().unwrap();
        assert_eq!(condition(&status, "ModelsReady").message.as_ref(), Some(&ready));
        ready
    };
    let reason = "step classify: no server has capability xgboost";
    assert_eq!(message(reason), reason);
    // The reason of Seldon's scheduler is about the pipeline itself.
    let steps = "the model of a step is not available: see the Models scale, classify";
    assert_eq!((message("created pipeline").as_str(), message("").as_str()), (steps, steps));
}

#[test]
fn conditions_without_a_report_of_the_scheduler_are_unknown() {
    let waiting = status(Known::Unknown("connection refused".into()));
    assert_eq!(OWN.map(|name| condition(&waiting, name).status.as_str()), ["Unknown"; 3]);
    let mut invalid = object();
    invalid.spec = Err("no steps".into());
    let ran = json!({"conditions": OWN.map(|name| json!({"type": name, "status": "True"}))});
    invalid.status = serde_json::from_value(ran).unwrap();
    let plan = plan(&snapshot(invalid, Known::Absent), Timestamp::UNIX_EPOCH);
    let status = plan.status.unwrap();
    let found = OWN.map(|name| condition(&status, name).status.as_str());
    assert_eq!(found, ["False", "Unknown", "Unknown"], "the conditions of Seldon's operator are outdated");
}

#[test]
fn changed_messages_are_written_at_intervals() {
    use PipelineStatus::PipelineReady;
    let waits_for =
        |step: &str| view(PipelineReady, PipelineReady, false, &format!("step {step} is loading"));
    let mut observed = object();
    observed.status = Some(status(Known::Present(waits_for("scale"))));
    let after = |seconds: Option<u64>, view: PipelineView| {
        let status_age = seconds.map(Duration::from_secs);
        let snapshot = Snapshot { status_age, ..snapshot(observed.clone(), Known::Present(view)) };
        let plan = plan(&snapshot, Timestamp::UNIX_EPOCH);
        (plan.status.is_some(), plan.requeue_after)
    };
    assert_eq!(after(Some(3), waits_for("classify")), (false, Some(Duration::from_secs(7))));
    assert_eq!(after(Some(10), waits_for("classify")), (true, None));
    // After a restart of the operator the time of the last write is unknown.
    assert_eq!(after(None, waits_for("classify")), (true, None));
    assert_eq!(after(Some(3), view(PipelineReady, PipelineReady, true, "")), (true, None));
}

#[test]
fn reported_definition_is_compared_with_the_defaults_of_references() {
    use PipelineStatus::PipelineReady;
    let loads = |change: fn(&mut PipelineView)| {
        let mut view = view(PipelineReady, PipelineReady, true, "");
        change(&mut view);
        !plan(&snapshot(object(), Known::Present(view)), Timestamp::UNIX_EPOCH).actions.is_empty()
    };
    assert!(!loads(|v| v.pipeline.steps[1].inputs = vec!["scale.outputs".into()]));
    assert!(loads(|v| v.pipeline.steps[1].inputs = vec!["scale.inputs".into()]));
    assert!(loads(|v| v.pipeline.allow_cycles = true));
    // Seldon's scheduler does not report it.
    assert!(!loads(|v| (v.pipeline.allow_cycles, v.manager) = (true, String::new())));
    assert!(loads(|v| v.pipeline.kubernetes_meta.as_mut().unwrap().generation = 2));
}

#[test]
fn pipeline_ends_when_its_gateways_have_unloaded_it() {
    use PipelineStatus::{PipelineFailedTerminating, PipelineReady, PipelineTerminated, PipelineTerminating};
    for (state, gateways, expected) in [
        (PipelineReady, PipelineReady, (false, true)),
        (PipelineTerminating, PipelineReady, (true, false)),
        (PipelineTerminated, PipelineTerminating, (true, false)),
        (PipelineTerminated, PipelineTerminated, (true, true)),
        (PipelineFailedTerminating, PipelineTerminated, (true, true)),
    ] {
        let view = view(state, gateways, true, "");
        assert_eq!((view.is_deleted(), view.has_ended()), expected, "{state:?} {gateways:?}");
    }
}

#[test]
fn pipeline_under_a_policy_is_ready_when_its_latest_version_has_all_requests() {
    let view = || view(PipelineStatus::PipelineReady, PipelineStatus::PipelineReady, true, "");
    let revision = |version, weight| Some(RevisionStatus { version, weight, ..Default::default() });
    let failed = FailedRevision { message: "12 of 20 requests failed".into(), ..Default::default() };
    for (phase, stable, candidate, expected) in [
        ("Running", revision(7, 100), None, ("True", "PipelineReady", "serves version 7")),
        (
            "Progressing",
            revision(6, 80),
            revision(7, 20),
            (
                "False",
                "RollingOut",
                "version 7 is rolled out to 20 % of the requests; version 6 serves the others",
            ),
        ),
        (
            "Running",
            revision(6, 100),
            None,
            (
                "False",
                "RolledBack",
                "version 7 was rolled back: 12 of 20 requests failed; version 6 serves: change the Pipeline, or allow \
                 it again with `gantry rollout retry`",
            ),
        ),
        ("Deploying", None, None, ("True", "PipelineReady", "serves version 7")),
    ] {
        let failed = vec![failed.clone()];
        let rollout = RolloutStatus { phase: phase.into(), stable, candidate, failed, ..Default::default() };
        let facts = Facts { rollout: Some(rollout), ..Facts::default() };
        let snapshot = Snapshot { facts, ..snapshot(object(), Known::Present(view())) };
        let status = plan(&snapshot, Timestamp::UNIX_EPOCH).status.unwrap();
        let ready = condition(&status, READY);
        let (reason, message) = (ready.reason.as_deref().unwrap(), ready.message.as_deref().unwrap());
        assert_eq!((ready.status.as_str(), reason, message), expected, "{phase}");
    }
}
