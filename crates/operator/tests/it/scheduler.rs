//! The scheduler's surroundings: the way to it, and an agent that does at once what it is told.

use futures::future::BoxFuture;
use gantry_operator::schedulers::Reach;
use gantry_proto::agent::{
    AgentSubscribeRequest, ModelEventMessage, ReplicaConfig, agent_service_client::AgentServiceClient,
    model_event_message::Event, model_operation_message::Operation,
};
use hyper_util::rt::TokioIo;
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::DuplexStream,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

type Door = mpsc::Sender<io::Result<DuplexStream>>;

/// The way to the scheduler: whoever runs just now, or nobody. Connections end with whoever they lead to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doors(Arc<Mutex<Option<(Door, Door, CancellationToken)>>>);

/// Where those arrive who come through a door.
pub(crate) type Arrivals = mpsc::Receiver<io::Result<DuplexStream>>;

impl Doors {
    /// Opens the doors for clients and for agents.
    pub(crate) fn open(&self) -> (Arrivals, Arrivals) {
        let (clients, from_clients) = mpsc::channel(16);
        let (agents, from_agents) = mpsc::channel(16);
        *self.0.lock().unwrap() = Some((clients, agents, CancellationToken::new()));
        (from_clients, from_agents)
    }

    /// Closes them, behind those who are inside too.
    pub(crate) fn close(&self) {
        if let Some((_, _, end)) = self.0.lock().unwrap().take() {
            end.cancel();
        }
    }

    pub(crate) async fn connect(&self, agents: bool) -> Result<Channel, String> {
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

/// Joins as replica 0 of `gantry` again and again while it is to be there, and answers every order.
pub(crate) async fn agent(doors: Doors, mut is_there: watch::Receiver<bool>) {
    while is_there.wait_for(|is_there| *is_there).await.is_ok() {
        if let Ok(channel) = doors.connect(true).await {
            tokio::select! {
                _ = serve_orders(AgentServiceClient::new(channel)) => {}
                _ = is_there.wait_for(|is_there| !is_there) => {}
            }
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
