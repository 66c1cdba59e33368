//! The agent as a sidecar process: startup, drain and shutdown in order.

use crate::{
    admin_server::{self, Page, Pages},
    agent::{Agent, Config, Parts},
    artifact::Source,
    backend::{Kind, Oip, ServerEnvironment},
    connect::Connect,
    drain::Drain,
    metrics::Metrics,
    model_cache::{CacheConfig, DiskRecords, Limits, ModelCache},
    model_server::{ModelServer as _, NoopObserver},
    proxy::{Proxy, RequestLimits},
    scaling_trigger::{self, Scaling},
};
use http::StatusCode;
use prometheus_client::registry::Registry;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(35);
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// 0 binds any free port.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// REST and gRPC, for HTTP clients.
    pub http: u16,
    /// REST and gRPC, for gRPC clients.
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

pub struct Settings {
    pub server: String,
    pub replica: u32,
    pub kind: Kind,
    /// REST address of the inference server, as `host:port`.
    pub server_http: String,
    /// gRPC address of the inference server, as `host:port`.
    pub server_grpc: String,
    pub listen: IpAddr,
    pub ports: Ports,
    /// Host name or address that gateways use.
    pub advertised: String,
    pub capabilities: Vec<String>,
    /// Memory for models.
    pub memory_bytes: u64,
    /// Additional capacity advertised to the scheduler, in percent.
    pub over_commit: u32,
    /// The inference server's model repository.
    pub models_dir: PathBuf,
    /// Load orders of installed models.
    pub records_dir: PathBuf,
    pub environment: ServerEnvironment,
    pub limits: Limits,
    pub requests: RequestLimits,
    /// Disabled unless an exporter is configured.
    pub tracer: gantry_trace::Tracer,
    pub scaling: Scaling,
    pub server_startup_timeout: Duration,
    /// Limit for moving models away, and again for in-flight requests.
    pub drain_time: Duration,
    /// Calls of `/terminate` within two seconds that start a drain: one container that restarts calls once.
    pub drain_calls: u32,
    /// Concurrent fetches and loads.
    pub parallel: usize,
    pub connect: Arc<dyn Connect>,
    pub source: Arc<dyn Source>,
}

#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub http: SocketAddr,
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

pub struct Running {
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

impl Running {
    pub async fn stop(mut self) {
        self.drain.run().await;
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await;
        self.tasks.shutdown().await;
    }
}

pub(crate) async fn bind(
    what: &str,
    flag: &str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), String> {
    let failed = |e: std::io::Error| {
        format!("{what} cannot listen on {address}: {e}; choose another with {flag}, 0 for any free one")
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    Ok((listener, at))
}

/// Binds all ports, waits for the inference server, restores its models and subscribes.
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
    gantry_transport::process_metrics::register(&mut registry);
    let (server, replica) = (settings.server.clone(), settings.replica);
    let metrics = Arc::new(Metrics::new(&server, replica, settings.over_commit, &mut registry));
    let cache = ModelCache::new(CacheConfig {
        kind: settings.kind,
        environment: settings.environment,
        repository: Arc::new(Oip::new(&settings.server_grpc)?),
        records: DiskRecords::open(&settings.models_dir, &settings.records_dir)?,
        capacity: settings.memory_bytes,
        limits: settings.limits,
        metrics: metrics.clone(),
    });
    let proxy = Proxy::new(
        cache.clone(),
        metrics,
        RequestLimits { supports_streams: settings.kind == Kind::Triton, ..settings.requests },
        settings.tracer,
        &settings.server_http,
        &settings.server_grpc,
    )?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (watched, until) = (cache.clone(), stop.clone());
    tasks.spawn(async move { watched.watch(until).await });
    if tokio::time::timeout(settings.server_startup_timeout, cache.wait_ready()).await.is_err() {
        return Err(format!(
            "the inference server at {} was not ready within {} s: start it, or set its address with --server-grpc-port",
            settings.server_grpc,
            settings.server_startup_timeout.as_secs()
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
    let mut parts = Parts::new(settings.connect, settings.source, Arc::new(NoopObserver));
    parts.parallel = settings.parallel;
    let agent = Agent::from_parts(config, Arc::new(cache.clone()), parts);
    let calls = usize::try_from(settings.drain_calls.max(1)).unwrap_or(1);
    let drain = Drain::new(agent.clone(), cache.clone(), settings.drain_time, calls);

    tasks.spawn(proxy.clone().serve(http, stop.clone()));
    tasks.spawn(proxy.serve(grpc, stop.clone()));
    tasks.spawn(admin_server::serve_debug(debug, cache.clone(), stop.clone()));
    tasks.spawn(admin_server::serve(metrics_port, metrics_page(registry), stop.clone()));
    tasks.spawn(admin_server::serve(drainer, drain_page(drain.clone()), stop.clone()));
    tasks.spawn(admin_server::serve(readiness, ready_page(drain.clone()), stop.clone()));
    tasks.spawn(report_scaling_triggers(
        agent.clone(),
        cache,
        settings.scaling,
        server,
        replica,
        stop.clone(),
    ));
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

async fn report_scaling_triggers(
    agent: Arc<Agent>,
    cache: ModelCache,
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
        let triggers = scaling_trigger::triggers(&scaling, &server, replica, &cache.models());
        if !triggers.is_empty() && agent.is_subscribed() {
            agent.report_scaling(triggers).await;
        }
    }
}

pub(crate) fn metrics_page(registry: Registry) -> Pages {
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
            let text = if drain.terminate().await { "drained\n" } else { "not drained: one call only\n" };
            // A preStop hook fails with any other status.
            Some((StatusCode::OK, TEXT, text.to_owned()))
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
