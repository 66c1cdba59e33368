//! Wall clock for expiry, steady clock for rates.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970.
    pub wall: u64,
    /// Nanoseconds since an arbitrary start.
    pub steady: u64,
}

/// The clock of a process, or one that a test advances.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Instant),
    /// Nanoseconds since 1970.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    pub fn system() -> Self {
        Self(Source::System(Instant::now()))
    }

    /// A clock that stands still at this many seconds since 1970.
    pub fn manual(seconds: u64) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(seconds.saturating_mul(1_000_000_000)))))
    }

    /// Only of a manual clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(nanoseconds) = &self.0 {
            nanoseconds.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    pub fn now(&self) -> Now {
        match &self.0 {
            Source::System(start) => Now {
                wall: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
                steady: u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            },
            Source::Manual(nanoseconds) => {
                let steady = nanoseconds.load(Ordering::Relaxed);
                Now { wall: steady / 1_000_000_000, steady }
            }
        }
    }
}
