//! The messages that share one commit.

use super::{CommandError, Reply};
use gantry_core::scheduling::{Command, Effects};
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct CommitBatch {
    pub(super) effects: Effects,
    /// Applied commands that await the commit.
    pub(super) commands: Vec<(Reply<()>, Instant)>,
    /// Agents and gateways that joined in this batch.
    pub(super) joined: Vec<Reply<()>>,
    /// Reports, reapplied after a rollback. Collected only when the batch has commands that may be rolled back.
    pub(super) reports: Option<Vec<Command>>,
}

impl CommitBatch {
    pub(super) fn new(has_commands: bool) -> Self {
        Self { reports: has_commands.then(Vec::new), ..Self::default() }
    }

    /// Sends the same result to all commands.
    pub(super) fn answer(&mut self, result: &Result<(), CommandError>, mut seen: impl FnMut(Instant)) {
        for (reply, at) in self.commands.drain(..) {
            seen(at);
            // The caller may be gone; the change stays.
            let _ = reply.send(result.clone());
        }
    }
}
