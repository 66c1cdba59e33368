//! `gantry scheduler`: the control plane.

use super::{etcd_args::EtcdArgs, replicated};
use crate::error::CommandError;
use gantry_artifacts::NetRule;
use gantry_standalone::{
    bootstrap::{
        access::AccessArgs,
        admin_server::{self, AdminServer, stuck_reason},
        listen::{self, ListenArgs},
        log::{self, LogArgs, LogBuffer},
        notifications::Notifier,
        paths,
        scheduler_server::{BoundListener, ClientKind, RunningScheduler},
        signal, tokio_runtime,
        trace::{self, TraceArgs},
    },
    console::print,
};
use gantry_store::{Store, StoreError};
use prometheus_client::registry::Registry;
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// For a state directory locked by another scheduler.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Place models on servers, for agents and gateways that connect.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// State directory: desired state and placements.
    #[arg(long, alias = "db-path", env = "GANTRY_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Seconds to wait for a state directory locked by another scheduler, such as the pod that this one replaces.
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub(crate) wait_for_state: u64,

    /// Address to listen on with TLS, and with --allow-plaintext also without.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Port of the gRPC API without TLS; 0 picks a free one.
    #[arg(long, default_value_t = 9004, value_name = "PORT")]
    pub(crate) scheduler_port: u16,

    /// Port of the agent API without TLS; 0 picks a free one.
    #[arg(long, default_value_t = 9005, value_name = "PORT")]
    pub(crate) agent_port: u16,

    /// Port for health (/live, /ready, /startup), metrics and logs; 0 picks a free one.
    #[arg(long, default_value_t = 9999, value_name = "PORT")]
    pub(crate) health_probe_port: u16,

    /// Address of the health port. It has no TLS: anything but loopback exposes metrics.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) health_host: IpAddr,

    /// Private network (CIDR) or host that webhooks of rollout policies may reach; repeatable.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow_net: Vec<NetRule>,

    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    #[command(flatten)]
    pub(crate) access: AccessArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let logs = log::start(&args.log, None)?;
    tokio_runtime::block_on(serve(args, logs))
}

async fn serve(args: &Args, logs: LogBuffer) -> Result<(), CommandError> {
    // Installed first: a signal during the start shuts down gracefully too.
    let stop = signal::shutdown_token();
    let tracer = args.trace.start("gantry-scheduler")?;
    let tls = args.listen.tls()?;
    let plaintext_host = args.listen.plaintext_host(args.host, tls.is_some())?;
    let notifier = Notifier::new(&args.allow_net, false)?;
    if let Some(settings) = args.etcd.settings()? {
        let (stop, tracer) = (&stop, &tracer);
        let context = replicated::Context { args, stop, tracer, tls, plaintext_host, notifier };
        return context.serve(settings, logs).await;
    }
    let state_dir = paths::state_dir(args.state_dir.as_deref())?;
    let store = tokio::select! {
        opened = open(&state_dir, Duration::from_secs(args.wait_for_state)) => {
            opened.map_err(|e| CommandError::failed(e.to_string()))?
        }
        () = stop.cancelled() => return Ok(()),
    };
    let access = args.access.start()?;
    let listeners = bind_listeners(args, tls, plaintext_host).await?;
    let (health, health_address) =
        listen::bind("health", args.health_host, args.health_probe_port, "--health-probe-port").await?;

    print(&format!(
        "gantry scheduler {} · state in {}",
        env!("CARGO_PKG_VERSION"),
        paths::display(&state_dir)
    ));
    print("");
    for listener in &listeners {
        print(&listener.describe());
    }
    print(&format!(
        "  health    http://{:<24} /live, /ready, /startup, /metrics",
        health_address.to_string()
    ));
    print("");
    let running = RunningScheduler::start(store, listeners, access, notifier, &tracer)?;
    let scheduler = running.scheduler().clone();
    let mut registry = Registry::default();
    running.register_metrics(&mut registry);
    tracer.register_metrics(&mut registry);
    let epoch = scheduler.epoch();
    let admin = AdminServer {
        stuck: Box::new(move || stuck_reason(scheduler.liveness())),
        ..AdminServer::new(registry, logs)
    };
    let stop_admin = CancellationToken::new();
    tokio::spawn(admin_server::serve(admin, health, stop_admin.clone()));
    print("Ready. Ctrl-C stops; desired state is kept for the next start.");
    tracing::info!(epoch, "scheduler started");
    stop.cancelled().await;
    tracing::info!("stopping; finishing open calls");
    let stopped = async {
        running.shut_down().await;
        trace::flush(&tracer).await;
        stop_admin.cancel();
    };
    tokio::select! {
        () = stopped => {}
        () = signal::terminated() => {}
    }
    Ok(())
}

/// Binds all ports, before any is served.
pub(super) async fn bind_listeners(
    args: &Args,
    tls: Option<gantry_tls::Server>,
    plaintext_host: Option<IpAddr>,
) -> Result<Vec<BoundListener>, CommandError> {
    let bind = BoundListener::bind;
    let mut listeners = Vec::new();
    if let Some(host) = plaintext_host {
        listeners.push(bind(ClientKind::Clients, host, args.scheduler_port, "--scheduler-port", None).await?);
        listeners.push(bind(ClientKind::Agents, host, args.agent_port, "--agent-port", None).await?);
    }
    if let Some(tls) = tls {
        let (clients, agents) = (args.listen.scheduler_mtls_port, args.listen.agent_mtls_port);
        let both = Some(tls);
        listeners.push(
            bind(ClientKind::Clients, args.host, clients, "--scheduler-mtls-port", both.clone()).await?,
        );
        listeners.push(bind(ClientKind::Agents, args.host, agents, "--agent-mtls-port", both).await?);
    }
    Ok(listeners)
}

/// Opens the store, and waits while another process has it locked.
async fn open(directory: &Path, timeout: Duration) -> Result<Store, StoreError> {
    let deadline = tokio::time::Instant::now() + timeout;
    let mut warned = false;
    loop {
        match Store::open(directory) {
            Err(in_use @ StoreError::InUse { .. }) if tokio::time::Instant::now() < deadline => {
                if !warned {
                    tracing::warn!(error = %in_use, timeout_seconds = timeout.as_secs(), "waiting for the state directory");
                    warned = true;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            opened => return opened,
        }
    }
}
