//! The whole scheduler over real gRPC, with an agent and a gateway that the test plays.

use crate::{Config, Running, start};
use gantry_proto::{
    agent::{
        AgentSubscribeRequest, ModelEventMessage, ModelOperationMessage, ReplicaConfig,
        agent_service_client::AgentServiceClient, model_event_message::Event,
        model_operation_message::Operation,
    },
    gantry::{
        RouteAcknowledgement, RouteEvent, WatchRoutesRequest, route_event, routing_client::RoutingClient,
    },
    scheduler::{
        self as pb, LoadModelRequest, ModelReference, ModelStatusRequest, ModelStatusResponse,
        ModelSubscriptionRequest, ServerNotify, ServerNotifyRequest, UnloadModelRequest,
        model_status::ModelState, scheduler_client::SchedulerClient,
    },
};
use gantry_store::Store;
use std::{path::Path, time::Duration};
use tonic::{Code, Streaming, transport::Channel};

async fn scheduler(dir: &Path) -> Running {
    let any = "127.0.0.1:0".parse().unwrap();
    start(Config::new(Store::open(dir).unwrap()), any, any).await.unwrap()
}

async fn client(running: &Running) -> SchedulerClient<Channel> {
    SchedulerClient::connect(format!("http://{}", running.clients)).await.unwrap()
}

fn model(name: &str, uri: &str) -> LoadModelRequest {
    let meta = pb::MetaData { name: name.into(), ..Default::default() };
    let spec = pb::ModelSpec { uri: uri.into(), requirements: vec!["onnx".into()], ..Default::default() };
    LoadModelRequest {
        model: Some(pb::Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() }),
    }
}

fn unload(name: &str) -> UnloadModelRequest {
    UnloadModelRequest {
        model: Some(ModelReference { name: name.into(), version: None }),
        kubernetes_meta: None,
    }
}

/// An agent that the test plays.
struct Agent {
    client: AgentServiceClient<Channel>,
    orders: Streaming<ModelOperationMessage>,
}

impl Agent {
    async fn join(running: &Running) -> Self {
        let mut client = AgentServiceClient::connect(format!("http://{}", running.agents)).await.unwrap();
        let request = AgentSubscribeRequest {
            server_name: "builtin".into(),
            shared: true,
            replica_idx: 0,
            replica_config: Some(ReplicaConfig {
                inference_svc: "127.0.0.1".into(),
                inference_http_port: 8080,
                inference_grpc_port: 9500,
                memory_bytes: 1 << 30,
                capabilities: vec!["onnx".into()],
                over_commit_percentage: 0,
            }),
            loaded_models: vec![],
            available_memory_bytes: 1 << 30,
        };
        let orders = client.subscribe(request).await.unwrap().into_inner();
        Self { client, orders }
    }

    /// Takes the next order and answers it.
    async fn obey(&mut self, fails: Option<&str>) -> (String, u32, Operation) {
        let order = within(self.orders.message()).await.unwrap().unwrap();
        let operation = order.operation();
        let version = order.model_version.unwrap();
        let name = version.model.unwrap().meta.unwrap().name;
        let event = match (operation, fails) {
            (Operation::LoadModel, None) => Event::Loaded,
            (Operation::LoadModel, Some(_)) => Event::LoadFailed,
            _ => Event::Unloaded,
        };
        let report = ModelEventMessage {
            server_name: "builtin".into(),
            replica_idx: 0,
            model_name: name.clone(),
            model_version: version.version,
            event: event as i32,
            message: fails.unwrap_or_default().into(),
            available_memory_bytes: 1 << 30,
            runtime_info: None,
        };
        self.client.agent_event(report).await.unwrap();
        (name, version.version, operation)
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens within 20 s")
}

/// Reads a subscription until a model is in a state.
async fn until(
    stream: &mut Streaming<ModelStatusResponse>,
    name: &str,
    wanted: ModelState,
) -> pb::ModelVersionStatus {
    loop {
        let status = within(stream.message()).await.unwrap().expect("the subscription goes on");
        let version = status.versions[0].clone();
        if status.model_name == name && version.state.as_ref().unwrap().state() == wanted {
            return version;
        }
    }
}

async fn subscribe(client: &mut SchedulerClient<Channel>) -> Streaming<ModelStatusResponse> {
    client.subscribe_model_status(ModelSubscriptionRequest::default()).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_loaded_updated_and_unloaded() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut statuses = subscribe(&mut client).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    let waiting = until(&mut statuses, "iris", ModelState::ScheduleFailed).await;
    assert_eq!(waiting.state.unwrap().reason, "no server has joined yet");
    let mut agent = Agent::join(&running).await;
    assert_eq!(agent.obey(None).await, ("iris".into(), 1, Operation::LoadModel));
    let ready = until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    assert_eq!((ready.version, ready.server_name.as_str()), (1, "builtin"));
    client.load_model(model("iris", "/b")).await.unwrap();
    assert_eq!(agent.obey(None).await, ("iris".into(), 2, Operation::LoadModel));
    assert_eq!(agent.obey(None).await, ("iris".into(), 1, Operation::UnloadModel));
    client.unload_model(unload("iris")).await.unwrap();
    assert_eq!(agent.obey(None).await, ("iris".into(), 2, Operation::UnloadModel));
    until(&mut statuses, "iris", ModelState::ModelTerminated).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut statuses = subscribe(&mut client).await;
    let mut agent = Agent::join(&running).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    agent.obey(Some("/a does not exist")).await;
    let failed = until(&mut statuses, "iris", ModelState::ModelFailed).await;
    assert_eq!(failed.state.unwrap().reason, "builtin-0: /a does not exist");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_met_are_refused_with_the_contract_s_code() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let refused = |result: Result<_, tonic::Status>| {
        let status = result.map(|_: tonic::Response<_>| ()).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        status.message().to_owned()
    };
    for (request, says) in [
        (LoadModelRequest { model: None }, "model is missing"),
        (model("", "/a"), "model name is empty"),
        (model("a.b", "/a"), "contains '.'"),
        (model("../x", "/a"), "contains '.'"),
        (model("m", " "), "modelSpec.uri is empty"),
        (LoadModelRequest { model: Some(pb::Model::default()) }, "model.meta is missing"),
    ] {
        let said = refused(client.load_model(request).await);
        assert!(said.contains(says), "{said}");
    }
    let mut scaled = model("m", "/a");
    scaled.model.as_mut().unwrap().deployment_spec =
        Some(pb::DeploymentSpec { replicas: 1, min_replicas: 3, max_replicas: 2, log_payloads: false });
    assert!(refused(client.load_model(scaled).await).contains("minReplicas 3 is more than maxReplicas 2"));
    let unknown = client.unload_model(unload("nobody")).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message().contains("nobody")), (Code::FailedPrecondition, true));
    let request = ModelStatusRequest {
        model: Some(ModelReference { name: "nobody".into(), version: None }),
        ..Default::default()
    };
    assert_eq!(client.model_status(request).await.unwrap_err().code(), Code::FailedPrecondition);
    let pipelines = client.load_pipeline(pb::LoadPipelineRequest::default()).await.unwrap_err();
    assert_eq!(pipelines.code(), Code::Unimplemented);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut first = client(&running).await;
    first.load_model(model("iris", "/a")).await.unwrap();
    first.load_model(model("iris", "/b")).await.unwrap();
    first.load_model(model("gone", "/c")).await.unwrap();
    first.unload_model(unload("gone")).await.unwrap();
    let server =
        ServerNotify { name: "big".into(), expected_replicas: 3, shared: true, ..Default::default() };
    first.server_notify(ServerNotifyRequest { servers: vec![server], is_first_sync: false }).await.unwrap();
    drop(first);
    running.stop().await;
    let running = scheduler(dir.path()).await;
    let mut agent = Agent::join(&running).await;
    assert_eq!(agent.obey(None).await, ("iris".into(), 2, Operation::LoadModel));
    let mut second = client(&running).await;
    let mut statuses = subscribe(&mut second).await;
    until(&mut statuses, "gone", ModelState::ModelTerminated).await;
    until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    let servers =
        second.server_status(pb::ServerStatusRequest { name: Some("big".into()), ..Default::default() });
    let big = servers.await.unwrap().into_inner().message().await.unwrap().unwrap();
    assert_eq!(big.expected_replicas, 3);
    running.stop().await;
}

