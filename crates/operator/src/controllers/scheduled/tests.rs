//! Plans that all kinds have in common.

use super::{Scheduled, Snapshot, plan};
use crate::{
    cluster::{Custom, Experiment, Key, Model, Pipeline},
    conditions::{ConditionStatus, READY, RECONCILING, STALLED, condition_status},
    plan::{Action, ClusterAction, Known, Plan},
    schedulers::{
        ExperimentView, LastRequest, LoadedView as _, ModelView, Operation, PipelineView, SchedulerRequest,
    },
};
use gantry_proto::scheduler::{self as pb, model_status::ModelState, pipeline_version_state::PipelineStatus};
use k8s_openapi::jiff::Timestamp;
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Loading,
    Serving,
    Ending,
    Ended,
}

/// An object of a kind, and its states in the scheduler.
trait Sample: Scheduled {
    fn spec() -> Value;
    fn another_spec() -> Value;
    fn invalid_spec() -> Value;
    /// Generation 3 of the object.
    fn view(phase: Phase) -> Self::View;
    fn set_generation(view: &mut Self::View, generation: i64);
    fn set_manager(view: &mut Self::View, manager: &str);
}

/// Of the sample object.
const GENERATION: i64 = 3;

fn definition<K: Sample>() -> K::Definition {
    let object = object::<K>(|_| {});
    K::definition(&object, object.spec.as_ref().unwrap(), &K::Facts::default())
}

fn meta(generation: i64) -> pb::KubernetesMeta {
    pb::KubernetesMeta { namespace: "ml".into(), generation }
}

impl Sample for Model {
    fn spec() -> Value {
        json!({ "storageUri": "gs://models/iris", "requirements": ["sklearn"] })
    }

    fn another_spec() -> Value {
        json!({ "storageUri": "gs://other" })
    }

    fn invalid_spec() -> Value {
        json!({ "storageUri": "" })
    }

    fn view(phase: Phase) -> ModelView {
        let state = match phase {
            Phase::Loading => ModelState::ModelProgressing,
            Phase::Serving => ModelState::ModelAvailable,
            Phase::Ending => ModelState::ModelTerminating,
            Phase::Ended => ModelState::ModelTerminated,
        };
        ModelView {
            deleted: matches!(phase, Phase::Ending | Phase::Ended),
            manager: "operator:ml".into(),
            serving: None,
            latest: Some(pb::ModelVersionStatus {
                version: 3,
                server_name: "mlserver".into(),
                kubernetes_meta: Some(meta(GENERATION)),
                state: Some(pb::ModelStatus {
                    state: state.into(),
                    available_replicas: 1,
                    ..Default::default()
                }),
                model_defn: Some(definition::<Self>()),
                ..Default::default()
            }),
        }
    }

    fn set_generation(view: &mut ModelView, generation: i64) {
        view.latest.as_mut().unwrap().kubernetes_meta = Some(meta(generation));
    }

    fn set_manager(view: &mut ModelView, manager: &str) {
        view.manager = manager.into();
    }
}

impl Sample for Pipeline {
    fn spec() -> Value {
        json!({ "steps": [{ "name": "scale" }, { "name": "classify", "inputs": ["scale"] }], "output": { "steps": ["classify"] } })
    }

    fn another_spec() -> Value {
        json!({ "steps": [{ "name": "scale" }] })
    }

    fn invalid_spec() -> Value {
        json!({ "steps": [] })
    }

    fn view(phase: Phase) -> PipelineView {
        let status = match phase {
            Phase::Loading => PipelineStatus::PipelineCreating,
            Phase::Serving => PipelineStatus::PipelineReady,
            Phase::Ending => PipelineStatus::PipelineTerminating,
            Phase::Ended => PipelineStatus::PipelineTerminated,
        };
        PipelineView {
            manager: "operator:ml".into(),
            pipeline: pb::Pipeline { uid: "p7".into(), version: 7, ..definition::<Self>() },
            state: pb::PipelineVersionState {
                pipeline_version: 7,
                status: status.into(),
                pipeline_gw_status: status.into(),
                models_ready: phase == Phase::Serving,
                ..Default::default()
            },
        }
    }

    fn set_generation(view: &mut PipelineView, generation: i64) {
        view.pipeline.kubernetes_meta = Some(meta(generation));
    }

