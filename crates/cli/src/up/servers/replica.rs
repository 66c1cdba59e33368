//! One replica as the supervisor knows it.

use super::{
    identity::Identity,
    ledger::Entry,
    plan::{Key, Millis, Seen},
    recipe::Place,
    report::ReplicaReport,
    supervisor::Farewell,
    tail::Tail,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What is known of a replica.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) fingerprint: u64,
    pub(super) place: Place,
    pub(super) command: String,
    pub(super) phase: Phase,
    pub(super) tail: Tail,
    /// How often it ended by itself in a row.
    pub(super) failures: u32,
    pub(super) last_end: String,
}

#[derive(Debug)]
pub(super) enum Phase {
    Running(Run),
    Stopping(Run),
    Ended { again_at: Millis },
    Stopped,
}

/// A process that runs.
#[derive(Debug)]
pub(super) struct Run {
    /// Tells this run from the one before: news of that one does not count.
    pub(super) number: u64,
    pub(super) process: Identity,
    pub(super) since: Millis,
    pub(super) ready: bool,
    /// Ends what watches it.
    pub(super) over: CancellationToken,
    /// The agent beside it, and how it is told to end.
    pub(super) agent: Option<(Farewell, JoinHandle<()>)>,
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

    pub(super) fn seen(&self) -> Seen {
        match &self.phase {
            Phase::Running(run) => Seen::Running { fingerprint: self.fingerprint, ready: run.ready },
            Phase::Stopping(_) => Seen::Stopping,
            Phase::Ended { again_at } => Seen::Ended { fingerprint: self.fingerprint, again_at: *again_at },
            Phase::Stopped => Seen::Stopped,
        }
    }

    /// For the next start, if there is a process to be found.
    pub(super) fn entry(&self) -> Option<Entry> {
        let run = self.run()?;
        Some(Entry {
            server: self.key.0.clone(),
            replica: self.key.1,
            process: run.process.clone(),
            place: self.place.clone(),
            fingerprint: self.fingerprint,
        })
    }

    pub(super) fn report(&self) -> ReplicaReport {
        let state = match &self.phase {
            Phase::Running(run) if run.ready => "ready",
            Phase::Running(_) => "starting",
            Phase::Stopping(_) => "stopping",
            Phase::Ended { .. } => "crashed",
            Phase::Stopped => "stopped",
        };
        ReplicaReport {
            server: self.key.0.clone(),
            replica: self.key.1,
            state: state.into(),
            command: self.command.clone(),
            pid: self.run().map(|r| r.process.pid),
            http_port: self.place.http_port,
            grpc_port: self.place.grpc_port,
            failures: self.failures,
            last_end: self.last_end.clone(),
            again_at_ms: match self.phase {
                Phase::Ended { again_at } => Some(again_at),
                _ => None,
            },
            last_lines: self.tail.last(),
        }
    }

    /// Passes on what it said.
    pub(super) fn hear(&mut self, last: bool) {
        let lines = if last { self.tail.finish() } else { self.tail.look() };
        let (server, replica) = (&self.key.0, self.key.1);
        for line in lines {
            tracing::info!(target: "server", %server, replica, "{line}");
        }
    }
}