/// A gateway that the test plays.
struct Gateway {
    client: RoutingClient<Channel>,
    events: Streaming<RouteEvent>,
}

impl Gateway {
    async fn join(running: &Running) -> Self {
        let mut client = RoutingClient::connect(format!("http://{}", running.clients)).await.unwrap();
        let events =
            client.watch_routes(WatchRoutesRequest { subscriber: "g".into() }).await.unwrap().into_inner();
        let mut gateway = Self { client, events };
        assert!(matches!(gateway.next().await.event, Some(route_event::Event::Reset(_))));
        assert!(matches!(gateway.next().await.event, Some(route_event::Event::Synced(_))));
        gateway
    }

    async fn next(&mut self) -> RouteEvent {
        within(self.events.message()).await.unwrap().expect("the stream goes on")
    }

    async fn acknowledge(&mut self, epoch: u64, applied: u64, drained: u64) {
        let subscriber = "g".into();
        self.client
            .acknowledge_routes(RouteAcknowledgement { subscriber, epoch, applied, drained })
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_waits_for_the_gateway_to_follow_and_to_drain() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut gateway = Gateway::join(&running).await;
    let mut agent = Agent::join(&running).await;
    let mut statuses = subscribe(&mut client).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    agent.obey(None).await;
    let loaded = loop {
        let event = gateway.next().await;
        if let Some(route_event::Event::Upsert(route)) = &event.event
            && !route.versions.is_empty()
        {
            assert_eq!(route.versions[0].endpoints[0].http_port, 8080);
            break event;
        }
    };
    let mut latest = within(statuses.message()).await.unwrap().unwrap();
    while latest.versions[0].model_replica_state.get(&0).is_none_or(|r| r.state != 3) {
        latest = within(statuses.message()).await.unwrap().unwrap();
    }
    assert_eq!(latest.versions[0].state.as_ref().unwrap().state(), ModelState::ModelProgressing);
    gateway.acknowledge(loaded.epoch, loaded.sequence, 0).await;
    until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    client.unload_model(unload("iris")).await.unwrap();
    let deleted = gateway.next().await;
    assert_eq!(deleted.event, Some(route_event::Event::Delete("iris".into())));
    gateway.acknowledge(deleted.epoch, deleted.sequence, loaded.sequence).await;
    until(&mut statuses, "iris", ModelState::ModelTerminating).await;
    gateway.acknowledge(deleted.epoch, deleted.sequence, deleted.sequence).await;
    assert_eq!(agent.obey(None).await.2, Operation::UnloadModel);
    until(&mut statuses, "iris", ModelState::ModelTerminated).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_does_not_read_hurts_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let _silent = subscribe(&mut client).await;
    let loads = (0..2000).map(|i| {
        let mut client = client.clone();
        async move { client.load_model(model(&format!("m{i}"), "/a")).await.unwrap() }
    });
    futures::future::join_all(loads).await;
    let mut statuses = subscribe(&mut client).await;
    until(&mut statuses, "m1999", ModelState::ScheduleFailed).await;
    running.stop().await;
}
