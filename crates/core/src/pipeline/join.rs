//! When a join is complete.

use super::Join;

/// What is known about the sources of a join; the rest of `total` is absent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) total: u16,
    pub(super) pending: u16,
    pub(super) arrived: u16,
    /// End of the window of an outer join.
    pub(super) closes: u64,
}

/// No window has started.
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinStatus {
    Ready,
    Waiting,
    /// Cannot become ready with the sources that are still pending.
    Impossible,
}

impl Counts {
    pub(super) const fn new(total: usize) -> Self {
        Self { total: total as u16, pending: total as u16, arrived: 0, closes: NEVER }
    }

    pub(super) fn status(&self, join: Join, now: u64) -> JoinStatus {
        let ready = match join {
            _ if self.total == 0 => true,
            Join::Inner => self.arrived == self.total,
            Join::Outer => self.arrived > 0 && (self.pending == 0 || self.closes <= now),
            Join::Any => self.arrived > 0,
        };
        let impossible = match join {
            Join::Inner => self.arrived + self.pending < self.total,
            Join::Outer | Join::Any => self.arrived + self.pending == 0,
        };
        match (ready, impossible) {
            (true, _) => JoinStatus::Ready,
            (false, true) => JoinStatus::Impossible,
            (false, false) => JoinStatus::Waiting,
        }
    }

    /// Whether more sources of the same round are expected.
    pub(super) fn is_open(&self, join: Join) -> bool {
        self.pending > 0 && (join != Join::Any || self.arrived == 0)
    }

    /// Whether the join is complete if nothing else arrives.
    pub(super) fn suffices(&self, join: Join, now: u64) -> bool {
        self.status(join, now) == JoinStatus::Ready || (join == Join::Outer && self.arrived > 0)
    }
}
