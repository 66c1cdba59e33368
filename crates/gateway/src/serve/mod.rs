//! Request handling.

mod access;
mod builtin_endpoints;
mod client;
mod connection;
mod destination;
mod endpoints;
mod forward;
mod graph;
mod grpc;
mod headers;
mod landing;
mod local_response;
mod metadata;
mod mirror;
mod path;
mod pipelines;
mod pods;
mod replica_stream;
mod request_body;
mod request_guard;
mod rest;
mod sequence;
mod service;
mod spans;
mod stream;
mod v1;

pub(crate) use client::Admitted;
pub(crate) use destination::Wanted;
pub(crate) use forward::{Call, Head, Target};
pub(crate) use mirror::{MIRROR_TIMEOUT, Mirrors};
pub(crate) use request_body::{SMALL, memory_exhausted};
pub(crate) use request_guard::RequestGuard;

use crate::{Config, Routes, control::Control, metrics::Metrics, pipeline::KeptMemory, upstream::Pools};
use arc_swap::ArcSwapOption;
use gantry_transport::{Http, memory::MemoryBudget, request_id::RequestIds};
use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// State shared by all workers.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) http: Http,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) mirrors: Mirrors,
    /// Of the pipelines' last runs.
    pub(crate) kept_memory: Arc<KeptMemory>,
    /// Runs of pipelines in the background.
    pub(crate) background: AtomicUsize,
    pub(crate) routes: Routes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) control: ArcSwapOption<Arc<dyn Control>>,
    /// Address of the dashboard, for the page at `/`.
    pub(crate) dashboard: OnceLock<SocketAddr>,
    pub(crate) stopping: CancellationToken,
    /// Mirrors `stopping`, cheap to read per response.
    pub(crate) is_stopping: AtomicBool,
}

/// A worker thread: its client connections and its upstream pools.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pools: Arc<Pools>,
    open: Arc<AtomicUsize>,
    ids: RequestIds,
    grpc_services: builtin_endpoints::GrpcServices,
}

/// How often idle upstream connections are closed.
const POOL_SWEEP_INTERVAL: Duration = Duration::from_secs(10);

impl Worker {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, open: Arc<AtomicUsize>) -> Self {
        Self {
            pools: Arc::new(Pools::new(shared.config.connect_timeout)),
            shared,
            open,
            ids: RequestIds::new(index),
            grpc_services: builtin_endpoints::GrpcServices::new(),
        }
    }

    /// Closes idle upstream connections.
    #[cfg(feature = "kafka")]
    pub(crate) fn sweep(&self) {
        self.pools.sweep();
    }

    /// Serves connections until the channel is closed and all connections have ended.
    pub(crate) async fn run(self: Arc<Self>, mut incoming: mpsc::UnboundedReceiver<TcpStream>) {
        let mut sweep = tokio::time::interval(POOL_SWEEP_INTERVAL);
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                accepted = incoming.recv() => match accepted {
                    Some(stream) => {
                        connections.spawn(Arc::clone(&self).connection(stream));
                    }
                    None => break,
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                _ = sweep.tick() => {
                    self.pools.sweep();
                    self.shared.metrics.sweep();
                    self.grpc_services.report(self.shared.routes.is_synced()).await;
                }
            }
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(self.shared.config.drain_timeout, drained).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "drain timeout: closing connections with requests in flight"
            );
        }
    }
}
