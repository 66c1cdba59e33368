//! Test harness: a simulated API server, a scheduler with one agent, and an operator that can be killed.

use crate::scheduler::{Generations, SchedulerListener, agent, gateway};
use gantry_kube_sim::{Controllers, Registry, Server};
use gantry_operator::{
    Clock, Election, Health, Metrics, Operator, RunError, Settings, cluster::WriteFence,
    evidence::EvidenceProvider,
};
use gantry_proto::{
    gantry::{
        DemandReport, ListPoliciesRequest, ModelDemand, ModelTraffic, ServiceState, SteerRolloutRequest,
        TrafficReport, VersionTraffic, WatchServicesRequest, rollouts_client::RolloutsClient,
        routing_client::RoutingClient, service_event::Event, services_client::ServicesClient,
        steer_rollout_request::Action,
    },
    scheduler::{self as pb, scheduler_client::SchedulerClient},
};
use gantry_scheduler::{Config, build, serve};
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
use tokio::time::Instant;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

pub(crate) const NAMESPACE: &str = "ml";
/// Namespace of the operator and its configurations.
pub(crate) const CONFIG_NAMESPACE: &str = "seldon-mesh";
/// Actor name of the operator in the trace.
pub(crate) const OPERATOR: &str = "operator";
/// Time without writes until the cluster counts as settled.
const QUIET_PERIOD: Duration = Duration::from_secs(90);
/// More than any scenario needs: a request loop would stop virtual time.
const MAX_REQUESTS: u64 = 600;
/// More than 1,000 objects of one kind need.
const MANY_REQUESTS: u64 = 10_000;

/// Objects by kind and name, without values that differ between runs.
pub(crate) type ClusterState = BTreeMap<String, Value>;
/// Creations and deletions per object.
pub(crate) type ObjectCounts = BTreeMap<String, (u64, u64)>;

/// Settings with every kind.
pub(crate) fn settings() -> Settings {
    Settings { inference_services: true, ..Settings::default() }
}

/// The scheduler's wall clock follows the paused time.
#[derive(Debug)]
struct PausedClock(Instant);

impl gantry_scheduler::Clock for PausedClock {
    fn now(&self) -> u64 {
        1_700_000_000_000 + u64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

pub(crate) struct Harness {
    pub(crate) kube: Server,
    listener: SchedulerListener,
    disk: Disk,
    scheduler: Mutex<Option<JoinSet<()>>>,
    agent: watch::Sender<bool>,
    gateway: watch::Sender<bool>,
    generations: Generations,
    started: Instant,
    /// Whether the agent confirms unload orders.
    unloads: Arc<AtomicBool>,
    operator: Arc<Mutex<Option<JoinHandle<()>>>>,
    controllers: Mutex<Option<JoinHandle<()>>>,
    has_exceeded_limit: Arc<AtomicBool>,
    evidence: Evidence,
}

/// The source of evidence for Algorithms; operators reconcile them only with one.
type Evidence = Arc<Mutex<Option<Arc<dyn EvidenceProvider>>>>;

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with_limit(MAX_REQUESTS, &gantry_api::resources())
    }

    /// An API server with these CRDs, and without an operator.
    pub(crate) async fn prepared_with_crds(crds: &[gantry_api::Resource]) -> Self {
        let harness = Self::with_limit(MAX_REQUESTS, crds);
        for name in [NAMESPACE, CONFIG_NAMESPACE] {
            harness.create_namespace(name).await;
        }
        harness
    }

    /// With a running operator, for about 1,000 objects.
    pub(crate) async fn started_for_many() -> Self {
        let harness = Self::with_limit(MANY_REQUESTS, &gantry_api::resources());
        harness.create_namespace(NAMESPACE).await;
        harness.create_namespace(CONFIG_NAMESPACE).await;
        harness.start_operator();
        harness
    }