    fn set_manager(view: &mut PipelineView, manager: &str) {
        view.manager = manager.into();
    }
}

impl Sample for Experiment {
    fn spec() -> Value {
        json!({ "default": "a", "candidates": [{ "name": "a", "weight": 50 }, { "name": "b", "weight": 50 }] })
    }

    fn another_spec() -> Value {
        json!({ "candidates": [{ "name": "c", "weight": 1 }] })
    }

    fn invalid_spec() -> Value {
        json!({ "candidates": [] })
    }

    fn view(phase: Phase) -> ExperimentView {
        ExperimentView(pb::ExperimentStatusResponse {
            experiment_name: "iris".into(),
            active: matches!(phase, Phase::Serving | Phase::Ending),
            candidates_ready: phase == Phase::Serving,
            mirror_ready: true,
            kubernetes_meta: Some(meta(GENERATION)),
            manager: "operator:ml".into(),
            definition: Some(definition::<Self>()),
            deleted: matches!(phase, Phase::Ending | Phase::Ended),
            ..Default::default()
        })
    }

    fn set_generation(view: &mut ExperimentView, generation: i64) {
        view.0.kubernetes_meta = Some(meta(generation));
    }

    fn set_manager(view: &mut ExperimentView, manager: &str) {
        view.0.manager = manager.into();
    }
}

fn object<K: Sample>(change: impl FnOnce(&mut Value)) -> Custom<K> {
    let mut text = json!({
        "metadata": {
            "name": "iris", "namespace": "ml", "uid": "u1", "generation": GENERATION, "resourceVersion": "7",
            "finalizers": [K::FINALIZER],
        },
        "spec": K::spec(),
    });
    change(&mut text);
    serde_json::from_value(text).unwrap()
}

fn deleted<K: Sample>() -> Custom<K> {
    deleted_since("1970-01-01T00:00:00Z")
}

fn deleted_since<K: Sample>(time: &str) -> Custom<K> {
    object(|o| o["metadata"]["deletionTimestamp"] = json!(time))
}

fn snapshot<K: Sample>(object: Option<Custom<K>>, scheduler: Known<K::View>) -> Snapshot<K> {
    Snapshot {
        key: Key::new("ml", "iris"),
        object: object.map(Arc::new),
        scheduler,
        has_scheduler: true,
        unreachable_for: None,
        last_request: None,
        status_age: None,
        facts: K::Facts::default(),
    }
}

fn present<K: Sample>(phase: Phase) -> Known<K::View> {
    Known::Present(K::view(phase))
}

fn unknown<V>() -> Known<V> {
    Known::Unknown("connection refused".into())
}

fn request(operation: Operation, refusal: Option<&str>, age: Duration) -> (LastRequest, Duration) {
    let sent = SchedulerRequest::new(operation, Some(&object::<Model>(|_| {})));
    let at = tokio::time::Instant::now();
    let rejection = refusal.map(str::to_owned);
    (LastRequest { at, request: sent, attempts: 1, was_accepted: false, rejection, failure: None }, age)
}

fn failed_request(operation: Operation, age: Duration) -> (LastRequest, Duration) {
    let (request, age) = request(operation, None, age);
    (LastRequest { failure: Some("no answer within 10 s".into()), ..request }, age)
}

fn actions<S>(plan: &Plan<S>) -> Vec<&'static str> {
    plan.actions
        .iter()
        .map(|action| match action {
            Action::Cluster(ClusterAction::AddFinalizer(_)) => "add finalizer",
            Action::Cluster(ClusterAction::RemoveFinalizer(_)) => "remove finalizer",
            Action::Cluster(_) => "something else",
            Action::Scheduler(action) => match action.operation() {
                Operation::Load => "load",
                Operation::Unload => "unload",
                Operation::Notify => "notify",
            },
        })
        .collect()
}

/// Status, reason and progress of `Ready`.
fn ready<K: Sample>(plan: &Plan<K::Status>) -> Option<(ConditionStatus, String, &'static str)> {
    let (generation, conditions) = K::observed(plan.status.as_ref()?);
    assert!(generation.is_some());
    let ready = conditions.iter().find(|c| c.r#type == READY).unwrap();
    let progress = match (condition_status(conditions, RECONCILING), condition_status(conditions, STALLED)) {
        (Some(_), None) => "in progress",
        (None, Some(_)) => "stalled",
        (None, None) => "settled",
        both => panic!("both Reconciling and Stalled: {both:?}"),
    };
    Some((condition_status(conditions, READY).unwrap(), ready.reason.clone().unwrap(), progress))
}

/// Name, snapshot, expected actions, expected `Ready`.
type Case<K> = (
    &'static str,
    Snapshot<K>,
    &'static [&'static str],
    Option<(ConditionStatus, &'static str, &'static str)>,
);

