//! Starts the scheduler: state from the store, the engine, two gRPC listeners.

use crate::{
    convert,
    engine::{self, Handle, Message},
    service::{Agents, Gateways, Scheduler},
};
use gantry_core::scheduling::{Policy, ServerRecord, State};
use gantry_proto::{
    agent::agent_service_server::AgentServiceServer,
    gantry::{StoredServer, routing_server::RoutingServer},
    scheduler::scheduler_server::SchedulerServer,
};
use gantry_store::{Store, StoreError, Table};
use prost::Message as _;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

/// How often the scheduler looks for gateways that do not follow.
const TICK: Duration = Duration::from_secs(1);
/// Pings that tell a dead peer from a quiet one.
const KEEPALIVE: Duration = Duration::from_mins(1);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the scheduler needs to start.
#[derive(Debug)]
pub struct Config {
    /// Where clients connect; port 0 for any free one.
    pub clients: SocketAddr,
    /// Where agents connect; port 0 for any free one.
    pub agents: SocketAddr,
    /// What is kept.
    pub store: Store,
}

/// Why the scheduler did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port is taken, or may not be used.
    #[error("{what} cannot listen on {address}: {source}; choose another with {flag}, 0 for any free one")]
    Listen {
        /// Who wanted to listen.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record in the store cannot be understood.
    #[error("the record of {table} {key} in the store cannot be read: {reason}")]
    Record {
        /// Which table it is in.
        table: &'static str,
        /// Its key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// A thread could not be started, or gRPC not be set up.
    #[error("the scheduler cannot start: {0}")]
    Other(String),
}

/// A scheduler that runs. It stops when `stop` is called.
#[derive(Debug)]
pub struct Running {
    /// Where clients connect.
    pub clients: SocketAddr,
    /// Where agents connect.
    pub agents: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    /// Stops taking calls, ends the streams and waits until all is written.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // A stream whose reader does not go away is cut off.
        let _ = tokio::time::timeout(Duration::from_secs(2), all).await;
        self.tasks.shutdown().await;
    }
}

/// Starts the scheduler.
pub async fn start(config: Config) -> Result<Running, StartError> {
    let state = restore(&config.store)?;
    let clients = listen("the scheduler", config.clients, "--scheduler-port").await?;
    let agents = listen("the scheduler's agent service", config.agents, "--agent-port").await?;
    let other = |e: &dyn std::fmt::Display| StartError::Other(e.to_string());
    let clients_at = clients.local_addr().map_err(|e| other(&e))?;
    let agents_at = agents.local_addr().map_err(|e| other(&e))?;
    let engine = engine::start(config.store, state).map_err(|e| other(&e))?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(gantry_proto::DESCRIPTORS)
            .build_v1()
    };
    let (health_reporter, health) = tonic_health::server::health_reporter();
    health_reporter.set_serving::<SchedulerServer<Scheduler>>().await;
    let client_services = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(SchedulerServer::new(Scheduler { engine: engine.clone() }))
        .add_service(RoutingServer::new(Gateways { engine: engine.clone() }))
        .add_service(health.clone())
        .add_service(reflection().map_err(|e| other(&e))?);
    let agent_services = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(AgentServiceServer::new(Agents { engine: engine.clone() }))
        .add_service(health)
        .add_service(reflection().map_err(|e| other(&e))?);
    let stopped = stop.clone();
    tasks.spawn(async move {
        let incoming = TcpListenerStream::new(clients);
        let served = client_services.serve_with_incoming_shutdown(incoming, stopped.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the scheduler's listener failed");
        }
    });
    let stopped = stop.clone();
    tasks.spawn(async move {
        let incoming = TcpListenerStream::new(agents);
        let served = agent_services.serve_with_incoming_shutdown(incoming, stopped.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the agents' listener failed");
        }
    });
    tasks.spawn(tick(engine, stop.clone()));
    Ok(Running { clients: clients_at, agents: agents_at, stop, tasks })
}

async fn tick(engine: Handle, stop: CancellationToken) {
    let mut interval = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            _ = interval.tick() => if !engine.send(Message::Tick).await { return },
            () = stop.cancelled() => return,
        }
    }
}

async fn listen(
    what: &'static str,
    address: SocketAddr,
    flag: &'static str,
) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { what, address, flag, source })
}

/// The state as it was stored.
fn restore(store: &Store) -> Result<State, StartError> {
    let mut models = Vec::new();
    for (key, bytes) in store.read(Table::Models)? {
        match convert::restored(&bytes) {
            Ok(model) => models.push(model),
            Err(error) => return Err(StartError::Record { table: "model", key, reason: error.to_string() }),
        }
    }
    let mut servers = Vec::new();
    for (key, bytes) in store.read(Table::Servers)? {
        let broken = |reason: String| StartError::Record { table: "server", key: key.clone(), reason };
        let announced = StoredServer::decode(&*bytes)
            .map_err(|e| broken(e.to_string()))?
            .announced
            .ok_or_else(|| broken("it is empty".into()))?;
        let expected = convert::expectation(&announced).map_err(|e| broken(e.to_string()))?;
        let namespace = announced.kubernetes_meta.map(|k| k.namespace);
        servers.push(ServerRecord {
            name: Arc::from(announced.name),
            expected: Some(expected),
            shared: announced.shared,
            namespace,
            manager: None,
            replicas: Vec::new(),
        });
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(State::restore(
        Policy::default(),
        models,
        servers,
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
    ))
}