    fn with_limit(requests: u64, crds: &[gantry_api::Resource]) -> Self {
        let mut registry = Registry::built_in();
        for resource in crds {
            registry.add_crd(&gantry_api::crd(resource)).unwrap();
        }
        let kube = Server::new(registry, 7, "2026-01-01T00:00:00Z".parse().unwrap());
        let has_exceeded_limit = Arc::new(AtomicBool::new(false));
        let limit = Arc::clone(&has_exceeded_limit);
        kube.after_attempt(requests, Some(OPERATOR), move || {
            limit.store(true, Ordering::Relaxed);
            panic!("the operator sends requests in a loop");
        });
        let harness = Self {
            kube,
            listener: SchedulerListener::default(),
            disk: Disk::new(),
            scheduler: Mutex::default(),
            agent: watch::Sender::new(true),
            gateway: watch::Sender::new(false),
            generations: Generations::default(),
            started: Instant::now(),
            unloads: Arc::new(AtomicBool::new(true)),
            operator: Arc::default(),
            controllers: Mutex::default(),
            has_exceeded_limit,
            evidence: Arc::default(),
        };
        harness.start_controllers();
        harness.start_scheduler();
        harness
    }

    pub(crate) async fn prepared() -> Self {
        let harness = Self::new();
        for name in [NAMESPACE, CONFIG_NAMESPACE] {
            harness.create_namespace(name).await;
        }
        harness
    }

