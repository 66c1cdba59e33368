//! Situations of `testdata/inference_services.yaml`: a service and what is observed → objects, status and events.

use super::{Snapshot, plan::plan, runtime::Runtime};
use crate::{
    cluster::{Custom, InferenceService, Key, OwnedObject, ResourceKind},
    plan::{Action, ClusterAction, Known, Plan},
    workload::OwnedObjects,
};
use gantry_api::kserve::InferenceServiceStatus;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// One situation. Texts in `conditions` are `STATUS REASON part of the message`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Situation {
    name: String,
    #[serde(default)]
    metadata: Value,
    spec: Value,
    #[serde(default)]
    status: Option<Value>,
    /// Data of the `ConfigMap`; none without it.
    #[serde(default)]
    config: Option<BTreeMap<String, String>>,
    #[serde(default)]
    runtimes: Vec<Value>,
    #[serde(default)]
    storage_containers: Vec<Value>,
    /// The objects of the first plan exist, with these statuses by `Kind/name`.
    #[serde(default)]
    observed: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    pods: Vec<Value>,
    #[serde(default)]
    http_routes: bool,
    expect: Expected,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Expected {
    /// `Kind/name` of all applied objects.
    #[serde(default)]
    applied: Option<Vec<String>>,
    /// `Kind/name` of all deleted objects.
    #[serde(default)]
    deleted: Vec<String>,
    /// Values by `Kind/name/JSON pointer`.
    #[serde(default)]
    fields: BTreeMap<String, Value>,
    #[serde(default)]
    conditions: BTreeMap<String, String>,
    /// Values by JSON pointer into the status; null is absent.
    #[serde(default)]
    status: BTreeMap<String, Value>,
    #[serde(default)]
    events: Vec<String>,
}

fn situations() -> Vec<Situation> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/inference_services.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let documents = text.split("\n---\n").filter(|document| !document.trim().is_empty());
    documents
        .map(|document| serde_saphyr::from_str(document).unwrap_or_else(|e| panic!("{e}\n{document}")))
        .collect()
}

/// The model server that situations use unless they bring their own.
fn default_runtime() -> Value {
    json!({
        "metadata": { "name": "gantry" },
        "spec": {
            "supportedModelFormats": [
                { "name": "onnx", "autoSelect": true }, { "name": "xgboost", "autoSelect": true },
                { "name": "lightgbm", "autoSelect": true }, { "name": "sklearn", "autoSelect": true },
            ],
            "containers": [{ "name": "kserve-container", "image": "gantry:1", "ports": [{ "containerPort": 8080 }] }],
        },
    })
}

fn runtime(value: &Value) -> Runtime {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let annotations = value.pointer("/metadata/annotations").cloned().unwrap_or_else(|| json!({}));
    Runtime {
        name: text("/metadata/name"),
        is_cluster_wide: text("/metadata/namespace").is_empty(),
        created: value.pointer("/metadata/created").and_then(Value::as_i64).unwrap_or(1),
        annotations: serde_json::from_value(annotations).unwrap(),
        spec: serde_json::from_value(value["spec"].clone()).unwrap(),
    }
}

