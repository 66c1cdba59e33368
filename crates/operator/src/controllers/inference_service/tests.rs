//! Situations of `testdata`: a service and what is observed → objects, status and events.

use super::{Credentials, Snapshot, plan::plan, runtime::Runtime, snapshot::RouteScheduler};
use crate::{
    cluster::{Custom, InferenceService, Key, OwnedObject, ResourceKind},
    plan::{Action, ClusterAction, Known, Plan, SchedulerAction},
    schedulers::ServiceView,
    workload::OwnedObjects,
};
use gantry_api::kserve::InferenceServiceStatus;
use gantry_core::scheduling::NO_GATEWAY;
use gantry_proto::gantry::ServiceRoute;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// One situation: an ONNX model without an artifact, except for the fields that are set. Texts in `conditions` are `STATUS
/// REASON part of the message`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Situation {
    name: String,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    labels: Value,
    #[serde(default)]
    annotations: Value,
    #[serde(default)]
    spec: Value,
    /// The predictor, an ONNX model if it has no implementation.
    #[serde(default)]
    predictor: Value,
    /// `storageUri` of the predictor's model.
    #[serde(default)]
    uri: Option<String>,
    #[serde(default)]
    status: Option<Value>,
    /// Data of the `ConfigMap`, as text or as the JSON in it; none without it.
    #[serde(default)]
    config: Option<BTreeMap<String, Value>>,
    /// Why a newer `ConfigMap` is not used.
    #[serde(default)]
    config_error: Option<String>,
    #[serde(default)]
    runtimes: Vec<Value>,
    #[serde(default)]
    storage_containers: Vec<Value>,
    /// Accounts by name.
    #[serde(default)]
    accounts: BTreeMap<String, Value>,
    /// Secrets by name.
    #[serde(default)]
    secrets: BTreeMap<String, Value>,
    /// The objects of the first plan exist, with these statuses by `Kind/name`; `specReplicas` is `spec.replicas`.
    #[serde(default)]
    observed: Option<BTreeMap<String, Value>>,
    /// Deployments with one pod that is ready; the objects of the first plan exist.
    #[serde(default)]
    ready: Vec<String>,
    /// Revisions of Services of Knative that are ready; the objects of the first plan exist.
    #[serde(default)]
    revisions: BTreeMap<String, String>,
    /// Objects of an earlier spec, as the plan of this situation.
    #[serde(default)]
    after: Option<Box<Situation>>,
    /// Names of its `TrainedModels`.
    #[serde(default)]
    trained_models: Vec<String>,
    /// Statuses of the predictor's pods by name.
    #[serde(default)]
    pods: BTreeMap<String, Value>,
    /// Further pods of the service.
    #[serde(default)]
    pod_objects: Vec<Value>,
    /// Optional CRDs of the cluster: `gateway`, `istio`, `keda`, `knative`.
    #[serde(default)]
    has: Vec<String>,
    /// The scheduler's state of the route, if there is a scheduler.
    #[serde(default)]
    scheduler: Option<Scheduler>,
    #[serde(default)]
    expect: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Scheduler {
    /// It has no route.
    Empty,
    /// It has another route.
    Outdated,
    Admitted,
    /// Admitted, without requests for some time.
    Idle,
    /// The route of an idle service is admitted.
    Asleep,
    /// The same, and a request waits.
    Waiting,
    NotAdmitted,
    NoGateway,
    /// For 10 seconds.
    Disconnected,
    /// For a minute.
    Unreachable,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Expected {
    /// The route that is sent to the scheduler: hosts, then `component Service weight pod`, `component sleeps`.
    #[serde(default)]
    put: Option<Vec<String>>,
    /// Deployments that are scaled.
    #[serde(default)]
    scaled: BTreeMap<String, u32>,
    /// Schedulers whose route is deleted.
    #[serde(default)]
    unrouted: Vec<String>,
    /// `Kind/name` of all applied objects.
    #[serde(default)]
    applied: Option<Vec<String>>,
    /// `Kind/name` of all deleted objects.
    #[serde(default)]
    deleted: Vec<String>,
    /// Values by `Kind/name/JSON pointer`; `pod/` is the predictor's pod, null is absent.
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

const FILES: [&str; 5] = [
    "inference_services.yaml",
    "components.yaml",
    "bad_inputs.yaml",
    "model_mesh.yaml",
    "scale_to_zero.yaml",
];

fn situations() -> Vec<Situation> {
    let read = |file: &str| {
        std::fs::read_to_string(format!("{}/testdata/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let text = FILES.map(read).join("\n---\n");
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

fn inputs(objects: &BTreeMap<String, Value>) -> BTreeMap<String, Known<Arc<OwnedObject>>> {
    let present = |value: &Value| Known::Present(Arc::new(serde_json::from_value(value.clone()).unwrap()));
    objects.iter().map(|(name, value)| (name.clone(), present(value))).collect()
}

const IMPLEMENTATIONS: [&str; 6] = ["model", "containers", "sklearn", "onnx", "xgboost", "triton"];

impl Situation {
    fn spec(&self) -> Value {
        if !self.spec.is_null() {
            return self.spec.clone();
        }
        let mut predictor = if self.predictor.is_null() { json!({}) } else { self.predictor.clone() };
        if !IMPLEMENTATIONS.iter().any(|name| predictor.get(name).is_some()) {
            predictor["model"] = json!({ "modelFormat": { "name": "onnx" } });
        }
        if let Some(uri) = &self.uri {
            predictor["model"]["storageUri"] = json!(uri);
        }
        json!({ "predictor": predictor })
    }

    fn object(&self) -> Custom<InferenceService> {
        let mut metadata = json!({ "name": "iris", "namespace": "ml", "uid": "u", "generation": 1 });
        if let Value::Object(own) = &self.metadata {
            metadata.as_object_mut().unwrap().extend(own.clone());
        }
        for (field, own) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            if !own.is_null() {
                metadata[field] = own.clone();
            }
        }
        let mut object = json!({ "metadata": metadata, "spec": self.spec() });
        if let Some(status) = &self.status {
            object["status"] = status.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    /// Statuses of the objects of the first plan, if they exist.
    fn statuses(&self) -> Option<BTreeMap<String, Value>> {
        let mut statuses = self.observed.clone().unwrap_or_default();
        let ready =
            json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
        statuses.extend(self.ready.iter().map(|name| (format!("Deployment/{name}"), ready.clone())));
        for (name, revision) in &self.revisions {
            let is_true = |kind: &str| json!({ "type": kind, "status": "True" });
            let status = json!({
                "observedGeneration": 1,
                "conditions": [is_true("Ready"), is_true("RoutesReady"), is_true("ConfigurationsReady")],
                "latestCreatedRevisionName": revision, "latestReadyRevisionName": revision,
                "traffic": [{ "revisionName": revision, "latestRevision": true, "percent": 100 }],
                "url": format!("http://{name}.ml.example.com"),
                "address": { "url": format!("http://{name}.ml.svc.cluster.local") },
            });
            statuses.insert(format!("Service/{name}"), status);
        }
        let exist = self.observed.is_some() || !self.ready.is_empty() || !self.revisions.is_empty();
        exist.then_some(statuses)
    }

    fn snapshot(&self) -> Snapshot {
        let object = self.object();
        let mut runtimes: Vec<Runtime> = self.runtimes.iter().map(runtime).collect();
        if runtimes.is_empty() {
            runtimes.push(runtime(&default_runtime()));
        }
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let config = self.config.as_ref().map_or(Known::Absent, |data| {
            let data: BTreeMap<&String, String> =
                data.iter().map(|(key, value)| (key, text(value))).collect();
            Known::Present(Arc::new(serde_json::from_value(json!({ "data": data })).unwrap()))
        });
        let containers = self.storage_containers.iter().map(|c| serde_json::from_value(c.clone()).unwrap());
        let pods = self.pods.iter().map(|(name, status)| {
            let revision =
                self.status.as_ref().and_then(|s| s.pointer("/components/predictor/latestCreatedRevision"));
            let labels = json!({ "app": "isvc.iris-predictor", "serving.knative.dev/revision": revision.map_or("", |r| r.as_str().unwrap()) });
            let pod = json!({ "metadata": { "name": name, "labels": labels }, "status": status });
            Arc::new(serde_json::from_value(pod).unwrap())
        });
        let pod_object = |pod: &Value| Arc::new(serde_json::from_value(pod.clone()).unwrap());
        let has = |name: &str| self.has.iter().any(|known| known == name);
        let mut snapshot = Snapshot {
            key: object.key(),
            object: Some(Arc::new(object)),
            config,
            config_error: self.config_error.clone(),
            config_namespace: "ops".into(),
            credentials: Credentials {
                accounts: inputs(&self.accounts),
                secrets: inputs(&self.secrets),
                failure: None,
            },
            runtimes,
            storage_containers: containers.collect(),
            image: "gantry:1".into(),
            owned: OwnedObjects::default(),
            autoscalers: Vec::new(),
            trained_models: self.trained_models.clone(),
            pods: pods.chain(self.pod_objects.iter().map(pod_object)).collect(),
            has_http_routes: has("gateway"),
            served: [
                ("istio", ResourceKind::VIRTUAL_SERVICE),
                ("keda", ResourceKind::SCALED_OBJECT),
                ("knative", ResourceKind::KNATIVE_SERVICE),
            ]
            .into_iter()
            .filter_map(|(name, kind)| has(name).then_some(kind))
            .collect(),
            scheduler: None,
            routed_by: Vec::new(),
            policy: None,
            rollout: None,
            failures: Vec::new(),
            status_age: None,
        };
        if let Some(before) = &self.after {
            let earlier = before.snapshot();
            let statuses = before.statuses().unwrap_or_default();
            snapshot.owned = exist(&earlier, &plan(&earlier, NOW), &statuses);
        }
        if let Some(statuses) = self.statuses() {
            snapshot.owned = exist(&snapshot, &plan(&snapshot, NOW), &statuses);
        }
        if let Some(state) = self.scheduler {
            state.observed_in(&mut snapshot);
        }
        snapshot
    }
}

impl Scheduler {
    fn observed_in(self, snapshot: &mut Snapshot) {
        let scheduler = |service| RouteScheduler {
            namespace: "ops".into(),
            service,
            unreachable_for: match self {
                Self::Disconnected => Some(Duration::from_secs(10)),
                Self::Unreachable => Some(Duration::from_mins(1)),
                _ => None,
            },
            last_request: None,
        };
        snapshot.scheduler = Some(scheduler(Known::Absent));
        let mut route = put(&plan(snapshot, NOW)).cloned().unwrap_or_default();
        if matches!(self, Self::Asleep | Self::Waiting) {
            let view = ServiceView { idle: true, ..ServiceView::default() };
            snapshot.scheduler = Some(scheduler(Known::Present(view)));
            route = put(&plan(snapshot, NOW)).cloned().unwrap_or_default();
        }
        let (waiting, idle) = (self == Self::Waiting, matches!(self, Self::Idle | Self::Asleep));
        let view = |admitted, reason: &str| {
            Known::Present(ServiceView { route, admitted, reason: reason.into(), waiting, idle })
        };
        let service = match self {
            Self::Empty => Known::Absent,
            Self::Outdated => Known::Present(ServiceView { admitted: true, ..ServiceView::default() }),
            Self::Admitted | Self::Idle | Self::Asleep | Self::Waiting => view(true, ""),
            Self::NotAdmitted => view(false, "a gateway has not acknowledged the route"),
            Self::NoGateway => view(false, NO_GATEWAY),
            Self::Disconnected | Self::Unreachable => Known::Unknown("connection refused".into()),
        };
        if matches!(service, Known::Present(_)) {
            snapshot.routed_by = vec![("ops".into(), None)];
        }
        snapshot.scheduler = Some(scheduler(service));
    }
}

fn put(plan: &Plan<InferenceServiceStatus>) -> Option<&ServiceRoute> {
    plan.actions.iter().find_map(|action| match action {
        Action::Scheduler(SchedulerAction::PutService { route, .. }) => Some(&**route),
        _ => None,
    })
}

fn described(route: &ServiceRoute) -> Vec<String> {
    let mut lines = route.hosts.clone();
    lines.extend(
        Some(&route.predict_path).filter(|path| !path.is_empty()).map(|path| format!("predict {path}")),
    );
    lines.extend(route.models.iter().map(|model| format!("model {model}")));
    lines.extend(route.idle_timeout_ms.map(|timeout| format!("idle after {timeout} ms")));
    for component in &route.components {
        let role = component.role().as_str_name().to_lowercase();
        lines.extend(component.sleeps.then(|| format!("{role} sleeps")));
        for backend in &component.backends {
            let pod = |p: &gantry_proto::gantry::PodEndpoint| {
                format!(" {}={}:{}/{}", p.name, p.host, p.http_port, p.grpc_port)
            };
            let pods: String = backend.pods.iter().map(pod).collect();
            lines.push(format!("{role} {} {}{pods}", backend.name, backend.weight));
        }
    }
    lines
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
            if let Some(replicas) = status.get("specReplicas") {
                object["spec"]["replicas"] = replicas.clone();
            }
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
            Action::Scheduler(_)
            | Action::Cluster(ClusterAction::HandOverReplicas(_) | ClusterAction::ScaleWorkload(_)) => {}
            other @ Action::Cluster(_) => panic!("unexpected action {other:?}"),
        }
    }
    (applied, deleted)
}

fn field<'a>(plan: &'a Plan<InferenceServiceStatus>, path: &str) -> Option<&'a Value> {
    let path = &path.replacen(
        "pod/",
        "Deployment/iris-predictor/spec/template/spec/",
        usize::from(path.starts_with("pod/")),
    );
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
        let route = put(&plan).map(described);
        if route != expect.put {
            failures.push(format!("{name}: put {route:?}"));
        }
        let scaled = plan.actions.iter().filter_map(|action| match action {
            Action::Cluster(ClusterAction::ScaleWorkload(part)) => {
                let replicas = part.body.pointer("/spec/replicas").unwrap().as_u64().unwrap();
                Some((part.key.name.clone(), u32::try_from(replicas).unwrap()))
            }
            _ => None,
        });
        let scaled: BTreeMap<String, u32> = scaled.collect();
        if scaled != expect.scaled {
            failures.push(format!("{name}: scaled {scaled:?}"));
        }
        let unrouted = plan.actions.iter().filter_map(|action| match action {
            Action::Scheduler(SchedulerAction::DeleteService { scheduler, .. }) => Some(scheduler.clone()),
            _ => None,
        });
        let unrouted: Vec<String> = unrouted.collect();
        if unrouted != expect.unrouted {
            failures.push(format!("{name}: unrouted {unrouted:?}"));
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
    assert!(situations().len() >= 120);
}

/// Every complaint of the list in `inference_services.yaml` has its rows, or its test.
#[test]
fn every_complaint_has_a_row_or_a_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let list = std::fs::read_to_string(format!("{root}/crates/operator/testdata/{}", FILES[0])).unwrap();
    let names: Vec<String> = situations().into_iter().map(|situation| situation.name).collect();
    let mut complaints = std::collections::BTreeSet::new();
    for line in list.lines().filter_map(|line| line.strip_prefix("# complaint ")) {
        let (number, place) = line.split_once(": ").unwrap();
        complaints.insert(number.parse::<usize>().unwrap());
        if place.ends_with("rows") {
            assert!(names.iter().any(|name| name.starts_with(&format!("complaint {number}:"))), "{line}");
        } else {
            let (file, test) = place.split_once(' ').unwrap();
            let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
            assert!(text.contains(&format!("fn {test}()")), "{line}");
        }
    }
    assert_eq!(complaints, (1..=25).collect());
    let is_listed = |name: &String| {
        let number = name.strip_prefix("complaint ").and_then(|rest| rest.split_once(':')?.0.parse().ok());
        number.is_none_or(|number: usize| complaints.contains(&number))
    };
    assert!(names.iter().all(is_listed));
}

/// A second plan with the objects of the first one in place, and its status written, changes nothing.
#[test]
fn plan_is_idempotent() {
    for situation in situations().into_iter().filter(|s| s.expect.deleted.is_empty() && s.after.is_none()) {
        let mut snapshot = situation.snapshot();
        let mut object = situation.object();
        let mut statuses = situation.statuses().unwrap_or_default();
        // Twice: a route may change once the objects of the first plan are ready, and traffic once its status is written.
        for _ in 0..2 {
            let planned = plan(&snapshot, NOW);
            if !names(&planned).0.is_empty() {
                for (name, status) in &mut statuses {
                    let is_set = name.starts_with("Deployment/")
                        && field(&planned, &format!("{name}/spec/replicas")).is_some();
                    status.as_object_mut().filter(|_| is_set).map(|status| status.remove("specReplicas"));
                }
                snapshot.owned = exist(&snapshot, &planned, &statuses);
            }
            object.status = planned.status.or(object.status);
            snapshot.object = Some(Arc::new(object.clone()));
        }
        let first = plan(&snapshot, NOW);
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
    situation.ready = Vec::new();
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

/// Pods without their credentials would fail: nothing is deployed or changed before they are read.
#[test]
fn unread_credentials_change_nothing() {
    let all = situations();
    let situation = all.iter().find(|s| s.name == "ready when all pods run the latest spec").unwrap();
    let mut snapshot = situation.snapshot();
    let unknown = || Known::Unknown("ServiceAccount ml/default is not read yet".to_owned());
    let accounts = BTreeMap::from([("default".to_owned(), unknown())]);
    snapshot.credentials = Credentials { accounts, ..Credentials::default() };
    let waiting = plan(&snapshot, NOW);
    assert!(waiting.actions.is_empty() && waiting.status.is_none() && waiting.requeue_after.is_some());
    snapshot.credentials.failure = Some("Secret ml/minio cannot be read: forbidden".into());
    let failing = plan(&snapshot, NOW);
    assert!(failing.actions.is_empty() && failing.requeue_after.is_some());
    let conditions = failing.status.unwrap().conditions;
    assert!(
        conditions.iter().any(|c| c.reason.as_deref() == Some("CredentialsUnreadable")),
        "{conditions:?}"
    );
    // What runs keeps its status.
    let mut object = situation.object();
    object.status = Some(InferenceServiceStatus { observed_generation: Some(1), ..Default::default() });
    snapshot.object = Some(Arc::new(object));
    assert!(plan(&snapshot, NOW).status.is_none());
}

/// `canaryTrafficPercent`: the previous spec stays, and the latest one gets its share once it has a ready pod.
#[test]
fn latest_spec_gets_its_share_beside_the_previous_one() {
    let all = situations();
    let mut situation = all.into_iter().find(|s| s.name == "admitted route of Gantry's gateway").unwrap();
    let spec = |uri: &str, percent: Option<i32>| {
        let mut predictor = json!({ "model": { "modelFormat": { "name": "onnx" }, "storageUri": uri } });
        if let Some(percent) = percent {
            predictor["canaryTrafficPercent"] = json!(percent);
        }
        json!({ "predictor": predictor })
    };
    let running = json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
    let ready = |name: &str| BTreeMap::from([(format!("Deployment/{name}"), running.clone())]);
    let backends = |plan: &Plan<InferenceServiceStatus>| {
        let backends = put(plan).map(|route| route.components[0].backends.clone()).unwrap_or_default();
        backends.into_iter().map(|b| format!("{} {}", b.name, b.weight)).collect::<Vec<_>>()
    };
    let mut live = Live::new();
    let mut step = |live: &mut Live,
                    spec: Value,
                    generation: i64,
                    before: Option<&Plan<InferenceServiceStatus>>,
                    statuses: &BTreeMap<String, Value>,
                    scheduler: Scheduler| {
        situation.spec = spec;
        situation.metadata = json!({ "generation": generation });
        situation.status = before.map(|plan| serde_json::to_value(&plan.status).unwrap());
        (situation.scheduler, situation.observed) = (None, None);
        let mut snapshot = situation.snapshot();
        snapshot.owned = OwnedObjects::new(live.clone(), "u");
        scheduler.observed_in(&mut snapshot);
        let plan = plan(&snapshot, NOW);
        let (_, deleted) = names(&plan);
        for (kind, object) in live_objects(&plan, statuses) {
            let is_same = |(k, o): &(ResourceKind, Arc<OwnedObject>)| {
                *k == kind && o.metadata.name == object.metadata.name
            };
            match live.iter_mut().find(|known| is_same(known)) {
                // Objects are applied with every plan; the writer skips those that are up to date.
                Some((_, known)) if known.applied() == object.applied() => {}
                Some((_, known)) => *known = object,
                None => live.push((kind, object)),
            }
        }
        live.retain(|(kind, o)| !deleted.contains(&format!("{kind}/{}", o.metadata.name.as_ref().unwrap())));
        plan
    };
    let none = BTreeMap::new();
    step(&mut live, spec("s3://m/1", Some(20)), 1, None, &ready("iris-predictor"), Scheduler::Empty);
    let first = step(&mut live, spec("s3://m/1", Some(20)), 1, None, &none, Scheduler::Empty);
    assert_eq!(names(&first).0, ["Service/iris-predictor", "Deployment/iris-predictor"]);
    assert_eq!(backends(&first), ["iris-predictor 100"]);

    let started = step(&mut live, spec("s3://m/2", Some(20)), 2, Some(&first), &none, Scheduler::Empty);
    assert_eq!(names(&started).0, ["Service/iris-predictor-canary", "Deployment/iris-predictor-canary"]);
    assert_eq!(backends(&started), ["iris-predictor 100"], "it has no ready pod");
    let traffic = |plan: &Plan<InferenceServiceStatus>| {
        let targets = &plan.status.as_ref().unwrap().components["predictor"].traffic;
        let text = |t: &gantry_api::kserve::TrafficTarget| {
            format!("{} {}", t.revision_name.as_deref().unwrap(), t.percent.unwrap())
        };
        targets.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(traffic(&started), ["iris-predictor-00001 100"]);

    for (kind, object) in &mut live {
        if *kind == ResourceKind::DEPLOYMENT {
            let mut ready = (**object).clone();
            ready.data["status"] = running.clone();
            *object = Arc::new(ready);
        }
    }
    let split = step(&mut live, spec("s3://m/2", Some(20)), 2, Some(&started), &none, Scheduler::Empty);
    assert_eq!(backends(&split), ["iris-predictor 80", "iris-predictor-canary 20"]);
    assert_eq!(traffic(&split), ["iris-predictor-00002 20", "iris-predictor-00001 80"]);
    assert_eq!(names(&split), names(&started), "the previous spec is left alone");

    // Rolled back: the previous spec is the one that the Deployment has.
    let mut back = live.clone();
    let rolled_back = step(&mut back, spec("s3://m/1", None), 3, Some(&split), &none, Scheduler::Admitted);
    assert_eq!(names(&rolled_back).1, ["Service/iris-predictor-canary", "Deployment/iris-predictor-canary"]);

    let promoted =
        step(&mut live, spec("s3://m/2", None), 3, Some(&split), &ready("iris-predictor"), Scheduler::Empty);
    assert_eq!(names(&promoted), names(&first), "the canary stays until the route is in effect");
    let done = step(&mut live, spec("s3://m/2", None), 3, Some(&promoted), &none, Scheduler::Admitted);
    assert_eq!(names(&done).1, ["Service/iris-predictor-canary", "Deployment/iris-predictor-canary"]);
    assert_eq!(traffic(&done), ["iris-predictor-00003 100"]);
}
