//! `gantry gateway`: the data plane.

use crate::{args::Global, client, error::CommandError};
use futures::future::BoxFuture;
use gantry_gateway::{
    Gateway, Routes,
    control::{self, StoredRoutes},
};
use gantry_standalone::{
    bootstrap::{
        admin_dashboard::AdminDashboard,
        admin_server::{self, AdminServer},
        args::{MemoryArgs, RequestArgs},
        auth::AuthArgs,
        kafka::KafkaArgs,
        listen,
        log::{self, LogArgs, LogBuffer},
        scheduler_channel::SchedulerChannel,
        signal, tokio_runtime,
        trace::{self, TraceArgs},
    },
    console::print,
};
use prometheus_client::registry::Registry;
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// A little more than the gateway's own limit for in-flight requests.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(35);
/// A longer wait for routes is reported.
const ROUTES_NOTICE_DELAY: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Route inference requests to the servers of the scheduler (--scheduler).
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Unique name of this gateway at the scheduler [default: host name and process ID]
    #[arg(long, env = "GANTRY_GATEWAY_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Address for inference; anything but loopback is reachable from other machines.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Port for inference, REST and gRPC; 0 picks a free one.
    #[arg(long, default_value_t = 9000, value_name = "PORT")]
    pub(crate) inference_port: u16,

    /// Port for the dashboard, metrics, health and logs; 0 picks a free one.
    #[arg(long, default_value_t = 9003, value_name = "PORT")]
    pub(crate) admin_port: u16,

    /// Address of the admin port. It has no TLS: anything but loopback exposes the dashboard and metrics.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) admin_host: IpAddr,

    /// Directory for the last routes: after a restart the gateway serves from them until the scheduler is reachable.
    #[arg(long, env = "GANTRY_GATEWAY_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Let clients of the inference port load and unload models by the repository API.
    #[arg(long)]
    pub(crate) allow_repository_changes: bool,
    /// Domain of InferenceServices: requests to NAME-NAMESPACE.DOMAIN reach them.
    #[arg(long, value_name = "DOMAIN", default_value = gantry_gateway::DEFAULT_INGRESS_DOMAIN)]
    pub(crate) ingress_domain: String,

    /// Keep the tensors of the last requests of each pipeline in memory, for `gantry pipeline inspect`.
    #[arg(long)]
    pub(crate) keep_pipeline_payloads: bool,

    /// Seconds at shutdown in which idle keep-alive connections still accept one request, whose response closes them:
    /// no request meets a closed connection.
    #[arg(long, alias = "linger", default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=60))]
    pub(crate) shutdown_linger: u64,

    #[command(flatten)]
    pub(crate) auth: AuthArgs,

    #[command(flatten)]
    pub(crate) requests: RequestArgs,

    #[command(flatten)]
    pub(crate) request_memory: MemoryArgs,

    #[command(flatten)]
    pub(crate) kafka: KafkaArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let logs = log::start(&args.log, None)?;
    tokio_runtime::block_on(serve(global, args, logs))
}

