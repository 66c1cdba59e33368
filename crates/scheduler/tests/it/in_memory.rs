//! A scheduler on one thread, without sockets, with paused time.

use gantry_proto::{
    agent::agent_service_client::AgentServiceClient, gantry::routing_client::RoutingClient,
    scheduler::scheduler_client::SchedulerClient,
};
use gantry_scheduler::{Clock, Config, Engine, Scheduler, build, serve};
use gantry_store::{Store, faulty_disk::Disk};
use hyper_util::rt::TokioIo;
use std::{
    future::{Ready, ready},
    io,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{io::DuplexStream, sync::mpsc, time::Instant};
use tokio_stream::{StreamExt as _, wrappers::UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{
    codegen::{Service, http::Uri},
    service::Routes,
    transport::{Channel, Endpoint},
};

/// Wall clock that follows tokio's paused time.
#[derive(Debug)]
pub(crate) struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> u64 {
        1_800_000_000_000 + u64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

/// Connects by in-memory pipes.
#[derive(Clone)]
struct Pipes(mpsc::UnboundedSender<DuplexStream>);

impl Pipes {
    fn serve(routes: Routes, stop: CancellationToken) -> Self {
        let (ends, incoming) = mpsc::unbounded_channel();
        let incoming = UnboundedReceiverStream::new(incoming).map(Ok);
        tokio::spawn(serve("the test", routes, incoming, stop));
        Self(ends)
    }

    async fn connect(&self) -> Channel {
        Endpoint::from_static("http://pipe").connect_with_connector(self.clone()).await.unwrap()
    }
}

impl Service<Uri> for Pipes {
    type Response = TokioIo<DuplexStream>;
    type Error = io::Error;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let sent = self.0.send(theirs);
        ready(sent.map(|()| TokioIo::new(ours)).map_err(|_| io::ErrorKind::NotConnected.into()))
    }
}

pub(crate) struct InMemoryScheduler {
    pub(crate) inner: Scheduler,
    pub(crate) disk: Disk,
    clients: Pipes,
    agents: Pipes,
    stop: CancellationToken,
}

impl InMemoryScheduler {
    /// The engine is not started.
    pub(crate) fn stopped() -> (Self, Engine) {
        let disk = Disk::new();
        Self::on(&disk, disk.open().unwrap())
    }

    /// Restarts on the same disk.
    pub(crate) fn restarted(disk: &Disk) -> Self {
        let (scheduler, engine) = Self::on(disk, disk.open().unwrap());
        tokio::spawn(engine.run());
        scheduler
    }

    fn on(disk: &Disk, store: Store) -> (Self, Engine) {
        let config = Config { clock: Arc::new(PausedClock(Instant::now())), ..Config::new(store) };
        let (inner, engine) = build(config).unwrap();
        let stop = CancellationToken::new();
        let clients = Pipes::serve(inner.client_routes().unwrap(), stop.clone());
        let agents = Pipes::serve(inner.agent_routes().unwrap(), stop.clone());
        (Self { inner, disk: disk.clone(), clients, agents, stop }, engine)
    }

    pub(crate) fn new() -> Self {
        let (scheduler, engine) = Self::stopped();
        tokio::spawn(engine.run());
        scheduler
    }

    pub(crate) async fn channel(&self) -> Channel {
        self.clients.connect().await
    }

    pub(crate) async fn client(&self) -> SchedulerClient<Channel> {
        SchedulerClient::new(self.channel().await)
    }

    pub(crate) async fn gateway(&self) -> RoutingClient<Channel> {
        RoutingClient::new(self.channel().await)
    }

    pub(crate) async fn agent(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.agents.connect().await)
    }
}

impl Drop for InMemoryScheduler {
    fn drop(&mut self) {
        self.inner.stop();
        self.stop.cancel();
    }
}
