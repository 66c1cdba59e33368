//! Plans of models.

use super::{FINALIZER, Snapshot, plan::plan};
use crate::{
    cluster::{Custom, Key, Model},
    conditions::{ConditionStatus, READY, RECONCILING, STALLED, condition_status},
    plan::{Action, ClusterAction, Known, Plan, SchedulerAction},
    schedulers::{LastRequest, ModelView, Operation, SchedulerRequest},
};
use gantry_api::ModelStatus;
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;
use std::{sync::Arc, time::Duration};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn object(change: impl FnOnce(&mut serde_json::Value)) -> Custom<Model> {
    let mut text = json!({
        "metadata": {
            "name": "iris", "namespace": "ml", "uid": "u1", "generation": 3, "resourceVersion": "7",
            "finalizers": [FINALIZER],
        },
        "spec": { "storageUri": "gs://models/iris", "requirements": ["sklearn"] },
    });
    change(&mut text);
    serde_json::from_value(text).unwrap()
}

fn deleted() -> Custom<Model> {
    deleted_since("1970-01-01T00:00:00Z")
}

fn deleted_since(time: &str) -> Custom<Model> {
    object(|o| o["metadata"]["deletionTimestamp"] = json!(time))
}

fn view(state: ModelState, deleted: bool) -> ModelView {
    let defn = object(|_| {}).spec.unwrap().to_proto("iris", Some("ml"), Some(3));
    ModelView {
        deleted,
        manager: "operator:ml".into(),
        latest: Some(pb::ModelVersionStatus {
            version: 3,
            server_name: "mlserver".into(),
            kubernetes_meta: Some(pb::KubernetesMeta { namespace: "ml".into(), generation: 3 }),
            state: Some(pb::ModelStatus { state: state.into(), available_replicas: 1, ..Default::default() }),
            model_defn: Some(defn),
            ..Default::default()
        }),
    }
}

fn snapshot(object: Option<Custom<Model>>, scheduler: Known<ModelView>) -> Snapshot {
    Snapshot {
        key: Key::new("ml", "iris"),
        object: object.map(Arc::new),
        scheduler,
        has_scheduler: true,
        unreachable_for: None,
        last_request: None,
    }
}

fn unknown() -> Known<ModelView> {
    Known::Unknown("connection refused".into())
}

fn request(operation: Operation, refusal: Option<&str>, age: Duration) -> (LastRequest, Duration) {
    let sent = SchedulerRequest { operation, uid: "u1".into(), generation: 3 };
    let at = tokio::time::Instant::now();
    (LastRequest { at, request: sent, rejection: refusal.map(str::to_owned), failure: None }, age)
}

fn failed_request(operation: Operation, age: Duration) -> (LastRequest, Duration) {
    let (request, age) = request(operation, None, age);
    (LastRequest { failure: Some("no answer within 10 s".into()), ..request }, age)
}

fn actions(plan: &Plan<ModelStatus>) -> Vec<&'static str> {
    plan.actions
        .iter()
        .map(|action| match action {
            Action::Cluster(ClusterAction::AddFinalizer(_)) => "add finalizer",
            Action::Cluster(ClusterAction::RemoveFinalizer(_)) => "remove finalizer",
            Action::Scheduler(SchedulerAction::LoadModel(_)) => "load",
            Action::Scheduler(SchedulerAction::UnloadModel(_)) => "unload",
            _ => "something else",
        })
        .collect()
}

