//! What is decided about models, situation by situation.

use super::{FINALIZER, Snapshot, plan::plan};
use crate::{
    cluster::{Custom, Key, Model},
    conditions::{READY, RECONCILING, STALLED, ConditionStatus, condition_status},
    plan::{Action, Known, Plan},
    schedulers::{LastRequest, SchedulerRequest, ModelView, Operation},
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
        asked: None,
    }
}

fn unknown() -> Known<ModelView> {
    Known::Unknown("nobody listens".into())
}

fn asked(operation: Operation, refusal: Option<&str>, ago: Duration) -> (LastRequest, Duration) {
    let request = SchedulerRequest { operation, uid: "u1".into(), generation: 3 };
    let at = tokio::time::Instant::now();
    (LastRequest { at, request, refusal: refusal.map(str::to_owned), unanswered: None }, ago)
}

fn unanswered(operation: Operation, ago: Duration) -> (LastRequest, Duration) {
    let (asked, ago) = asked(operation, None, ago);
    (LastRequest { unanswered: Some("no answer within 10 s".into()), ..asked }, ago)
}

fn does(plan: &Plan<ModelStatus>) -> Vec<&'static str> {
    plan.actions
        .iter()
        .map(|action| match action {
            Action::AddFinalizer(_) => "hold",
            Action::RemoveFinalizer(_) => "release",
            Action::Load(_) => "load",
            Action::Unload(_) => "unload",
            _ => "something else",
        })
        .collect()
}

