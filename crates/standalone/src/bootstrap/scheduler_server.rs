//! A scheduler on any number of listeners, with or without TLS.

use super::{access::Access, listen, notifications::Notifier, trace::traced};
use crate::error::CommandError;
use gantry_scheduler::{Config, Scheduler, Thread};
use gantry_store::Store;
use gantry_trace::Tracer;
use prometheus_client::registry::Registry;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Limit for open calls to finish at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The API that a listener serves.
#[derive(Clone, Copy)]
pub enum ClientKind {
    Clients,
    Agents,
}

/// A listener that is bound and not served yet.
pub struct BoundListener {
    kind: ClientKind,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<gantry_tls::Server>,
}

impl BoundListener {
    pub async fn bind(
        kind: ClientKind,
        host: IpAddr,
        port: u16,
        flag: &str,
        tls: Option<gantry_tls::Server>,
    ) -> Result<Self, CommandError> {
        let what = match kind {
            ClientKind::Clients => "the scheduler",
            ClientKind::Agents => "the scheduler's agent API",
        };
        let (listener, address) = listen::bind(what, host, port, flag).await?;
        Ok(Self { kind, listener, address, tls })
    }

    /// API, address and protocol, for the console.
    pub fn describe(&self) -> String {
        let kind = match self.kind {
            ClientKind::Clients => "clients",
            ClientKind::Agents => "agents",
        };
        let protocol = match &self.tls {
            None => "gRPC",
            Some(tls) if tls.is_mutual() => "gRPC, mutual TLS",
            Some(_) => "gRPC, TLS",
        };
        format!("  {kind:<9} {:<31} {protocol}", self.address.to_string())
    }
}

pub struct RunningScheduler {
    scheduler: Scheduler,
    engine: Thread,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    access: Access,
    notifier: Notifier,
}

impl RunningScheduler {
    pub fn start(
        store: Store,
        listeners: Vec<BoundListener>,
        access: Access,
        notifier: Notifier,
        tracer: &Tracer,
    ) -> Result<Self, CommandError> {
        let failed = |e: &dyn std::fmt::Display| CommandError::failed(e.to_string());
        let (scheduler, engine) = gantry_scheduler::build(Config::new(store)).map_err(|e| failed(&e))?;
        let engine = engine.spawn_thread().map_err(|e| failed(&e))?;
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        for BoundListener { kind, listener, tls, .. } in listeners {
            let guard = access.guard().with_trust(access.trust(tls.as_ref()));
            let (name, routes) = match kind {
                ClientKind::Clients => ("clients", scheduler.client_routes_behind(&guard)),
                ClientKind::Agents => ("agents", scheduler.agent_routes_behind(&guard)),
            };
            let routes = traced(routes.map_err(|e| failed(&e))?, tracer);
            let incoming = gantry_tls::incoming(listener, tls);
            tasks.spawn(gantry_scheduler::serve(name, routes, incoming, stop.clone()));
        }
        notifier.clone().start(&scheduler, stop.clone());
        Ok(Self { scheduler, engine, tasks, stop, access, notifier })
    }

    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Registers the metrics of the scheduler, of denied calls, of the audit log and of notifications.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.scheduler.register_metrics(registry);
        self.access.register_metrics(registry);
        self.notifier.register_metrics(registry);
    }

    /// Ends the streams, and waits until all changes are durable and the store is closed.
    pub async fn shut_down(mut self) {
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // Streams that do not finish in time are aborted.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await;
        self.tasks.shutdown().await;
        self.scheduler.stop();
        self.engine.ended().await;
        self.access.finish().await;
    }
}
