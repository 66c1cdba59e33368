//! A scheduler over TCP, with simulated clients, agents and gateways.

use gantry_proto::{
    agent::{
        AgentDrainRequest, AgentSubscribeRequest, ModelEventMessage, ModelOperationMessage, ReplicaConfig,
        agent_service_client::AgentServiceClient, model_event_message::Event,
        model_operation_message::Operation,
    },
    gantry::{
        Route, RouteAcknowledgement, RouteEvent, WatchRoutesRequest, control_client::ControlClient,
        route_event, routing_client::RoutingClient,
    },
    scheduler::{
        self as pb, LoadModelRequest, ModelReference, ModelStatusRequest, ModelStatusResponse,
        ModelSubscriptionRequest, UnloadModelRequest, model_status::ModelState,
        scheduler_client::SchedulerClient,
    },
};
use gantry_scheduler::{Config, Running, start};
use gantry_store::Store;
use std::{path::Path, time::Duration};
use tonic::{Request, Streaming, metadata::MetadataValue, transport::Channel};

pub(crate) type Client = SchedulerClient<Channel>;

pub(crate) async fn scheduler(dir: &Path) -> Running {
    serve(Config::new(Store::open(dir).unwrap())).await
}

pub(crate) async fn serve(config: Config) -> Running {
    let any = "127.0.0.1:0".parse().unwrap();
    start(config, any, any).await.unwrap()
}

pub(crate) async fn client(running: &Running) -> Client {
    SchedulerClient::connect(format!("http://{}", running.clients)).await.unwrap()
}

pub(crate) async fn control(running: &Running) -> ControlClient<Channel> {
    ControlClient::connect(format!("http://{}", running.clients)).await.unwrap()
}

pub(crate) fn model(name: &str, uri: &str) -> LoadModelRequest {
    let meta = pb::MetaData { name: name.into(), ..Default::default() };
    let spec = pb::ModelSpec { uri: uri.into(), requirements: vec!["onnx".into()], ..Default::default() };
    LoadModelRequest {
        model: Some(pb::Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() }),
    }
}

pub(crate) fn with_kubernetes_meta(mut request: LoadModelRequest, generation: i64) -> LoadModelRequest {
    let meta = request.model.as_mut().unwrap().meta.as_mut().unwrap();
    meta.kubernetes_meta = Some(pb::KubernetesMeta { namespace: "ml".into(), generation });
    request
}

pub(crate) fn unload(name: &str) -> UnloadModelRequest {
    UnloadModelRequest {
        model: Some(ModelReference { name: name.into(), version: None }),
        kubernetes_meta: None,
    }
}

pub(crate) fn status_of(name: &str) -> ModelStatusRequest {
    ModelStatusRequest {
        model: Some(ModelReference { name: name.into(), version: None }),
        all_versions: true,
        ..Default::default()
    }
}

/// A request with an owner.
pub(crate) fn by<T>(manager: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("gantry-manager", MetadataValue::try_from(manager).unwrap());
    request
}

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens within 20 s")
}

pub(crate) async fn all<T>(response: tonic::Response<Streaming<T>>) -> Vec<T> {
    let mut stream = response.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = within(stream.message()).await.unwrap() {
        messages.push(message);
    }
    messages
}

pub(crate) async fn status(client: &mut Client, name: &str) -> ModelStatusResponse {
    let mut statuses = all(client.model_status(status_of(name)).await.unwrap()).await;
    assert_eq!(statuses.len(), 1);
    statuses.remove(0)
}

pub(crate) async fn until(
    stream: &mut Streaming<ModelStatusResponse>,
    name: &str,
    wanted: ModelState,
) -> pb::ModelVersionStatus {
    loop {
        let status = within(stream.message()).await.unwrap().expect("the subscription is open");
        let version = status.versions[0].clone();
        if status.model_name == name && version.state.as_ref().unwrap().state() == wanted {
            return version;
        }
    }
}

