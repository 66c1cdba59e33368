//! The scheduler without sockets: its state restored, its engine ready to run, its services ready to be served.

use crate::{
    clock::{Clock, SystemClock},
    engine::{self, Engine, Handle},
    metrics,
    progress::Progress,
    restore::{self, RecordError},
    service::{Agents, Control, Gateways, Health, Models},
};
use gantry_core::scheduling::Policy;
use gantry_proto::{
    agent::agent_service_server::AgentServiceServer,
    gantry::{control_server::ControlServer, routing_server::RoutingServer},
    health::health_check_service_server::HealthCheckServiceServer,
    scheduler::scheduler_server::SchedulerServer,
};
use gantry_store::{Store, StoreError};
use prometheus_client::registry::Registry;
use std::{fmt, net::SocketAddr, sync::Arc};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

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
    let restored = restore::everything(&config.store, config.policy, config.clock.now())?;
    let clock = config.clock.clone();
    let (engine, running) = engine::new(config, restored);
    Ok((Scheduler { engine, clock, first_syncs: Arc::default() }, running))
}

impl Scheduler {
    /// What clients and gateways call: the scheduler's contract, routing, why and what if, health, reflection.
    pub fn client_routes(&self) -> Result<Routes, StartError> {
        let models = Models { engine: self.engine.clone(), first_syncs: self.first_syncs.clone() };
        let control = Control { engine: self.engine.clone(), clock: self.clock.clone() };
        let routes = Routes::new(SchedulerServer::new(models))
            .add_service(RoutingServer::new(Gateways { engine: self.engine.clone() }))
            .add_service(ControlServer::new(control));
        self.common(routes)
    }

    /// What agents call: the agents' contract, health, reflection.
    pub fn agent_routes(&self) -> Result<Routes, StartError> {
        self.common(Routes::new(AgentServiceServer::new(Agents { engine: self.engine.clone() })))
    }

    fn common(&self, routes: Routes) -> Result<Routes, StartError> {
        let descriptors = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(gantry_proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
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
    pub fn progress(&self) -> Progress {
        self.engine.progress()
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
