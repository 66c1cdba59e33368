//! The wall clock of the scheduler: virtual time plus injected jumps.

use gantry_scheduler::Clock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Start of the simulation, in milliseconds since 1970.
const START_MILLIS: u64 = 1_800_000_000_000;

#[derive(Debug)]
pub(crate) struct WallClock {
    start: Instant,
    offset: AtomicI64,
}

impl WallClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), offset: AtomicI64::new(0) })
    }

    pub(crate) fn jump(&self, by: i64) {
        self.offset.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for WallClock {
    fn now(&self) -> u64 {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        (START_MILLIS + millis(self.start.elapsed()))
            .saturating_add_signed(self.offset.load(Ordering::Relaxed))
    }
}
