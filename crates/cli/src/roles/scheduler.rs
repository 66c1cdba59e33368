//! `gantry scheduler`: the control plane as a process of its own.

use super::{listen, log, signal, threads, trace};
use crate::{
    failure::{Exit, Failure},
    up::{
        admin::{self, Admin},
        paths,
        servers::Report,
    },
};
use gantry_scheduler::{Progress, Scheduler, Thread};
use gantry_store::{Store, StoreError};
use gantry_trace::Tracer;
use prometheus_client::registry::Registry;
use std::{
    io::Write as _,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long calls may take to end when the scheduler stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often a state that somebody else has is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Decide which server loads which model, for agents and gateways that connect.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where state is kept: what is asked for, and what was decided.
    #[arg(long, alias = "db-path", env = "GANTRY_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// How long to wait for a state that another scheduler still has, in seconds: a pod may start before the one that it
    /// replaces has ended.
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub(crate) wait_for_state: u64,

    /// Address to listen on with TLS; without TLS too, where --allow-plaintext says so.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,

    /// Port of the scheduler's gRPC without TLS; 0 for any free one.
    #[arg(long, default_value_t = 9004, value_name = "PORT")]
    pub(crate) scheduler_port: u16,

    /// Port where agents reach the scheduler without TLS; 0 for any free one.
    #[arg(long, default_value_t = 9005, value_name = "PORT")]
    pub(crate) agent_port: u16,

    /// Port for health (/live, /ready, /startup), metrics and logs; 0 for any free one.
    #[arg(long, default_value_t = 9999, value_name = "PORT")]
    pub(crate) health_probe_port: u16,

    /// Address of that port. It has no TLS: anything but loopback lets other machines read metrics and logs.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) health_host: IpAddr,

    #[command(flatten)]
    /// What is logged, and how.
    pub(crate) log: log::LogArgs,

    #[command(flatten)]
    /// Who may reach it.
    pub(crate) listen: listen::ListenArgs,

    #[command(flatten)]
    /// Who is told how long things took.
    pub(crate) trace: trace::TraceArgs,
}

/// Runs until Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let lines = log::start(&args.log, None, Some(tracing::Level::INFO)).map_err(Failure::usage)?;
    threads::live(live(args, lines))
}

async fn live(args: &Args, lines: log::Lines) -> Result<(), Failure> {
    // From the first moment on, Ctrl-C means: end in good order.
    let stop = signal::stopping();
    let failed = |e: &dyn std::fmt::Display| Failure::new(Exit::Failed, e.to_string());
    let tracer = args.trace.start("gantry-scheduler")?;
    let tls = args.listen.tls()?;
    let plain = args.listen.plaintext(args.host, tls.is_some())?;
    let state_dir = paths::state_dir(args.state_dir.as_deref())?;
    let patience = Duration::from_secs(args.wait_for_state);
    let store = tokio::select! {
        opened = open(&state_dir, patience) => opened.map_err(|e| failed(&e))?,
        () = stop.cancelled() => return Ok(()),
    };
    // Every port is taken before anything is said to work.
    let mut doors: Vec<Door> = Vec::new();
    if let Some(host) = plain {
        doors.push(Door::open(Who::Clients, host, args.scheduler_port, "--scheduler-port", None).await?);
        doors.push(Door::open(Who::Agents, host, args.agent_port, "--agent-port", None).await?);
    }
    if let Some(tls) = tls {
        let (clients, agents) = (args.listen.scheduler_mtls_port, args.listen.agent_mtls_port);
        let with = |tls: &gantry_tls::Server| Some(tls.clone());
        doors.push(Door::open(Who::Clients, args.host, clients, "--scheduler-mtls-port", with(&tls)).await?);
        doors.push(Door::open(Who::Agents, args.host, agents, "--agent-mtls-port", with(&tls)).await?);
    }
    let (health, health_at) =
        listen::bind("health", args.health_host, args.health_probe_port, "--health-probe-port").await?;
    let (scheduler, engine) =
        gantry_scheduler::build(gantry_scheduler::Config::new(store)).map_err(|e| failed(&e))?;
    let engine = engine.on_a_thread().map_err(|e| failed(&e))?;

    say(&format!("gantry scheduler {} · state in {}", env!("CARGO_PKG_VERSION"), paths::shown(&state_dir)));
    say("");
    for door in &doors {
        say(&door.shown());
    }
    say(&format!("  health    http://{:<24} /live, /ready, /startup, /metrics", health_at.to_string()));
    say("");
    let mut registry = Registry::default();
    scheduler.register_metrics(&mut registry);
    tracer.register_metrics(&mut registry);
    let stop_serving = CancellationToken::new();
    let mut house = House { scheduler, engine, tracer: tracer.clone(), tasks: JoinSet::new(), stop_serving };
    for door in doors {
        house.serve(door)?;
    }
    let writer = house.scheduler.clone();
    let admin = Admin {
        registry,
        lines,
        stuck: Box::new(move || stuck(writer.progress())),
        not_ready: Box::new(Vec::new),
        top: Box::new(|| serde_json::json!({})),
        servers: Report::default(),
    };
    let stop_admin = CancellationToken::new();
    tokio::spawn(admin::serve(admin, health, stop_admin.clone()));
    say("Ready. Ctrl-C stops; what is asked for stays for the next start.");
    tracing::info!(epoch = house.scheduler.epoch(), "the scheduler has started");
    stop.cancelled().await;
    tracing::info!("stopping: calls under way are finished first");
    let goodbye = async {
        house.close().await;
        trace::close(&tracer).await;
        stop_admin.cancel();
    };
    tokio::select! {
        () = goodbye => {}
        () = signal::asked_to_stop() => {}
    }
    Ok(())
}

