//! In-memory connections to the scheduler, an agent that executes every operation immediately, and a gateway that
//! acknowledges every route.

use futures::future::BoxFuture;
use gantry_operator::schedulers::SchedulerConnector;
use gantry_proto::{
    agent::{
        AgentSubscribeRequest, ModelEventMessage, ReplicaConfig, agent_service_client::AgentServiceClient,
        model_event_message::Event, model_operation_message::Operation,
    },
    gantry::{
        RouteAcknowledgement, RouteEvent, WatchRoutesRequest, route_event, routing_client::RoutingClient,
    },
};
use hyper_util::rt::TokioIo;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::DuplexStream,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

type ConnectionSender = mpsc::Sender<io::Result<DuplexStream>>;

/// Listener of the running scheduler, if any. Its connections end with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SchedulerListener(
    Arc<Mutex<Option<(ConnectionSender, ConnectionSender, CancellationToken)>>>,
);

/// Accepted connections.
pub(crate) type Incoming = mpsc::Receiver<io::Result<DuplexStream>>;

impl SchedulerListener {
    /// Listens for clients and for agents.
    pub(crate) fn open(&self) -> (Incoming, Incoming) {
        let (clients, from_clients) = mpsc::channel(16);
        let (agents, from_agents) = mpsc::channel(16);
        *self.0.lock().unwrap() = Some((clients, agents, CancellationToken::new()));
        (from_clients, from_agents)
    }

    /// Stops listening and closes all connections.
    pub(crate) fn close(&self) {
        if let Some((_, _, end)) = self.0.lock().unwrap().take() {
            end.cancel();
        }
    }

    pub(crate) async fn connect(&self, agents: bool) -> Result<Channel, String> {
        let listener = self.0.lock().unwrap().clone();
        let (clients, agent_sender, end) = listener.ok_or("connection refused")?;
        let sender = if agents { agent_sender } else { clients };
        let (ours, mut near) = tokio::io::duplex(1 << 16);
        let (mut far, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                () = end.cancelled() => {}
            }
        });
        sender.send(Ok(theirs)).await.map_err(|_| "connection refused")?;
        let mut ours = Some(ours);
        let connector = tower::service_fn(move |_| {
            let stream =
                ours.take().map(TokioIo::new).ok_or_else(|| io::Error::other("single-use connector"));
            async move { stream }
        });
        let endpoint = Endpoint::from_static("http://scheduler");
        endpoint.connect_with_connector(connector).await.map_err(|e| e.to_string())
    }
}

impl SchedulerConnector for SchedulerListener {
    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Channel, String>> {
        Box::pin(self.connect(false))
    }

    fn serves_all(&self) -> bool {
        true
    }
}

/// Replica 0 of server `gantry`: reconnects while it should run, and confirms every operation.
pub(crate) async fn agent(
    listener: SchedulerListener,
    mut is_running: watch::Receiver<bool>,
    unloads: Arc<AtomicBool>,
) {
    while is_running.wait_for(|is_running| *is_running).await.is_ok() {
        if let Ok(channel) = listener.connect(true).await {
            tokio::select! {
                _ = serve_orders(AgentServiceClient::new(channel), &unloads) => {}
                _ = is_running.wait_for(|is_running| !is_running) => {}
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn serve_orders(
    mut client: AgentServiceClient<Channel>,
    unloads: &AtomicBool,
) -> Result<(), tonic::Status> {
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
        if !loads && !unloads.load(Ordering::Relaxed) {
            continue;
        }
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

/// The generation of the weights by model, as the gateway has them.
pub(crate) type Generations = Arc<Mutex<BTreeMap<String, u64>>>;

/// A gateway that reconnects while it should run.
pub(crate) async fn gateway(
    listener: SchedulerListener,
    mut is_running: watch::Receiver<bool>,
    generations: Generations,
) {
    while is_running.wait_for(|is_running| *is_running).await.is_ok() {
        if let Ok(channel) = listener.connect(false).await {
            tokio::select! {
                _ = acknowledge_routes(RoutingClient::new(channel), &generations) => {}
                _ = is_running.wait_for(|is_running| !is_running) => {}
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn acknowledge_routes(
    mut client: RoutingClient<Channel>,
    generations: &Generations,
) -> Result<(), tonic::Status> {
    let request = WatchRoutesRequest { subscriber: "gateway".into() };
    let mut events = client.watch_routes(request).await?.into_inner();
    let mut is_synced = false;
    while let Some(RouteEvent { epoch, state_id, sequence, event }) = events.message().await? {
        match event {
            Some(route_event::Event::Reset(_)) => is_synced = false,
            Some(route_event::Event::Synced(_)) => is_synced = true,
            Some(route_event::Event::Upsert(route)) => {
                generations.lock().unwrap().insert(route.model, route.rollout_generation);
            }
            Some(route_event::Event::UpsertService(route)) => {
                let name = format!("{}/{}", route.namespace, route.name);
                generations.lock().unwrap().insert(name, route.rollout_generation);
            }
            _ => {}
        }
        if is_synced {
            let (applied, drained, subscriber) = (sequence, sequence, "gateway".to_owned());
            let acknowledged =
                RouteAcknowledgement { subscriber, epoch, state_id, applied, drained, ..Default::default() };
            client.acknowledge_routes(acknowledged).await?;
        }
    }
    Ok(())
}