impl Situation {
    fn object(&self) -> Custom<InferenceService> {
        let mut metadata = json!({ "name": "iris", "namespace": "ml", "uid": "u", "generation": 1 });
        if let Value::Object(own) = &self.metadata {
            metadata.as_object_mut().unwrap().extend(own.clone());
        }
        let mut object = json!({ "metadata": metadata, "spec": self.spec });
        if let Some(status) = &self.status {
            object["status"] = status.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn snapshot(&self) -> Snapshot {
        let object = self.object();
        let mut runtimes: Vec<Runtime> = self.runtimes.iter().map(runtime).collect();
        if runtimes.is_empty() {
            runtimes.push(runtime(&default_runtime()));
        }
        let config = self.config.as_ref().map_or(Known::Absent, |data| {
            Known::Present(Arc::new(serde_json::from_value(json!({ "data": data })).unwrap()))
        });
        let containers = self.storage_containers.iter().map(|c| serde_json::from_value(c.clone()).unwrap());
        let pods = self.pods.iter().map(|pod| Arc::new(serde_json::from_value(pod.clone()).unwrap()));
        let mut snapshot = Snapshot {
            key: object.key(),
            object: Some(Arc::new(object)),
            config,
            config_namespace: "ops".into(),
            runtimes,
            storage_containers: containers.collect(),
            image: "gantry:1".into(),
            owned: OwnedObjects::default(),
            pods: pods.collect(),
            has_http_routes: self.http_routes,
            failures: Vec::new(),
            status_age: None,
        };
        if let Some(statuses) = &self.observed {
            snapshot.owned = exist(&snapshot, &plan(&snapshot, NOW), statuses);
        }
        snapshot
    }
}

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn title(kind: ResourceKind, key: &Key) -> String {
    format!("{kind}/{}", key.name)
}

type Live = Vec<(ResourceKind, Arc<OwnedObject>)>;

/// The objects of a plan as they are after it was applied.
fn exist(
    snapshot: &Snapshot,
    plan: &Plan<InferenceServiceStatus>,
    statuses: &BTreeMap<String, Value>,
) -> OwnedObjects {
    OwnedObjects::new(live_objects(plan, statuses), snapshot.object.as_ref().unwrap().uid())
}

fn live_objects(plan: &Plan<InferenceServiceStatus>, statuses: &BTreeMap<String, Value>) -> Live {
    let mut live = Vec::new();
    for (version, action) in plan.actions.iter().enumerate() {
        let Action::Cluster(ClusterAction::Apply(desired)) = action else { continue };
        let mut object = desired.manifest();
        let name = title(desired.kind, &desired.key);
        object["metadata"]["uid"] = json!(format!("uid-{name}"));
        object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        object["metadata"]["generation"] = json!(1);
        if let Some(status) = statuses.get(&name) {
            object["status"] = status.clone();
        }
        live.push((desired.kind, Arc::new(serde_json::from_value::<OwnedObject>(object).unwrap())));
    }
    live
}

fn names(plan: &Plan<InferenceServiceStatus>) -> (Vec<String>, Vec<String>) {
    let (mut applied, mut deleted) = (Vec::new(), Vec::new());
    for action in &plan.actions {
        match action {
            Action::Cluster(ClusterAction::Apply(desired)) => applied.push(title(desired.kind, &desired.key)),
            Action::Cluster(ClusterAction::Delete(target)) => deleted.push(title(target.kind, &target.key)),
            other => panic!("unexpected action {other:?}"),
        }
    }
    (applied, deleted)
}

fn field<'a>(plan: &'a Plan<InferenceServiceStatus>, path: &str) -> Option<&'a Value> {
    let (kind, rest) = path.split_once('/').unwrap();
    let (name, pointer) = rest.split_once('/').unwrap();
    let found = plan.actions.iter().find_map(|action| match action {
        Action::Cluster(ClusterAction::Apply(d)) if d.kind.kind == kind && d.key.name == name => Some(d),
        _ => None,
    });
    let conditions = || plan.status.as_ref().map(|status| &status.conditions);
    found
        .unwrap_or_else(|| panic!("{kind} {name} is not applied: {:?}", conditions()))
        .body
        .pointer(&format!("/{pointer}"))
}

