//! The world: an API server, a scheduler with one agent, an operator that can be killed at any moment.

use futures::future::BoxFuture;
use gantry_operator::{Clock, Operator, Settings, cluster::Leadership, schedulers::Reach};
use gantry_proto::agent::{
    AgentSubscribeRequest, ModelEventMessage, ReplicaConfig, agent_service_client::AgentServiceClient,
    model_event_message::Event, model_operation_message::Operation,
};
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use gantry_scheduler::{Config, build, serve};
use gantry_sim::kube::{Controllers, Registry, Server};
use gantry_store::faults::Disk;
use hyper_util::rt::TokioIo;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::DuplexStream,
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

pub(crate) const NAMESPACE: &str = "ml";
/// Where configurations are.
pub(crate) const CONFIGS: &str = "seldon-mesh";
/// The operator's name in the API server's record.
pub(crate) const OPERATOR: &str = "operator";
/// How long nothing must happen for the world to be at rest.
const REST: Duration = Duration::from_secs(90);

type Door = mpsc::Sender<io::Result<DuplexStream>>;

/// The way to the scheduler: whoever runs just now, or nobody. Connections end with whoever they lead to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doors(Arc<Mutex<Option<(Door, Door, CancellationToken)>>>);

impl Doors {
    async fn connect(&self, agents: bool) -> Result<Channel, String> {
        let doors = self.0.lock().unwrap().clone();
        let (clients_door, agents_door, end) = doors.ok_or("nobody listens")?;
        let door = if agents { agents_door } else { clients_door };
        let (ours, mut near) = tokio::io::duplex(1 << 16);
        let (mut far, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                () = end.cancelled() => {}
            }
        });
        door.send(Ok(theirs)).await.map_err(|_| "nobody listens")?;
        let mut ours = Some(ours);
        let connector = tower::service_fn(move |_| {
            let stream = ours.take().map(TokioIo::new).ok_or_else(|| io::Error::other("one connection only"));
            async move { stream }
        });
        let endpoint = Endpoint::from_static("http://scheduler");
        endpoint.connect_with_connector(connector).await.map_err(|e| e.to_string())
    }
}

impl Reach for Doors {
    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Channel, String>> {
        Box::pin(self.connect(false))
    }

    fn serves_all(&self) -> bool {
        true
    }
}

pub(crate) struct World {
    pub(crate) kube: Server,
    doors: Doors,
    disk: Disk,
    scheduler: Mutex<Option<JoinSet<()>>>,
    operator: Arc<Mutex<Option<JoinHandle<()>>>>,
    controllers: JoinHandle<()>,
}

impl World {
    pub(crate) fn new() -> Self {
        #[cfg(feature = "mutants")]
        crate::mutants::choose();
        let mut registry = Registry::built_in();
        for resource in gantry_api::resources() {
            registry.add_crd(&gantry_api::crd(&resource)).unwrap();
        }
        let kube = Server::new(registry, 7, "2026-01-01T00:00:00Z".parse().unwrap());
        let controllers = tokio::spawn({
            let kube = kube.clone();
            async move { kube.run(Controllers::all()).await }
        });
        let world = Self {
            kube,
            doors: Doors::default(),
            disk: Disk::new(),
            scheduler: Mutex::default(),
            operator: Arc::default(),
            controllers,
        };
        world.start_scheduler();
        world
    }

