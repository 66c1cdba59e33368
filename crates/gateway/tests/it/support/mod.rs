//! Test support: a running gateway, fake replicas, a small client.

mod client;
mod keys;
mod local;
mod models;
mod pods;
mod remote;
mod scheduler;
mod tally;

pub(crate) use client::{Answer, Client, Http2, send};
pub(crate) use keys::Keys;
pub(crate) use local::{FakeLocal, LARGE};
pub(crate) use models::{
    FakeModels, Pipelined, Placement, grpc_outputs, grpc_request, outputs, pipeline, pipeline_route, request,
    rows, step,
};
pub(crate) use pods::{FakePod, backend, component, graph, service};
pub(crate) use remote::FakeRemote;
pub(crate) use scheduler::{FakeScheduler, send_event};
pub(crate) use tally::{Figures, Tally, rolled_out};

use gantry_gateway::{Config, Gateway, Routes};
use gantry_proto::gantry::{Endpoint, Reset, Route, RouteEvent, RouteVersion, Synced, route_event::Event};
use prometheus_client::registry::Registry;
use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) routes: Routes,
    pub(crate) metrics: Registry,
    pub(crate) shutdown: CancellationToken,
    pub(crate) serving: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(config: Config, prepare: impl FnOnce(&Gateway)) -> Self {
        let gateway = Gateway::bind(config).unwrap();
        let mut metrics = Registry::default();
        gateway.register_metrics(&mut metrics);
        prepare(&gateway);
        let (address, routes) = (gateway.local_addr(), gateway.routes());
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let serving = tokio::spawn(async move { gateway.serve(stop).await.unwrap() });
        Self { address, routes, metrics, shutdown, serving }
    }

    /// A gateway with an in-process server for the model `iris`.
    pub(crate) fn with_iris(local: &Arc<FakeLocal>) -> Self {
        let running = Self::start(config(), |g| g.register_local("builtin", 0, Arc::clone(local) as _));
        running.route(route("iris", &[(1, 100, &[local_endpoint("builtin", 0)])]));
        running
    }

    pub(crate) fn route(&self, route: Route) -> gantry_gateway::Removed {
        self.routes.apply(event(Event::Upsert(route)))
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// The value of the metric with this line prefix, or zero.
    pub(crate) fn metric(&self, line: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        text.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok()).unwrap_or(0)
    }
}

pub(crate) fn config() -> Config {
    Config { listen: "127.0.0.1:0".parse().unwrap(), workers: 2, ..Config::default() }
}

pub(crate) fn event(event: Event) -> RouteEvent {
    RouteEvent { epoch: 1, event: Some(event), ..Default::default() }
}

pub(crate) fn reset() -> RouteEvent {
    event(Event::Reset(Reset {}))
}

pub(crate) fn synced() -> RouteEvent {
    event(Event::Synced(Synced {}))
}

pub(crate) fn route(model: &str, versions: &[(u32, u32, &[Endpoint])]) -> Route {
    let versions = versions
        .iter()
        .map(|(version, weight, endpoints)| RouteVersion {
            version: *version,
            weight: *weight,
            endpoints: endpoints.to_vec(),
        })
        .collect();
    Route { model: model.into(), versions, ..Route::default() }
}

pub(crate) fn local_endpoint(server: &str, replica: u32) -> Endpoint {
    Endpoint { server: server.into(), replica, ..Default::default() }
}

pub(crate) fn remote_endpoint(server: &str, replica: u32, address: SocketAddr) -> Endpoint {
    let port = u32::from(address.port());
    Endpoint {
        server: server.into(),
        replica,
        host: address.ip().to_string(),
        http_port: port,
        grpc_port: port,
        disconnected: false,
    }
}

/// An address without a listener.
pub(crate) fn unused_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Polls until the condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting)
        .await
        .unwrap_or_else(|_| panic!("timed out waiting for: {what}"));
}