/// Status, reason and progress of `Ready`.
fn condition(plan: &Plan<ModelStatus>) -> Option<(ConditionStatus, String, &'static str)> {
    let status = plan.status.as_ref()?;
    let ready = status.conditions.iter().find(|c| c.r#type == READY).unwrap();
    let progress = match (
        condition_status(&status.conditions, RECONCILING),
        condition_status(&status.conditions, STALLED),
    ) {
        (Some(_), None) => "in progress",
        (None, Some(_)) => "stalled",
        (None, None) => "settled",
        both => panic!("both Reconciling and Stalled: {both:?}"),
    };
    Some((condition_status(&status.conditions, READY).unwrap(), ready.reason.clone().unwrap(), progress))
}

/// Name, snapshot, expected actions, expected `Ready`.
type Case =
    (&'static str, Snapshot, &'static [&'static str], Option<(ConditionStatus, &'static str, &'static str)>);

#[test]
fn plan_for_every_situation() {
    use ModelState::{
        ModelAvailable, ModelFailed, ModelProgressing, ModelTerminated, ModelTerminating, ScheduleFailed,
    };
    let yes = ConditionStatus::True;
    let no = ConditionStatus::False;
    let present = |state| Known::Present(view(state, false));
    let existing = || Some(object(|_| {}));
    let with = |snapshot: Snapshot, request| Snapshot { last_request: Some(request), ..snapshot };
    let cases: Vec<Case> = vec![
        (
            "new",
            snapshot(Some(object(|o| o["metadata"]["finalizers"] = json!([]))), Known::Absent),
            &["add finalizer", "load"],
            None,
        ),
        ("not requested yet", snapshot(existing(), Known::Absent), &["load"], None),
        (
            "serving",
            snapshot(existing(), present(ModelAvailable)),
            &[],
            Some((yes, "ModelAvailable", "settled")),
        ),
        (
            "loading",
            snapshot(existing(), present(ModelProgressing)),
            &[],
            Some((no, "ModelProgressing", "in progress")),
        ),
        (
            "no room",
            snapshot(existing(), present(ScheduleFailed)),
            &[],
            Some((no, "ScheduleFailed", "in progress")),
        ),
        ("broken", snapshot(existing(), present(ModelFailed)), &[], Some((no, "ModelFailed", "stalled"))),
        (
            "changed",
            snapshot(Some(object(|o| o["metadata"]["generation"] = json!(4))), present(ModelAvailable)),
            &["load"],
            None,
        ),
        (
            "recreated with another spec and the same generation",
            snapshot(
                Some(object(|o| o["spec"]["storageUri"] = json!("gs://other"))),
                present(ModelAvailable),
            ),
            &["load"],
            None,
        ),
        (
            "recreated while the old one is unloading",
            snapshot(existing(), Known::Present(view(ModelTerminating, true))),
            &[],
            Some((no, "ModelTerminating", "in progress")),
        ),
        (
            "recreated after the old one was unloaded",
            snapshot(existing(), Known::Present(view(ModelTerminated, true))),
            &["load"],
            None,
        ),
        (
            "undecodable spec",
            snapshot(Some(object(|o| o["spec"] = json!({"storageUri": 7}))), Known::Absent),
            &[],
            Some((no, "InvalidSpec", "stalled")),
        ),
        (
            "valid minReplicas",
            snapshot(Some(object(|o| o["spec"]["minReplicas"] = json!(5))), Known::Absent),
            &["load"],
            None,
        ),
        (
            "replicas below minReplicas",
            snapshot(Some(object(|o| o["spec"]["replicas"] = json!(1)).with_min(5)), Known::Absent),
            &[],
            Some((no, "InvalidSpec", "stalled")),
        ),
        (
            "scheduler unknown",
            snapshot(existing(), unknown()),
            &[],
            Some((ConditionStatus::Unknown, "SchedulerUnreachable", "in progress")),
        ),
        (
            "refused",
            with(snapshot(existing(), Known::Absent), request(Operation::Load, Some("no"), Duration::ZERO)),
            &[],
            Some((no, "Refused", "stalled")),
        ),
        (
            "requested a moment ago",
            with(
                snapshot(existing(), Known::Absent),
                request(Operation::Load, None, Duration::from_millis(1)),
            ),
            &[],
            None,
        ),
        (
            "requested a while ago",
            with(snapshot(existing(), Known::Absent), request(Operation::Load, None, Duration::from_secs(5))),
            &[],
            Some((no, "ModelProgressing", "in progress")),
        ),
        (
            "requested long ago",
            with(snapshot(existing(), Known::Absent), request(Operation::Load, None, Duration::from_mins(1))),
            &["load"],
            Some((no, "ModelProgressing", "in progress")),
        ),
        (
            "unanswered",
            with(
                snapshot(existing(), Known::Absent),
                failed_request(Operation::Load, Duration::from_secs(1)),
            ),
            &[],
            Some((ConditionStatus::Unknown, "SchedulerUnreachable", "in progress")),
        ),
        (
            "unanswered a while ago",
            with(
                snapshot(existing(), Known::Absent),
                failed_request(Operation::Load, Duration::from_secs(6)),
            ),
            &["load"],
            None,
        ),
        (
            "unload unanswered",
            with(
                snapshot(Some(deleted()), present(ModelAvailable)),
                failed_request(Operation::Unload, Duration::from_secs(1)),
            ),
            &[],
            None,
        ),
        (
            "unload unanswered for long",
            with(
                snapshot(Some(deleted_since("1969-12-31T23:00:00Z")), present(ModelAvailable)),
                failed_request(Operation::Unload, Duration::from_secs(1)),
            ),
            &["remove finalizer"],
            None,
        ),
        ("deleted", snapshot(Some(deleted()), present(ModelAvailable)), &["unload"], None),
        (
            "deleted and going",
            snapshot(Some(deleted()), Known::Present(view(ModelTerminating, true))),
            &[],
            Some((no, "ModelTerminating", "in progress")),
        ),
        (
            "deleted and gone",
            snapshot(Some(deleted()), Known::Present(view(ModelTerminated, true))),
            &["remove finalizer"],
            None,
        ),
        ("deleted and never known", snapshot(Some(deleted()), Known::Absent), &["remove finalizer"], None),
        (
            "unload rejected",
            with(
                snapshot(Some(deleted()), present(ModelAvailable)),
                request(Operation::Unload, Some("no"), Duration::ZERO),
            ),
            &["remove finalizer"],
            None,
        ),
        (
            "deleted without a scheduler",
            Snapshot { has_scheduler: false, ..snapshot(Some(deleted()), unknown()) },
            &["remove finalizer"],
            None,
        ),
        (
            "deleted while the scheduler is away",
            Snapshot {
                unreachable_for: Some(Duration::from_secs(3)),
                ..snapshot(Some(deleted()), unknown())
            },
            &[],
            None,
        ),
        (
            "deleted while the scheduler is away for long",
            Snapshot {
                unreachable_for: Some(Duration::from_mins(1)),
                ..snapshot(Some(deleted()), unknown())
            },
            &["remove finalizer"],
            None,
        ),
        ("gone, and still served", snapshot(None, present(ModelAvailable)), &["unload"], None),
        ("gone", snapshot(None, Known::Absent), &[], None),
        ("gone, scheduler unknown", snapshot(None, unknown()), &[], None),
    ];
    for (name, snapshot, expected, ready) in cases {
        let plan = plan(&snapshot, NOW);
        assert_eq!(actions(&plan), expected, "{name}");
        assert_eq!(condition(&plan), ready.map(|(t, r, o)| (t, r.to_owned(), o)), "{name}");
    }
}

trait WithMin {
    fn with_min(self, min: i32) -> Self;
}

impl WithMin for Custom<Model> {
    fn with_min(mut self, min: i32) -> Self {
        self.spec.as_mut().unwrap().min_replicas = Some(min);
        self
    }
}

#[test]
fn foreign_model_in_scheduler_is_not_unloaded() {
    let mut foreign = view(ModelState::ModelAvailable, false);
    foreign.manager = "cli".into();
    assert_eq!(actions(&plan(&snapshot(None, Known::Present(foreign.clone())), NOW)), [] as [&str; 0]);
    assert_eq!(
        actions(&plan(&snapshot(Some(deleted()), Known::Present(foreign)), NOW)),
        ["remove finalizer"]
    );
}

#[test]
fn unreachable_scheduler_keeps_served_model_ready() {
    let served =
        plan(&snapshot(Some(object(|_| {})), Known::Present(view(ModelState::ModelAvailable, false))), NOW);
    let mut object = object(|_| {});
    object.status = served.status;
    let away = plan(&snapshot(Some(object.clone()), unknown()), NOW);
    assert_eq!((actions(&away), condition(&away)), (vec![], None));
    // A change that the scheduler does not know makes it Unknown.
    object.metadata.generation = Some(4);
    let changed = plan(&snapshot(Some(object), unknown()), NOW);
    assert_eq!(condition(&changed).map(|s| s.1), Some("SchedulerUnreachable".to_owned()));
}

#[test]
fn transition_time_changes_only_with_status() {
    let first =
        plan(&snapshot(Some(object(|_| {})), Known::Present(view(ModelState::ModelProgressing, false))), NOW);
    let mut object = object(|_| {});
    object.status = first.status;
    let later = NOW + Duration::from_secs(100);
    let time = |plan: &Plan<ModelStatus>| {
        let status = plan.status.as_ref().unwrap();
        status.conditions.iter().find(|c| c.r#type == READY).unwrap().last_transition_time.clone().unwrap()
    };
    let still =
        plan(&snapshot(Some(object.clone()), Known::Present(view(ModelState::ScheduleFailed, false))), later);
    assert_eq!(time(&still), "1970-01-01T00:00:00Z");
    let ready = plan(&snapshot(Some(object), Known::Present(view(ModelState::ModelAvailable, false))), later);
    assert_eq!(time(&ready), "1970-01-01T00:01:40Z");
}

#[test]
fn foreign_conditions_are_kept() {
    let theirs = json!({"conditions": [{"type": "Audited", "status": "True"}]});
    let object = object(|o| o["status"] = theirs);
    let plan = plan(&snapshot(Some(object), Known::Present(view(ModelState::ModelAvailable, false))), NOW);
    assert!(plan.status.unwrap().conditions.iter().any(|c| c.r#type == "Audited"));
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let states = (0_i32..=10).prop_map(|n| ModelState::try_from(n).unwrap());
    let scheduler =
        (0_u8..3, states, any::<bool>(), prop::sample::select(vec!["operator:ml", "cli", ""]), 1_i64..5)
            .prop_map(|(known, state, deleted, manager, generation)| match known {
                0 => unknown(),
                1 => Known::Absent,
                _ => {
                    let mut view = view(state, deleted);
                    view.manager = manager.into();
                    if let Some(meta) = view.latest.as_mut().and_then(|l| l.kubernetes_meta.as_mut()) {
                        meta.generation = generation;
                    }
                    Known::Present(view)
                }
            });
    let objects = (0_u8..4, any::<bool>()).prop_map(|(which, existing)| {
        let object = match which {
            0 => return None,
            1 => deleted(),
            2 => object(|o| o["spec"] = json!({"storageUri": ""})),
            _ => object(|_| {}),
        };
        let mut object = object;
        if !existing {
            object.metadata.finalizers = None;
        }
        Some(object)
    });
    let calls = prop::option::of((0_u8..2, any::<bool>(), 0_u64..100_000));
    (objects, scheduler, any::<bool>(), prop::option::of(0_u64..100), calls).prop_map(
        |(object, scheduler, has_scheduler, unreachable_for, call)| Snapshot {
            has_scheduler,
            unreachable_for: unreachable_for.map(Duration::from_secs),
            last_request: call.map(|(operation, refused, age)| {
                let operation = if operation == 0 { Operation::Load } else { Operation::Unload };
                request(operation, refused.then_some("no"), Duration::from_millis(age))
            }),
            ..snapshot(object, scheduler)
        },
    )
}

proptest! {
    #[test]
    fn plan_is_deterministic(snapshot in any_snapshot()) {
        prop_assert_eq!(plan(&snapshot, NOW), plan(&snapshot, NOW));
    }

    #[test]
    fn ready_is_true_only_for_the_serving_generation(snapshot in any_snapshot()) {
        let plan = plan(&snapshot, NOW);
        if condition(&plan).is_some_and(|(status, _, _)| status == ConditionStatus::True) {
            let Known::Present(view) = &snapshot.scheduler else { panic!("not from the scheduler") };
            prop_assert!(!view.deleted);
            prop_assert!(matches!(view.state(), ModelState::ModelAvailable | ModelState::ModelScaledDown));
            prop_assert_eq!(view.latest.as_ref().unwrap().kubernetes_meta.as_ref().unwrap().generation, 3);
        }
    }

    #[test]
    fn unknown_state_destroys_nothing(snapshot in any_snapshot()) {
        let plan = plan(&snapshot, NOW);
        if matches!(snapshot.scheduler, Known::Unknown(_)) {
            prop_assert!(!actions(&plan).contains(&"unload"));
            prop_assert!(!actions(&plan).contains(&"load"));
        }
        let alive = snapshot.object.as_ref().is_some_and(|o| !o.is_deleted());
        if alive {
            prop_assert!(!actions(&plan).contains(&"unload") && !actions(&plan).contains(&"remove finalizer"));
        }
    }

    #[test]
    fn finalizer_stays_only_while_something_is_pending(snapshot in any_snapshot()) {
        let plan = plan(&snapshot, NOW);
        if snapshot.object.as_ref().is_some_and(|o| o.is_deleted() && o.has_finalizer(FINALIZER)) {
            let waits_for_scheduler = matches!(&snapshot.scheduler, Known::Present(v) if v.deleted);
            prop_assert!(!plan.actions.is_empty() || plan.requeue_after.is_some() || waits_for_scheduler);
        }
    }
}
