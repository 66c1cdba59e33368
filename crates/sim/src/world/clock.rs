//! The scheduler's wall clock: virtual time, and whatever the nemesis adds to it.

use gantry_scheduler::Clock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// When the world begins, in milliseconds since 1970.
const BEGINNING: u64 = 1_800_000_000_000;

#[derive(Debug)]
pub(crate) struct WallClock {
    start: Instant,
    ahead: AtomicI64,
}

impl WallClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), ahead: AtomicI64::new(0) })
    }

    pub(crate) fn jump(&self, by: i64) {
        self.ahead.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for WallClock {
    fn now(&self) -> u64 {
        let passed = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        (BEGINNING + passed(self.start.elapsed())).saturating_add_signed(self.ahead.load(Ordering::Relaxed))
    }
}
