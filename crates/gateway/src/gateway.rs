//! Opening the port, and sharing its connections between the workers.

use crate::{
    Config, Routes,
    control::Control,
    metrics::Metrics,
    serve::{Shared, Worker},
};
use arc_swap::ArcSwapOption;
use gantry_oip::server::InferenceServer;
use prometheus_client::registry::Registry;
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Why a gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something else listens there.
    #[error("port {} is in use on {}: choose another with --inference-port, 0 for any free one", .0.port(), .0.ip())]
    InUse(SocketAddr),
    /// The system refuses.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// A thread or its runtime could not be made.
    #[error("cannot start a gateway worker: {0}")]
    Worker(io::Error),
}

/// The data plane on its port.
pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Gateway {
    /// Opens the port. Clients can connect from now on; they are answered once [`serve`](Self::serve) runs.
    pub fn bind(config: Config) -> Result<Self, BindError> {
        let listen = config.listen;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(listen),
            _ => BindError::Listen(listen, error),
        };
        let listener = TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let metrics = Arc::new(Metrics::new());
        let shared = Arc::new(Shared {
            routes: Routes::new(Arc::clone(&metrics)),
            metrics,
            config,
            control: ArcSwapOption::empty(),
            stopping: CancellationToken::new(),
            is_stopping: AtomicBool::new(false),
        });
        Ok(Self { listener, address, shared })
    }

    /// Where it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The routing table, to be kept by [`control::follow`](crate::control::follow).
    pub fn routes(&self) -> Routes {
        self.shared.routes.clone()
    }

    /// Answers requests for this replica in this process.
    pub fn register_local(&self, server: &str, replica: u32, local: Arc<dyn InferenceServer>) {
        self.shared.routes.registry().register_local(server, replica, local);
    }

    /// Whom to ask for the repository index, loading and unloading.
    pub fn set_control(&self, control: Arc<dyn Control>) {
        self.shared.control.store(Some(Arc::new(control)));
    }

    /// Adds the gateway's metrics.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }

    /// Serves until `shutdown` is cancelled, then lets the requests in flight end.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), BindError> {
        let mut crew = Vec::new();
        for index in 0..self.shared.config.workers.max(1) {
            crew.push(Hand::hire(index, &self.shared).map_err(BindError::Worker)?);
        }
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(BindError::Worker)?;
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    if let Ok(stream) = stream.into_std() {
                        hand_out(&crew, &self.shared, stream);
                    }
                }
                Err(error) => {
                    // Out of descriptors, most likely: connections must end before new ones can be taken.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.stopping.cancel();
        for hand in crew {
            drop(hand.connections);
            let _ = hand.ended.await;
            let _ = hand.thread.join();
        }
        Ok(())
    }
}

/// A worker's thread, seen from the acceptor.
struct Hand {
    connections: mpsc::UnboundedSender<TcpStream>,
    open: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
    thread: thread::JoinHandle<()>,
}

impl Hand {
    fn hire(index: usize, shared: &Arc<Shared>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (connections, arriving) = mpsc::unbounded_channel();
        let open = Arc::new(AtomicUsize::new(0));
        let (end, ended) = oneshot::channel();
        let worker = Arc::new(Worker::new(index, Arc::clone(shared), Arc::clone(&open)));
        let thread = thread::Builder::new().name(format!("gateway-{index}")).spawn(move || {
            runtime.block_on(worker.run(arriving));
            let _ = end.send(());
        })?;
        Ok(Self { connections, open, ended, thread })
    }
}

/// Gives a connection to the worker that has the fewest.
fn hand_out(crew: &[Hand], shared: &Shared, stream: TcpStream) {
    let open: usize = crew.iter().map(|h| h.open.load(Ordering::Relaxed)).sum();
    if open >= shared.config.max_connections {
        shared.metrics.refused_connections.inc();
        refuse(&stream);
        return;
    }
    if let Some(hand) = crew.iter().min_by_key(|h| h.open.load(Ordering::Relaxed)) {
        hand.open.fetch_add(1, Ordering::Relaxed);
        let _ = hand.connections.send(stream);
    }
}

/// Says why before closing; a socket just opened takes so few bytes at once.
fn refuse(mut stream: &TcpStream) {
    let _ = io::Write::write(
        &mut stream,
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
          connection: close\r\ncontent-length: 37\r\n\r\n{\"error\":\"too many open connections\"}",
    );
}
