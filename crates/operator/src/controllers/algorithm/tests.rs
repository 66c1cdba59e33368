//! Situations of `testdata`: a spec, and steps of its environment → objects, status and events.

use super::{MetricsApi, Snapshot, plan::plan};
use crate::{
    cluster::{Algorithm, Custom, Key, OwnedObject, ResourceKind},
    controllers::inference_service::RouteScheduler,
    evidence::{Measurement, Observation, RevisionValues},
    plan::{Action, ClusterAction, Known, SchedulerAction},
    schedulers::ServiceView,
    workload::{ApplyFailure, FailureCause, OwnedObjects},
};
use gantry_api::AlgorithmStatus;
use gantry_core::rollout::{Evidence, ObservationId, Stats, Window};
use gantry_proto::gantry::{ServiceBackend, ServiceRoute};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Passes until a plan must not change anything.
const MAX_PASSES: usize = 30;

/// One situation: revision `reco:1` with three replicas and a canary weight of 20, except for the fields that are set.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Situation {
    name: String,
    #[serde(default)]
    spec: Value,
    /// Whether the cluster has `HTTPRoutes`.
    #[serde(default)]
    has_http_routes: bool,
    /// Who serves external metrics: `gantry`, `keda`, `unavailable`, `unknown` or `missing`; not needed by default.
    #[serde(default)]
    metrics_api: String,
    /// Whether there is a scheduler with gateways.
    #[serde(default)]
    has_gateways: bool,
    /// Whether it has a route of this name to an `InferenceService`.
    #[serde(default)]
    is_name_taken: bool,
    /// After the first plans.
    #[serde(default)]
    steps: Vec<Step>,
    expect: Expected,
}

