//! Whether the one writer moves. A process that answers but decides nothing is not alive.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// A writer that took nothing for this long, though something waits, is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(15);

/// How the writer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It takes what it is sent, or has nothing to take.
    Live,
    /// Messages wait and it takes none.
    Stuck {
        /// How many wait.
        waiting: usize,
        /// For how long it took none.
        since: Duration,
    },
    /// It has ended.
    Stopped,
}

impl Liveness {
    /// Whether the writer moves.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Live)
    }
}

/// The writer's pulse: when it last took something, or looked and found nothing.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    start: Instant,
    last: AtomicU64,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0) }
    }

    /// The writer is about to take what waits.
    pub(crate) fn beat(&self) {
        let since = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    pub(crate) fn liveness(&self, waiting: usize, stopped: bool) -> Liveness {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let since = self.start.elapsed().saturating_sub(last);
        match (stopped, waiting) {
            (true, _) => Liveness::Stopped,
            (false, 1..) if since > STUCK_AFTER => Liveness::Stuck { waiting, since },
            (false, _) => Liveness::Live,
        }
    }
}
