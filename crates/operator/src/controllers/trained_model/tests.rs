//! Plans of `TrainedModels`.

use super::{Snapshot, plan::plan};
use crate::{
    cluster::{Custom, InferenceService, TrainedModel},
    controllers::inference_service::MODELS,
    plan::{Action, ClusterAction, Known, Plan},
    schedulers::ServiceView,
    workload::OwnedObjects,
};
use gantry_api::kserve::TrainedModelStatus;
use gantry_proto::gantry::ServiceRoute;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn model(name: &str, memory: &str, created: &str) -> Arc<Custom<TrainedModel>> {
    let metadata = json!({
        "name": name, "namespace": "ml", "uid": format!("uid-{name}"), "generation": 2, "creationTimestamp": created,
    });
    let artifact =
        json!({ "storageUri": format!("s3://m/{name}"), "framework": "sklearn", "memory": memory });
    let spec = json!({ "inferenceService": "many", "model": artifact });
    Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap())
}

/// A service without an artifact, which is ready.
fn service(predictor: &Value) -> Value {
    json!({
        "metadata": { "name": "many", "namespace": "ml", "uid": "p", "generation": 1 },
        "spec": { "predictor": predictor },
        "status": {
            "observedGeneration": 1, "url": "http://many-ml.example.com",
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn multi_model() -> Value {
    let limits = json!({ "limits": { "memory": "1Gi" } });
    json!({ "sklearn": { "protocolVersion": "v2", "resources": limits } })
}

fn snapshot_of(service: Option<Value>) -> Snapshot {
    let object = model("iris", "600Mi", "2026-01-02T00:00:00Z");
    let parse = |value| Arc::new(serde_json::from_value::<Custom<InferenceService>>(value).unwrap());
    Snapshot {
        key: object.key(),
        models: vec![Arc::clone(&object)],
        object: Some(object),
        service: service.map(parse),
        route: Known::Absent,
        owned: OwnedObjects::default(),
        failures: Vec::new(),
        status_age: None,
    }
}

fn snapshot() -> Snapshot {
    snapshot_of(Some(service(&multi_model())))
}

/// The Model of the plan exists, with this condition.
fn with_model(mut snapshot: Snapshot, status: &str, reason: &str) -> Snapshot {
    let planned = plan(&snapshot, NOW);
    let Some(Action::Cluster(ClusterAction::Apply(desired))) = planned.actions.first() else {
        panic!("no Model: {planned:?}")
    };
    let mut live = desired.manifest();
    live["metadata"]["uid"] = json!("uid-model");
    live["metadata"]["resourceVersion"] = json!("1");
    live["metadata"]["generation"] = json!(1);
    let ready = json!({ "type": "Ready", "status": status, "reason": reason, "message": "as the Model" });
    live["status"] = json!({ "observedGeneration": 1, "availableReplicas": 1, "conditions": [ready] });
    let live = Arc::new(serde_json::from_value(live).unwrap());
    snapshot.owned = OwnedObjects::new([(MODELS, live)], "uid-iris");
    snapshot
}

/// `STATUS REASON` of a condition.
fn condition(plan: &Plan<TrainedModelStatus>, name: &str) -> String {
    let status = plan.status.as_ref().unwrap();
    let found = status.conditions.iter().find(|c| c.r#type == name).unwrap();
    format!("{} {}", found.status, found.reason.as_deref().unwrap_or_default()).trim_end().to_owned()
}

/// `apply` or `delete` for each action.
fn actions(plan: &Plan<TrainedModelStatus>) -> Vec<&'static str> {
    let verb = |action: &Action| match action {
        Action::Cluster(ClusterAction::Apply(_)) => "apply",
        Action::Cluster(ClusterAction::Delete(_)) => "delete",
        other => panic!("unexpected action {other:?}"),
    };
    plan.actions.iter().map(verb).collect()
}

fn url(plan: &Plan<TrainedModelStatus>) -> &str {
    plan.status.as_ref().unwrap().url.as_deref().unwrap_or_default()
}

#[test]
fn model_of_a_service_is_a_model_of_the_scheduler() {
    let planned = plan(&snapshot(), NOW);
    let Some(Action::Cluster(ClusterAction::Apply(desired))) = planned.actions.first() else { panic!() };
    let body = &desired.body;
    assert_eq!((desired.kind, desired.key.to_string().as_str()), (MODELS, "ml/iris"));
    assert_eq!(body["spec"]["storageUri"], "s3://m/iris");
    assert_eq!(body["spec"]["requirements"], json!(["sklearn"]));
    assert_eq!(body["spec"]["memory"], "600Mi");
    assert_eq!(body["metadata"]["labels"], json!({ "serving.kserve.io/inferenceservice": "many" }));
    assert_eq!(body["metadata"]["ownerReferences"][0]["kind"], "TrainedModel");
    assert_eq!(condition(&planned, "Ready"), "Unknown ModelNotObserved");
    let ready = plan(&with_model(snapshot(), "True", "ModelAvailable"), NOW);
    for name in ["Ready", "InferenceServiceReady", "IsMMSPredictor", "MemoryResourceAvailable", "ModelReady"]
    {
        assert!(condition(&ready, name).starts_with("True"), "{name}");
    }
    assert_eq!(ready.status.as_ref().unwrap().observed_generation, Some(2));
    assert_eq!(ready.events.len(), 1);
    assert_eq!(url(&ready), "http://seldon-mesh.ml/v2/models/iris/infer");
}

/// Title, service, `Ready`, and whether the scheduler has the model.
#[test]
fn conditions_name_what_is_missing() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut service = service(&multi_model());
        change(&mut service);
        Some(service)
    };
    let uri = json!({ "sklearn": { "storageUri": "s3://m/own" } });
    let custom = |value: &str| json!({ "containers": [{ "image": "i", "env": [{ "name": "MULTI_MODEL_SERVER", "value": value }] }] });
    let small = json!({ "model": { "modelFormat": { "name": "sklearn" }, "resources": { "limits": { "memory": "1Mi" } } } });
    let huggingface =
        json!({ "model": { "modelFormat": { "name": "huggingface" }, "args": ["--model_id=m"] } });
    for (title, service, expected, is_loaded) in [
        ("missing service", None, "False InferenceServiceNotFound", false),
        ("service with an artifact", Some(service(&uri)), "False IsNotMMSPredictor", false),
        ("model by argument", Some(service(&huggingface)), "False IsNotMMSPredictor", false),
        ("custom container", Some(service(&custom("false"))), "False IsNotMMSPredictor", false),
        ("multi-model container", Some(service(&custom("true"))), "True TrainedModelReady", true),
        ("too little memory", Some(service(&small)), "False MemoryResourceNotAvailable", false),
        (
            "service that is not ready",
            with(&|s| s["status"]["conditions"][0]["status"] = json!("False")),
            "False InferenceServiceNotReady",
            true,
        ),
        (
            "service with a newer spec",
            with(&|s| s["metadata"]["generation"] = json!(2)),
            "False InferenceServiceNotReady",
            true,
        ),
        (
            "stopped service",
            with(&|s| s["metadata"]["annotations"] = json!({ "serving.kserve.io/stop": "True" })),
            "False Stopped",
            false,
        ),
        (
            "deleted service",
            with(&|s| {
                s["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }),
            "False InferenceServiceNotFound",
            false,
        ),
    ] {
        let mut snapshot = with_model(snapshot(), "True", "ModelAvailable");
        snapshot.service = service.map(|value| Arc::new(serde_json::from_value(value).unwrap()));
        let planned = plan(&snapshot, NOW);
        assert_eq!(condition(&planned, "Ready"), expected, "{title}");
        assert_eq!(actions(&planned), [if is_loaded { "apply" } else { "delete" }], "{title}");
    }
}

#[test]
fn model_that_fails_to_load_is_not_ready() {
    let failed = plan(&with_model(snapshot(), "False", "LoadFailed"), NOW);
    assert_eq!(condition(&failed, "Ready"), "False LoadFailed");
    assert_eq!(condition(&failed, "ModelReady"), "False LoadFailed");
    assert_eq!(condition(&failed, "InferenceServiceReady"), "True");
}

#[test]
fn newer_model_never_displaces_an_older_one() {
    let mut snapshot = snapshot();
    let older = model("older", "500Mi", "2026-01-01T00:00:00Z");
    let newer = model("newer", "500Mi", "2026-01-03T00:00:00Z");
    let small = model("small", "100Mi", "2026-01-04T00:00:00Z");
    snapshot.models.extend([Arc::clone(&newer), Arc::clone(&small)]);
    assert_eq!(condition(&plan(&snapshot, NOW), "MemoryResourceAvailable"), "True");
    let predictor = snapshot.service.as_ref().unwrap().spec.as_ref().unwrap().predictor.clone();
    let fitting = super::allocated(&predictor, &snapshot.models);
    assert_eq!(fitting.into_iter().collect::<Vec<_>>(), ["iris", "small"]);
    snapshot.models.push(older);
    let planned = plan(&snapshot, NOW);
    assert_eq!(condition(&planned, "MemoryResourceAvailable"), "False MemoryResourceNotAvailable");
    assert!(actions(&planned).is_empty());
}

#[test]
fn url_is_that_of_the_service_once_gateways_route_it() {
    let mut snapshot = with_model(snapshot(), "True", "ModelAvailable");
    let view = |models: &[&str], admitted| ServiceView {
        route: ServiceRoute {
            models: models.iter().map(|&name| name.into()).collect(),
            ..ServiceRoute::default()
        },
        admitted,
        ..ServiceView::default()
    };
    let inside = "http://seldon-mesh.ml/v2/models/iris/infer";
    let outside = "http://many-ml.example.com/v2/models/iris/infer";
    for (route, before, expected, is_final) in [
        (Known::Absent, None, inside, true),
        (Known::Present(view(&[], true)), None, inside, false),
        (Known::Present(view(&["iris"], false)), None, inside, false),
        (Known::Present(view(&["iris"], true)), None, outside, true),
        // A change of the route on its way, or a restart of the operator, changes nothing.
        (Known::Present(view(&["iris"], false)), Some(outside), outside, true),
        (Known::Unknown("not synced".into()), Some(outside), outside, false),
        (Known::Unknown("not synced".into()), Some("http://other"), inside, false),
        (Known::Present(view(&[], true)), Some(outside), inside, false),
    ] {
        snapshot.route = route;
        let mut object = (*snapshot.object.clone().unwrap()).clone();
        object.status =
            before.map(|url| TrainedModelStatus { url: Some(url.into()), ..TrainedModelStatus::default() });
        snapshot.object = Some(Arc::new(object));
        let planned = plan(&snapshot, NOW);
        assert_eq!(url(&planned), expected, "{:?} {before:?}", snapshot.route);
        assert_eq!(planned.requeue_after.is_none(), is_final, "the route is compared again");
        let address = planned.status.unwrap().address.unwrap().url.unwrap();
        assert_eq!(address, inside);
    }
    let v1 = json!({ "sklearn": {} });
    let planned = plan(&snapshot_of(Some(service(&v1))), NOW);
    assert_eq!(url(&planned), "http://seldon-mesh.ml/v1/models/iris:predict");
}

/// Both controllers never fight: a model of KServe's service, or with its finalizer, is left alone.
#[test]
fn model_of_kserves_controller_is_left_alone() {
    let mut theirs = service(&multi_model());
    theirs["metadata"]["finalizers"] = json!(["inferenceservice.finalizers"]);
    assert_eq!(plan(&snapshot_of(Some(theirs.clone())), NOW), Plan::default());
    theirs["metadata"]["annotations"] = json!({ "gantry.dev/adopt": "true" });
    assert_eq!(actions(&plan(&snapshot_of(Some(theirs)), NOW)), ["apply"]);
    let mut orphan = snapshot_of(None);
    let mut object = (*orphan.object.clone().unwrap()).clone();
    object.metadata.finalizers = Some(vec!["trainedmodel.finalizer".into()]);
    orphan.object = Some(Arc::new(object));
    assert_eq!(plan(&orphan, NOW), Plan::default());
}

#[test]
fn invalid_spec_changes_nothing_that_serves() {
    let mut snapshot = with_model(snapshot(), "True", "ModelAvailable");
    let mut object = (*snapshot.object.clone().unwrap()).clone();
    object.spec.as_mut().unwrap().model.storage_uri = "iris".into();
    snapshot.object = Some(Arc::new(object));
    let planned = plan(&snapshot, NOW);
    assert!(planned.actions.is_empty());
    assert_eq!(condition(&planned, "Ready"), "False InvalidSpec");
}

#[test]
fn plan_of_a_ready_model_changes_nothing() {
    let mut snapshot = with_model(snapshot(), "True", "ModelAvailable");
    let first = plan(&snapshot, NOW);
    let mut object = (*snapshot.object.clone().unwrap()).clone();
    object.status.clone_from(&first.status);
    snapshot.object = Some(Arc::new(object));
    let second = plan(&snapshot, NOW);
    assert_eq!(first.status, second.status);
    assert!(second.events.is_empty());
    let live = snapshot.owned.get(MODELS, "iris").unwrap();
    for action in &second.actions {
        let Action::Cluster(ClusterAction::Apply(desired)) = action else { panic!("{action:?}") };
        assert!(desired.matches(live));
    }
}

#[test]
fn progress_is_written_at_intervals() {
    let mut snapshot = with_model(snapshot(), "False", "ModelProgressing");
    let first = plan(&snapshot, NOW);
    let mut object = (*snapshot.object.clone().unwrap()).clone();
    object.status.clone_from(&first.status);
    snapshot.object = Some(Arc::new(object));
    let ready = snapshot.clone();
    let mut snapshot = with_model(snapshot, "False", "Loading");
    snapshot.status_age = Some(Duration::from_millis(300));
    let soon = plan(&snapshot, NOW);
    assert_eq!((soon.status, soon.requeue_after), (None, Some(Duration::from_millis(700))));
    snapshot.status_age = Some(Duration::from_secs(1));
    assert!(plan(&snapshot, NOW).status.is_some());
    let mut ready = with_model(ready, "True", "ModelAvailable");
    ready.status_age = Some(Duration::from_millis(300));
    assert!(plan(&ready, NOW).status.is_some(), "ready is written at once");
}