/// Opens the state, when whoever has it lets it go in time.
async fn open(directory: &Path, patience: Duration) -> Result<Store, StoreError> {
    let until = tokio::time::Instant::now() + patience;
    let mut told = false;
    loop {
        match Store::open(directory) {
            Err(in_use @ StoreError::InUse { .. }) if tokio::time::Instant::now() < until => {
                if !told {
                    tracing::warn!("waits {} s at most: {in_use}", patience.as_secs());
                    told = true;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            opened => return opened,
        }
    }
}

/// Why the scheduler is worth a restart, if it is.
pub(crate) fn stuck(progress: Progress) -> Option<String> {
    match progress {
        Progress::Moving => None,
        Progress::Stuck { waiting, since } => Some(format!(
            "the scheduler has decided nothing for {} s, and {waiting} messages wait: is the disk stalled?",
            since.as_secs()
        )),
        Progress::Stopped => Some("the scheduler has ended".into()),
    }
}

/// Whoever reads may have gone away; that is no reason to stop.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// For whom a port is.
#[derive(Clone, Copy)]
enum Who {
    Clients,
    Agents,
}

/// A port that is taken and not served yet.
struct Door {
    who: Who,
    listener: tokio::net::TcpListener,
    at: std::net::SocketAddr,
    tls: Option<gantry_tls::Server>,
}

impl Door {
    async fn open(
        who: Who,
        host: IpAddr,
        port: u16,
        flag: &str,
        tls: Option<gantry_tls::Server>,
    ) -> Result<Self, Failure> {
        let what = match who {
            Who::Clients => "the scheduler",
            Who::Agents => "the scheduler's agent service",
        };
        let (listener, at) = listen::bind(what, host, port, flag).await?;
        Ok(Self { who, listener, at, tls })
    }

    fn shown(&self) -> String {
        let who = match self.who {
            Who::Clients => "clients",
            Who::Agents => "agents",
        };
        let how = match &self.tls {
            None => "gRPC",
            Some(tls) if tls.is_mutual() => "gRPC, mutual TLS",
            Some(_) => "gRPC, TLS",
        };
        format!("  {who:<9} {:<31} {how}", self.at.to_string())
    }
}

/// The scheduler, and those whom it serves.
struct House {
    scheduler: Scheduler,
    engine: Thread,
    tracer: Tracer,
    tasks: JoinSet<()>,
    stop_serving: CancellationToken,
}

impl House {
    fn serve(&mut self, door: Door) -> Result<(), Failure> {
        let (who, routes) = match door.who {
            Who::Clients => ("clients", self.scheduler.client_routes()),
            Who::Agents => ("agents", self.scheduler.agent_routes()),
        };
        let routes = trace::traced(routes.map_err(|e| Failure::failed(e.to_string()))?, &self.tracer);
        let incoming = gantry_tls::incoming(door.listener, door.tls);
        self.tasks.spawn(gantry_scheduler::serve(who, routes, incoming, self.stop_serving.clone()));
        Ok(())
    }

    /// Ends the streams, and waits until all is written and the store is closed.
    async fn close(mut self) {
        self.stop_serving.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // A stream whose reader does not go away is cut off.
        let _ = tokio::time::timeout(FAREWELL, all).await;
        self.tasks.shutdown().await;
        self.scheduler.stop();
        self.engine.ended().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_stands_still_is_told() {
        assert_eq!(stuck(Progress::Moving), None);
        let still = Progress::Stuck { waiting: 7, since: Duration::from_secs(20) };
        assert!(
            stuck(still)
                .unwrap()
                .starts_with("the scheduler has decided nothing for 20 s, and 7 messages wait")
        );
        assert!(stuck(Progress::Stopped).is_some());
    }
}
