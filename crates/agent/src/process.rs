//! An agent as a process of its own: everything bound, started in order, drained and stopped in order.

use crate::{
    agent::{Agent, Config, Parts},
    artifact::Source,
    backend::{Kind, Oip, Surroundings},
    connect::Connect,
    endpoints::{self, Page, Pages},
    metrics::Metrics,
    proxy::{Proxy, RequestLimits},
    scaling::{self, Scaling},
    server::{ModelServer as _, Silent},
    shelf::{Limits, Records, Setup, Shelf},
};
use http::StatusCode;
use prometheus_client::registry::Registry;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, sync::OnceCell, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// How long the parts have to end in good order.
const GOODBYE: Duration = Duration::from_secs(35);
/// A refusal of the scheduler does not end the agent's own work.
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The ports that an agent listens on; 0 for any free one.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Requests over REST; gRPC is taken too.
    pub http: u16,
    /// Requests over gRPC; REST is taken too.
    pub grpc: u16,
    /// `agent_debug`.
    pub debug: u16,
    /// `/metrics`.
    pub metrics: u16,
    /// `/terminate`.
    pub drainer: u16,
    /// `/ready`.
    pub readiness: u16,
}

/// What an agent needs to know.
pub struct Settings {
    /// The server's name.
    pub server: String,
    /// The replica's index.
    pub replica: u32,
    /// Which inference server it is.
    pub kind: Kind,
    /// Where the inference server takes REST, as `host:port`.
    pub server_http: String,
    /// Where it takes gRPC, as `host:port`.
    pub server_grpc: String,
    /// The address to listen on.
    pub listen: IpAddr,
    /// The ports to listen on.
    pub ports: Ports,
    /// The name or address under which gateways reach this machine.
    pub advertised: String,
    /// What the server can run.
    pub capabilities: Vec<String>,
    /// Memory for models.
    pub memory_bytes: u64,
    /// How much more than its memory it promises, in percent.
    pub over_commit: u32,
    /// The directory from which the inference server loads models.
    pub models_dir: PathBuf,
    /// Where the agent writes down what it has placed.
    pub records_dir: PathBuf,
    /// What models' files are arranged for.
    pub surroundings: Surroundings,
    /// How patient to be with the server.
    pub limits: Limits,
    /// What requests may ask for.
    pub requests: RequestLimits,
    /// Makes spans of requests; off unless somebody takes them.
    pub tracer: gantry_trace::Tracer,
    /// When to ask for more or fewer replicas.
    pub scaling: Scaling,
    /// How long the server may take until it is there.
    pub server_patience: Duration,
    /// How long moving models away, and then the last requests, may take at the end.
    pub drain_time: Duration,
    /// Models that are fetched and loaded at the same time.
    pub parallel: usize,
    /// The way to the scheduler.
    pub connect: Arc<dyn Connect>,
    /// Where models' files come from.
    pub source: Arc<dyn Source>,
}

/// Where a running agent listens.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Requests over REST.
    pub http: SocketAddr,
    /// Requests over gRPC.
    pub grpc: SocketAddr,
    /// `agent_debug`.
    pub debug: SocketAddr,
    /// `/metrics`.
    pub metrics: SocketAddr,
    /// `/terminate`.
    pub drainer: SocketAddr,
    /// `/ready`.
    pub readiness: SocketAddr,
}

/// An agent that runs.
pub struct Running {
    /// Where it listens.
    pub addresses: Addresses,
    drain: Arc<Drain>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Moves models away, then waits for the last request. Once, whoever asks, and however often.
struct Drain {
    agent: Arc<Agent>,
    shelf: Shelf,
    limit: Duration,
    begun: AtomicBool,
    done: OnceCell<()>,
}

impl Drain {
    async fn run(&self) {
        self.begun.store(true, Ordering::Relaxed);
        let draining = async {
            tracing::info!("draining: the scheduler is asked to move the models elsewhere");
            match tokio::time::timeout(self.limit, self.agent.drain(self.limit)).await {
                Ok(Ok(())) => tracing::info!("the models are served elsewhere"),
                Ok(Err(reason)) => tracing::warn!(%reason, "the models were not moved"),
                Err(_) => tracing::warn!("the scheduler did not move the models in time"),
            }
            if tokio::time::timeout(self.limit, self.shelf.quiet()).await.is_err() {
                tracing::warn!(
                    requests = self.shelf.in_flight(),
                    "requests are still under way: they are cut off"
                );
            }
        };
        self.done.get_or_init(|| draining).await;
    }

    fn not_ready(&self) -> Vec<&'static str> {
        let mut reasons = Vec::new();
        if !self.shelf.is_alive() {
            reasons.push("the inference server is not ready");
        }
        // A scheduler that goes away later takes nothing from those who serve: what is not ready may be evicted together
        // with all others that are not, and this one answers requests.
        if !self.agent.has_joined() {
            reasons.push("the scheduler is not connected");
        }
        if self.begun.load(Ordering::Relaxed) {
            reasons.push("the agent is draining");
        }
        reasons
    }
}

impl Running {
    /// Moves models away, waits for requests, stops.
    pub async fn stop(mut self) {
        self.drain.run().await;
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GOODBYE, all).await;
        self.tasks.shutdown().await;
    }
}