async fn serve(global: &Global, args: &Args, logs: LogBuffer) -> Result<(), CommandError> {
    let stop = signal::shutdown_token();
    let (address, tls) = client::reloading_scheduler(global)?;
    let scheduler = SchedulerChannel::new(&address, tls)?;
    let address = address.to_string();
    let tracer = args.trace.start("gantry-gateway")?;
    let gateway = Gateway::bind(gantry_gateway::Config {
        listen: SocketAddr::new(args.host, args.inference_port),
        max_body: args.requests.max_body,
        max_in_flight: args.requests.max_in_flight,
        max_memory: args.request_memory.bytes(),
        request_timeout: Duration::from_secs(args.requests.request_timeout),
        auth: args.auth.open(args.host)?,
        allow_repository_changes: args.allow_repository_changes,
        ingress_domain: args.ingress_domain.clone(),
        keep_pipeline_payloads: args.keep_pipeline_payloads,
        linger: Duration::from_secs(args.shutdown_linger),
        tracer: tracer.clone(),
        ..gantry_gateway::Config::default()
    })
    .map_err(|e| CommandError::failed(e.to_string()))?;
    let (admin_listener, admin_address) =
        listen::bind("the admin server", args.admin_host, args.admin_port, "--admin-port").await?;

    let mut registry = Registry::default();
    gateway.register_metrics(&mut registry);
    tracer.register_metrics(&mut registry);
    let stop_gateway = CancellationToken::new();
    let consumers = args.kafka.start(&gateway, &mut registry, &stop_gateway)?;
    let channel = scheduler.connect_lazy();
    gateway.set_control(Arc::new(control::SchedulerControl::new(channel.clone())));
    let routes = gateway.routes();
    // Links to other addresses than those of this machine would depend on the client.
    if admin_address.ip().is_loopback() {
        gateway.set_dashboard(admin_address);
    }
    let stored = args.state_dir.as_ref().map(|directory| stored_routes(directory, &routes)).transpose()?;
    let (inference, name) = (gateway.local_addr(), name(args));
    let stop_rest = CancellationToken::new();

    print(&format!("gantry gateway {} · {name}", env!("CARGO_PKG_VERSION")));
    print("");
    print(&format!(
        "  inference   http://{:<24} REST and gRPC, Open Inference Protocol",
        inference.to_string()
    ));
    print(&format!("  admin       http://{:<24} dashboard, metrics, health", admin_address.to_string()));
    print(&format!("  scheduler   {address:<31} {}", scheduler.protocol()));
    print("");
    let admin = AdminServer {
        not_ready: {
            let (routes, stop, address, scheduler) =
                (routes.clone(), stop.clone(), address.clone(), scheduler.clone());
            Box::new(move || not_ready(&routes, &stop, &address, &scheduler))
        },
        runs: {
            let routes = routes.clone();
            Box::new(move |pipeline| routes.recent_runs(pipeline))
        },
        // Read-only: objects belong to the operator, or to clients of the scheduler.
        dashboard: Some(AdminDashboard {
            channel: channel.clone(),
            inference,
            timeout: Duration::from_secs(args.requests.request_timeout),
            actions: false,
            auth_required: args.auth.auth_config.is_some(),
        }),
        ..AdminServer::new(registry, logs)
    };
    tokio::spawn(admin_server::serve(admin, admin_listener, stop_rest.clone()));
    tokio::spawn(control::report_demand(channel.clone(), name.clone(), routes.clone(), stop_rest.clone()));
    tokio::spawn(control::report_traffic(channel, name.clone(), routes.clone(), stop_rest.clone()));
    let connect = move || -> BoxFuture<'static, _> {
        let connecting = scheduler.connect();
        Box::pin(async { connecting.await.map_err(Into::into) })
    };
    tokio::spawn(control::subscribe_routes_with(connect, name, routes.clone(), stored, stop_rest.clone()));
    tokio::spawn(stop_rest.clone().run_until_cancelled_owned(print_when_ready(routes, address)));

    let serving = tokio::spawn(gateway.serve(stop_gateway.clone()));
    stop.cancelled().await;
    print("Stopping: finishing in-flight requests. Ctrl-C again stops at once.");
    stop_gateway.cancel();
    let stopped = async {
        let _ = serving.await;
        if let Some(consumers) = consumers {
            let _ = consumers.await;
        }
    };
    tokio::select! {
        _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, stopped) => {}
        () = signal::terminated() => {}
    }
    stop_rest.cancel();
    trace::flush(&tracer).await;
    Ok(())
}

/// Restores the routes of the last start.
fn stored_routes(directory: &Path, routes: &Routes) -> Result<StoredRoutes, CommandError> {
    let stored = StoredRoutes::open(directory, routes).map_err(|e| {
        CommandError::failed(format!(
            "{}: {e}: choose another directory with --state-dir",
            directory.display()
        ))
    })?;
    if routes.is_synced() {
        print(&format!("Serving {} models from stored routes.", routes.models().len()));
    }
    Ok(stored)
}

async fn print_when_ready(routes: Routes, scheduler: String) {
    let synced = async {
        while !routes.is_synced() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let mut synced = std::pin::pin!(synced);
    if tokio::time::timeout(ROUTES_NOTICE_DELAY, &mut synced).await.is_err() {
        print(&format!("Waiting for routes from the scheduler at {scheduler}."));
        synced.await;
    }
    print(&format!("Ready. {} models are routed. Ctrl-C stops.", routes.models().len()));
}

fn not_ready(
    routes: &Routes,
    stop: &CancellationToken,
    address: &str,
    scheduler: &SchedulerChannel,
) -> Vec<String> {
    if stop.is_cancelled() {
        return vec!["the gateway is stopping".into()];
    }
    if routes.is_synced() {
        return Vec::new();
    }
    let reason = scheduler.last_error().map_or_else(String::new, |e| format!(": {e}"));
    vec![format!("no routes from the scheduler at {address} yet{reason}")]
}

/// Unique: gateways with the same name would receive each other's acknowledgements.
fn name(args: &Args) -> String {
    args.name.clone().unwrap_or_else(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "gateway" } else { host.trim() };
        format!("{host}-{}", std::process::id())
    })
}