    pub(crate) async fn create_namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let api: Api<DynamicObject> = Api::all_with(self.user(), &resource("v1", "Namespace", "namespaces"));
        api.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    }

    pub(crate) async fn create_crd(&self, crd: &gantry_api::Resource) {
        let definitions =
            resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
        let api: Api<DynamicObject> = Api::all_with(self.user(), &definitions);
        let crd = serde_json::from_value(gantry_api::crd(crd)).unwrap();
        api.create(&PostParams::default(), &crd).await.unwrap();
    }

    /// With a running operator.
    pub(crate) async fn started() -> Self {
        let harness = Self::prepared().await;
        harness.start_operator();
        harness
    }

    /// Kubernetes controllers: workloads become ready, orphans are garbage-collected.
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

    /// A scheduler on the persisted state, and an agent.
    pub(crate) fn start_scheduler(&self) {
        let store = self.disk.open().unwrap();
        let clock = Arc::new(PausedClock(self.started));
        let mut config = Config { clock, ..Config::new(store) };
        // The time that faults and restarts take must not change the replicas of idle models.
        config.policy.model_autoscaling = false;
        let (scheduler, engine) = build(config).unwrap();
        let (from_clients, from_agents) = self.listener.open();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let routes = scheduler.client_routes().unwrap();
        tasks.spawn(serve("clients", routes, ReceiverStream::new(from_clients), stop.clone()));
        let routes = scheduler.agent_routes().unwrap();
        tasks.spawn(serve("agents", routes, ReceiverStream::new(from_agents), stop));
        tasks.spawn(engine.run());
        tasks.spawn(agent(self.listener.clone(), self.agent.subscribe(), Arc::clone(&self.unloads)));
        let generations = Arc::clone(&self.generations);
        tasks.spawn(gateway(self.listener.clone(), self.gateway.subscribe(), generations));
        *self.scheduler.lock().unwrap() = Some(tasks);
    }

    /// Crashes the scheduler; its persisted state stays.
    pub(crate) fn kill_scheduler(&self) {
        self.listener.close();
        drop(self.scheduler.lock().unwrap().take());
        self.disk.kill();
    }

    /// The next scheduler starts without objects.
    pub(crate) fn lose_scheduler_state(&self) {
        self.disk.wipe();
    }

    pub(crate) fn set_agent(&self, is_running: bool) {
        self.agent.send_replace(is_running);
    }

    /// Whether a gateway is connected; none by default.
    pub(crate) fn set_gateway(&self, is_running: bool) {
        self.gateway.send_replace(is_running);
    }

    /// Whether the agent confirms unload orders.
    pub(crate) fn set_unloads(&self, unloads: bool) {
        self.unloads.store(unloads, Ordering::Relaxed);
    }

    pub(crate) fn start_operator(&self) {
        self.start_operator_with(settings());
    }

    /// Returns its metrics and the state of its watches.
    pub(crate) fn start_operator_with(&self, settings: Settings) -> (Arc<Metrics>, Health) {
        self.start_fenced_operator(settings, WriteFence::always_open())
    }

    pub(crate) fn start_fenced_operator(
        &self,
        settings: Settings,
        fence: WriteFence,
    ) -> (Arc<Metrics>, Health) {
        start_operator(&self.kube, &self.listener, &self.operator, settings, fence, &self.evidence)
    }

    /// With an operator that reconciles Algorithms.
    pub(crate) async fn started_with_evidence(provider: Arc<dyn EvidenceProvider>) -> Self {
        let harness = Self::with_limit(MANY_REQUESTS, &gantry_api::resources());
        *harness.evidence.lock().unwrap() = Some(provider);
        for name in [NAMESPACE, CONFIG_NAMESPACE] {
            harness.create_namespace(name).await;
        }
        harness.start_operator();
        harness
    }

    pub(crate) fn kill_operator(&self) {
        if let Some(task) = self.operator.lock().unwrap().take() {
            task.abort();
        }
    }

    /// An operator that takes part in leader election.
    pub(crate) fn start_candidate(&self, name: &str) -> JoinHandle<Result<(), RunError>> {
        let fence = WriteFence::closed();
        let operator = operator(&self.kube, &self.listener, name, fence.clone(), settings());
        let client = self.kube.client(name, CONFIG_NAMESPACE);
        let metrics = operator.metrics();
        let election =
            Election::new(client, CONFIG_NAMESPACE, name.into(), fence, metrics, clock(&self.kube));
        tokio::spawn(operator.run(Some(election), CancellationToken::new()))
    }

    /// Kills the operator after its nth write, before the response; a new one starts one second later.
    pub(crate) fn crash_after(&self, nth: u64) {
        let (kube, listener, operator) =
            (self.kube.clone(), self.listener.clone(), Arc::clone(&self.operator));
        let evidence = Arc::clone(&self.evidence);
        self.kube.after_write(nth, Some(OPERATOR), move || {
            if let Some(task) = operator.lock().unwrap().take() {
                task.abort();
            }
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let fence = WriteFence::always_open();
                start_operator(&kube, &listener, &operator, settings(), fence, &evidence);
            });
        });
    }

    /// Waits until nothing has been written for a while.
    pub(crate) async fn settle(&self) {
        let mut known = self.kube.with(|state| state.revision());
        for _ in 0..20 {
            tokio::time::sleep(QUIET_PERIOD).await;
            let now = self.kube.with(|state| state.revision());
            if self.has_exceeded_limit.load(Ordering::Relaxed) {
                break;
            }
            if now == known {
                return;
            }
            known = now;
        }
        let trace = self.kube.trace().lines();
        let last = trace[trace.len().saturating_sub(40)..].join("\n");
        panic!("the cluster does not settle:\n{last}");
    }

    pub(crate) fn user(&self) -> Client {
        self.kube.client("user", NAMESPACE)
    }

    fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let found = gantry_api::resources().into_iter().find(|r| r.kind == kind).unwrap();
        let resource = resource(found.api_version, kind, found.plural);
        if found.is_namespaced {
            Api::namespaced_with(self.user(), namespace, &resource)
        } else {
            Api::all_with(self.user(), &resource)
        }
    }

    /// Built-in kinds.
    fn built_in(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = resource(api_version, kind, &format!("{}s", kind.to_lowercase()));
        Api::namespaced_with(self.user(), NAMESPACE, &resource)
    }

    pub(crate) async fn create(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        self.create_with(namespace, kind, json!({ "name": name }), spec).await;
    }

    pub(crate) async fn create_with(&self, namespace: &str, kind: &str, metadata: Value, spec: Value) {
        let api_version = gantry_api::resources().into_iter().find(|r| r.kind == kind).unwrap().api_version;
        let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec });
        let object = serde_json::from_value(object).unwrap();
        self.api(kind, namespace).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Creates an object of a built-in kind in a namespace.
    pub(crate) async fn create_built_in_in(&self, namespace: &str, object: Value) {
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let resource = resource(version, kind, &format!("{}s", kind.to_lowercase()));
        let api: Api<DynamicObject> = Api::namespaced_with(self.user(), namespace, &resource);
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    /// Creates an object of a built-in kind.
    pub(crate) async fn create_built_in(&self, object: Value) {
        let api = self.built_in(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }

    /// Patches it as kubectl edit would.
    pub(crate) async fn patch(&self, api_version: &str, kind: &str, name: &str, patch: Value) {
        let api = self.built_in(api_version, kind);
        let params = PatchParams { field_manager: Some("kubectl-edit".into()), ..PatchParams::default() };
        api.patch(name, &params, &Patch::Merge(&patch)).await.unwrap();
    }

    /// Patches an object of a built-in kind in a namespace.
    pub(crate) async fn patch_in(
        &self,
        namespace: &str,
        api_version: &str,
        kind: &str,
        name: &str,
        patch: Value,
    ) {
        let resource = resource(api_version, kind, &format!("{}s", kind.to_lowercase()));
        let api: Api<DynamicObject> = Api::namespaced_with(self.user(), namespace, &resource);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn patch_status(&self, api_version: &str, kind: &str, name: &str, patch: Value) {
        let api = self.built_in(api_version, kind);
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    /// Scales it as an autoscaler would.
    pub(crate) async fn scale(&self, api_version: &str, kind: &str, name: &str, replicas: u32) {
        let is_built_in = !api_version.starts_with("mlops.seldon.io/");
        let api = if is_built_in { self.built_in(api_version, kind) } else { self.api(kind, NAMESPACE) };
        let patch = json!({ "spec": { "replicas": replicas } });
        api.patch_scale(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn delete_built_in(&self, api_version: &str, kind: &str, name: &str) {
        self.built_in(api_version, kind).delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn change(&self, kind: &str, name: &str, spec: Value) {
        self.change_in(NAMESPACE, kind, name, spec).await;
    }

    pub(crate) async fn change_in(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        self.patch_custom(namespace, kind, name, json!({ "spec": spec })).await;
    }

    pub(crate) async fn patch_custom(&self, namespace: &str, kind: &str, name: &str, patch: Value) {
        let api = self.api(kind, namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn delete(&self, kind: &str, name: &str) {
        self.delete_in(NAMESPACE, kind, name).await;
    }

    pub(crate) async fn delete_in(&self, namespace: &str, kind: &str, name: &str) {
        self.api(kind, namespace).delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn set_finalizers(&self, kind: &str, name: &str, finalizers: &[&str]) {
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

    /// Status and reason of `Ready`, which must describe the latest generation.
    pub(crate) async fn ready(&self, kind: &str, name: &str) -> (String, String) {
        self.ready_in(NAMESPACE, kind, name).await
    }

    pub(crate) async fn ready_in(&self, namespace: &str, kind: &str, name: &str) -> (String, String) {
        let object =
            self.get_in(namespace, kind, name).await.unwrap_or_else(|| panic!("{kind} {name} not found"));
        let status = &object["status"];
        assert_eq!(status["observedGeneration"], object["metadata"]["generation"], "{object:#}");
        let conditions = status["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    /// Status and message of a condition.
    pub(crate) async fn condition(&self, kind: &str, name: &str, condition: &str) -> (String, String) {
        let object = self.get(kind, name).await.unwrap_or_else(|| panic!("{kind} {name} not found"));
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|c| c["type"] == condition).unwrap();
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("message"))
    }

    /// An object by its plural with group.
    pub(crate) fn live(&self, kind: &str, name: &str) -> Option<Value> {
        self.kube.with(|state| state.object(kind, NAMESPACE, name).map(|object| Value::clone(object)))
    }

    pub(crate) fn field(&self, kind: &str, name: &str, pointer: &str) -> Option<Value> {
        self.live(kind, name)?.pointer(pointer).cloned()
    }

    /// All objects, and the desired state of the scheduler.
    pub(crate) async fn cluster_state(&self) -> ClusterState {
        let mut cluster_state = self.objects();
        for (name, uri) in self.scheduler_models().await {
            cluster_state.insert(format!("scheduler's model {name}"), Value::String(uri));
        }
        for (name, expected) in self.scheduler_servers().await {
            cluster_state.insert(format!("scheduler's server {name}"), Value::String(expected));
        }
        for (name, steps) in self.scheduler_pipelines().await {
            cluster_state.insert(format!("scheduler's pipeline {name}"), Value::String(steps));
        }
        for (name, candidates) in self.scheduler_experiments().await {
            cluster_state.insert(format!("scheduler's experiment {name}"), Value::String(candidates));
        }
        for (name, models) in self.scheduler_policies().await {
            cluster_state.insert(format!("scheduler's policy {name}"), Value::String(models));
        }
        for (name, state) in self.scheduler_services().await {
            let route = format!("{:?}, admitted: {}", state.route, state.admitted);
            cluster_state.insert(format!("scheduler's service {name}"), Value::String(route));
        }
        cluster_state
    }

    /// A report of the gateway about a component: whether a request waits for a pod, or was answered.
    pub(crate) async fn report_demand(&self, component: &str, waiting: bool) {
        let mut client = RoutingClient::new(self.listener.connect(false).await.unwrap());
        let demand = ModelDemand {
            model: component.into(),
            in_flight_milli: u64::from(waiting) * 1_000,
            answered: u64::from(!waiting),
            waiting,
        };
        let report = DemandReport { subscriber: "gateway".into(), models: vec![demand] };
        client.report_demand(report).await.unwrap();
    }

    /// A report of the gateway about requests and server errors by version, of a model or of a service by `namespace/name`.
    pub(crate) async fn report_traffic(&self, object: &str, sequence: u64, versions: &[(u32, u64, u64)]) {
        let version = |(version, requests, server_errors): &(u32, u64, u64)| VersionTraffic {
            version: *version,
            requests: *requests,
            server_errors: *server_errors,
            latency: vec![0, 0, *requests],
            ..Default::default()
        };
        let traffic = ModelTraffic {
            generation: self.generations.lock().unwrap()[object],
            versions: versions.iter().map(version).collect(),
            ..Default::default()
        };
        let traffic = if object.contains('/') {
            ModelTraffic { service: object.into(), ..traffic }
        } else {
            ModelTraffic { model: object.into(), ..traffic }
        };
        let report =
            TrafficReport { subscriber: "gateway".into(), sequence, instance: 1, models: vec![traffic] };
        let mut client = RoutingClient::new(self.listener.connect(false).await.unwrap());
        client.report_traffic(report).await.unwrap();
    }

    async fn rollouts_client(&self) -> RolloutsClient<Channel> {
        RolloutsClient::new(self.listener.connect(false).await.unwrap())
    }

    /// As `gantry rollout` does.
    pub(crate) async fn steer(&self, object: &str, action: Action) {
        let request = SteerRolloutRequest { action: action.into(), ..Default::default() };
        let request = if object.contains('/') {
            SteerRolloutRequest { service: object.into(), ..request }
        } else {
            SteerRolloutRequest { model: object.into(), ..request }
        };
        self.rollouts_client().await.steer_rollout(request).await.unwrap();
    }

    /// The scheduler's policies, with models and owner.
    pub(crate) async fn scheduler_policies(&self) -> BTreeMap<String, String> {
        let response = self.rollouts_client().await.list_policies(ListPoliciesRequest {}).await.unwrap();
        let policies = response.into_inner().policies.into_iter();
        policies.map(|p| (p.name, format!("{} for {}", p.models.join(" "), p.manager))).collect()
    }

    pub(crate) async fn services_client(&self) -> ServicesClient<Channel> {
        ServicesClient::new(self.listener.connect(false).await.unwrap())
    }

    /// Services of the scheduler by `namespace/name`.
    pub(crate) async fn scheduler_services(&self) -> BTreeMap<String, ServiceState> {
        let request = WatchServicesRequest { subscriber: "test".into() };
        let mut events = self.services_client().await.watch_services(request).await.unwrap().into_inner();
        let mut services = BTreeMap::new();
        loop {
            match events.message().await.unwrap().unwrap().event.unwrap() {
                Event::Upsert(state) => {
                    let route = state.route.clone().unwrap();
                    services.insert(format!("{}/{}", route.namespace, route.name), state);
                }
                Event::Synced(_) => return services,
                _ => {}
            }
        }
    }

    pub(crate) async fn scheduler_client(&self) -> SchedulerClient<Channel> {
        SchedulerClient::new(self.listener.connect(false).await.unwrap())
    }

    /// The scheduler's models and their URIs.
    pub(crate) async fn scheduler_models(&self) -> BTreeMap<String, String> {
        let request = pb::ModelStatusRequest { subscriber_name: "test".into(), ..Default::default() };
        let mut all = self.scheduler_client().await.model_status(request).await.unwrap().into_inner();
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

    /// The generation of a model in the scheduler.
    pub(crate) async fn generation(&self, model: &str) -> Option<i64> {
        let name = Some(pb::ModelReference { name: model.into(), version: None });
        let request =
            pb::ModelStatusRequest { subscriber_name: "test".into(), model: name, all_versions: false };
        let mut all = self.scheduler_client().await.model_status(request).await.unwrap().into_inner();
        let latest = all.message().await.unwrap()?.versions.into_iter().max_by_key(|v| v.version)?;
        latest.kubernetes_meta.map(|meta| meta.generation)
    }

    /// The scheduler's pipelines, with the steps and the owner of the latest version.
    pub(crate) async fn scheduler_pipelines(&self) -> BTreeMap<String, String> {
        use pb::pipeline_version_state::PipelineStatus;
        let request = pb::PipelineStatusRequest { subscriber_name: "test".into(), ..Default::default() };
        let mut all = self.scheduler_client().await.pipeline_status(request).await.unwrap().into_inner();
        let mut found = BTreeMap::new();
        while let Some(pipeline) = all.message().await.unwrap() {
            let version = |v: &pb::PipelineWithState| v.state.as_ref().map(|state| state.pipeline_version);
            let latest = pipeline.versions.into_iter().max_by_key(version).unwrap();
            let ended = [PipelineStatus::PipelineTerminating, PipelineStatus::PipelineTerminated];
            if !ended.contains(&latest.state.unwrap().status()) {
                let steps: Vec<String> =
                    latest.pipeline.unwrap().steps.into_iter().map(|step| step.name).collect();
                found.insert(pipeline.pipeline_name, format!("{} for {}", steps.join(" "), pipeline.manager));
            }
        }
        found
    }

    /// The scheduler's experiments, with candidates and owner.
    pub(crate) async fn scheduler_experiments(&self) -> BTreeMap<String, String> {
        let request = pb::ExperimentStatusRequest { subscriber_name: "test".into(), ..Default::default() };
        let mut all = self.scheduler_client().await.experiment_status(request).await.unwrap().into_inner();
        let mut found = BTreeMap::new();
        while let Some(experiment) = all.message().await.unwrap() {
            if !experiment.deleted {
                let candidates = experiment.definition.unwrap().candidates.into_iter();
                let shown: Vec<String> = candidates.map(|c| format!("{} {}", c.name, c.weight)).collect();
                let shown = format!("{} for {}", shown.join(", "), experiment.manager);
                found.insert(experiment.experiment_name, shown);
            }
        }
        found
    }

    /// The scheduler's servers with expected replicas and owner.
    pub(crate) async fn scheduler_servers(&self) -> BTreeMap<String, String> {
        let request = pb::ServerStatusRequest { subscriber_name: "test".into(), ..Default::default() };
        let mut all = self.scheduler_client().await.server_status(request).await.unwrap().into_inner();
        let mut found = BTreeMap::new();
        while let Some(server) = all.message().await.unwrap() {
            let shown = format!("{} for {:?}", server.expected_replicas, server.manager);
            found.insert(server.server_name, shown);
        }
        found
    }

    fn objects(&self) -> ClusterState {
        let all = self.kube.with(|state| {
            state.objects().map(|(key, object)| (key.to_string(), Value::clone(object))).collect::<Vec<_>>()
        });
        all.into_iter()
            .filter(|(key, _)| is_compared(key))
            .map(|(key, object)| (key, normalized(object)))
            .collect()
    }

    /// Events with a reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<Value> {
        let all = self.kube.with(|state| {
            let events = state.objects().filter(|(key, _)| key.to_string().starts_with("events."));
            events.map(|(_, event)| Value::clone(event)).collect::<Vec<_>>()
        });
        all.into_iter().filter(|event| event["reason"] == reason).collect()
    }

    /// Creations and deletions per object, except events.
    pub(crate) fn object_counts(&self) -> ObjectCounts {
        let trace = self.kube.trace();
        let all = trace.counts.iter().filter(|(key, _)| is_compared(key));
        all.map(|(k, t)| (k.clone(), (t.created, t.deleted))).collect()
    }

    /// Number of successful writes of the operator.
    pub(crate) fn writes(&self) -> usize {
        self.kube.trace().writes(Some(OPERATOR)).count()
    }

    /// All write requests of the operator, also failed ones.
    pub(crate) fn write_requests(&self) -> Vec<String> {
        let trace = self.kube.trace();
        let write_requests =
            trace.entries.iter().filter(|entry| entry.actor == OPERATOR && entry.verb.writes());
        write_requests.map(ToString::to_string).collect()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.kill_operator();
        self.stop_controllers();
    }
}

/// Events, pods and leases are ignored.
fn is_compared(key: &str) -> bool {
    !key.starts_with("events.") && !key.starts_with("pods ") && !key.contains("leases.")
}

fn clock(kube: &Server) -> Clock {
    let kube = kube.clone();
    Arc::new(move || kube.now())
}

fn operator(
    kube: &Server,
    listener: &SchedulerListener,
    actor: &str,
    fence: WriteFence,
    settings: Settings,
) -> Operator {
    let client = kube.client(actor, CONFIG_NAMESPACE);
    Operator::new(client, settings, Arc::new(listener.clone()), fence, clock(kube))
}

fn start_operator(
    kube: &Server,
    listener: &SchedulerListener,
    slot: &Arc<Mutex<Option<JoinHandle<()>>>>,
    mut settings: Settings,
    fence: WriteFence,
    evidence: &Evidence,
) -> (Arc<Metrics>, Health) {
    let provider = evidence.lock().unwrap().clone();
    settings.algorithms = provider.is_some();
    let mut operator = operator(kube, listener, OPERATOR, fence, settings);
    if let Some(provider) = provider {
        operator = operator.with_evidence_provider(provider);
    }
    let parts = (operator.metrics(), operator.health());
    let task = tokio::spawn(async move {
        let ended = operator.run(None, CancellationToken::new()).await;
        panic!("the operator stopped: {ended:?}");
    });
    *slot.lock().unwrap() = Some(task);
    parts
}

/// The value of a metric with these labels; 0 without one.
pub(crate) fn metric(metrics: &Metrics, name: &str, labels: &str) -> f64 {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(labels));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
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

/// Removes times, versions and UIDs.
fn normalized(mut object: Value) -> Value {
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
                    // Digests of values with UIDs.
                    "gantry.dev/applied",
                    "gantry.dev/config-generation",
                ] {
                    fields.remove(name);
                }
                // Allocated addresses; headless Services have "None".
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
