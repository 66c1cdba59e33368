//! The scheduler as a process: the real one, over the network of the world and a disk that fails.

use super::clock::WallClock;
use crate::{
    net::{Host, Net},
    trace::Trace,
};
use gantry_scheduler::{Config, Progress, Scheduler, build, serve};
use gantry_store::{StoreError, faults::Disk};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// Where clients and gateways connect, and where agents do.
pub(crate) const CLIENTS: &str = "clients";
pub(crate) const AGENTS: &str = "agents";

/// A scheduler that runs.
pub(crate) struct Process {
    scheduler: Scheduler,
    tasks: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Process {
    /// Starts over what is on the disk; `None` when the disk does not allow it now.
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
                trace.violate("the_store_survives", format!("{}: {what}", file.display()));
                return None;
            }
            Err(error) => {
                trace.note(host, format_args!("cannot start: {error}"));
                return None;
            }
        };
        let built = build(Config { clock: clock.clone(), ..Config::new(store) });
        let (scheduler, engine) = match built {
            Ok(built) => built,
            Err(error) => {
                trace.violate("the_store_survives", error.to_string());
                return None;
            }
        };
        trace.note(host, format_args!("starts, epoch {}", scheduler.epoch()));
        let stop = CancellationToken::new();
        let (Ok(clients), Ok(agents)) = (scheduler.client_routes(), scheduler.agent_routes()) else {
            trace.violate("the_scheduler_starts", "its services cannot be made");
            return None;
        };
        let incoming = |port| ReceiverStream::new(net.listen(host, port));
        let tasks = vec![
            tokio::spawn(serve("clients", clients, incoming(CLIENTS), stop.clone())),
            tokio::spawn(serve("agents", agents, incoming(AGENTS), stop.clone())),
            tokio::spawn(engine.run()),
        ];
        Some(Self { scheduler, tasks, stop })
    }

    pub(crate) fn progress(&self) -> Progress {
        self.scheduler.progress()
    }

    /// Dies at once. Its connections are the network's business, what it wrote is the disk's.
    pub(crate) fn die(self) {
        self.stop.cancel();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