fn plan_for_every_situation<K: Sample>() {
    use ConditionStatus::{False, Unknown};
    use Phase::{Ended, Ending, Serving};
    let words = K::WORDS;
    let existing = || Some(object::<K>(|_| {}));
    let with = |snapshot: Snapshot<K>, request| Snapshot { last_request: Some(request), ..snapshot };
    let seconds = Duration::from_secs;
    let cases: Vec<Case<K>> = vec![
        (
            "new",
            snapshot(Some(object(|o| o["metadata"]["finalizers"] = json!([]))), Known::Absent),
            &["add finalizer", "load"],
            None,
        ),
        ("not requested yet", snapshot(existing(), Known::Absent), &["load"], None),
        (
            "changed",
            snapshot(Some(object(|o| o["metadata"]["generation"] = json!(4))), present::<K>(Serving)),
            &["load"],
            None,
        ),
        (
            "recreated with another spec and the same generation",
            snapshot(Some(object(|o| o["spec"] = K::another_spec())), present::<K>(Serving)),
            &["load"],
            None,
        ),
        (
            "recreated while the old one is unloading",
            snapshot(existing(), present::<K>(Ending)),
            &[],
            Some((False, words.terminating, "in progress")),
        ),
        (
            "recreated after the old one was unloaded",
            snapshot(existing(), present::<K>(Ended)),
            &["load"],
            None,
        ),
        (
            "undecodable spec",
            snapshot(Some(object(|o| o["spec"] = json!(7))), Known::Absent),
            &[],
            Some((False, "InvalidSpec", "stalled")),
        ),
        (
            "invalid spec",
            snapshot(Some(object(|o| o["spec"] = K::invalid_spec())), Known::Absent),
            &[],
            Some((False, "InvalidSpec", "stalled")),
        ),
        (
            "scheduler unknown",
            snapshot(existing(), unknown()),
            &[],
            Some((Unknown, "SchedulerUnreachable", "in progress")),
        ),
        (
            "refused",
            with(snapshot(existing(), Known::Absent), request(Operation::Load, Some("no"), seconds(0))),
            &[],
            Some((False, "Refused", "stalled")),
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
            with(snapshot(existing(), Known::Absent), request(Operation::Load, None, seconds(5))),
            &[],
            Some((False, words.progressing, "in progress")),
        ),
        (
            "requested long ago",
            with(snapshot(existing(), Known::Absent), request(Operation::Load, None, seconds(60))),
            &["load"],
            Some((False, words.progressing, "in progress")),
        ),
        (
            "loading since a moment ago",
            with(
                snapshot(existing(), present::<K>(Phase::Loading)),
                request(Operation::Load, None, Duration::from_millis(1)),
            ),
            &[],
            None,
        ),
        (
            "unanswered",
            with(snapshot(existing(), Known::Absent), failed_request(Operation::Load, seconds(1))),
            &[],
            Some((Unknown, "SchedulerUnreachable", "in progress")),
        ),
        (
            "unanswered a while ago",
            with(snapshot(existing(), Known::Absent), failed_request(Operation::Load, seconds(6))),
            &["load"],
            None,
        ),
        (
            "unload unanswered",
            with(
                snapshot(Some(deleted()), present::<K>(Serving)),
                failed_request(Operation::Unload, seconds(1)),
            ),
            &[],
            None,
        ),
        (
            "unload unanswered for long",
            with(
                snapshot(Some(deleted_since("1969-12-31T23:00:00Z")), present::<K>(Serving)),
                failed_request(Operation::Unload, seconds(1)),
            ),
            &["remove finalizer"],
            None,
        ),
        ("deleted", snapshot(Some(deleted()), present::<K>(Serving)), &["unload"], None),
        (
            "deleted while it is loading",
            snapshot(Some(deleted()), present::<K>(Phase::Loading)),
            &["unload"],
            None,
        ),
        (
            "deleted and going",
            snapshot(Some(deleted()), present::<K>(Ending)),
            &[],
            Some((False, words.terminating, "in progress")),
        ),
        ("deleted and gone", snapshot(Some(deleted()), present::<K>(Ended)), &["remove finalizer"], None),
        ("deleted and never known", snapshot(Some(deleted()), Known::Absent), &["remove finalizer"], None),
        (
            "unload rejected",
            with(
                snapshot(Some(deleted()), present::<K>(Serving)),
                request(Operation::Unload, Some("no"), seconds(0)),
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
            Snapshot { unreachable_for: Some(seconds(3)), ..snapshot(Some(deleted()), unknown()) },
            &[],
            None,
        ),
        (
            "deleted while the scheduler is away for long",
            Snapshot { unreachable_for: Some(seconds(60)), ..snapshot(Some(deleted()), unknown()) },
            &["remove finalizer"],
            None,
        ),
        (
            "unload requested a moment ago",
            with(
                snapshot(Some(deleted()), present::<K>(Serving)),
                request(Operation::Unload, None, seconds(1)),
            ),
            &[],
            None,
        ),
        (
            "unload requested a while ago",
            with(
                snapshot(Some(deleted()), present::<K>(Serving)),
                request(Operation::Unload, None, seconds(6)),
            ),
            &["unload"],
            None,
        ),
        (
            "repeated unload requested a while ago",
            with(snapshot(Some(deleted()), present::<K>(Serving)), {
                let (last, age) = request(Operation::Unload, None, seconds(6));
                (LastRequest { attempts: 2, ..last }, age)
            }),
            &[],
            None,
        ),
        (
            "repetition of an accepted unload rejected",
            with(snapshot(Some(deleted()), present::<K>(Serving)), {
                let (last, age) = request(Operation::Unload, Some("not found"), seconds(0));
                (LastRequest { attempts: 2, was_accepted: true, ..last }, age)
            }),
            &[],
            None,
        ),
        (
            "unloading for too long",
            snapshot(Some(deleted_since("1969-12-31T23:55:00Z")), present::<K>(Ending)),
            &["remove finalizer"],
            None,
        ),
        (
            "unload without effect for too long",
            with(
                snapshot(Some(deleted_since("1969-12-31T23:55:00Z")), present::<K>(Serving)),
                request(Operation::Unload, None, seconds(1)),
            ),
            &["remove finalizer"],
            None,
        ),
        ("gone, and still served", snapshot(None, present::<K>(Serving)), &["unload"], None),
        ("gone, and unloading", snapshot(None, present::<K>(Ending)), &[], None),
        (
            "gone, and unload requested a moment ago",
            with(snapshot(None, present::<K>(Serving)), {
                let (last, age) = request(Operation::Unload, None, seconds(1));
                let request = SchedulerRequest::new::<K>(Operation::Unload, None);
                (LastRequest { request, ..last }, age)
            }),
            &[],
            None,
        ),
        ("gone", snapshot(None, Known::Absent), &[], None),
        ("gone, scheduler unknown", snapshot(None, unknown()), &[], None),
    ];
    for (name, snapshot, expected, status) in cases {
        let plan = plan(&snapshot, NOW);
        assert_eq!(actions(&plan), expected, "{name}");
        assert_eq!(ready::<K>(&plan), status.map(|(t, r, o)| (t, r.to_owned(), o)), "{name}");
    }
}

fn serving_object_is_ready<K: Sample>() {
    let served = plan(&snapshot(Some(object::<K>(|_| {})), present::<K>(Phase::Serving)), NOW);
    let (status, _, progress) = ready::<K>(&served).unwrap();
    assert_eq!((actions(&served), status, progress), (vec![], ConditionStatus::True, "settled"));
    let (generation, conditions) = K::observed(served.status.as_ref().unwrap());
    assert_eq!(generation, Some(GENERATION));
    for condition in conditions {
        assert_eq!((condition.status.as_str(), condition.observed_generation), ("True", Some(GENERATION)));
        assert!(condition.reason.as_ref().is_some_and(|reason| !reason.is_empty()), "{condition:?}");
    }
}

fn foreign_object_in_the_scheduler_is_not_unloaded<K: Sample>() {
    let mut foreign = K::view(Phase::Serving);
    K::set_manager(&mut foreign, "cli");
    let gone = plan(&snapshot::<K>(None, Known::Present(foreign.clone())), NOW);
    assert_eq!(actions(&gone), [] as [&str; 0]);
    let released = plan(&snapshot(Some(deleted::<K>()), Known::Present(foreign)), NOW);
    assert_eq!(actions(&released), ["remove finalizer"]);
}

fn served_object_is_unknown_after_thirty_seconds_without_its_scheduler<K: Sample>() {
    let served = plan(&snapshot(Some(object::<K>(|_| {})), present::<K>(Phase::Serving)), NOW);
    let mut object = object::<K>(|_| {});
    object.status = served.status;
    let away = |object: &Custom<K>, unreachable_for: Option<u64>| {
        let unreachable_for = unreachable_for.map(Duration::from_secs);
        plan(&Snapshot { unreachable_for, ..snapshot(Some(object.clone()), unknown()) }, NOW)
    };
    for seconds in [0, 29] {
        let soon = away(&object, Some(seconds));
        assert_eq!((actions(&soon), ready::<K>(&soon)), (vec![], None));
        assert_eq!(soon.requeue_after, Some(Duration::from_secs(30 - seconds)));
    }
    // Without a SeldonRuntime nothing would change it later.
    for unreachable_for in [Some(30), Some(1000), None] {
        let away = away(&object, unreachable_for);
        let unreachable = (ConditionStatus::Unknown, "SchedulerUnreachable".to_owned(), "in progress");
        assert_eq!((actions(&away), ready::<K>(&away)), (vec![], Some(unreachable)));
        let mut unreachable = object.clone();
        unreachable.status = away.status;
        let back = plan(&snapshot(Some(unreachable), present::<K>(Phase::Serving)), NOW);
        assert_eq!(ready::<K>(&back).map(|c| c.0), Some(ConditionStatus::True));
        assert_eq!(back.events, [], "thousands of objects return at once");
    }
    // A change that the scheduler does not know makes it Unknown.
    object.metadata.generation = Some(4);
    let changed = away(&object, Some(0));
    assert_eq!(ready::<K>(&changed).map(|s| s.1), Some("SchedulerUnreachable".to_owned()));
}

fn load_names_the_generation_that_it_replaces<K: Sample>() {
    let replaces = |scheduler: Known<K::View>| {
        let changed = object::<K>(|o| o["spec"] = K::another_spec());
        let plan = plan(&snapshot(Some(changed), scheduler), NOW);
        let expected = |replaces| {
            let changed = object::<K>(|o| o["spec"] = K::another_spec());
            let definition = K::definition(&changed, changed.spec.as_ref().unwrap(), &K::Facts::default());
            Action::from(K::load(definition, replaces))
        };
        [0, 3].into_iter().find(|replaces| plan.actions == [expected(*replaces)])
    };
    assert_eq!(replaces(Known::Absent), Some(0));
    assert_eq!(replaces(present::<K>(Phase::Serving)), Some(3));
    assert_eq!(replaces(present::<K>(Phase::Ended)), Some(0));
}

fn transition_time_changes_only_with_the_status<K: Sample>() {
    let first = plan(&snapshot(Some(object::<K>(|_| {})), present::<K>(Phase::Loading)), NOW);
    let mut object = object::<K>(|_| {});
    object.status = first.status;
    let later = NOW + Duration::from_secs(100);
    let time = |plan: &Plan<K::Status>| {
        let (_, conditions) = K::observed(plan.status.as_ref().unwrap());
        conditions.iter().find(|c| c.r#type == READY).unwrap().last_transition_time.clone().unwrap()
    };
    let still = plan(&snapshot(Some(object.clone()), present::<K>(Phase::Loading)), later);
    assert_eq!(time(&still), "1970-01-01T00:00:00Z");
    let ready = plan(&snapshot(Some(object), present::<K>(Phase::Serving)), later);
    assert_eq!(time(&ready), "1970-01-01T00:01:40Z");
}

fn events_follow_the_transitions_of_ready<K: Sample>() {
    let with_status = |status: Option<K::Status>| {
        let mut object = object::<K>(|_| {});
        object.status = status;
        object
    };
    let observed = |before: Option<K::Status>, phase: Phase| {
        plan(&snapshot(Some(with_status(before)), present::<K>(phase)), NOW)
    };
    let reasons = |plan: &Plan<K::Status>| plan.events.iter().map(|e| e.reason).collect::<Vec<_>>();
    let ready = observed(None, Phase::Serving);
    assert_eq!(reasons(&ready), [] as [&str; 0], "an object that is ready at once needs no event");
    let loading = observed(None, Phase::Loading);
    assert_eq!(reasons(&loading), [] as [&str; 0]);
    assert_eq!(reasons(&observed(loading.status, Phase::Serving)), [K::WORDS.ready]);
    assert_eq!(reasons(&observed(ready.status, Phase::Loading)), [K::WORDS.not_ready]);
}

fn foreign_conditions_are_kept<K: Sample>() {
    let theirs = json!({"conditions": [{"type": "Audited", "status": "True"}]});
    let object = object::<K>(|o| o["status"] = theirs);
    let plan = plan(&snapshot(Some(object), present::<K>(Phase::Serving)), NOW);
    let (_, conditions) = K::observed(plan.status.as_ref().unwrap());
    assert!(conditions.iter().any(|c| c.r#type == "Audited"));
}

fn any_snapshot<K: Sample>() -> impl Strategy<Value = Snapshot<K>> {
    let phases = prop::sample::select(vec![Phase::Loading, Phase::Serving, Phase::Ending, Phase::Ended]);
    let managers = prop::sample::select(vec!["operator:ml", "cli", ""]);
    let scheduler =
        (0_u8..3, phases, managers, 1_i64..5).prop_map(|(known, phase, manager, generation)| match known {
            0 => unknown(),
            1 => Known::Absent,
            _ => {
                let mut view = K::view(phase);
                K::set_manager(&mut view, manager);
                K::set_generation(&mut view, generation);
                Known::Present(view)
            }
        });
    let objects = (0_u8..4, any::<bool>()).prop_map(|(which, existing)| {
        let mut object = match which {
            0 => return None,
            1 => deleted::<K>(),
            2 => object(|o| o["spec"] = K::invalid_spec()),
            _ => object(|_| {}),
        };
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

fn plan_of_any_snapshot_is_safe<K: Sample>() {
    let check = |snapshot: Snapshot<K>| {
        let made = plan(&snapshot, NOW);
        prop_assert_eq!(&made, &plan(&snapshot, NOW), "deterministic");
        if ready::<K>(&made).is_some_and(|(status, _, _)| status == ConditionStatus::True) {
            let Known::Present(view) = &snapshot.scheduler else { panic!("not from the scheduler") };
            prop_assert!(!view.is_deleted());
            prop_assert_eq!(view.kubernetes_meta().unwrap().generation, GENERATION, "the serving generation");
        }
        let actions = actions(&made);
        if matches!(snapshot.scheduler, Known::Unknown(_)) {
            prop_assert!(!actions.contains(&"unload") && !actions.contains(&"load"));
        }
        let deleted = snapshot.object.as_ref().map(|object| object.is_deleted());
        if deleted == Some(false) {
            prop_assert!(!actions.contains(&"unload") && !actions.contains(&"remove finalizer"));
        }
        if snapshot.object.as_ref().is_some_and(|o| o.is_deleted() && o.has_finalizer(K::FINALIZER)) {
            let ends = matches!(&snapshot.scheduler, Known::Present(v) if v.is_deleted());
            prop_assert!(!actions.is_empty() || made.requeue_after.is_some() || ends, "it waits for nothing");
        }
        Ok(())
    };
    TestRunner::default().run(&any_snapshot::<K>(), check).unwrap();
}

macro_rules! for_each_kind {
    ($($test:ident,)*) => {
        for_each_kind!(@ models, Model, $($test,)*);
        for_each_kind!(@ pipelines, Pipeline, $($test,)*);
        for_each_kind!(@ experiments, Experiment, $($test,)*);
    };
    (@ $module:ident, $kind:ty, $($test:ident,)*) => {
        mod $module {
            use crate::cluster::*;
            $(#[test]
            fn $test() {
                super::$test::<$kind>();
            })*
        }
    };
}

for_each_kind! {
    plan_for_every_situation,
    serving_object_is_ready,
    foreign_object_in_the_scheduler_is_not_unloaded,
    served_object_is_unknown_after_thirty_seconds_without_its_scheduler,
    load_names_the_generation_that_it_replaces,
    transition_time_changes_only_with_the_status,
    events_follow_the_transitions_of_ready,
    foreign_conditions_are_kept,
    plan_of_any_snapshot_is_safe,
}
