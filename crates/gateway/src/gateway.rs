//! Listener, and distribution of connections to workers.

use crate::{
    Config, Routes,
    control::Control,
    metrics::Metrics,
    serve::{Mirrors, Shared, Worker},
};
use arc_swap::ArcSwapOption;
use gantry_oip::server::InferenceServer;
use gantry_transport::{ServerOptions, accept, memory::MemoryBudget};
use prometheus_client::registry::Registry;
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("port {} is in use on {}: choose another with --inference-port, 0 for any free one", .0.port(), .0.ip())]
    InUse(SocketAddr),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    #[error("cannot start a gateway worker: {0}")]
    Worker(io::Error),
}

/// Graphs that call each other are polled on one stack, and frames of unoptimised builds are large.
const WORKER_STACK: usize = 4 << 20;

pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
}

impl Gateway {
    /// Binds the port. Connections queue in the backlog until [`serve`](Self::serve) runs.
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
        let options = ServerOptions {
            header_timeout: config.header_timeout,
            unread_timeout: config.unread_timeout,
            max_headers: config.max_headers,
            ..ServerOptions::default()
        };
        let shared = Arc::new(Shared {
            routes: Routes::new(Arc::clone(&metrics)),
            metrics,
            http: options.http(),
            memory: Arc::new(MemoryBudget::new(config.max_memory, config.max_body)),
            mirrors: Mirrors::new(),
            kept_memory: Arc::default(),
            background: AtomicUsize::new(0),
            config,
            control: ArcSwapOption::empty(),
            dashboard: OnceLock::new(),
            stopping: CancellationToken::new(),
            is_stopping: AtomicBool::new(false),
        });
        Ok(Self { listener, address, shared })
    }

    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The routing table, updated by [`control::subscribe_routes`](crate::control::subscribe_routes).
    pub fn routes(&self) -> Routes {
        self.shared.routes.clone()
    }

    /// Serves requests for this replica in process.
    pub fn register_local(&self, server: &str, replica: u32, local: Arc<dyn InferenceServer>) {
        self.shared.routes.registry().register_local(server, replica, local);
    }

    /// Backend of the repository endpoints.
    pub fn set_control(&self, control: Arc<dyn Control>) {
        self.shared.control.store(Some(Arc::new(control)));
    }

    /// Address of the dashboard, which the page at `/` links to.
    pub fn set_dashboard(&self, address: SocketAddr) {
        // Set once, by the process that serves both.
        let _ = self.shared.dashboard.set(address);
    }

    pub fn register_metrics(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
        self.shared.memory.register(registry);
        if let Some(auth) = &self.shared.config.auth {
            auth.register_metrics(registry);
        }
    }

    /// Serves until `shutdown` is cancelled, then drains in-flight requests.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), BindError> {
        if let Some(auth) = &self.shared.config.auth {
            auth.watch();
        }
        let mut workers = Vec::new();
        for index in 0..self.shared.config.workers.max(1) {
            workers.push(WorkerHandle::spawn(index, &self.shared).map_err(BindError::Worker)?);
        }
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(BindError::Worker)?;
        loop {
            let stream = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                stream = accept(&listener) => stream,
            };
            if let Ok(stream) = stream.into_std() {
                dispatch(&workers, &self.shared, stream);
            }
        }
        // Before the port is closed: a response after that ends its connection.
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.stopping.cancel();
        drop(listener);
        for worker in workers {
            drop(worker.connections);
            let _ = worker.ended.await;
            let _ = worker.thread.join();
        }
        Ok(())
    }
}

struct WorkerHandle {
    connections: mpsc::UnboundedSender<TcpStream>,
    open: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
    thread: thread::JoinHandle<()>,
}

impl WorkerHandle {
    fn spawn(index: usize, shared: &Arc<Shared>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (connections, incoming) = mpsc::unbounded_channel();
        let open = Arc::new(AtomicUsize::new(0));
        let (end, ended) = oneshot::channel();
        let worker = Arc::new(Worker::new(index, Arc::clone(shared), Arc::clone(&open)));
        let thread = thread::Builder::new().name(format!("gateway-{index}")).stack_size(WORKER_STACK);
        let thread = thread.spawn(move || {
            runtime.block_on(worker.run(incoming));
            let _ = end.send(());
        })?;
        Ok(Self { connections, open, ended, thread })
    }
}

/// Assigns a connection to the worker with the fewest.
fn dispatch(workers: &[WorkerHandle], shared: &Shared, stream: TcpStream) {
    let open: usize = workers.iter().map(|h| h.open.load(Ordering::Relaxed)).sum();
    if open >= shared.config.max_connections {
        shared.metrics.refused_connections.inc();
        reject(&stream);
        return;
    }
    if let Some(worker) = workers.iter().min_by_key(|h| h.open.load(Ordering::Relaxed)) {
        worker.open.fetch_add(1, Ordering::Relaxed);
        let _ = worker.connections.send(stream);
    }
}

/// Best effort; the response fits into the send buffer of a new socket.
fn reject(mut stream: &TcpStream) {
    let _ = io::Write::write(
        &mut stream,
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
          connection: close\r\ncontent-length: 37\r\n\r\n{\"error\":\"too many open connections\"}",
    );
}
