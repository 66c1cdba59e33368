//! Commands of people, and events for them.

use super::{evidence::Revision, policy::Exposure, verdict::Finding};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Holds the current weights. Evidence of harm still rolls back.
    Pause,
    Resume,
    /// Rolls the candidate back.
    Abort,
    /// Continues with the next stage without waiting for evidence.
    Promote,
    /// Promotes the candidate without further stages.
    PromoteFull,
    /// Allows a failed revision again.
    Retry {
        revision: Revision,
    },
    /// Returns to the previous revision.
    Undo,
}

/// A command with an increasing number, so that it is handled once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: u64,
    pub command: Command,
}

/// Why a command has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandRejection {
    /// No rollout is in progress.
    NotProgressing,
    NotPaused,
    /// The candidate is not ready.
    NotReady,
    /// The revision has not failed.
    NotFailed,
    /// There is no previous revision, or a rollout is in progress.
    NothingToUndo,
    /// The previous revision does not run any more.
    PreviousGone,
}

impl fmt::Display for CommandRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotProgressing => "is not in progress: a new version starts the next one",
            Self::NotPaused => "is not paused",
            Self::NotReady => "cannot be promoted: the new version is not ready yet",
            Self::NotFailed => "has not failed: there is nothing to retry",
            Self::PreviousGone => {
                "cannot be undone: the previous version stopped when the bake ended; apply its spec again"
            }
            Self::NothingToUndo => "cannot be undone: it is in progress, or there is no previous version",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Deployed {
        revision: Revision,
    },
    Started {
        revision: Revision,
    },
    StageEntered {
        revision: Revision,
        exposure: Exposure,
    },
    Paused {
        revision: Revision,
    },
    /// A stage passed and waits for a `promote` command.
    ApprovalNeeded {
        revision: Revision,
    },
    Resumed {
        revision: Revision,
    },
    Promoted {
        revision: Revision,
    },
    RolledBack {
        revision: Revision,
        to: Revision,
        finding: Finding,
    },
    /// The desired revision changed.
    Cancelled {
        revision: Revision,
    },
    BakeEnded {
        revision: Revision,
    },
    /// The stable revision has a problem, and is not rolled back for it.
    Degraded {
        revision: Revision,
        finding: Finding,
    },
    Reverting {
        revision: Revision,
        to: Revision,
    },
    Reverted {
        revision: Revision,
        to: Revision,
    },
    /// The previous revision did not become ready.
    RevertFailed {
        revision: Revision,
        to: Revision,
    },
    CommandRejected {
        id: u64,
        rejection: CommandRejection,
    },
}

impl Event {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Deployed { .. } => "Deployed",
            Self::Started { .. } => "Started",
            Self::StageEntered { .. } => "StageEntered",
            Self::Paused { .. } => "Paused",
            Self::ApprovalNeeded { .. } => "ApprovalNeeded",
            Self::Resumed { .. } => "Resumed",
            Self::Promoted { .. } => "Promoted",
            Self::RolledBack { .. } => "RolledBack",
            Self::Cancelled { .. } => "Cancelled",
            Self::BakeEnded { .. } => "BakeEnded",
            Self::Degraded { .. } => "Degraded",
            Self::Reverting { .. } => "Reverting",
            Self::Reverted { .. } => "Reverted",
            Self::RevertFailed { .. } => "RevertFailed",
            Self::CommandRejected { .. } => "CommandRejected",
        }
    }
}