pub(crate) async fn subscribe(client: &mut Client) -> Streaming<ModelStatusResponse> {
    client.subscribe_model_status(ModelSubscriptionRequest::default()).await.unwrap().into_inner()
}

pub(crate) struct Agent {
    pub(crate) client: AgentServiceClient<Channel>,
    pub(crate) orders: Streaming<ModelOperationMessage>,
    pub(crate) replica: u32,
    /// Subscription ID assigned by the scheduler.
    pub(crate) subscription: String,
}

pub(crate) fn subscribe_request(replica: u32, loaded: &[(&str, u32)]) -> AgentSubscribeRequest {
    AgentSubscribeRequest {
        server_name: "builtin".into(),
        shared: true,
        replica_idx: replica,
        replica_config: Some(ReplicaConfig {
            inference_svc: "127.0.0.1".into(),
            inference_http_port: 8080,
            inference_grpc_port: 9500,
            memory_bytes: 1 << 30,
            capabilities: vec!["onnx".into()],
            over_commit_percentage: 0,
        }),
        loaded_models: loaded
            .iter()
            .map(|(name, version)| gantry_proto::agent::ModelVersion {
                model: model(name, "/a").model,
                version: *version,
            })
            .collect(),
        available_memory_bytes: 1 << 30,
    }
}

impl Agent {
    pub(crate) async fn join(running: &Running) -> Self {
        Self::join_as(running, 0, &[]).await
    }

    pub(crate) async fn join_as(running: &Running, replica: u32, loaded: &[(&str, u32)]) -> Self {
        let mut client = AgentServiceClient::connect(format!("http://{}", running.agents)).await.unwrap();
        let response = client.subscribe(subscribe_request(replica, loaded)).await.unwrap();
        let subscription =
            response.metadata().get("gantry-subscription").unwrap().to_str().unwrap().to_owned();
        Self { client, orders: response.into_inner(), replica, subscription }
    }

    pub(crate) async fn order(&mut self) -> (String, u32, Operation) {
        let order = within(self.orders.message()).await.unwrap().unwrap();
        let operation = order.operation();
        let version = order.model_version.unwrap();
        (version.model.unwrap().meta.unwrap().name, version.version, operation)
    }

    pub(crate) fn report(&self, name: &str, version: u32, event: Event, message: &str) -> ModelEventMessage {
        ModelEventMessage {
            server_name: "builtin".into(),
            replica_idx: self.replica,
            model_name: name.into(),
            model_version: version,
            event: event as i32,
            message: message.into(),
            available_memory_bytes: 1 << 30,
            runtime_info: None,
        }
    }

    /// Executes the next order and reports the result.
    pub(crate) async fn execute(&mut self, fails: Option<&str>) -> (String, u32, Operation) {
        let (name, version, operation) = self.order().await;
        let event = match (operation, fails) {
            (Operation::LoadModel, None) => Event::Loaded,
            (Operation::LoadModel, Some(_)) => Event::LoadFailed,
            _ => Event::Unloaded,
        };
        let report = self.report(&name, version, event, fails.unwrap_or_default());
        self.client.agent_event(report).await.unwrap();
        (name, version, operation)
    }

    pub(crate) fn drain(&self) -> AgentDrainRequest {
        AgentDrainRequest { server_name: "builtin".into(), replica_idx: self.replica }
    }
}

pub(crate) fn pipeline(name: &str, steps: &[&str]) -> pb::LoadPipelineRequest {
    let step = |name: &&str| pb::PipelineStep { name: (*name).into(), ..Default::default() };
    let steps = steps.iter().map(step).collect();
    pb::LoadPipelineRequest {
        pipeline: Some(pb::Pipeline { name: name.into(), steps, ..Default::default() }),
    }
}

pub(crate) fn unload_pipeline(name: &str) -> pb::UnloadPipelineRequest {
    pb::UnloadPipelineRequest { name: name.into() }
}

