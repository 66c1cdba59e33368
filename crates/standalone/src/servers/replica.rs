//! State of one supervised replica.

use super::{
    launch_spec::Allocation,
    log_tail::LogTail,
    plan::{self, Key, Millis, Observed},
    process_identity::ProcessIdentity,
    process_registry::Entry,
    report::ReplicaReport,
    supervisor::{ShutdownMode, now},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) fingerprint: u64,
    pub(super) allocation: Allocation,
    pub(super) command: String,
    pub(super) phase: Phase,
    pub(super) output: LogTail,
    /// Consecutive crashes.
    pub(super) failures: u32,
    pub(super) last_end: String,
}

#[derive(Debug)]
pub(super) enum Phase {
    Running(Run),
    Stopping(Run),
    Crashed { restart_at: Millis },
    Stopped,
}

/// A running process.
#[derive(Debug)]
pub(super) struct Run {
    /// Events of other runs are ignored.
    pub(super) number: u64,
    pub(super) process: ProcessIdentity,
    pub(super) since: Millis,
    pub(super) ready: bool,
    /// Stops its probe.
    pub(super) ended: CancellationToken,
    /// Its agent.
    pub(super) agent: Option<(ShutdownMode, JoinHandle<()>)>,
}

impl Slot {
    pub(super) fn run(&self) -> Option<&Run> {
        match &self.phase {
            Phase::Running(run) | Phase::Stopping(run) => Some(run),
            _ => None,
        }
    }

    pub(super) fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.phase {
            Phase::Running(run) | Phase::Stopping(run) => Some(run),
            _ => None,
        }
    }

    pub(super) fn observed(&self) -> Observed {
        match &self.phase {
            Phase::Running(run) => Observed::Running { fingerprint: self.fingerprint, ready: run.ready },
            Phase::Stopping(_) => Observed::Stopping,
            Phase::Crashed { restart_at } => {
                Observed::Crashed { fingerprint: self.fingerprint, restart_at: *restart_at }
            }
            Phase::Stopped => Observed::Stopped,
        }
    }

    /// Registry entry, if there is a process.
    pub(super) fn entry(&self) -> Option<Entry> {
        let run = self.run()?;
        Some(Entry {
            server: self.key.0.clone(),
            replica: self.key.1,
            process: run.process.clone(),
            allocation: self.allocation.clone(),
            fingerprint: self.fingerprint,
        })
    }

    pub(super) fn report(&self) -> ReplicaReport {
        let state = match &self.phase {
            Phase::Running(run) if run.ready => "ready",
            Phase::Running(_) => "starting",
            Phase::Stopping(_) => "stopping",
            Phase::Crashed { .. } => "crashed",
            Phase::Stopped => "stopped",
        };
        ReplicaReport {
            server: self.key.0.clone(),
            replica: self.key.1,
            state: state.into(),
            command: self.command.clone(),
            pid: self.run().map(|r| r.process.pid),
            http_port: self.allocation.http_port,
            grpc_port: self.allocation.grpc_port,
            failures: self.failures,
            last_end: self.last_end.clone(),
            again_at_ms: match self.phase {
                Phase::Crashed { restart_at } => Some(restart_at),
                _ => None,
            },
            last_lines: self.output.last_lines(),
        }
    }

    /// Logs its new output.
    pub(super) fn log_output(&mut self, exited: bool) {
        let lines = if exited { self.output.read_rest() } else { self.output.read_new() };
        let (server, replica) = (&self.key.0, self.key.1);
        for line in lines {
            tracing::info!(target: "server", %server, replica, "{line}");
        }
    }

    /// Enters the backoff after an unexpected exit.
    pub(super) fn crash(&mut self, reason: &str, ran: Millis, jitter: f64) {
        self.failures = plan::failures(self.failures, ran);
        reason.clone_into(&mut self.last_end);
        let backoff = plan::backoff(self.failures, jitter);
        self.phase = Phase::Crashed { restart_at: now() + backoff };
        let (server, replica) = (&self.key.0, self.key.1);
        tracing::warn!(%server, replica, failures = self.failures, backoff_ms = backoff, "{reason}; restarting after backoff");
    }
}