#[test]
fn situations_give_their_objects_and_status() {
    let mut failures = Vec::new();
    for situation in situations() {
        let snapshot = situation.snapshot();
        let plan = plan(&snapshot, NOW);
        let name = &situation.name;
        let expect = &situation.expect;
        let (applied, deleted) = names(&plan);
        if let Some(expected) = &expect.applied
            && *expected != applied
        {
            failures.push(format!("{name}: applied {applied:?}"));
        }
        if expect.deleted != deleted {
            failures.push(format!("{name}: deleted {deleted:?}"));
        }
        for (path, expected) in &expect.fields {
            let found = field(&plan, path).cloned().unwrap_or_default();
            if found != *expected {
                failures.push(format!("{name}: {path} is {found}"));
            }
        }
        let status = serde_json::to_value(plan.status.as_ref()).unwrap();
        for (pointer, expected) in &expect.status {
            let found = status.pointer(pointer).cloned().unwrap_or_default();
            if found != *expected {
                failures.push(format!("{name}: status {pointer} is {found}"));
            }
        }
        let conditions = plan.status.iter().flat_map(|status| &status.conditions);
        let text = |c: &gantry_api::Condition| {
            let optional = |text: &Option<String>| text.clone().unwrap_or_default();
            format!("{} {} {}", c.status, optional(&c.reason), optional(&c.message))
        };
        let found: BTreeMap<String, String> = conditions.map(|c| (c.r#type.clone(), text(c))).collect();
        for (condition, expected) in &expect.conditions {
            let shown = found.get(condition).map_or("absent", String::as_str);
            let words: Vec<&str> = expected.splitn(3, ' ').collect();
            let matches = match words.as_slice() {
                [status, reason, part] => {
                    shown.starts_with(&format!("{status} {reason} ")) && shown.contains(part)
                }
                _ => shown.split(' ').next() == Some(expected),
            };
            if !matches {
                failures.push(format!("{name}: {condition} is {shown}"));
            }
        }
        let events: Vec<String> = plan.events.iter().map(|event| event.reason.to_owned()).collect();
        if events != expect.events {
            failures.push(format!("{name}: events {events:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A second plan with the objects of the first one in place, and its status written, changes nothing.
#[test]
fn plan_is_idempotent() {
    for situation in situations().into_iter().filter(|s| s.expect.deleted.is_empty()) {
        let mut snapshot = situation.snapshot();
        // Twice: a route may change once the objects of the first plan are ready.
        for _ in 0..2 {
            let statuses = situation.observed.clone().unwrap_or_default();
            snapshot.owned = exist(&snapshot, &plan(&snapshot, NOW), &statuses);
        }
        let first = plan(&snapshot, NOW);
        let mut object = situation.object();
        object.status.clone_from(&first.status);
        snapshot.object = Some(Arc::new(object));
        let later = NOW + k8s_openapi::jiff::SignedDuration::from_secs(60);
        let second = plan(&snapshot, later);
        assert_eq!(first.status, second.status, "{}", situation.name);
        for action in &second.actions {
            if let Action::Cluster(ClusterAction::Apply(desired)) = action {
                let live = snapshot.owned.get(desired.kind, &desired.key.name);
                // The replicas of an autoscaled Deployment are left out once it exists.
                let is_same = live.is_some_and(|live| desired.matches(live));
                let is_handed_over = desired.kind == ResourceKind::DEPLOYMENT
                    && desired.body.pointer("/spec/replicas").is_none();
                assert!(is_same || is_handed_over, "{}: {} is applied again", situation.name, desired.key);
            }
        }
    }
}

/// The steps of a rollout follow each other quickly: only a change of `Ready` is written at once.
#[test]
fn progress_is_written_at_intervals() {
    let all = situations();
    let waiting = all.iter().find(|s| s.name == "model with a runtime that the format selects").unwrap();
    let mut snapshot = waiting.snapshot();
    let mut object = waiting.object();
    object.status = plan(&snapshot, NOW).status;
    snapshot.object = Some(Arc::new(object));
    snapshot.owned = exist(&snapshot, &plan(&snapshot, NOW), &BTreeMap::new());
    let failing = json!({
        "metadata": { "name": "p", "labels": { "app": "isvc.iris-predictor" } },
        "status": { "initContainerStatuses": [{ "name": "storage-initializer", "state": { "running": {} } }] },
    });
    snapshot.pods = vec![Arc::new(serde_json::from_value(failing).unwrap())];
    snapshot.status_age = Some(Duration::from_millis(300));
    let soon = plan(&snapshot, NOW);
    assert_eq!((soon.status, soon.requeue_after), (None, Some(Duration::from_millis(700))));
    snapshot.status_age = Some(Duration::from_secs(2));
    assert!(plan(&snapshot, NOW).status.is_some());
    let ready = json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
    let statuses = BTreeMap::from([("Deployment/iris-predictor".to_owned(), ready)]);
    snapshot.owned = exist(&snapshot, &plan(&snapshot, NOW), &statuses);
    snapshot.status_age = Some(Duration::from_millis(300));
    assert!(plan(&snapshot, NOW).status.is_some(), "ready is written at once");
}

/// Complaint 2: a promotion fails no request, so that the route moves before the pods go.
#[test]
fn replaced_predictor_stays_until_the_route_is_in_effect() {
    let all = situations();
    let mut situation = all.into_iter().find(|s| s.name == "ready canary gets its share").unwrap();
    let running = json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
    let accepted = json!({ "parents": [{ "conditions": [{ "type": "Accepted", "status": "True", "observedGeneration": 1 }] }] });
    let statuses: BTreeMap<String, Value> = [
        ("Deployment/iris-predictor", &running),
        ("Deployment/iris-v2-predictor", &running),
        ("HTTPRoute/iris", &accepted),
        ("HTTPRoute/iris-predictor", &accepted),
    ]
    .into_iter()
    .map(|(name, status)| (name.to_owned(), status.clone()))
    .collect();
    situation.observed = Some(statuses.clone());
    let before = live_objects(&plan(&situation.snapshot(), NOW), &statuses);
    // The canary becomes the predictor.
    let canary = situation.spec["canary"][0]["predictor"].clone();
    situation.spec = json!({ "predictor": canary });
    situation.observed = None;
    let mut snapshot = situation.snapshot();
    snapshot.owned = OwnedObjects::new(before.clone(), "u");
    let promoting = plan(&snapshot, NOW);
    let (applied, deleted) = names(&promoting);
    assert!(applied.contains(&"HTTPRoute/iris".to_owned()), "{applied:?}");
    assert_eq!(deleted, Vec::<String>::new(), "the route is not in effect yet");
    let weights = field(&promoting, "HTTPRoute/iris/spec/rules/0/backendRefs").unwrap();
    assert_eq!((weights.as_array().unwrap().len(), &weights[0]["name"]), (1, &json!("iris-v2-predictor")));

    let mut after = live_objects(&promoting, &statuses);
    let is_old = |name: &str| name == "iris-predictor";
    after.extend(before.into_iter().filter(|(kind, object)| {
        let name = object.metadata.name.as_deref().unwrap();
        is_old(name) && *kind != ResourceKind::HTTP_ROUTE
    }));
    snapshot.owned = OwnedObjects::new(after, "u");
    let (_, deleted) = names(&plan(&snapshot, NOW));
    assert_eq!(deleted, ["Service/iris-predictor", "Deployment/iris-predictor"]);
}
