//! One turn of the writer: the messages that share one write to the store.

use super::{CommandError, Reply};
use gantry_core::scheduling::{Command, Effects};
use tokio::time::Instant;

/// What a turn gathers before it is made durable and told.
#[derive(Default)]
pub(super) struct CommitBatch {
    pub(super) effects: Effects,
    /// Commands that must last, carried out but not answered.
    pub(super) commands: Vec<(Reply<()>, Instant)>,
    /// Agents and gateways that joined and are not told so yet.
    pub(super) joined: Vec<Reply<()>>,
    /// Commands that nobody waits for: carried out again when the turn has to be taken back. Only gathered when
    /// there is something that may have to be taken back.
    pub(super) reports: Option<Vec<Command>>,
}

impl CommitBatch {
    pub(super) fn new(has_commands: bool) -> Self {
        Self { reports: has_commands.then(Vec::new), ..Self::default() }
    }

    /// Answers everybody who waits for the disk, alike.
    pub(super) fn answer(&mut self, result: &Result<(), CommandError>, mut seen: impl FnMut(Instant)) {
        for (reply, at) in self.commands.drain(..) {
            seen(at);
            // Whoever asked may have gone away; the decision stands all the same.
            let _ = reply.send(result.clone());
        }
    }
}
