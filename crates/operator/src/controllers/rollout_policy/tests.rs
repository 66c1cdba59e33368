//! Plans, conditions, events and the pace of status writes.

use super::{Facts, Snapshot, plan::plan, snapshot::Conflict, status};
use crate::{
    caches::Caches,
    cluster::{Custom, Key, Model, Origin, RolloutPolicy},
    conditions::{READY, RECONCILING, STALLED},
    controllers::scheduled::Scheduled as _,
    plan::{Action, ClusterAction, Known, Plan, SchedulerAction},
    schedulers::{LastRequest, Operation, PolicyView, SchedulerRequest},
    settings::Settings,
};
use gantry_api::{RolloutPolicyStatus, TargetKind};
use gantry_proto::{
    gantry::{FailedRevision, RevisionStatus, RolloutHistory, RolloutStatus},
    scheduler as pb,
};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn spec() -> Value {
    json!({ "targetRef": { "kind": "Model", "name": "iris" }, "strategy": { "canary": { "steps": [{ "weight": 20 }] } } })
}

fn policy(change: impl FnOnce(&mut Value)) -> Custom<RolloutPolicy> {
    let mut object = json!({
        "metadata": {
            "name": "careful", "namespace": "ml", "uid": "u1", "generation": 3, "resourceVersion": "7",
            "creationTimestamp": "2026-01-02T00:00:00Z", "finalizers": [RolloutPolicy::FINALIZER],
        },
        "spec": spec(),
    });
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

fn facts(targets: &[&str]) -> Facts {
    let targets = targets.iter().map(|name| (*name).to_owned()).collect();
    Facts { kind: Some(TargetKind::Model), targets, is_listed: true, ..Facts::default() }
}

/// As the scheduler has the policy of [`policy`] with these targets.
fn view(targets: &[&str]) -> Known<PolicyView> {
    let object = policy(|_| {});
    let definition = RolloutPolicy::definition(&object, object.spec.as_ref().unwrap(), &facts(targets));
    Known::Present(PolicyView::from(definition))
}

fn snapshot(object: Option<Custom<RolloutPolicy>>, scheduler: Known<PolicyView>, facts: Facts) -> Snapshot {
    Snapshot {
        key: Key::new("ml", "careful"),
        object: object.map(Arc::new),
        scheduler,
        has_scheduler: true,
        unreachable_for: None,
        last_request: None,
        status_age: None,
        facts,
    }
}

fn sent(targets: &[&str], age: u64, rejection: Option<&str>) -> (LastRequest, Duration) {
    let request = SchedulerRequest::new(Operation::Load, Some(&policy(|_| {})));
    let request = LastRequest {
        at: tokio::time::Instant::now(),
        request: request.with_variant(RolloutPolicy::variant(&facts(targets))),
        attempts: 1,
        was_accepted: false,
        rejection: rejection.map(str::to_owned),
        failure: None,
    };
    (request, Duration::from_secs(age))
}

fn actions(plan: &Plan<RolloutPolicyStatus>) -> Vec<String> {
    let show = |action: &Action| match action {
        Action::Cluster(ClusterAction::AddFinalizer(_)) => "add finalizer".to_owned(),
        Action::Cluster(ClusterAction::RemoveFinalizer(_)) => "remove finalizer".to_owned(),
        Action::Scheduler(SchedulerAction::PutPolicy(policy)) if policy.pipelines.is_empty() => {
            format!("put {}", policy.models.join(" "))
        }
        Action::Scheduler(SchedulerAction::PutPolicy(policy)) => {
            format!("put pipelines {}", policy.pipelines.join(" "))
        }
        Action::Scheduler(SchedulerAction::DeletePolicy(name)) => format!("delete {name}"),
        other => panic!("{other:?}"),
    };
    plan.actions.iter().map(show).collect()
}

/// Status and reason of a condition.
fn condition(status: &RolloutPolicyStatus, name: &str) -> Option<(String, String)> {
    let found = status.conditions.iter().find(|c| c.r#type == name)?;
    Some((found.status.clone(), found.reason.clone().unwrap()))
}

/// Name, snapshot, actions; `Ready`, its reason, and `Accepted`.
type Case =
    (&'static str, Snapshot, &'static [&'static str], Option<(&'static str, &'static str, &'static str)>);

fn of_services(targets: &[&str], unsupported: &[&str]) -> Facts {
    let unsupported = unsupported.iter().map(|name| ((*name).to_owned(), "has a transformer".to_owned()));
    Facts { kind: Some(TargetKind::InferenceService), unsupported: unsupported.collect(), ..facts(targets) }
}

#[test]
fn plan_for_every_situation() {
    let conflict = || Conflict { target: "iris".into(), policy: "older".into() };
    let existing = || Some(policy(|_| {}));
    let deleted = || Some(policy(|o| o["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z")));
    let kind = |kind: &str| Some(policy(|o| o["spec"]["targetRef"]["kind"] = json!(kind)));
    let unknown = || Known::Unknown("connection refused".into());
    let with = |snapshot: Snapshot, last| Snapshot { last_request: Some(last), ..snapshot };
    let iris = || facts(&["iris"]);
    let cases: Vec<Case> = vec![
        (
            "new",
            snapshot(Some(policy(|o| o["metadata"]["finalizers"] = json!([]))), Known::Absent, iris()),
            &["add finalizer", "put iris"],
            None,
        ),
        (
            "in effect",
            snapshot(existing(), view(&["iris"]), iris()),
            &[],
            Some(("True", "PolicyReady", "True")),
        ),
        ("without a target yet", snapshot(existing(), Known::Absent, facts(&[])), &["put "], None),
        (
            "without a target",
            snapshot(existing(), view(&[]), facts(&[])),
            &[],
            Some(("False", "NoTarget", "False")),
        ),
        (
            "a target more",
            snapshot(existing(), view(&["iris"]), facts(&["iris", "wine"])),
            &["put iris wine"],
            None,
        ),
        ("no target any more", snapshot(existing(), view(&["iris"]), facts(&[])), &["put "], None),
        (
            "a target more a moment after a request",
            with(snapshot(existing(), view(&["iris"]), facts(&["iris", "wine"])), sent(&["iris"], 0, None)),
            &["put iris wine"],
            None,
        ),
        (
            "requested a moment ago",
            with(snapshot(existing(), Known::Absent, iris()), sent(&["iris"], 0, None)),
            &[],
            None,
        ),
        (
            "requested a while ago",
            with(snapshot(existing(), Known::Absent, iris()), sent(&["iris"], 5, None)),
            &[],
            Some(("False", "PolicyProgressing", "True")),
        ),
        (
            "refused",
            with(snapshot(existing(), Known::Absent, iris()), sent(&["iris"], 0, Some("has another owner"))),
            &[],
            Some(("False", "Refused", "False")),
        ),
        (
            "refused with other targets",
            with(snapshot(existing(), Known::Absent, iris()), sent(&["wine"], 0, Some("has another owner"))),
            &["put iris"],
            None,
        ),
        (
            "older policy for all targets",
            snapshot(existing(), view(&[]), Facts { conflicts: vec![conflict()], ..facts(&[]) }),
            &[],
            Some(("False", "Conflict", "False")),
        ),
        (
            "older policy for one target",
            snapshot(existing(), view(&["wine"]), Facts { conflicts: vec![conflict()], ..facts(&["wine"]) }),
            &[],
            Some(("False", "Conflict", "False")),
        ),
        (
            "target of another owner",
            snapshot(existing(), view(&[]), Facts { not_managed: vec!["iris".into()], ..facts(&[]) }),
            &[],
            Some(("False", "TargetNotManaged", "False")),
        ),
        (
            "Pipeline",
            snapshot(kind("Pipeline"), Known::Absent, facts(&["risk"])),
            &["put pipelines risk"],
            None,
        ),
        (
            "service that does not exist",
            snapshot(kind("InferenceService"), Known::Absent, facts(&[])),
            &[],
            Some(("False", "NoTarget", "False")),
        ),
        (
            "service, the scheduler has the policy with its route",
            snapshot(kind("InferenceService"), Known::Absent, of_services(&["iris"], &[])),
            &[],
            Some(("True", "PolicyReady", "True")),
        ),
        (
            "service, after a model",
            snapshot(kind("InferenceService"), view(&["iris"]), of_services(&["iris"], &[])),
            &["delete careful"],
            Some(("True", "PolicyReady", "True")),
        ),
        (
            "service, the scheduler of the namespace is unreachable",
            snapshot(kind("InferenceService"), unknown(), of_services(&["iris"], &[])),
            &[],
            Some(("True", "PolicyReady", "True")),
        ),
        (
            "services, one of them is not supported",
            snapshot(kind("InferenceService"), Known::Absent, of_services(&["iris"], &["wine"])),
            &[],
            Some(("False", "UnsupportedTarget", "False")),
        ),
        (
            "invalid",
            snapshot(Some(policy(|o| o["spec"]["strategy"] = json!({}))), view(&["iris"]), iris()),
            &[],
            Some(("False", "InvalidSpec", "False")),
        ),
        (
            "undecodable",
            snapshot(Some(policy(|o| o["spec"] = json!(7))), Known::Absent, facts(&[])),
            &[],
            Some(("False", "InvalidSpec", "False")),
        ),
        (
            "scheduler unreachable",
            snapshot(existing(), unknown(), iris()),
            &[],
            Some(("Unknown", "SchedulerUnreachable", "True")),
        ),
        (
            "changed",
            snapshot(Some(policy(|o| o["metadata"]["generation"] = json!(4))), view(&["iris"]), iris()),
            &["put iris"],
            None,
        ),
        ("deleted", snapshot(deleted(), view(&["iris"]), iris()), &["delete careful"], None),
        ("deleted and gone", snapshot(deleted(), Known::Absent, iris()), &["remove finalizer"], None),
        (
            "deleted without a scheduler",
            Snapshot { has_scheduler: false, ..snapshot(deleted(), unknown(), iris()) },
            &["remove finalizer"],
            None,
        ),
        (
            "deleted with an unsupported kind",
            snapshot(
                Some(policy(|o| {
                    o["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
                    o["spec"]["targetRef"]["kind"] = json!("InferenceService");
                })),
                view(&["iris"]),
                facts(&[]),
            ),
            &["delete careful"],
            None,
        ),
        ("gone", snapshot(None, view(&["iris"]), iris()), &["delete careful"], None),
        (
            "gone, or the CRD is not served",
            snapshot(None, view(&["iris"]), Facts { is_listed: false, ..iris() }),
            &[],
            None,
        ),
    ];
    for (name, snapshot, expected, conditions) in cases {
        let made = plan(&snapshot, NOW);
        assert_eq!(actions(&made), expected, "{name}");
        let found = made.status.as_ref().map(|status| {
            assert!(status.observed_generation.is_some(), "{name}");
            let (ready, reason) = condition(status, READY).unwrap();
            let progress = condition(status, RECONCILING).is_some() || condition(status, STALLED).is_some();
            assert_eq!(progress, ready != "True", "{name}");
            (ready, reason, condition(status, "Accepted").unwrap().0)
        });
        let expected =
            conditions.map(|(ready, reason, accepted)| (ready.into(), reason.into(), accepted.into()));
        assert_eq!(found, expected, "{name}");
    }
}

fn revision(version: u32, weight: u32) -> RevisionStatus {
    RevisionStatus { revision: format!("r{version}"), version, weight, ..Default::default() }
}

fn running(name: &str) -> RolloutStatus {
    RolloutStatus {
        model: name.into(),
        policy: "careful".into(),
        phase: "Running".into(),
        stable: Some(revision(1, 100)),
        stages: 3,
        ..Default::default()
    }
}

fn progressing(name: &str, stage: u32, weight: u32) -> RolloutStatus {
    RolloutStatus {
        phase: "Progressing".into(),
        message: format!("{weight} requests show neither harm nor fitness"),
        stable: Some(revision(1, 100 - weight)),
        candidate: Some(revision(2, weight)),
        stage,
        ..running(name)
    }
}

fn ended(name: &str, outcome: &str, version: u32, at: u64) -> RolloutStatus {
    let reason = if outcome == "RolledBack" { "HigherFailureRatio" } else { "" };
    let entry = |ended_ms| RolloutHistory {
        revision: "r2".into(),
        outcome: outcome.into(),
        reason: reason.into(),
        ended_ms,
        started_ms: 0,
    };
    let failed = FailedRevision {
        revision: "r2".into(),
        reason: reason.into(),
        message: "5 of 10 requests failed".into(),
        at_ms: at,
    };
    RolloutStatus {
        stable: Some(revision(version, 100)),
        history: vec![entry(1), entry(at)],
        failed: if reason.is_empty() { Vec::new() } else { vec![failed] },
        ..running(name)
    }
}

fn with_rollouts(rollouts: Vec<RolloutStatus>) -> Facts {
    let mut facts = facts(&["iris"]);
    facts.rollouts = rollouts;
    facts
}

fn status_with(rollouts: Vec<RolloutStatus>) -> RolloutPolicyStatus {
    plan(&snapshot(Some(policy(|_| {})), view(&["iris"]), with_rollouts(rollouts)), NOW).status.unwrap()
}

#[test]
fn status_has_the_rollouts_under_way_first() {
    let paused = RolloutStatus { pause: "Approval".into(), ..progressing("wine", 2, 20) };
    let status =
        status_with(vec![running("calm"), ended("bad", "RolledBack", 1, 5_000), paused, running("deer")]);
    assert_eq!((status.targets, status.progressing, status.rolled_back), (1, 1, 1));
    let names: Vec<&str> = status.rollouts.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["wine", "bad", "calm", "deer"]);
    let shown = serde_json::to_value(&status.rollouts[..2]).unwrap();
    assert_eq!(
        shown,
        json!([
            {
                "kind": "Model", "name": "wine", "phase": "Progressing", "step": 2, "steps": 3, "paused": "Approval",
                "message": "20 requests show neither harm nor fitness",
                "stable": {"version": 1, "weight": 80}, "candidate": {"version": 2, "weight": 20},
            },
            {
                "kind": "Model", "name": "bad", "phase": "Running", "stable": {"version": 1, "weight": 100},
                "last": {
                    "outcome": "RolledBack", "reason": "HigherFailureRatio", "message": "5 of 10 requests failed",
                    "time": "1970-01-01T00:00:05Z",
                },
            },
        ])
    );
}

#[test]
fn status_lists_at_most_a_hundred_rollouts() {
    let many = (0..250).map(|number| running(&format!("m{number}")));
    let status = status_with(many.chain([progressing("late", 1, 5)]).collect());
    assert_eq!((status.rollouts.len(), status.rollouts[0].name.as_str()), (100, "late"));
    assert_eq!(status.progressing, 1);
}

#[test]
fn events_report_promotions_rollbacks_and_pauses() {
    let paused = |pause: &str| RolloutStatus { pause: pause.into(), ..progressing("iris", 1, 20) };
    let moving = || progressing("iris", 1, 20);
    for (name, before, after, expected) in [
        ("next step", moving(), progressing("iris", 2, 50), vec![]),
        (
            "promoted",
            moving(),
            ended("iris", "Promoted", 2, 9),
            vec![(false, "RolloutPromoted", "Model iris: version 2 has all requests")],
        ),
        (
            "rolled back",
            moving(),
            ended("iris", "RolledBack", 1, 9),
            vec![(
                true,
                "RolloutRolledBack",
                "Model iris: 5 of 10 requests failed; version 1 has all requests",
            )],
        ),
        (
            "undone",
            ended("iris", "Promoted", 2, 9),
            ended("iris", "Reverted", 1, 10),
            vec![(true, "RolloutReverted", "Model iris: returned to version 1")],
        ),
        ("nothing new", ended("iris", "RolledBack", 1, 9), ended("iris", "RolledBack", 1, 9), vec![]),
        ("cancelled", moving(), ended("iris", "Cancelled", 1, 9), vec![]),
        (
            "paused",
            moving(),
            paused("Command"),
            vec![(false, "RolloutPaused", "Model iris: the rollout of version 2 is paused")],
        ),
        (
            "waits for approval",
            moving(),
            paused("Approval"),
            vec![(
                false,
                "RolloutNeedsApproval",
                "Model iris: version 2 waits for `gantry rollout promote iris`",
            )],
        ),
        (
            "resumed",
            paused("Command"),
            moving(),
            vec![(false, "RolloutResumed", "Model iris: the rollout of version 2 continues")],
        ),
        ("another model", progressing("wine", 1, 20), ended("iris", "Promoted", 2, 9), vec![]),
    ] {
        let before = status_with(vec![before]);
        let events = status::events(Some(&before), &with_rollouts(vec![after]));
        let found: Vec<_> = events.iter().map(|e| (e.warning, e.reason, e.message.as_str())).collect();
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(status::events(None, &with_rollouts(vec![ended("iris", "Promoted", 2, 9)])), []);
}

/// The plan of an observed policy whose status was written some time ago.
fn replanned(
    before: Vec<RolloutStatus>,
    after: Vec<RolloutStatus>,
    age_ms: u64,
) -> Plan<RolloutPolicyStatus> {
    let mut object = policy(|_| {});
    object.status = Some(status_with(before));
    let snapshot = Snapshot {
        status_age: Some(Duration::from_millis(age_ms)),
        ..snapshot(Some(object), view(&["iris"]), with_rollouts(after))
    };
    plan(&snapshot, NOW)
}

#[test]
fn status_writes_are_paced_by_what_changed() {
    let evidence = |requests: u32| RolloutStatus {
        message: format!("{requests} requests show neither harm nor fitness"),
        ..progressing("iris", 1, 20)
    };
    for (name, before, after, age_ms, writes, requeue_ms) in [
        ("evidence, soon", evidence(1), evidence(2), 3_000, false, Some(7_000)),
        ("evidence, later", evidence(1), evidence(2), 10_000, true, Some(10_000)),
        ("a step, at once", evidence(1), progressing("iris", 2, 50), 200, false, Some(800)),
        ("a step, later", evidence(1), progressing("iris", 2, 50), 1_000, true, Some(10_000)),
        ("rolled back", evidence(1), ended("iris", "RolledBack", 1, 9), 1_000, true, None),
        ("nothing", running("iris"), running("iris"), 100_000, true, None),
    ] {
        let made = replanned(vec![before.clone()], vec![after], age_ms);
        assert_eq!(made.status.is_some(), writes, "{name}");
        assert_eq!(made.requeue_after, requeue_ms.map(Duration::from_millis), "{name}");
        assert!(writes || made.events.is_empty(), "{name}: events go with a write");
    }
    let made = replanned(vec![running("iris")], vec![running("iris")], 1);
    assert_eq!(made.status, Some(status_with(vec![running("iris")])), "an equal status is not written");
}

#[test]
fn conditions_are_not_delayed_by_progress() {
    let mut object = policy(|_| {});
    object.status = Some(status_with(vec![progressing("iris", 1, 20)]));
    let conflict = Conflict { target: "wine".into(), policy: "older".into() };
    let facts = Facts { conflicts: vec![conflict], ..with_rollouts(vec![progressing("iris", 2, 50)]) };
    let snapshot =
        Snapshot { status_age: Some(Duration::ZERO), ..snapshot(Some(object), view(&["iris"]), facts) };
    let status = plan(&snapshot, NOW).status.unwrap();
    assert_eq!(condition(&status, READY), Some(("False".into(), "Conflict".into())));
}

#[test]
fn rollouts_are_kept_while_the_scheduler_is_unreachable() {
    let mut object = policy(|_| {});
    let before = status_with(vec![progressing("iris", 1, 20)]);
    object.status = Some(before.clone());
    let away = Snapshot {
        unreachable_for: Some(Duration::from_mins(1)),
        ..snapshot(Some(object), Known::Unknown("connection refused".into()), facts(&["iris"]))
    };
    let after = plan(&away, NOW).status.unwrap();
    assert_eq!(condition(&after, READY), Some(("Unknown".into(), "SchedulerUnreachable".into())));
    assert_eq!((after.progressing, &after.rollouts), (1, &before.rollouts));
    assert_eq!(condition(&after, "Accepted"), condition(&before, "Accepted"));
}

fn caches() -> Caches {
    let caches = Caches::new(Settings::default());
    for (name, labels) in [
        ("iris", json!({"tier": "gold"})),
        ("wine", json!({"tier": "gold", "team": "x"})),
        ("lynx", json!({})),
    ] {
        let model = json!({
            "metadata": {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "1", "labels": labels},
            "spec": {"storageUri": "gs://m"},
        });
        caches.of::<Model>().put(serde_json::from_value::<Custom<Model>>(model).unwrap(), Origin::Watch);
    }
    caches
}

fn awaited(caches: &Caches, model: &str) -> Option<String> {
    super::awaited::<Model>(caches, TargetKind::Model, &Key::new("ml", model))
}

fn put(caches: &Caches, name: &str, created: &str, selection: &Value) {
    let (field, selection) =
        if selection.get("name").is_some() { ("targetRef", selection) } else { ("selector", selection) };
    let object = policy(|o| {
        o["metadata"]["name"] = json!(name);
        o["metadata"]["uid"] = json!(name);
        o["metadata"]["creationTimestamp"] = json!(created);
        o["spec"].as_object_mut().unwrap().remove("targetRef");
        o["spec"][field] = selection.clone();
    });
    caches.of::<RolloutPolicy>().put(object, Origin::Watch);
}

#[test]
fn older_policy_has_the_objects_that_two_select() {
    let caches = caches();
    let gold = json!({"kind": "Model", "matchLabels": {"tier": "gold"}});
    put(&caches, "gold", "2026-01-02T00:00:00Z", &gold);
    put(&caches, "wine", "2026-01-01T00:00:00Z", &json!({"kind": "Model", "name": "wine"}));
    put(&caches, "twin", "2026-01-02T00:00:00Z", &gold);
    put(&caches, "lost", "2026-01-01T00:00:00Z", &json!({"kind": "Model", "name": "nowhere"}));
    let of = |name: &str| Facts::take(&caches, &Key::new("ml", name));
    let conflict = |target: &str, policy: &str| Conflict { target: target.into(), policy: policy.into() };
    assert_eq!(
        (of("gold").targets, of("gold").conflicts),
        (vec!["iris".to_owned()], vec![conflict("wine", "wine")])
    );
    assert_eq!((of("wine").targets, of("wine").conflicts), (vec!["wine".to_owned()], vec![]));
    assert_eq!(of("twin").targets, [] as [&str; 0]);
    assert_eq!(of("twin").conflicts, [conflict("iris", "gold"), conflict("wine", "wine")]);
    assert_eq!((of("lost").targets, of("lost").conflicts), (vec![], vec![]));
}

/// One scheduler may serve several namespaces.
#[tokio::test]
async fn model_of_another_owner_is_no_target() {
    let caches = caches();
    put(&caches, "careful", "2026-01-02T00:00:00Z", &json!({"kind": "Model", "name": "iris"}));
    caches.schedulers.add_namespace("ml");
    caches.schedulers.synced("ml");
    let of = |manager: &str| {
        let meta = pb::KubernetesMeta { namespace: "ml".into(), generation: 1 };
        let latest = pb::ModelVersionStatus { kubernetes_meta: Some(meta), ..Default::default() };
        let (model_name, manager, versions) = ("iris".into(), manager.into(), vec![latest]);
        let status = pb::ModelStatusResponse { model_name, manager, versions, ..Default::default() };
        caches.schedulers.apply_model_status("ml", status);
        let facts = Facts::take(&caches, &Key::new("ml", "careful"));
        (facts.targets, facts.not_managed, awaited(&caches, "iris").is_some())
    };
    let iris = || vec!["iris".to_owned()];
    assert_eq!(of("operator:ml"), (iris(), vec![], true));
    assert_eq!(of("operator:other"), (vec![], iris(), false));
    assert_eq!(of("cli"), (vec![], iris(), false));
}

#[tokio::test]
async fn changed_model_waits_until_the_scheduler_has_its_policy() {
    let caches = caches();
    let (schedulers, key) = (&caches.schedulers, Key::new("ml", "careful"));
    let awaited = |model: &str| awaited(&caches, model);
    schedulers.add_namespace("ml");
    assert_eq!(awaited("iris"), None, "no policy");
    put(
        &caches,
        "careful",
        "2026-01-02T00:00:00Z",
        &json!({"kind": "Model", "matchLabels": {"tier": "gold"}}),
    );
    assert_eq!(awaited("iris"), None, "the scheduler is not connected");
    schedulers.synced("ml");
    assert_eq!((awaited("iris"), awaited("lynx")), (Some("careful".into()), None));
    let Known::Present(known) = view(&["wine"]) else { panic!() };
    schedulers.apply_policy("ml", known.policy.clone());
    assert_eq!((awaited("iris"), awaited("wine")), (Some("careful".into()), None));
    let request = || SchedulerRequest::new::<RolloutPolicy>(Operation::Load, None);
    schedulers.record_response::<RolloutPolicy>(&key, request(), Some("another owner".into()));
    assert_eq!(awaited("iris"), None, "the policy was refused");
}

fn any_rollout() -> impl Strategy<Value = RolloutStatus> {
    let model = prop::sample::select(vec!["iris", "wine", "lynx"]);
    let phase =
        prop::sample::select(vec!["Deploying", "Running", "Progressing", "RollingBack", "Reverting", "?"]);
    let outcome = prop::sample::select(vec!["Deployed", "Promoted", "RolledBack", "Reverted", "?"]);
    let pause = prop::sample::select(vec!["", "Command", "Approval"]);
    (model, phase, prop::option::of((outcome, any::<u64>())), pause, any::<u32>(), any::<u32>()).prop_map(
        |(model, phase, last, pause, stage, weight)| RolloutStatus {
            phase: phase.into(),
            pause: pause.into(),
            stage,
            candidate: Some(revision(stage, weight)),
            ..last.map_or_else(|| running(model), |(outcome, at)| ended(model, outcome, weight, at))
        },
    )
}

fn any_rollouts() -> impl Strategy<Value = Vec<RolloutStatus>> {
    prop::collection::vec(any_rollout(), 0..4).prop_map(|mut rollouts| {
        rollouts.sort_by_key(|rollout| rollout.model.clone());
        rollouts.dedup_by_key(|rollout| rollout.model.clone());
        rollouts
    })
}

proptest! {
    /// A written status is final until something changes, and no event repeats.
    #[test]
    fn status_settles_after_one_write(before in any_rollouts(), after in any_rollouts()) {
        let first = replanned(before, after.clone(), 10_000);
        let mut object = policy(|_| {});
        object.status.clone_from(&first.status);
        let facts = with_rollouts(after);
        let second = plan(&snapshot(Some(object), view(&["iris"]), facts), NOW);
        prop_assert_eq!(&second.status, &first.status);
        prop_assert_eq!(second.events, vec![]);
        prop_assert_eq!(second.actions, vec![]);
    }
}