/// What happens, in this order; plans are applied after each.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Step {
    /// Merged over the spec.
    spec: Value,
    /// As of the situation, from now on.
    metrics_api: Option<String>,
    annotations: Value,
    /// Objects that are deleted by hand, as `Kind/name`.
    delete: Vec<String>,
    /// Replicas that an autoscaler sets.
    scale: BTreeMap<String, u32>,
    /// Deployments that lose all their ready pods.
    broken: Vec<String>,
    /// Deployments that are not rolled out.
    stuck: Vec<String>,
    /// Objects whose apply is rejected from now on.
    reject: Vec<String>,
    /// The scheduler cannot be reached.
    unreachable: bool,
    /// Gateways do not confirm routes.
    unconfirmed: bool,
    /// Requests, success rate and latency of both revisions; the step is one interval for each repetition.
    evidence: Option<Measured>,
    no_data: bool,
    failing: Option<String>,
    /// Seconds that pass.
    wait: u64,
    /// Repetitions of evidence and waiting; default 1.
    times: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Measured {
    stable: Vec<f64>,
    canary: Vec<f64>,
    drift: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Expected {
    phase: String,
    /// All objects, as `Kind/name`; digits of revisions are `1`, `2`, … by image.
    objects: Option<Vec<String>>,
    /// Values by `Kind/name/JSON pointer`; null is absent. The scheduler has `Route/reco`.
    fields: BTreeMap<String, Value>,
    /// `STATUS REASON part of the message`.
    conditions: BTreeMap<String, String>,
    /// Values by JSON pointer into the status; null is absent.
    status: BTreeMap<String, Value>,
    /// Reasons of events of the last step.
    events: Vec<String>,
    /// Phases of the last step, in order.
    phases: Vec<String>,
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
struct Cluster {
    object: Value,
    status: Option<AlgorithmStatus>,
    owned: BTreeMap<String, (ResourceKind, Value)>,
    has_http_routes: bool,
    metrics_api: String,
    has_gateways: bool,
    /// What the scheduler has.
    route: Option<ServiceView>,
    unreachable: bool,
    unconfirmed: bool,
    now: Timestamp,
    sequence: u64,
    observation: Option<Arc<Observation>>,
    rejected: Vec<String>,
    failures: Vec<(ApplyFailure, Timestamp)>,
    broken: Vec<String>,
    stuck: Vec<String>,
    events: Vec<String>,
    phases: Vec<String>,
    /// Digits of revisions by image.
    revisions: BTreeMap<String, String>,
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    fields.remove(name);
                } else {
                    merge(fields.entry(name.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) if !patch.is_null() => *target = patch.clone(),
        _ => {}
    }
}

impl Cluster {
    fn new(situation: &Situation) -> Self {
        let mut spec = json!({
            "image": "reco:1", "replicas": 3, "lifecycle": { "canaryWeight": 20 },
            "metrics": { "prometheus": { "address": "http://prometheus:9090" } },
        });
        merge(&mut spec, &situation.spec);
        let metadata = json!({ "name": "reco", "namespace": "ml", "uid": "u", "generation": 1 });
        Self {
            object: json!({ "metadata": metadata, "spec": spec }),
            status: None,
            owned: BTreeMap::new(),
            has_http_routes: situation.has_http_routes,
            metrics_api: situation.metrics_api.clone(),
            has_gateways: situation.has_gateways,
            route: situation.is_name_taken.then(ServiceView::default),
            unreachable: false,
            unconfirmed: false,
            now: Timestamp::constant(1_800_000_000, 0),
            sequence: 0,
            observation: None,
            rejected: Vec::new(),
            failures: Vec::new(),
            broken: Vec::new(),
            stuck: Vec::new(),
            events: Vec::new(),
            phases: Vec::new(),
            revisions: BTreeMap::new(),
        }
    }

    fn custom(&self) -> Custom<Algorithm> {
        let mut custom: Custom<Algorithm> = serde_json::from_value(self.object.clone()).unwrap();
        // As it comes back from the API server.
        let status = self.status.as_ref().map(|status| serde_json::to_value(status).unwrap());
        custom.status = status.map(|status| serde_json::from_value(status).unwrap());
        custom
    }

    fn metrics_api(&self) -> MetricsApi {
        let registered = |service: &str, unavailable: Option<&str>| MetricsApi::Registered {
            service: service.into(),
            is_gantry: service.contains("gantry"),
            unavailable: unavailable.map(str::to_owned),
        };
        match self.metrics_api.as_str() {
            "gantry" => registered("ops/gantry-external-metrics", None),
            "keda" => registered("keda/keda-operator", None),
            "unavailable" => registered("ops/gantry-external-metrics", Some("no response from 10.0.0.1")),
            "unknown" => MetricsApi::Unknown("it is not read yet".into()),
            "missing" => MetricsApi::Missing,
            _ => MetricsApi::NotNeeded,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let owned = self.owned.values().map(|(kind, object)| {
            (*kind, Arc::new(serde_json::from_value::<OwnedObject>(object.clone()).unwrap()))
        });
        let failures = self.failures.iter().map(|(failure, at)| {
            let age = self.now.duration_since(*at).unsigned_abs();
            ApplyFailure { age, ..failure.clone() }
        });
        Snapshot {
            key: Key::new("ml", "reco"),
            object: Some(Arc::new(self.custom())),
            owned: OwnedObjects::new(owned, "u"),
            has_http_routes: self.has_http_routes,
            metrics_api: self.metrics_api(),
            pods: self.pods(),
            scheduler: self.has_gateways.then(|| RouteScheduler {
                namespace: "ops".into(),
                service: match &self.route {
                    _ if self.unreachable => Known::Unknown("connection refused".into()),
                    Some(view) => Known::Present(view.clone()),
                    None => Known::Absent,
                },
                unreachable_for: self.unreachable.then_some(Duration::from_mins(5)),
                last_request: None,
            }),
            routed_by: self.own_route().map(|_| "ops".to_owned()).into_iter().collect(),
            observation: self.observation.clone(),
            failures: failures.collect(),
        }
    }

    /// One pod per replica, ready if its Deployment says so.
    fn pods(&self) -> Vec<Arc<OwnedObject>> {
        let deployments = self.owned.iter().filter(|(name, _)| name.starts_with("Deployment/"));
        let pods = deployments.flat_map(|(name, (_, object))| {
            let ready = object["status"]["readyReplicas"].as_i64().unwrap_or_default();
            (0..object["spec"]["replicas"].as_i64().unwrap()).map(move |index| {
                let is_ready = if index < ready { "True" } else { "False" };
                let pod = json!({
                    "metadata": {
                        "name": format!("{}-{index}", name.trim_start_matches("Deployment/")), "namespace": "ml",
                        "labels": object["spec"]["template"]["metadata"]["labels"],
                    },
                    "status": { "podIP": "10.0.0.1", "conditions": [{ "type": "Ready", "status": is_ready }] },
                });
                Arc::new(serde_json::from_value(pod).unwrap())
            })
        });
        pods.collect()
    }

    fn own_route(&self) -> Option<&ServiceRoute> {
        let route = self.route.as_ref().map(|view| &view.route)?;
        route.algorithm.is_some().then_some(route)
    }

    /// Weights follow a stored state, and go to ready pods only.
    fn put(&mut self, route: ServiceRoute) {
        let backends = &route.components[0].backends;
        let weights: Vec<i32> = backends.iter().map(|b| i32::try_from(b.weight).unwrap()).collect();
        let stored = self.status.as_ref().map_or(0, |status| status.canary_weight);
        assert_eq!(weights.get(1).copied().unwrap_or_default(), stored, "the state is stored first");
        assert_eq!(weights.iter().sum::<i32>(), 100);
        let is_ready = |name: &str| {
            let pods = self.pods();
            let pod = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name)).unwrap();
            pod.data["status"]["conditions"][0]["status"] == "True"
        };
        assert!(backends.iter().flat_map(|b| &b.pods).all(|pod| is_ready(&pod.name)));
        self.route = Some(ServiceView { route, reason: "waiting".into(), ..ServiceView::default() });
    }

    /// What `Route/reco` shows.
    fn shown_route(&self) -> Value {
        let Some(route) = self.own_route() else { return Value::Null };
        let backend = |backend: &ServiceBackend| {
            let pods: Vec<String> = backend
                .pods
                .iter()
                .map(|pod| format!("{} {}:{}", pod.name, pod.host, pod.http_port))
                .collect();
            json!({ "name": backend.name, "weight": backend.weight, "revision": backend.revision, "pods": pods })
        };
        json!({
            "hosts": route.hosts, "isCounted": route.algorithm.unwrap().generation > 0,
            "backends": route.components[0].backends.iter().map(backend).collect::<Vec<_>>(),
        })
    }

    /// One plan; whether it changed anything.
    fn pass(&mut self) -> bool {
        let plan = plan(&self.snapshot(), self.now);
        let mut is_changed = false;
        if plan.status != self.status {
            assert!(plan.status_first || plan.actions.is_empty(), "the state is written before it is used");
            is_changed = true;
            self.events.extend(plan.events.iter().map(|event| event.reason.to_owned()));
            self.status = plan.status;
            let phase = format!("{:?}", self.status.as_ref().unwrap().phase.unwrap());
            if self.phases.last() != Some(&phase) {
                self.phases.push(phase);
            }
        }
        for action in plan.actions {
            match action {
                Action::Cluster(ClusterAction::Apply(desired)) => {
                    let name = format!("{}/{}", desired.kind, desired.key.name);
                    if self.rejected.contains(&name) {
                        let failure = ApplyFailure {
                            kind: desired.kind,
                            key: desired.key.clone(),
                            digest: desired.digest(),
                            live_uid: self.owned.get(&name).map(|_| name.clone()).unwrap_or_default(),
                            cause: FailureCause::Rejected("exceeded quota".into()),
                            age: Duration::ZERO,
                        };
                        self.failures.retain(|(known, _)| known.kind != desired.kind);
                        self.failures.push((failure, self.now));
                        return true;
                    }
                    self.failures.retain(|(known, _)| known.digest != desired.digest());
                    is_changed |= self.apply(&name, &desired);
                }
                Action::Cluster(ClusterAction::Delete(target)) => {
                    is_changed = true;
                    self.owned.remove(&format!("{}/{}", target.kind, target.key.name)).unwrap();
                }
                Action::Cluster(ClusterAction::HandOverReplicas(_)) => {}
                Action::Scheduler(SchedulerAction::PutService { scheduler, route }) => {
                    assert_eq!((scheduler.as_str(), self.unreachable), ("ops", false));
                    is_changed = true;
                    self.put(*route);
                }
                Action::Scheduler(SchedulerAction::DeleteService { .. }) => {
                    is_changed = true;
                    self.route = None;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        is_changed
    }

    fn apply(&mut self, name: &str, desired: &crate::cluster::Desired) -> bool {
        let live = self.owned.get(name).map(|(_, live)| live.clone());
        let parsed = live.clone().map(|live| serde_json::from_value::<OwnedObject>(live).unwrap());
        if parsed.is_some_and(|live| desired.matches(&live)) {
            return false;
        }
        let mut object = desired.manifest();
        let generation = live.as_ref().map_or(0, |live| live["metadata"]["generation"].as_i64().unwrap());
        object["metadata"]["generation"] = (generation + 1).into();
        object["metadata"]["uid"] = name.into();
        object["metadata"]["resourceVersion"] = "1".into();
        if let Some(live) = live {
            object["status"] = live["status"].clone();
            if desired.kind == ResourceKind::DEPLOYMENT && object["spec"]["replicas"].is_null() {
                object["spec"]["replicas"] = live["spec"]["replicas"].clone();
            }
        }
        if desired.kind == ResourceKind::CONFIG_MAP {
            let digits = desired.key.name.rsplit('-').next().unwrap().to_owned();
            let number = (self.revisions.len() + 1).to_string();
            self.revisions.entry(digits).or_insert(number);
        }
        self.owned.insert(name.to_owned(), (desired.kind, object));
        true
    }

    /// What controllers of Kubernetes do: all pods of a Deployment are ready, unless their image is broken.
    fn run_pods(&mut self) -> bool {
        let mut is_changed = false;
        for (name, (_, object)) in self.owned.iter_mut().filter(|(name, _)| name.starts_with("Deployment/")) {
            if self.stuck.contains(name) {
                continue;
            }
            let image = object.pointer("/spec/template/spec/containers/0/image").unwrap().as_str().unwrap();
            let is_broken = image.contains("broken") || self.broken.contains(name);
            let replicas = object["spec"]["replicas"].as_i64().unwrap();
            // Pods of the previous template stay until new ones are ready.
            let kept = if is_broken && !self.broken.contains(name) {
                object["status"]["readyReplicas"].as_i64().unwrap_or_default()
            } else {
                0
            };
            let status = json!({
                "observedGeneration": object["metadata"]["generation"], "replicas": replicas + kept,
                "updatedReplicas": replicas, "readyReplicas": if is_broken { kept } else { replicas },
            });
            is_changed |= object["status"] != status;
            object["status"] = status;
        }
        is_changed
    }

    /// Gateways confirm a route.
    fn run_gateways(&mut self) -> bool {
        let route = self.route.as_mut().filter(|view| !view.admitted && !self.unconfirmed);
        route.is_some_and(|view| {
            view.admitted = true;
            true
        })
    }

    fn settle(&mut self, name: &str) {
        for _ in 0..MAX_PASSES {
            let has_planned = self.pass();
            if !self.run_pods() && !self.run_gateways() && !has_planned {
                return;
            }
        }
        panic!("{name}: does not settle: {:#?}", self.status);
    }

    fn observe(&mut self, step: &Step) {
        let Some(request) = super::evidence_request(&self.custom()) else { return };
        self.sequence += 1;
        let id = ObservationId { epoch: 1, sequence: self.sequence };
        let mut figures = crate::evidence::Figures::default();
        let evidence = if let Some(measured) = &step.evidence {
            let values = |numbers: &[f64], drift: Option<f64>| match numbers {
                [requests, success_rate, rest @ ..] => {
                    let latency_ms = rest.first().copied();
                    RevisionValues { requests: *requests, success_rate: *success_rate, latency_ms, drift }
                        .stats(request.objectives)
                }
                _ => Stats::default(),
            };
            let Measurement { stable, candidate, .. } = Measurement {
                stable: values(&measured.stable, measured.drift),
                candidate: values(&measured.canary, None),
                figures,
            };
            let subject = if measured.canary.is_empty() { &measured.stable } else { &measured.canary };
            figures.requests = subject.first().copied();
            figures.success_rate = subject.get(1).copied();
            figures.latency_ms = subject.get(2).copied();
            Evidence::Window(Box::new(Window { id, generation: request.generation, stable, candidate }))
        } else if let Some(message) = &step.failing {
            Evidence::ProviderFailed { id, message: message.clone() }
        } else {
            Evidence::NoData { id }
        };
        self.observation = Some(Arc::new(Observation { request, at: self.now, evidence, figures }));
    }

    fn step(&mut self, name: &str, step: &Step) {
        (self.events, self.phases) = (Vec::new(), Vec::new());
        if !step.spec.is_null() {
            merge(&mut self.object["spec"], &step.spec);
            let generation = self.object["metadata"]["generation"].as_i64().unwrap();
            self.object["metadata"]["generation"] = (generation + 1).into();
        }
        if !step.annotations.is_null() {
            self.object["metadata"]["annotations"] = step.annotations.clone();
        }
        for deleted in &step.delete {
            assert!(self.owned.remove(&self.resolved(deleted)).is_some(), "{name}: there is no {deleted}");
        }
        for (object, replicas) in &step.scale {
            let (_, object) = self.owned.get_mut(object).unwrap();
            object["spec"]["replicas"] = (*replicas).into();
        }
        self.broken.clone_from(&step.broken);
        self.stuck.clone_from(&step.stuck);
        self.rejected.clone_from(&step.reject);
        (self.unreachable, self.unconfirmed) = (step.unreachable, step.unconfirmed);
        if let Some(metrics_api) = &step.metrics_api {
            self.metrics_api.clone_from(metrics_api);
        }
        let is_observed = step.evidence.is_some() || step.no_data || step.failing.is_some();
        for _ in 0..step.times.unwrap_or(1) {
            if is_observed {
                self.observe(step);
            }
            let seconds = if is_observed { 30 } else { step.wait };
            self.settle(name);
            // Time passes in the steps of the requeue delay.
            let mut left = seconds;
            while left > 0 {
                let part = left.min(30);
                self.now += SignedDuration::from_secs(i64::try_from(part).unwrap());
                left -= part;
                self.settle(name);
            }
        }
    }

    /// A name with the number of a revision instead of its digits, and back.
    fn resolved(&self, name: &str) -> String {
        let number = name.strip_prefix("ConfigMap/reco-config-");
        let digits = number.and_then(|n| self.revisions.iter().find(|(_, known)| *known == n));
        digits.map_or_else(|| name.to_owned(), |(digits, _)| format!("ConfigMap/reco-config-{digits}"))
    }

    fn shown(&self, name: &str) -> String {
        match name.strip_prefix("ConfigMap/reco-config-").and_then(|digits| self.revisions.get(digits)) {
            Some(number) => format!("ConfigMap/reco-config-{number}"),
            None => name.to_owned(),
        }
    }

    /// Digits of revisions in a value are replaced by their number.
    fn numbered(&self, value: &Value) -> Value {
        let text = value.as_str().and_then(|text| {
            let digits = text.get(..8)?;
            self.revisions.get(digits).filter(|_| text.len() == 10)
        });
        text.map_or_else(|| value.clone(), |number| json!(number))
    }
}

#[test]
fn situations_give_their_objects_and_status() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/algorithms.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let situations: Vec<Situation> = text
        .split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).unwrap_or_else(|e| panic!("{e}:\n{document}")))
        .collect();
    assert!(situations.len() >= 25, "{}", situations.len());
    let mut problems = Vec::new();
    for situation in &situations {
        let mut cluster = Cluster::new(situation);
        cluster.settle(&situation.name);
        for step in &situation.steps {
            cluster.step(&situation.name, step);
        }
        // At rest, a plan writes nothing, however often it is made.
        for _ in 0..10 {
            assert!(!cluster.pass(), "{}: a plan changes something at rest", situation.name);
        }
        let found = check(&cluster, &situation.expect);
        problems.extend(found.into_iter().map(|problem| format!("{}: {problem}", situation.name)));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn check(cluster: &Cluster, expected: &Expected) -> Vec<String> {
    let mut problems = Vec::new();
    let mut compare = |what: &str, found: &Value, wanted: &Value| {
        if found != wanted {
            problems.push(format!("{what} is {found}, expected {wanted}"));
        }
    };
    let status = cluster.status.clone().unwrap();
    compare("phase", &json!(status.phase), &json!(expected.phase));
    if let Some(objects) = &expected.objects {
        let mut live: Vec<String> = cluster.owned.keys().map(|name| cluster.shown(name)).collect();
        let mut objects = objects.clone();
        live.sort();
        objects.sort();
        compare("objects", &json!(live), &json!(objects));
    }
    for (path, wanted) in &expected.fields {
        let mut parts = path.splitn(3, '/');
        let name = format!("{}/{}", parts.next().unwrap(), parts.next().unwrap());
        let pointer = format!("/{}", parts.next().unwrap());
        let object = match name.as_str() {
            "Route/reco" => Some(cluster.shown_route()),
            name => cluster.owned.get(&cluster.resolved(name)).map(|(_, object)| object.clone()),
        };
        let found = object.and_then(|object| object.pointer(&pointer).cloned()).unwrap_or_default();
        compare(path, &cluster.numbered(&found), wanted);
    }
    let whole = serde_json::to_value(&status).unwrap();
    for (pointer, wanted) in &expected.status {
        let found = whole.pointer(pointer).cloned().unwrap_or_default();
        compare(pointer, &cluster.numbered(&found), wanted);
    }
    for (name, wanted) in &expected.conditions {
        let condition = status.conditions.iter().find(|condition| condition.r#type == *name);
        let found = condition.map_or_else(String::new, |condition| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            format!("{} {} {}", condition.status, text(&condition.reason), text(&condition.message))
        });
        let mut words = wanted.splitn(3, ' ');
        let start: Vec<&str> = words.by_ref().take(2).collect();
        let is_right =
            found.starts_with(&start.join(" ")) && found.contains(words.next().unwrap_or_default());
        if !is_right {
            problems.push(format!("{name} is {found}, expected {wanted}"));
        }
    }
    for (what, found, wanted) in
        [("events", &cluster.events, &expected.events), ("phases", &cluster.phases, &expected.phases)]
    {
        if !wanted.is_empty() && found != wanted {
            problems.push(format!("{what} are {found:?}, expected {wanted:?}"));
        }
    }
    problems
}
