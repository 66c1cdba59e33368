//! Whether the one writer moves. A process that answers but decides nothing is not alive.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// A writer that took nothing for this long, though something waits, is stuck.
const PATIENCE: Duration = Duration::from_secs(15);

/// How the writer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It takes what it is sent, or has nothing to take.
    Moving,
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

impl Progress {
    /// Whether the writer moves.
    pub const fn is_moving(self) -> bool {
        matches!(self, Self::Moving)
    }
}

/// The writer's pulse: when it last took something, or looked and found nothing.
#[derive(Debug)]
pub(crate) struct Pulse {
    start: Instant,
    last: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0) }
    }

    /// The writer is about to take what waits.
    pub(crate) fn beat(&self) {
        let since = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    pub(crate) fn judge(&self, waiting: usize, stopped: bool) -> Progress {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let since = self.start.elapsed().saturating_sub(last);
        match (stopped, waiting) {
            (true, _) => Progress::Stopped,
            (false, 1..) if since > PATIENCE => Progress::Stuck { waiting, since },
            (false, _) => Progress::Moving,
        }
    }
}