async fn bind(what: &str, flag: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
    let failed = |e: std::io::Error| {
        format!("{what} cannot listen on {address}: {e}; choose another with {flag}, 0 for any free one")
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    Ok((listener, at))
}

/// Starts an agent: binds every port, waits for the inference server, makes it hold what it should, subscribes.
/// An error is a sentence for whoever started it.
pub async fn start(settings: Settings) -> Result<Running, String> {
    let at = |port| SocketAddr::new(settings.listen, port);
    let ports = settings.ports;
    let (http, http_at) = bind("the REST proxy", "--proxy-http-port", at(ports.http)).await?;
    let (grpc, grpc_at) = bind("the gRPC proxy", "--proxy-grpc-port", at(ports.grpc)).await?;
    let (debug, debug_at) = bind("the debug service", "--debug-port", at(ports.debug)).await?;
    let (metrics_port, metrics_at) = bind("the metrics", "--metrics-port", at(ports.metrics)).await?;
    let (drainer, drainer_at) = bind("the drainer", "--drainer-port", at(ports.drainer)).await?;
    let (readiness, readiness_at) = bind("readiness", "--readiness-port", at(ports.readiness)).await?;

    let mut registry = Registry::default();
    let (server, replica) = (settings.server.clone(), settings.replica);
    let metrics = Arc::new(Metrics::new(&server, replica, settings.over_commit, &mut registry));
    let shelf = Shelf::new(Setup {
        kind: settings.kind,
        surroundings: settings.surroundings,
        repository: Arc::new(Oip::new(&settings.server_grpc)?),
        records: Records::open(&settings.models_dir, &settings.records_dir)?,
        capacity: settings.memory_bytes,
        limits: settings.limits,
        metrics: metrics.clone(),
    });
    let proxy = Proxy::new(
        shelf.clone(),
        metrics,
        settings.requests,
        settings.tracer,
        &settings.server_http,
        &settings.server_grpc,
    )?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (watched, until) = (shelf.clone(), stop.clone());
    tasks.spawn(async move { watched.watch(until).await });
    if tokio::time::timeout(settings.server_patience, shelf.settle()).await.is_err() {
        return Err(format!(
            "the inference server at {} was not ready within {} s: start it, or say where it is with --server-grpc-port",
            settings.server_grpc,
            settings.server_patience.as_secs()
        ));
    }

    let config = Config {
        server: server.clone(),
        replica,
        scheduler: String::new(),
        capabilities: settings.capabilities,
        memory_bytes: settings.memory_bytes,
        over_commit: settings.over_commit,
        host: settings.advertised,
        http_port: http_at.port(),
        grpc_port: grpc_at.port(),
    };
    let mut parts = Parts::new(settings.connect, settings.source, Arc::new(Silent));
    parts.parallel = settings.parallel;
    let agent = Agent::assemble(config, Arc::new(shelf.clone()), parts);
    let drain = Arc::new(Drain {
        agent: agent.clone(),
        shelf: shelf.clone(),
        limit: settings.drain_time,
        begun: AtomicBool::new(false),
        done: OnceCell::new(),
    });

    tasks.spawn(proxy.clone().serve(http, stop.clone()));
    tasks.spawn(proxy.serve(grpc, stop.clone()));
    tasks.spawn(endpoints::serve_debug(debug, shelf.clone(), stop.clone()));
    tasks.spawn(endpoints::serve(metrics_port, metrics_page(registry), stop.clone()));
    tasks.spawn(endpoints::serve(drainer, drain_page(drain.clone()), stop.clone()));
    tasks.spawn(endpoints::serve(readiness, ready_page(drain.clone()), stop.clone()));
    tasks.spawn(watch_load(agent.clone(), shelf, settings.scaling, server, replica, stop.clone()));
    tasks.spawn(agent.run(stop.clone()));
    let addresses = Addresses {
        http: http_at,
        grpc: grpc_at,
        debug: debug_at,
        metrics: metrics_at,
        drainer: drainer_at,
        readiness: readiness_at,
    };
    Ok(Running { addresses, drain, stop, tasks })
}

/// Tells the scheduler which models have too much or too little to do.
async fn watch_load(
    agent: Arc<Agent>,
    shelf: Shelf,
    scaling: Scaling,
    server: String,
    replica: u32,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(scaling.period) => {}
            () = stop.cancelled() => return,
        }
        let told = scaling::triggers(&scaling, &server, replica, &shelf.shown());
        if !told.is_empty() && agent.is_subscribed() {
            agent.tell_load(told).await;
        }
    }
}

fn metrics_page(registry: Registry) -> Pages {
    let registry = Arc::new(registry);
    Arc::new(move |path| {
        let registry = registry.clone();
        Box::pin(async move {
            let mut text = String::new();
            let page: Page = match prometheus_client::encoding::text::encode(&mut text, &registry) {
                Ok(()) => (StatusCode::OK, OPEN_METRICS, text),
                Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, e.to_string()),
            };
            (path == "/metrics").then_some(page)
        })
    })
}

fn drain_page(drain: Arc<Drain>) -> Pages {
    Arc::new(move |path| {
        let drain = drain.clone();
        Box::pin(async move {
            if path != "/terminate" {
                return None;
            }
            drain.run().await;
            Some((StatusCode::OK, TEXT, "drained\n".to_owned()))
        })
    })
}

fn ready_page(drain: Arc<Drain>) -> Pages {
    Arc::new(move |path| {
        let reasons = drain.not_ready();
        Box::pin(async move {
            let page = if reasons.is_empty() {
                (StatusCode::OK, TEXT, "ok\n".to_owned())
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, reasons.join("\n") + "\n")
            };
            (path == "/ready").then_some(page)
        })
    })
}
