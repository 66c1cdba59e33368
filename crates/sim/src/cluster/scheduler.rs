//! The real scheduler, on the simulated network and a faulty disk.

use super::clock::WallClock;
use crate::{
    net::{Host, Net},
    trace::Trace,
};
use gantry_core::scheduling::Policy;
use gantry_scheduler::{Config, Engine, Liveness, Scheduler, build, serve};
use gantry_store::{StoreError, faulty_disk::Disk};
use std::{pin::pin, sync::Arc};
use tokio::{sync::watch, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// Ports.
pub(crate) const CLIENTS: &str = "clients";
pub(crate) const AGENTS: &str = "agents";

pub(crate) struct Process {
    scheduler: Scheduler,
    tasks: Vec<JoinHandle<()>>,
    stop: CancellationToken,
    stalled: watch::Sender<bool>,
}

/// Runs the engine, except while a write stalls: its queue fills, and everything else goes on.
async fn run_engine(engine: Engine, mut stalled: watch::Receiver<bool>) {
    let mut running = pin!(engine.run());
    loop {
        if stalled.wait_for(|stalled| !stalled).await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            stalls = stalled.wait_for(|stalled| *stalled) => if stalls.is_err() { return },
            () = &mut running => return,
        }
    }
}

impl Process {
    /// Starts from the disk; `None` while the disk cannot be opened.
    pub(crate) fn start(
        net: &Net,
        host: &Host,
        disk: &Disk,
        clock: &Arc<WallClock>,
        trace: &Trace,
    ) -> Option<Self> {
        let store = match disk.open() {
            Ok(store) => store,
            Err(StoreError::Damaged { file, what }) => {
                trace.violate("store_opens_after_crash", format!("{}: {what}", file.display()));
                return None;
            }
            Err(error) => {
                trace.note(host, format_args!("cannot start: {error}"));
                return None;
            }
        };
        // Short enough for scale-down within a scenario.
        let policy = Policy { idle: 90_000, ..Policy::default() };
        let built = build(Config { clock: clock.clone(), policy, ..Config::new(store) });
        let (scheduler, engine) = match built {
            Ok(built) => built,
            Err(error) => {
                trace.violate("store_opens_after_crash", error.to_string());
                return None;
            }
        };
        trace.note(host, format_args!("starts, epoch {}", scheduler.epoch()));
        let stop = CancellationToken::new();
        let (Ok(clients), Ok(agents)) = (scheduler.client_routes(), scheduler.agent_routes()) else {
            trace.violate("scheduler_starts", "building its gRPC services failed");
            return None;
        };
        let incoming = |port| ReceiverStream::new(net.listen(host, port));
        let (stalled, receiver) = watch::channel(false);
        let tasks = vec![
            tokio::spawn(serve("clients", clients, incoming(CLIENTS), stop.clone())),
            tokio::spawn(serve("agents", agents, incoming(AGENTS), stop.clone())),
            tokio::spawn(run_engine(engine, receiver)),
        ];
        Some(Self { scheduler, tasks, stop, stalled })
    }

    /// Starts or ends a stall of the store's writes.
    pub(crate) fn stall(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }

    pub(crate) fn liveness(&self) -> Liveness {
        self.scheduler.liveness()
    }

    /// Aborts its tasks; connections and disk are the caller's.
    pub(crate) fn kill(self) {
        self.stop.cancel();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
