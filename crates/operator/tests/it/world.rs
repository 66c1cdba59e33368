//! The world: an API server, a scheduler with one agent, an operator that can be killed at any moment.

use crate::scheduler::{Doors, agent};
use gantry_operator::{Clock, Election, Ended, Operator, Settings, cluster::WriteFence};
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use gantry_scheduler::{Config, build, serve};
use gantry_kube_sim::{Controllers, Registry, Server};
use gantry_store::faulty_disk::Disk;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

pub(crate) const NAMESPACE: &str = "ml";
/// Where configurations are.
pub(crate) const CONFIGS: &str = "seldon-mesh";
/// The operator's name in the API server's record.
pub(crate) const OPERATOR: &str = "operator";
/// How long nothing must happen for the world to be at rest.
const REST: Duration = Duration::from_secs(90);
/// More than any day takes: who asks on and on would keep the virtual time from passing.
const MOST_ASKED: u64 = 600;

/// What is there, by kind and name, without what differs from run to run.
pub(crate) type Picture = BTreeMap<String, Value>;
/// How often each object came and went.
pub(crate) type Comings = BTreeMap<String, (u64, u64)>;

pub(crate) struct World {
    pub(crate) kube: Server,
    doors: Doors,
    disk: Disk,
    scheduler: Mutex<Option<JoinSet<()>>>,
    agent: watch::Sender<bool>,
    operator: Arc<Mutex<Option<JoinHandle<()>>>>,
    controllers: Mutex<Option<JoinHandle<()>>>,
    is_restless: Arc<AtomicBool>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::built_in();
        for resource in gantry_api::resources() {
            registry.add_crd(&gantry_api::crd(&resource)).unwrap();
        }
        let kube = Server::new(registry, 7, "2026-01-01T00:00:00Z".parse().unwrap());
        let is_restless = Arc::new(AtomicBool::new(false));
        let restless = Arc::clone(&is_restless);
        kube.after_attempt(MOST_ASKED, Some(OPERATOR), move || {
            restless.store(true, Ordering::Relaxed);
            panic!("the operator asks on and on");
        });
        let world = Self {
            kube,
            doors: Doors::default(),
            disk: Disk::new(),
            scheduler: Mutex::default(),
            agent: watch::Sender::new(true),
            operator: Arc::default(),
            controllers: Mutex::default(),
            is_restless,
        };
        world.start_controllers();
        world.start_scheduler();
        world
    }

    pub(crate) async fn prepared() -> Self {
        let world = Self::new();
        for name in [NAMESPACE, CONFIGS] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let api: Api<DynamicObject> =
                Api::all_with(world.user(), &resource("v1", "Namespace", "namespaces"));
            api.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
        }
        world
    }

    /// The same with an operator at work.
    pub(crate) async fn begun() -> Self {
        let world = Self::prepared().await;
        world.start_operator();
        world
    }

    /// The controllers of Kubernetes itself: workloads become ready, and what nobody owns any more goes.
    pub(crate) fn start_controllers(&self) {
        let kube = self.kube.clone();
        let task = tokio::spawn(async move { kube.run(Controllers::all()).await });
        *self.controllers.lock().unwrap() = Some(task);
    }

    pub(crate) fn stop_controllers(&self) {
        if let Some(task) = self.controllers.lock().unwrap().take() {
            task.abort();
        }
    }

    /// A scheduler over what is on the disk, and an agent that does at once what it is told.
    pub(crate) fn start_scheduler(&self) {
        let store = self.disk.open().unwrap();
        let (scheduler, engine) = build(Config::new(store)).unwrap();
        let (from_clients, from_agents) = self.doors.open();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let routes = scheduler.client_routes().unwrap();
        tasks.spawn(serve("clients", routes, ReceiverStream::new(from_clients), stop.clone()));
        let routes = scheduler.agent_routes().unwrap();
        tasks.spawn(serve("agents", routes, ReceiverStream::new(from_agents), stop));
        tasks.spawn(engine.run());
        tasks.spawn(agent(self.doors.clone(), self.agent.subscribe()));
        *self.scheduler.lock().unwrap() = Some(tasks);
    }

    /// The scheduler dies; what it wrote stays.
    pub(crate) fn kill_scheduler(&self) {
        self.doors.close();
        drop(self.scheduler.lock().unwrap().take());
        self.disk.kill();
    }

    /// Whether the agent is there.
    pub(crate) fn set_agent(&self, is_there: bool) {
        self.agent.send_replace(is_there);
    }

    pub(crate) fn start_operator(&self) {
        start_operator(&self.kube, &self.doors, &self.operator, Settings::default());
    }

    pub(crate) fn start_operator_with(&self, settings: Settings) {
        start_operator(&self.kube, &self.doors, &self.operator, settings);
    }

    pub(crate) fn kill_operator(&self) {
        if let Some(task) = self.operator.lock().unwrap().take() {
            task.abort();
        }
    }

    /// One of several operators, of which one leads.
    pub(crate) fn start_candidate(&self, name: &str) -> JoinHandle<Result<(), Ended>> {
        let fence = WriteFence::closed();
        let operator = operator(&self.kube, &self.doors, name, fence.clone(), Settings::default());
        let client = self.kube.client(name, CONFIGS);
        let metrics = operator.metrics();
        let election = Election::new(client, CONFIGS, name.into(), fence, metrics, clock(&self.kube));
        tokio::spawn(operator.run(Some(election), CancellationToken::new()))
    }

    /// After its nth write from now on, before it hears what came of it, the operator dies; another starts a little later.
    pub(crate) fn crash_after(&self, nth: u64) {
        let (kube, doors, operator) = (self.kube.clone(), self.doors.clone(), Arc::clone(&self.operator));
        self.kube.after_write(nth, Some(OPERATOR), move || {
            if let Some(task) = operator.lock().unwrap().take() {
                task.abort();
            }
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                start_operator(&kube, &doors, &operator, Settings::default());
            });
        });
    }

    /// Waits until nothing has been written for a while.
    pub(crate) async fn rest(&self) {
        let mut known = self.kube.with(|state| state.revision());
        for _ in 0..20 {
            tokio::time::sleep(REST).await;
            let now = self.kube.with(|state| state.revision());
            if self.is_restless.load(Ordering::Relaxed) {
                break;
            }
            if now == known {
                return;
            }
            known = now;
        }
        let trace = self.kube.trace().lines();
        let last = trace[trace.len().saturating_sub(40)..].join("\n");
        panic!("the world does not come to rest:\n{last}");
    }

    pub(crate) fn user(&self) -> Client {
        self.kube.client("user", NAMESPACE)
    }

    fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let found = gantry_api::resources().into_iter().find(|r| r.kind == kind).unwrap();
        let resource = resource("mlops.seldon.io/v1alpha1", kind, found.plural);
        Api::namespaced_with(self.user(), namespace, &resource)
    }

    /// Kubernetes' own kinds in the namespace, by their names in a manifest.
    fn built_in(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = resource(api_version, kind, &format!("{}s", kind.to_lowercase()));
        Api::namespaced_with(self.user(), NAMESPACE, &resource)
    }

    pub(crate) async fn create(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        self.create_with(namespace, kind, json!({ "name": name }), spec).await;
    }

    pub(crate) async fn create_with(&self, namespace: &str, kind: &str, metadata: Value, spec: Value) {
        let object = json!({
            "apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        self.api(kind, namespace).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Makes an object of one of Kubernetes' own kinds in the namespace.
    pub(crate) async fn make(&self, object: Value) {
        let api = self.built_in(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    /// Changes one, as somebody with kubectl would.
    pub(crate) async fn patch(&self, api_version: &str, kind: &str, name: &str, patch: Value) {
        let api = self.built_in(api_version, kind);
        let params = PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
        api.patch(name, &params, &Patch::Merge(&patch)).await.unwrap();
    }

    /// Scales one, as an autoscaler would.
    pub(crate) async fn scale(&self, api_version: &str, kind: &str, name: &str, replicas: u32) {
        let api = self.built_in(api_version, kind);
        let patch = json!({ "spec": { "replicas": replicas } });
        api.patch_scale(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn take_away(&self, api_version: &str, kind: &str, name: &str) {
        self.built_in(api_version, kind).delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn change(&self, kind: &str, name: &str, spec: Value) {
        self.change_in(NAMESPACE, kind, name, spec).await;
    }

    pub(crate) async fn change_in(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        let patch = json!({ "spec": spec });
        let api = self.api(kind, namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn delete(&self, kind: &str, name: &str) {
        self.api(kind, NAMESPACE).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Sets an object's finalizers: none, as people do who lose patience.
    pub(crate) async fn hold(&self, kind: &str, name: &str, finalizers: &[&str]) {
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        let api = self.api(kind, NAMESPACE);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.get_in(NAMESPACE, kind, name).await
    }

    pub(crate) async fn get_in(&self, namespace: &str, kind: &str, name: &str) -> Option<Value> {
        let found = self.api(kind, namespace).get_opt(name).await.unwrap();
        found.map(|o| serde_json::to_value(o).unwrap())
    }

    /// What an object's `Ready` says, and why, if it is about what the object asks for now.
    pub(crate) async fn says(&self, kind: &str, name: &str) -> (String, String) {
        self.says_in(NAMESPACE, kind, name).await
    }

    pub(crate) async fn says_in(&self, namespace: &str, kind: &str, name: &str) -> (String, String) {
        let object =
            self.get_in(namespace, kind, name).await.unwrap_or_else(|| panic!("{kind} {name} is gone"));
        let status = &object["status"];
        assert_eq!(status["observedGeneration"], object["metadata"]["generation"], "{object:#}");
        let conditions = status["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    /// An object of the namespace as it is now, by the plural of its kind with the group.
    pub(crate) fn live(&self, kind: &str, name: &str) -> Option<Value> {
        self.kube.with(|state| state.object(kind, NAMESPACE, name).map(|object| Value::clone(object)))
    }

    /// A field of one; `None` where there is nothing.
    pub(crate) fn field(&self, kind: &str, name: &str, pointer: &str) -> Option<Value> {
        self.live(kind, name)?.pointer(pointer).cloned()
    }

    /// Everything that is there, without what differs from run to run; with it, what the scheduler was asked for.
    pub(crate) async fn picture(&self) -> Picture {
        let mut picture = self.objects();
        for (name, uri) in self.scheduled().await {
            picture.insert(format!("scheduler's model {name}"), Value::String(uri));
        }
        for (name, expected) in self.expected().await {
            picture.insert(format!("scheduler's server {name}"), Value::String(expected));
        }
        picture
    }

    /// A client of the scheduler.
    pub(crate) async fn ask_scheduler(&self) -> SchedulerClient<Channel> {
        SchedulerClient::new(self.doors.connect(false).await.unwrap())
    }

    /// The models that the scheduler has, and where each comes from.
    pub(crate) async fn scheduled(&self) -> BTreeMap<String, String> {
        let request = pb::ModelStatusRequest { subscriber_name: "test".into(), ..Default::default() };
        let mut all = self.ask_scheduler().await.model_status(request).await.unwrap().into_inner();
        let mut found = BTreeMap::new();
        while let Some(model) = all.message().await.unwrap() {
            let latest = model.versions.into_iter().max_by_key(|v| v.version);
            let uri = latest.and_then(|l| l.model_defn).and_then(|d| d.model_spec).map(|s| s.uri);
            if !model.deleted {
                found.insert(model.model_name, uri.unwrap_or_default());
            }
        }
        found
    }

    /// The generation of a model's object that the scheduler was told of.
    pub(crate) async fn generation(&self, model: &str) -> Option<i64> {
        let name = Some(pb::ModelReference { name: model.into(), version: None });
        let request =
            pb::ModelStatusRequest { subscriber_name: "test".into(), model: name, all_versions: false };
        let mut all = self.ask_scheduler().await.model_status(request).await.unwrap().into_inner();
        let latest = all.message().await.unwrap()?.versions.into_iter().max_by_key(|v| v.version)?;
        latest.kubernetes_meta.map(|meta| meta.generation)
    }

    /// The servers that the scheduler has, how many replicas of each it expects, and by whose word.
    pub(crate) async fn expected(&self) -> BTreeMap<String, String> {
        let request = pb::ServerStatusRequest { subscriber_name: "test".into(), ..Default::default() };
        let mut all = self.ask_scheduler().await.server_status(request).await.unwrap().into_inner();
        let mut found = BTreeMap::new();
        while let Some(server) = all.message().await.unwrap() {
            let shown = format!("{} for {:?}", server.expected_replicas, server.manager);
            found.insert(server.server_name, shown);
        }
        found
    }

    fn objects(&self) -> Picture {
        let all = self.kube.with(|state| {
            state.objects().map(|(key, object)| (key.to_string(), Value::clone(object))).collect::<Vec<_>>()
        });
        all.into_iter().filter(|(key, _)| counts(key)).map(|(key, object)| (key, plain(object))).collect()
    }

    /// How often each object came and went, events apart.
    pub(crate) fn comings(&self) -> Comings {
        let trace = self.kube.trace();
        let all = trace.counts.iter().filter(|(key, _)| counts(key));
        all.map(|(k, t)| (k.clone(), (t.created, t.deleted))).collect()
    }

    /// How many writes the operator made.
    pub(crate) fn writes(&self) -> usize {
        self.kube.trace().writes(Some(OPERATOR)).count()
    }

    /// Everything that the operator asked the API server to change, whatever came of it.
    pub(crate) fn asked(&self) -> Vec<String> {
        let trace = self.kube.trace();
        let asked = trace.entries.iter().filter(|entry| entry.actor == OPERATOR && entry.verb.writes());
        asked.map(ToString::to_string).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill_operator();
        self.stop_controllers();
    }
}

/// Events, pods and leases are not looked at.
fn counts(key: &str) -> bool {
    !key.starts_with("events.") && !key.starts_with("pods ") && !key.contains("leases.")
}

fn clock(kube: &Server) -> Clock {
    let kube = kube.clone();
    Arc::new(move || kube.now())
}

fn operator(
    kube: &Server,
    doors: &Doors,
    actor: &str,
    fence: WriteFence,
    settings: Settings,
) -> Operator {
    let client = kube.client(actor, CONFIGS);
    Operator::new(client, settings, Arc::new(doors.clone()), fence, clock(kube))
}

fn start_operator(
    kube: &Server,
    doors: &Doors,
    slot: &Arc<Mutex<Option<JoinHandle<()>>>>,
    settings: Settings,
) {
    let operator = operator(kube, doors, OPERATOR, WriteFence::always_open(), settings);
    let task = tokio::spawn(async move {
        let ended = operator.run(None, CancellationToken::new()).await;
        panic!("the operator ended: {ended:?}");
    });
    *slot.lock().unwrap() = Some(task);
}

fn resource(api_version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: plural.into(),
    }
}

/// Times, versions and identities are another run's own; who owns what is not.
fn plain(mut object: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for name in [
                    "uid",
                    "resourceVersion",
                    "creationTimestamp",
                    "managedFields",
                    "lastTransitionTime",
                    "lastUpdateTime",
                    "time",
                    // Digests of what names identities.
                    "gantry.dev/applied",
                    "gantry.dev/config-generation",
                ] {
                    fields.remove(name);
                }
                // Addresses that the API server gave; one without has "None".
                if fields.get("clusterIP").is_some_and(|address| address != "None") {
                    fields.remove("clusterIP");
                    fields.remove("clusterIPs");
                }
                fields.values_mut().for_each(walk);
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut object);
    object
}
