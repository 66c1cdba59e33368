//! The scheduler without sockets: its state restored, its engine ready to run, its services ready to be served.

use crate::{
    clock::{Clock, SystemClock},
    engine::{self, Engine, Handle},
    metrics,
    liveness::Liveness,
    restore::{self, RecordError},
    service::{Agents, Control, Gateways, Health, Models},
};
use gantry_core::scheduling::Policy;
use gantry_proto::{
    agent::agent_service_server::{self, AgentServiceServer},
    gantry::{
        control_server::{self, ControlServer},
        routing_server::{self, RoutingServer},
    },
    health::health_check_service_server::{self, HealthCheckServiceServer},
    scheduler::scheduler_server::{self, SchedulerServer},
};
use gantry_store::{Store, StoreError};
use prometheus_client::registry::Registry;
use std::{fmt, net::SocketAddr, sync::Arc};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::pb::health_server::{self, HealthServer};

/// The largest message from a client: a plan of ten thousand models is one.
const MAX_CLIENT_MESSAGE: usize = 64 << 20;
/// The largest message from an agent: it joins with the whole definition of everything that it holds.
const MAX_AGENT_MESSAGE: usize = 256 << 20;

/// What the scheduler is made of. `Config { clock, ..Config::new(store) }` changes one part.
#[derive(Debug)]
pub struct Config {
    /// What is kept.
    pub store: Store,
    /// Tells the time of day.
    pub clock: Arc<dyn Clock>,
    /// The numbers that decisions follow.
    pub policy: Policy,
}

impl Config {
    /// A scheduler as people run it.
    pub fn new(store: Store) -> Self {
        Self { store, clock: Arc::new(SystemClock), policy: Policy::default() }
    }
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
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A thread could not be started, or gRPC not be set up.
    #[error("the scheduler cannot start: {0}")]
    Other(String),
}

/// A way to reach the engine: the services, and whether it works. Clones reach the same engine.
#[derive(Clone)]
pub struct Scheduler {
    engine: Handle,
    clock: Arc<dyn Clock>,
    first_syncs: Arc<watch::Sender<u64>>,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("epoch", &self.engine.epoch).finish_non_exhaustive()
    }
}

/// Restores the state and makes the engine. Nothing runs yet, and nothing listens.
///
/// Calls wait until the engine runs: on a thread of its own ([`Engine::on_a_thread`]), or as a future
/// ([`Engine::run`]).
pub fn build(config: Config) -> Result<(Scheduler, Engine), StartError> {
    let restored = restore::load(&config.store, config.policy, config.clock.now())?;
    let clock = config.clock.clone();
    let (engine, running) = engine::new(config, restored);
    Ok((Scheduler { engine, clock, first_syncs: Arc::default() }, running))
}

impl Scheduler {
    /// What clients and gateways call: the scheduler's contract, routing, why and what if, health, reflection.
    pub fn client_routes(&self) -> Result<Routes, StartError> {
        let models = Models { engine: self.engine.clone(), first_syncs: self.first_syncs.clone() };
        let control = Control { engine: self.engine.clone(), clock: self.clock.clone() };
        let gateways = Gateways { engine: self.engine.clone() };
        let models = SchedulerServer::new(models).max_decoding_message_size(MAX_CLIENT_MESSAGE);
        let routes = Routes::new(models)
            .add_service(RoutingServer::new(gateways).max_decoding_message_size(MAX_CLIENT_MESSAGE))
            .add_service(ControlServer::new(control).max_decoding_message_size(MAX_CLIENT_MESSAGE));
        let names =
            [scheduler_server::SERVICE_NAME, routing_server::SERVICE_NAME, control_server::SERVICE_NAME];
        self.common(routes, &names)
    }

    /// What agents call: the agents' contract, health, reflection.
    pub fn agent_routes(&self) -> Result<Routes, StartError> {
        let agents = AgentServiceServer::new(Agents { engine: self.engine.clone() });
        let routes = Routes::new(agents.max_decoding_message_size(MAX_AGENT_MESSAGE));
        self.common(routes, &[agent_service_server::SERVICE_NAME])
    }

    fn common(&self, routes: Routes, names: &[&'static str]) -> Result<Routes, StartError> {
        let descriptors = || {
            let builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(gantry_proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            // Only what is served here is listed, not everything that the contracts describe.
            let everywhere = [health_server::SERVICE_NAME, health_check_service_server::SERVICE_NAME];
            names.iter().chain(&everywhere).fold(builder, |builder, name| builder.with_service_name(*name))
        };
        let other = |e: tonic_reflection::server::Error| StartError::Other(e.to_string());
        let health = Health { engine: self.engine.clone() };
        Ok(routes
            .add_service(HealthServer::new(health.clone()))
            .add_service(HealthCheckServiceServer::new(health))
            .add_service(descriptors().build_v1().map_err(other)?)
            .add_service(descriptors().build_v1alpha().map_err(other)?)
            .prepare())
    }

    /// Whether the one writer takes what it is sent. A probe that is red here is worth a restart.
    pub fn liveness(&self) -> Liveness {
        self.engine.liveness()
    }

    /// Registers what is counted here: names beginning with `gantry_scheduler_` and `gantry_usage_`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        metrics::register(registry, &self.engine);
    }

    /// Counts the starts over this state: the past can be told from the present by it.
    pub const fn epoch(&self) -> u64 {
        self.engine.epoch
    }

    /// Lets the engine end after what it is doing. Calls that wait are answered with an error.
    pub fn stop(&self) {
        self.engine.stop.cancel();
    }
}