    pub(crate) async fn prepared() -> Self {
        let world = Self::new();
        for name in [NAMESPACE, CONFIGS] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let resource = resource("v1", "Namespace", "namespaces");
            let api: Api<DynamicObject> = Api::all_with(world.user(), &resource);
            api.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
        }
        world
    }

    /// A scheduler over what is on the disk, and an agent that does at once what it is told.
    pub(crate) fn start_scheduler(&self) {
        let store = self.disk.open().unwrap();
        let (scheduler, engine) = build(Config::new(store)).unwrap();
        let (clients, from_clients) = mpsc::channel(16);
        let (agents, from_agents) = mpsc::channel(16);
        let end = CancellationToken::new();
        *self.doors.0.lock().unwrap() = Some((clients, agents, end));
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let routes = scheduler.client_routes().unwrap();
        tasks.spawn(serve("clients", routes, ReceiverStream::new(from_clients), stop.clone()));
        let routes = scheduler.agent_routes().unwrap();
        tasks.spawn(serve("agents", routes, ReceiverStream::new(from_agents), stop));
        tasks.spawn(engine.run());
        tasks.spawn(agent(self.doors.clone()));
        *self.scheduler.lock().unwrap() = Some(tasks);
    }

    /// The scheduler dies; what it wrote stays.
    pub(crate) fn kill_scheduler(&self) {
        if let Some((_, _, end)) = self.doors.0.lock().unwrap().take() {
            end.cancel();
        }
        drop(self.scheduler.lock().unwrap().take());
        self.disk.kill();
    }

    pub(crate) fn start_operator(&self) {
        start_operator(&self.kube, &self.doors, &self.operator);
    }

    pub(crate) fn kill_operator(&self) {
        if let Some(task) = self.operator.lock().unwrap().take() {
            task.abort();
        }
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
                start_operator(&kube, &doors, &operator);
            });
        });
    }

    /// Waits until nothing has been written for a while.
    pub(crate) async fn rest(&self) {
        let mut known = self.kube.with(|state| state.revision());
        for _ in 0..20 {
            tokio::time::sleep(REST).await;
            let now = self.kube.with(|state| state.revision());
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

    pub(crate) async fn create(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        self.api(kind, namespace).create(&PostParams::default(), &object).await.unwrap();
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

    /// Takes an object's finalizers away, as people do who lose patience.
    pub(crate) async fn release(&self, kind: &str, name: &str) {
        let patch = json!({ "metadata": { "finalizers": [] } });
        let api = self.api(kind, NAMESPACE);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    pub(crate) async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let found = self.api(kind, NAMESPACE).get_opt(name).await.unwrap();
        found.map(|o| serde_json::to_value(o).unwrap())
    }

    /// Everything that is there, without what differs from run to run; with it, what the scheduler was asked for.
    pub(crate) async fn picture(&self) -> BTreeMap<String, Value> {
        let mut picture = self.objects();
        for (name, uri) in self.scheduled().await {
            picture.insert(format!("scheduler {name}"), Value::String(uri));
        }
        picture
    }

    /// The models that the scheduler has, and where each comes from.
    pub(crate) async fn scheduled(&self) -> BTreeMap<String, String> {
        let mut client = SchedulerClient::new(self.doors.connect(false).await.unwrap());
        let request = pb::ModelStatusRequest { subscriber_name: "test".into(), ..Default::default() };
        let mut all = client.model_status(request).await.unwrap().into_inner();
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

    fn objects(&self) -> BTreeMap<String, Value> {
        let all = self.kube.with(|state| {
            state.objects().map(|(key, object)| (key.to_string(), Value::clone(object))).collect::<Vec<_>>()
        });
        all.into_iter()
            .filter(|(key, _)| {
                !key.starts_with("events.") && !key.starts_with("pods ") && !key.contains("leases.")
            })
            .map(|(key, object)| (key, plain(object)))
            .collect()
    }

    /// How often each object came and went, events apart.
    pub(crate) fn comings(&self) -> BTreeMap<String, (u64, u64)> {
        let trace = self.kube.trace();
        let counted = |key: &String| {
            !key.starts_with("events.") && !key.starts_with("pods ") && !key.contains("leases.")
        };
        trace
            .tallies
            .iter()
            .filter(|(k, _)| counted(k))
            .map(|(k, t)| (k.clone(), (t.created, t.deleted)))
            .collect()
    }

    /// How many writes the operator made.
    pub(crate) fn writes(&self) -> usize {
        self.kube.trace().writes(Some(OPERATOR)).count()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill_operator();
        self.controllers.abort();
    }
}

fn start_operator(kube: &Server, doors: &Doors, slot: &Arc<Mutex<Option<JoinHandle<()>>>>) {
    let clock: Clock = {
        let kube = kube.clone();
        Arc::new(move || kube.now())
    };
    let operator = Operator::new(
        kube.client(OPERATOR, "seldon-mesh"),
        Settings::default(),
        Arc::new(doors.clone()),
        Leadership::alone(),
        clock,
    );
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
                    "time",
                ] {
                    fields.remove(name);
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

/// Joins as replica 0 of `gantry` again and again, and answers every order.
async fn agent(doors: Doors) {
    loop {
        if let Ok(channel) = doors.connect(true).await {
            let _ = serve_orders(AgentServiceClient::new(channel)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn serve_orders(mut client: AgentServiceClient<Channel>) -> Result<(), tonic::Status> {
    let memory = 1 << 40;
    let request = AgentSubscribeRequest {
        server_name: "gantry".into(),
        shared: true,
        replica_config: Some(ReplicaConfig {
            inference_svc: "127.0.0.1".into(),
            inference_http_port: 9000,
            inference_grpc_port: 9500,
            memory_bytes: memory,
            capabilities: vec!["onnx".into()],
            over_commit_percentage: 0,
        }),
        available_memory_bytes: memory,
        ..Default::default()
    };
    let mut orders = client.subscribe(request).await?.into_inner();
    while let Some(order) = orders.message().await? {
        let loads = order.operation() == Operation::LoadModel;
        let version = order.model_version.unwrap();
        let report = ModelEventMessage {
            server_name: "gantry".into(),
            model_name: version.model.unwrap().meta.unwrap().name,
            model_version: version.version,
            event: if loads { Event::Loaded } else { Event::Unloaded } as i32,
            available_memory_bytes: memory,
            ..Default::default()
        };
        client.agent_event(report).await?;
    }
    Ok(())
}
