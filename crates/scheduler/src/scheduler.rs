//! The scheduler without sockets: restored state, engine and gRPC services.

use crate::{
    access::{Guard, Port, guarded},
    clock::{Clock, SystemClock},
    engine::{self, Engine, Handle},
    liveness::Liveness,
    metrics,
    notices::RolloutNotice,
    restore::{self, RecordError},
    service::{Agents, Control, Gateways, Health, Models, Rollouts, Services},
};
use gantry_core::scheduling::Policy;
use gantry_proto::{
    agent::agent_service_server::{self, AgentServiceServer},
    gantry::{
        control_server::{self, ControlServer},
        rollouts_server::{self, RolloutsServer},
        routing_server::{self, RoutingServer},
        services_server::{self, ServicesServer},
    },
    health::health_check_service_server::{self, HealthCheckServiceServer},
    scheduler::scheduler_server::{self, SchedulerServer},
};
use gantry_store::{Store, StoreError};
use prometheus_client::registry::Registry;
use std::{fmt, net::SocketAddr, sync::Arc};
use tokio::sync::{broadcast, watch};
use tonic::service::Routes;
use tonic_health::pb::health_server::{self, HealthServer};

/// Large enough for a dry run of 10,000 models.
const MAX_CLIENT_MESSAGE: usize = 64 << 20;
/// Agents subscribe with the full definitions of all loaded models.
const MAX_AGENT_MESSAGE: usize = 256 << 20;

/// Services of the client port, of the agent port, and of both; reflection is served besides.
pub(crate) const CLIENT_SERVICES: &[&str] = &[
    scheduler_server::SERVICE_NAME,
    routing_server::SERVICE_NAME,
    services_server::SERVICE_NAME,
    rollouts_server::SERVICE_NAME,
    control_server::SERVICE_NAME,
];
pub(crate) const AGENT_SERVICES: &[&str] = &[agent_service_server::SERVICE_NAME];
pub(crate) const COMMON_SERVICES: &[&str] =
    &[health_server::SERVICE_NAME, health_check_service_server::SERVICE_NAME];

#[derive(Debug)]
pub struct Config {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub policy: Policy,
}

impl Config {
    /// System clock and default policy.
    pub fn new(store: Store) -> Self {
        Self { store, clock: Arc::new(SystemClock), policy: Policy::default() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{what} cannot listen on {address}: {source}; choose another with {flag}, 0 for any free one")]
    Listen { what: &'static str, address: SocketAddr, flag: &'static str, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the scheduler cannot start: {0}")]
    Other(String),
}

/// Handle to the engine and its gRPC services. Clones share the engine.
#[derive(Clone)]
pub struct Scheduler {
    engine: Handle,
    clock: Arc<dyn Clock>,
    first_syncs: Arc<watch::Sender<u64>>,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("start", &self.engine.start).finish_non_exhaustive()
    }
}

/// Restores the state and builds the engine, without starting it.
///
/// Calls block until the engine runs, on a dedicated thread ([`Engine::spawn_thread`]) or as a future
/// ([`Engine::run`]).
pub fn build(config: Config) -> Result<(Scheduler, Engine), StartError> {
    let restored = restore::load(&config.store, config.policy, config.clock.now())?;
    let clock = config.clock.clone();
    let (engine, running) = engine::new(config, restored);
    Ok((Scheduler { engine, clock, first_syncs: Arc::default() }, running))
}

impl Scheduler {
    /// Services for clients and gateways: `Scheduler`, `Routing`, `Services`, `Rollouts`, `Control`, health, reflection.
    /// Every caller has all rights.
    pub fn client_routes(&self) -> Result<Routes, StartError> {
        self.client_routes_behind(&Guard::default())
    }

    /// The same services, each call with the rights of its caller.
    pub fn client_routes_behind(&self, guard: &Guard) -> Result<Routes, StartError> {
        let models = Models { engine: self.engine.clone(), first_syncs: self.first_syncs.clone() };
        let control = Control { engine: self.engine.clone(), clock: self.clock.clone() };
        let gateways = Gateways { engine: self.engine.clone() };
        let models = SchedulerServer::new(models).max_decoding_message_size(MAX_CLIENT_MESSAGE);
        let routes = Routes::new(models)
            .add_service(RoutingServer::new(gateways).max_decoding_message_size(MAX_CLIENT_MESSAGE))
            .add_service(RolloutsServer::new(Rollouts::new(self.engine.clone())))
            .add_service(ServicesServer::new(Services { engine: self.engine.clone() }))
            .add_service(ControlServer::new(control).max_decoding_message_size(MAX_CLIENT_MESSAGE));
        Ok(guarded(self.common(routes, CLIENT_SERVICES)?, Port::Clients, guard.clone()))
    }

    /// Services for agents: `AgentService`, health, reflection.
    /// Every caller has all rights.
    pub fn agent_routes(&self) -> Result<Routes, StartError> {
        self.agent_routes_behind(&Guard::default())
    }

    /// The same services, each call with the rights of its caller.
    pub fn agent_routes_behind(&self, guard: &Guard) -> Result<Routes, StartError> {
        let agents = AgentServiceServer::new(Agents { engine: self.engine.clone() });
        let routes = Routes::new(agents.max_decoding_message_size(MAX_AGENT_MESSAGE));
        Ok(guarded(self.common(routes, AGENT_SERVICES)?, Port::Agents, guard.clone()))
    }

    fn common(&self, routes: Routes, names: &[&'static str]) -> Result<Routes, StartError> {
        let descriptors = || {
            let builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(gantry_proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            // List only the services of this listener.
            names
                .iter()
                .chain(COMMON_SERVICES)
                .fold(builder, |builder, name| builder.with_service_name(*name))
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

    /// Liveness of the engine, for probes.
    pub fn liveness(&self) -> Liveness {
        self.engine.liveness()
    }

    /// Events of rollouts from now on, after they are stored. A receiver that lags behind loses the oldest.
    pub fn rollout_notices(&self) -> broadcast::Receiver<RolloutNotice> {
        self.engine.notices.subscribe()
    }

    /// Registers the metrics `gantry_scheduler_*` and `gantry_usage_*`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        metrics::register(registry, &self.engine);
    }

    /// Number of starts with this store; distinguishes messages of earlier starts.
    pub const fn epoch(&self) -> u64 {
        self.engine.start.epoch
    }

    /// Stops the engine after its current batch. Pending calls fail.
    pub fn stop(&self) {
        self.engine.stop.cancel();
    }
}
