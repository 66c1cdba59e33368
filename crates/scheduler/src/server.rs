//! Serves the scheduler over TCP or any other stream of connections, such as TLS.

use crate::{
    access::{Guard, Trust},
    engine::Thread,
    scheduler::{Config, Scheduler, StartError, build},
};
use futures::Stream;
use std::{io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{
        Server,
        server::{Connected, TcpIncoming},
    },
};

/// A peer whose node disappeared is noticed within the sum of both.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// As Seldon's scheduler: effectively unlimited.
const MAX_STREAMS: u32 = 1_000_000;
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A started scheduler. Runs until `stop` is called.
#[derive(Debug)]
pub struct Running {
    pub clients: SocketAddr,
    pub agents: SocketAddr,
    scheduler: Scheduler,
    engine: Thread,
    guard: Guard,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Serves clients on additional connections, such as a TLS listener.
    pub fn serve_clients<IO>(
        &mut self,
        trust: Trust,
        incoming: impl Stream<Item = io::Result<IO>> + Send + 'static,
    ) -> Result<(), StartError>
    where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let routes = self.scheduler.client_routes_behind(&self.guard.with_trust(trust))?;
        self.tasks.spawn(serve("clients", routes, incoming, self.stop.clone()));
        Ok(())
    }

    /// Serves agents on additional connections.
    pub fn serve_agents<IO>(
        &mut self,
        trust: Trust,
        incoming: impl Stream<Item = io::Result<IO>> + Send + 'static,
    ) -> Result<(), StartError>
    where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let routes = self.scheduler.agent_routes_behind(&self.guard.with_trust(trust))?;
        self.tasks.spawn(serve("agents", routes, incoming, self.stop.clone()));
        Ok(())
    }

    /// Stops accepting calls, ends the streams and waits until the store is closed. Pending calls fail.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.scheduler.stop();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // Streams with a client that does not disconnect are aborted.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await;
        self.tasks.shutdown().await;
        self.engine.ended().await;
    }
}

/// Serves clients and agents without TLS: every caller has all rights.
pub async fn start(config: Config, clients: SocketAddr, agents: SocketAddr) -> Result<Running, StartError> {
    start_audited(config, Guard::default(), clients, agents).await
}

/// The same with an audit log, and the metrics of a guard.
pub async fn start_audited(
    config: Config,
    guard: Guard,
    clients: SocketAddr,
    agents: SocketAddr,
) -> Result<Running, StartError> {
    let other = |e: io::Error| StartError::Other(e.to_string());
    let client_listener = listen("the scheduler", clients, "--scheduler-port").await?;
    let agent_listener = listen("the scheduler's agent service", agents, "--agent-port").await?;
    let clients = client_listener.local_addr().map_err(other)?;
    let agents = agent_listener.local_addr().map_err(other)?;
    let (scheduler, engine) = build(config)?;
    let engine = engine.spawn_thread().map_err(other)?;
    let stop = CancellationToken::new();
    let mut running = Running { clients, agents, scheduler, engine, guard, stop, tasks: JoinSet::new() };
    running.serve_clients(Trust::Everyone, tcp(client_listener))?;
    running.serve_agents(Trust::Everyone, tcp(agent_listener))?;
    Ok(running)
}

/// TCP connections with `TCP_NODELAY`; Nagle's algorithm would add 40 ms per change.
pub fn tcp(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

pub async fn serve<IO>(
    who: &'static str,
    routes: Routes,
    incoming: impl Stream<Item = io::Result<IO>>,
    stop: CancellationToken,
) where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let served = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, clients = who, "listener failed");
    }
}

async fn listen(
    what: &'static str,
    address: SocketAddr,
    flag: &'static str,
) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { what, address, flag, source })
}