pub(crate) fn experiment(name: &str, candidates: &[&str]) -> pb::StartExperimentRequest {
    let candidate = |name: &&str| pb::ExperimentCandidate { name: (*name).into(), weight: 50 };
    let experiment = pb::Experiment {
        name: name.into(),
        default: candidates.first().map(|name| (*name).into()),
        candidates: candidates.iter().map(candidate).collect(),
        ..Default::default()
    };
    pb::StartExperimentRequest { experiment: Some(experiment) }
}

/// All versions of a pipeline.
pub(crate) async fn pipeline_status(client: &mut Client, name: &str) -> pb::PipelineStatusResponse {
    let request =
        pb::PipelineStatusRequest { name: Some(name.into()), all_versions: true, ..Default::default() };
    let mut statuses = all(client.pipeline_status(request).await.unwrap()).await;
    assert_eq!(statuses.len(), 1);
    statuses.remove(0)
}

pub(crate) async fn experiment_status(client: &mut Client, name: &str) -> pb::ExperimentStatusResponse {
    let request = pb::ExperimentStatusRequest { name: Some(name.into()), ..Default::default() };
    let mut statuses = all(client.experiment_status(request).await.unwrap()).await;
    assert_eq!(statuses.len(), 1);
    statuses.remove(0)
}

/// Loads models and waits until they are available.
pub(crate) async fn serve_models(client: &mut Client, agent: &mut Agent, names: &[&str]) {
    let mut statuses = subscribe(client).await;
    for name in names {
        client.load_model(model(name, "/a")).await.unwrap();
        agent.execute(None).await;
        until(&mut statuses, name, ModelState::ModelAvailable).await;
    }
}

pub(crate) struct Gateway {
    pub(crate) client: RoutingClient<Channel>,
    events: Streaming<RouteEvent>,
}

impl Gateway {
    pub(crate) async fn watch(running: &Running) -> Self {
        let mut client = RoutingClient::connect(format!("http://{}", running.clients)).await.unwrap();
        let events =
            client.watch_routes(WatchRoutesRequest { subscriber: "g".into() }).await.unwrap().into_inner();
        Self { client, events }
    }

    /// Joins and reads the current routes.
    pub(crate) async fn join(running: &Running) -> (Self, Vec<Route>) {
        let mut gateway = Self::watch(running).await;
        assert!(matches!(gateway.next().await.event, Some(route_event::Event::Reset(_))));
        let mut routes = Vec::new();
        loop {
            match gateway.next().await.event {
                Some(route_event::Event::Upsert(route)) => routes.push(route),
                Some(route_event::Event::Synced(_)) => return (gateway, routes),
                other => panic!("{other:?} comes not before Synced"),
            }
        }
    }

    /// Joins, reads and acknowledges the current routes.
    pub(crate) async fn sync(running: &Running) -> (Self, Vec<route_event::Event>) {
        let mut gateway = Self::watch(running).await;
        let mut events = Vec::new();
        loop {
            let event = gateway.next().await;
            gateway.acknowledge(event.epoch, event.sequence, event.sequence).await;
            match event.event.unwrap() {
                route_event::Event::Reset(_) => {}
                route_event::Event::Synced(_) => return (gateway, events),
                event => events.push(event),
            }
        }
    }

    /// Acknowledges the next change.
    pub(crate) async fn apply(&mut self) -> route_event::Event {
        let event = self.next().await;
        self.acknowledge(event.epoch, event.sequence, event.sequence).await;
        event.event.unwrap()
    }

    pub(crate) async fn next(&mut self) -> RouteEvent {
        within(self.events.message()).await.unwrap().expect("the stream is open")
    }

    pub(crate) async fn acknowledge(&mut self, epoch: u64, applied: u64, drained: u64) {
        let subscriber = "g".into();
        self.client
            .acknowledge_routes(RouteAcknowledgement {
                subscriber,
                epoch,
                applied,
                drained,
                ..Default::default()
            })
            .await
            .unwrap();
    }
}
