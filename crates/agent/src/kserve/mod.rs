//! Sidecar of `InferenceService` pods: logs requests and responses as `CloudEvents`, and joins requests into batches.
//!
//! ```text
//! Service :9081 ──▶ handler ──▶ batcher (:predict) ──▶ model server in the pod
//!                      └── logger ──▶ sink
//! ```

mod batch_queue;
mod batcher;
mod capture;
mod component;
mod handler;
mod logger;
mod probe;
mod sink;

#[cfg(test)]
mod tests;

use crate::{
    admin_server,
    proxy::RequestLimits,
    sidecar::{bind, metrics_page},
};
use batcher::Batcher;
pub use batcher::BatcherSettings;
use component::ComponentClient;
use gantry_transport::{ServerOptions, process_metrics};
use handler::Handler;
use logger::Logger;
pub use logger::{LogMode, LoggerSettings};
pub use probe::Probe;
use probe::Prober;
use prometheus_client::registry::Registry;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// For events and batches that are left when the last request has ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Bodies of the largest size that may wait for batches at once.
const BATCHED_BODIES: usize = 4;

pub struct Settings {
    pub listen: SocketAddr,
    /// `/metrics`.
    pub metrics: SocketAddr,
    /// REST and gRPC address of the model server, as `host:port`.
    pub component: String,
    /// Without it the model server counts as ready.
    pub probe: Option<Probe>,
    pub logger: Option<LoggerSettings>,
    pub batcher: Option<BatcherSettings>,
    pub requests: RequestLimits,
    /// How long requests are accepted after a stop, until the pod has left the endpoints of its Service.
    pub linger: Duration,
}

pub struct Running {
    pub address: SocketAddr,
    pub metrics: SocketAddr,
    is_draining: Arc<AtomicBool>,
    linger: Duration,
    stop_serving: CancellationToken,
    stop_logger: CancellationToken,
    serving: JoinHandle<()>,
    tasks: TaskTracker,
    /// Of requests in flight.
    #[cfg(test)]
    slots: Arc<Semaphore>,
}

impl Running {
    /// Not ready at once; requests in flight end, then events are delivered.
    pub async fn stop(self) {
        self.is_draining.store(true, Relaxed);
        tokio::time::sleep(self.linger).await;
        self.stop_serving.cancel();
        let _ = self.serving.await;
        self.stop_logger.cancel();
        self.tasks.close();
        if tokio::time::timeout(FLUSH_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("events or batches were left when the agent stopped");
        }
    }
}

pub async fn start(settings: Settings) -> Result<Running, String> {
    let (listener, address) = bind("the agent", "--port", settings.listen).await?;
    let (metrics_listener, metrics) = bind("the metrics", "--metrics-port", settings.metrics).await?;
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let tasks = TaskTracker::new();
    let (stop_serving, stop_logger) = (CancellationToken::new(), CancellationToken::new());
    let requests = settings.requests;
    let component = Arc::new(ComponentClient::new(&settings.component, requests.max_body)?);
    let logger = match settings.logger {
        None => None,
        Some(settings) => {
            let (logger, delivering) = Logger::new(settings, stop_logger.clone(), &mut registry)?;
            tasks.spawn(delivering);
            Some(logger)
        }
    };
    let batcher = settings.batcher.map(|batcher| {
        Batcher::start(batcher, Arc::clone(&component), requests.max_in_flight, &tasks, &mut registry)
    });
    let is_draining = Arc::new(AtomicBool::new(false));
    let permits = |count: usize| Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
    let slots = permits(requests.max_in_flight);
    let handler = Arc::new(Handler {
        component,
        logger,
        batcher,
        prober: Prober::new(settings.probe),
        slots: Arc::clone(&slots),
        memory: permits(requests.max_body.saturating_mul(BATCHED_BODIES)),
        limits: requests,
        is_draining: Arc::clone(&is_draining),
    });
    let handler = move |request| Arc::clone(&handler).handle(request);
    let serving = gantry_transport::serve(listener, ServerOptions::default(), handler, stop_serving.clone());
    let serving = tokio::spawn(serving);
    tasks.spawn(admin_server::serve(metrics_listener, metrics_page(registry), stop_logger.clone()));
    let linger = settings.linger;
    Ok(Running {
        address,
        metrics,
        is_draining,
        linger,
        stop_serving,
        stop_logger,
        serving,
        tasks,
        #[cfg(test)]
        slots,
    })
}
