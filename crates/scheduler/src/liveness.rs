//! Liveness of the engine: a process that responds but applies no commands is not alive.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// An engine that processed nothing for this long with messages queued is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Processing messages, or idle.
    Live,
    /// Messages are queued and none is processed.
    Stuck {
        waiting: usize,
        since: Duration,
    },
    Stopped,
}

impl Liveness {
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Live)
    }
}

/// Time of the engine's last iteration.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    start: Instant,
    last: AtomicU64,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0) }
    }

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
