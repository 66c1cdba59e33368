//! Answering requests.

mod connection;
mod finish;
mod forward;
mod grpc;
mod headers;
mod own;
mod path;
mod read;
mod request_id;
mod respond;
mod rest;
mod stream;
mod traced;

pub(crate) use finish::Finish;

use crate::{Config, Routes, control::Control, decide::balance, metrics::Metrics, upstream::Pools};
use arc_swap::ArcSwapOption;
use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What all workers share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) routes: Routes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) control: ArcSwapOption<Arc<dyn Control>>,
    pub(crate) stopping: CancellationToken,
    /// The same to look at with every answer.
    pub(crate) is_stopping: AtomicBool,
}

/// One thread's share of the work: its connections, those of clients and those to replicas.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    pools: Arc<Pools>,
    open: Arc<AtomicUsize>,
    tickets: AtomicU64,
    ids: request_id::Ids,
    own: own::Services,
}

/// How often connections that are not needed any more are closed.
const SWEEP: Duration = Duration::from_secs(10);

impl Worker {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, open: Arc<AtomicUsize>) -> Self {
        Self {
            pools: Arc::new(Pools::new(shared.config.connect_timeout)),
            shared,
            open,
            tickets: AtomicU64::new((index as u64) << 48),
            ids: request_id::Ids::new(index),
            own: own::Services::new(),
        }
    }

    fn ticket(&self) -> u64 {
        balance::ticket(self.tickets.fetch_add(1, Ordering::Relaxed))
    }

    /// Serves connections as they arrive; ends when no more can arrive and all have ended.
    pub(crate) async fn run(self: Arc<Self>, mut arriving: mpsc::UnboundedReceiver<TcpStream>) {
        let mut sweep = tokio::time::interval(SWEEP);
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                arrived = arriving.recv() => match arrived {
                    Some(stream) => {
                        connections.spawn(Arc::clone(&self).connection(stream));
                    }
                    None => break,
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                _ = sweep.tick() => {
                    self.pools.sweep();
                    self.own.report(self.shared.routes.is_synced()).await;
                }
            }
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(self.shared.config.drain_timeout, drained).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "requests were still in flight when the gateway stopped"
            );
        }
    }
}
