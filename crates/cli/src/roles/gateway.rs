//! `gantry gateway`: the data plane as a process of its own.

use super::{listen, log, reach::Reach, scheduler::say, signal, threads, trace};
use crate::{
    args::Global,
    client,
    failure::Failure,
    up::{
        admin::{self, Admin},
        servers::Report,
    },
};
use futures::future::BoxFuture;
use gantry_gateway::{Gateway, Routes, control};
use prometheus_client::registry::Registry;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// How long requests under way have to end when the gateway stops, and then a little.
const GOODBYE: Duration = Duration::from_secs(35);

/// Take requests for models, and pass them to the servers that the scheduler (--scheduler) names.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What the scheduler knows this gateway by; no two may have the same [default: the machine's name and a number]
    #[arg(long, env = "GANTRY_GATEWAY_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Address to listen on for inference. Anything but loopback lets other machines in.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Port for inference, REST and gRPC; 0 for any free one.
    #[arg(long, default_value_t = 9000, value_name = "PORT")]
    pub(crate) inference_port: u16,

    /// Port for metrics, health and logs; 0 for any free one.
    #[arg(long, default_value_t = 9003, value_name = "PORT")]
    pub(crate) admin_port: u16,

    /// Address of that port. It has no TLS: anything but loopback lets other machines read metrics and logs.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) admin_host: IpAddr,

    /// Largest request body in bytes.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    pub(crate) max_body: usize,

    /// How long a request may take, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) request_timeout: u64,

    /// Requests that may be under way at once; more are answered with 503.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub(crate) max_in_flight: usize,

    /// How long connections that clients keep may be used once more when the gateway stops, in seconds. Each is told to
    /// close by that answer, so that no request meets a closed one.
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=60))]
    pub(crate) linger: u64,

    #[command(flatten)]
    /// What is logged, and how.
    pub(crate) log: log::LogArgs,

    #[command(flatten)]
    /// Who is told how long things took.
    pub(crate) trace: trace::TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let lines = log::start(&args.log, None, Some(tracing::Level::INFO)).map_err(Failure::usage)?;
    threads::live(live(global, args, lines))
}

async fn live(global: &Global, args: &Args, lines: log::Lines) -> Result<(), Failure> {
    let stop = signal::stopping();
    let (address, tls) = client::lasting_scheduler(global)?;
    let scheduler = Reach::new(&address, tls)?;
    let tracer = args.trace.start("gantry-gateway")?;
    let gateway = Gateway::bind(gantry_gateway::Config {
        listen: SocketAddr::new(args.host, args.inference_port),
        max_body: args.max_body,
        max_in_flight: args.max_in_flight,
        request_timeout: Duration::from_secs(args.request_timeout),
        linger: Duration::from_secs(args.linger),
        tracer: tracer.clone(),
        ..gantry_gateway::Config::default()
    })
    .map_err(|e| Failure::failed(e.to_string()))?;
    let (admin, admin_at) =
        listen::bind("the admin endpoint", args.admin_host, args.admin_port, "--admin-port").await?;

    let mut registry = Registry::default();
    gateway.register_metrics(&mut registry);
    tracer.register_metrics(&mut registry);
    let channel = scheduler.lazily();
    gateway.set_control(Arc::new(control::SchedulerControl::new(channel.clone())));
    let routes = gateway.routes();
    let (inference, name) = (gateway.local_addr(), name(args));
    let stop_rest = CancellationToken::new();
    let reach = scheduler.clone();
    let how = if scheduler.is_tls() { "gRPC with TLS" } else { "gRPC" };
    tokio::spawn(control::report_demand(channel, name.clone(), routes.clone(), stop_rest.clone()));
    tokio::spawn(follow(scheduler, name.clone(), routes.clone(), stop_rest.clone()));

    say(&format!("gantry gateway {} · {name}", env!("CARGO_PKG_VERSION")));
    say("");
    say(&format!(
        "  inference   http://{:<24} REST and gRPC, Open Inference Protocol",
        inference.to_string()
    ));
    say(&format!("  admin       http://{:<24} metrics, health", admin_at.to_string()));
    say(&format!("  scheduler   {:<31} {how}", address.to_string()));
    say("");
    let (synced, closing, scheduler_at) = (routes.clone(), stop.clone(), address.to_string());
    let admin_page = Admin {
        registry,
        lines,
        stuck: Box::new(|| None),
        not_ready: Box::new(move || not_ready(&synced, &closing, &scheduler_at, &reach)),
        top: Box::new(|| serde_json::json!({})),
        servers: Report::default(),
    };
    tokio::spawn(admin::serve(admin_page, admin, stop_rest.clone()));
    tokio::spawn(tell_when_ready(routes, address.to_string(), stop_rest.clone()));

    let stop_gateway = CancellationToken::new();
    let serving = tokio::spawn(gateway.serve(stop_gateway.clone()));
    stop.cancelled().await;
    say("Stopping: requests under way are finished first. Ctrl-C again stops at once.");
    stop_gateway.cancel();
    tokio::select! {
        _ = tokio::time::timeout(GOODBYE, serving) => {}
        () = signal::asked_to_stop() => {}
    }
    stop_rest.cancel();
    trace::close(&tracer).await;
    Ok(())
}

/// A gateway serves what it was told; before that it can only wait.
async fn tell_when_ready(routes: Routes, scheduler: String, stop: CancellationToken) {
    let mut told = false;
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let patience = tokio::time::Instant::now() + Duration::from_secs(1);
    while !routes.is_synced() {
        if !told && tokio::time::Instant::now() > patience {
            say(&format!("Waiting for the routes of the scheduler at {scheduler}."));
            told = true;
        }
        tokio::select! {
            _ = look.tick() => {}
            () = stop.cancelled() => return,
        }
    }
    say(&format!("Ready. {} models are routed. Ctrl-C stops.", routes.models().len()));
}

fn not_ready(routes: &Routes, closing: &CancellationToken, scheduler: &str, reach: &Reach) -> Vec<String> {
    if closing.is_cancelled() {
        return vec!["the gateway is stopping".into()];
    }
    if routes.is_synced() {
        return Vec::new();
    }
    let why = reach.trouble().map_or_else(String::new, |why| format!(": {why}"));
    vec![format!("the scheduler at {scheduler} has not told its routes yet{why}")]
}

async fn follow(scheduler: Reach, name: String, routes: Routes, stop: CancellationToken) {
    let connect = move || -> BoxFuture<'static, _> {
        let connecting = scheduler.connect();
        Box::pin(async { connecting.await.map_err(Into::into) })
    };
    control::follow_over(connect, name, routes, stop).await;
}

/// Two gateways with one name would take each other's acknowledgements.
fn name(args: &Args) -> String {
    args.name.clone().unwrap_or_else(|| {
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let machine = if machine.trim().is_empty() { "gateway" } else { machine.trim() };
        format!("{machine}-{}", std::process::id())
    })
}