/// What is said: the truth of Ready, its reason, and how it goes on.
fn condition(plan: &Plan<ModelStatus>) -> Option<(ConditionStatus, String, &'static str)> {
    let status = plan.status.as_ref()?;
    let ready = status.conditions.iter().find(|c| c.r#type == READY).unwrap();
    let progress = match (condition_status(&status.conditions, RECONCILING), condition_status(&status.conditions, STALLED)) {
        (Some(_), None) => "passing",
        (None, Some(_)) => "final",
        (None, None) => "settled",
        both => panic!("it cannot go on and be stuck: {both:?}"),
    };
    Some((condition_status(&status.conditions, READY).unwrap(), ready.reason.clone().unwrap(), progress))
}

/// A situation, what is done in it, and what is said.
type Case = (&'static str, Snapshot, &'static [&'static str], Option<(ConditionStatus, &'static str, &'static str)>);

#[test]
fn every_situation_has_its_answer() {
    use ModelState::{
        ModelAvailable, ModelFailed, ModelProgressing, ModelTerminated, ModelTerminating, ScheduleFailed,
    };
    let yes = ConditionStatus::True;
    let no = ConditionStatus::False;
    let present = |state| Known::Present(view(state, false));
    let held = || Some(object(|_| {}));
    let with = |snapshot: Snapshot, asked| Snapshot { asked: Some(asked), ..snapshot };
    let cases: Vec<Case> = vec![
        (
            "new",
            snapshot(Some(object(|o| o["metadata"]["finalizers"] = json!([]))), Known::Absent),
            &["hold", "load"],
            None,
        ),
        ("not asked yet", snapshot(held(), Known::Absent), &["load"], None),
        ("serving", snapshot(held(), present(ModelAvailable)), &[], Some((yes, "ModelAvailable", "settled"))),
        (
            "loading",
            snapshot(held(), present(ModelProgressing)),
            &[],
            Some((no, "ModelProgressing", "passing")),
        ),
        ("no room", snapshot(held(), present(ScheduleFailed)), &[], Some((no, "ScheduleFailed", "passing"))),
        ("broken", snapshot(held(), present(ModelFailed)), &[], Some((no, "ModelFailed", "final"))),
        (
            "changed",
            snapshot(Some(object(|o| o["metadata"]["generation"] = json!(4))), present(ModelAvailable)),
            &["load"],
            None,
        ),
        (
            "made anew with another spec and the same generation",
            snapshot(
                Some(object(|o| o["spec"]["storageUri"] = json!("gs://other"))),
                present(ModelAvailable),
            ),
            &["load"],
            None,
        ),
        (
            "made anew while the old one still goes",
            snapshot(held(), Known::Present(view(ModelTerminating, true))),
            &[],
            Some((no, "ModelTerminating", "passing")),
        ),
        (
            "made anew after the old one went",
            snapshot(held(), Known::Present(view(ModelTerminated, true))),
            &["load"],
            None,
        ),
        (
            "nonsense",
            snapshot(Some(object(|o| o["spec"] = json!({"storageUri": 7}))), Known::Absent),
            &[],
            Some((no, "InvalidSpec", "final")),
        ),
        (
            "against the rules",
            snapshot(Some(object(|o| o["spec"]["minReplicas"] = json!(5))), Known::Absent),
            &["load"],
            None,
        ),
        (
            "against the rules for certain",
            snapshot(Some(object(|o| o["spec"]["replicas"] = json!(1)).with_min(5)), Known::Absent),
            &[],
            Some((no, "InvalidSpec", "final")),
        ),
        (
            "no word of the scheduler",
            snapshot(held(), unknown()),
            &[],
            Some((ConditionStatus::Unknown, "SchedulerUnreachable", "passing")),
        ),
        (
            "refused",
            with(snapshot(held(), Known::Absent), asked(Operation::Load, Some("no"), Duration::ZERO)),
            &[],
            Some((no, "Refused", "final")),
        ),
        (
            "asked a moment ago",
            with(snapshot(held(), Known::Absent), asked(Operation::Load, None, Duration::from_millis(1))),
            &[],
            None,
        ),
        (
            "asked a while ago",
            with(snapshot(held(), Known::Absent), asked(Operation::Load, None, Duration::from_secs(5))),
            &[],
            Some((no, "ModelProgressing", "passing")),
        ),
        (
            "asked long ago",
            with(snapshot(held(), Known::Absent), asked(Operation::Load, None, Duration::from_mins(1))),
            &["load"],
            Some((no, "ModelProgressing", "passing")),
        ),
        (
            "asked in vain",
            with(snapshot(held(), Known::Absent), unanswered(Operation::Load, Duration::from_secs(1))),
            &[],
            Some((ConditionStatus::Unknown, "SchedulerUnreachable", "passing")),
        ),
        (
            "asked in vain a while ago",
            with(snapshot(held(), Known::Absent), unanswered(Operation::Load, Duration::from_secs(6))),
            &["load"],
            None,
        ),
        (
            "deleted in vain",
            with(
                snapshot(Some(deleted()), present(ModelAvailable)),
                unanswered(Operation::Unload, Duration::from_secs(1)),
            ),
            &[],
            None,
        ),
        (
            "deleted in vain for long",
            with(
                snapshot(Some(deleted_since("1969-12-31T23:00:00Z")), present(ModelAvailable)),
                unanswered(Operation::Unload, Duration::from_secs(1)),
            ),
            &["release"],
            None,
        ),
        ("deleted", snapshot(Some(deleted()), present(ModelAvailable)), &["unload"], None),
        (
            "deleted and going",
            snapshot(Some(deleted()), Known::Present(view(ModelTerminating, true))),
            &[],
            Some((no, "ModelTerminating", "passing")),
        ),
        (
            "deleted and gone",
            snapshot(Some(deleted()), Known::Present(view(ModelTerminated, true))),
            &["release"],
            None,
        ),
        ("deleted and never known", snapshot(Some(deleted()), Known::Absent), &["release"], None),
        (
            "deleted, and nobody may unload it",
            with(
                snapshot(Some(deleted()), present(ModelAvailable)),
                asked(Operation::Unload, Some("no"), Duration::ZERO),
            ),
            &["release"],
            None,
        ),
        (
            "deleted without a scheduler",
            Snapshot { has_scheduler: false, ..snapshot(Some(deleted()), unknown()) },
            &["release"],
            None,
        ),
        (
            "deleted while the scheduler is away",
            Snapshot { unreachable_for: Some(Duration::from_secs(3)), ..snapshot(Some(deleted()), unknown()) },
            &[],
            None,
        ),
        (
            "deleted while the scheduler is away for long",
            Snapshot { unreachable_for: Some(Duration::from_mins(1)), ..snapshot(Some(deleted()), unknown()) },
            &["release"],
            None,
        ),
        ("gone, and still served", snapshot(None, present(ModelAvailable)), &["unload"], None),
        ("gone", snapshot(None, Known::Absent), &[], None),
        ("gone, and nobody knows", snapshot(None, unknown()), &[], None),
    ];
    for (name, snapshot, actions, said) in cases {
        let plan = plan(&snapshot, NOW);
        assert_eq!(does(&plan), actions, "{name}");
        assert_eq!(condition(&plan), said.map(|(t, r, o)| (t, r.to_owned(), o)), "{name}");
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
fn what_somebody_else_manages_in_the_scheduler_is_left_alone() {
    let mut foreign = view(ModelState::ModelAvailable, false);
    foreign.manager = "cli".into();
    assert_eq!(does(&plan(&snapshot(None, Known::Present(foreign.clone())), NOW)), [] as [&str; 0]);
    assert_eq!(does(&plan(&snapshot(Some(deleted()), Known::Present(foreign)), NOW)), ["release"]);
}

#[test]
fn a_scheduler_that_is_away_does_not_make_a_served_model_unready() {
    let served =
        plan(&snapshot(Some(object(|_| {})), Known::Present(view(ModelState::ModelAvailable, false))), NOW);
    let mut object = object(|_| {});
    object.status = served.status;
    let away = plan(&snapshot(Some(object.clone()), unknown()), NOW);
    assert_eq!((does(&away), condition(&away)), (vec![], None));
    // A change that nobody could be told of is another matter.
    object.metadata.generation = Some(4);
    let changed = plan(&snapshot(Some(object), unknown()), NOW);
    assert_eq!(condition(&changed).map(|s| s.1), Some("SchedulerUnreachable".to_owned()));
}

#[test]
fn a_time_changes_only_when_the_truth_does() {
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
fn conditions_of_others_stay() {
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
    let objects = (0_u8..4, any::<bool>()).prop_map(|(which, held)| {
        let object = match which {
            0 => return None,
            1 => deleted(),
            2 => object(|o| o["spec"] = json!({"storageUri": ""})),
            _ => object(|_| {}),
        };
        let mut object = object;
        if !held {
            object.metadata.finalizers = None;
        }
        Some(object)
    });
    let calls = prop::option::of((0_u8..2, any::<bool>(), 0_u64..100_000));
    (objects, scheduler, any::<bool>(), prop::option::of(0_u64..100), calls).prop_map(
        |(object, scheduler, has_scheduler, unreachable_for, call)| Snapshot {
            has_scheduler,
            unreachable_for: unreachable_for.map(Duration::from_secs),
            asked: call.map(|(operation, refused, ago)| {
                let operation = if operation == 0 { Operation::Load } else { Operation::Unload };
                asked(operation, refused.then_some("no"), Duration::from_millis(ago))
            }),
            ..snapshot(object, scheduler)
        },
    )
}

proptest! {
    #[test]
    fn planning_twice_gives_the_same_plan(snapshot in any_snapshot()) {
        prop_assert_eq!(plan(&snapshot, NOW), plan(&snapshot, NOW));
    }

    #[test]
    fn ready_is_true_only_for_the_generation_that_serves(snapshot in any_snapshot()) {
        let plan = plan(&snapshot, NOW);
        if condition(&plan).is_some_and(|(status, _, _)| status == ConditionStatus::True) {
            let Known::Present(view) = &snapshot.scheduler else { panic!("nobody said so") };
            prop_assert!(!view.deleted);
            prop_assert!(matches!(view.state(), ModelState::ModelAvailable | ModelState::ModelScaledDown));
            prop_assert_eq!(view.latest.as_ref().unwrap().kubernetes_meta.as_ref().unwrap().generation, 3);
        }
    }

    #[test]
    fn what_is_not_known_takes_nothing_away(snapshot in any_snapshot()) {
        let plan = plan(&snapshot, NOW);
        if matches!(snapshot.scheduler, Known::Unknown(_)) {
            prop_assert!(!does(&plan).contains(&"unload"));
            prop_assert!(!does(&plan).contains(&"load"));
        }
        let alive = snapshot.object.as_ref().is_some_and(|o| !o.is_deleted());
        if alive {
            prop_assert!(!does(&plan).contains(&"unload") && !does(&plan).contains(&"release"));
        }
    }

    #[test]
    fn a_deleted_model_is_held_only_while_something_is_waited_for(snapshot in any_snapshot()) {
        let plan = plan(&snapshot, NOW);
        if snapshot.object.as_ref().is_some_and(|o| o.is_deleted() && o.has_finalizer(FINALIZER)) {
            let waits_for_scheduler = matches!(&snapshot.scheduler, Known::Present(v) if v.deleted);
            prop_assert!(!plan.actions.is_empty() || plan.requeue_after.is_some() || waits_for_scheduler);
        }
    }
}
