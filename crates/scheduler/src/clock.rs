//! Where the time of day comes from.
//!
//! What is stored and shown carries the time of day, which is the [`Clock`]'s. How long something takes is measured with
//! `tokio::time`, so that a test can let time pass. There is no other source of time, and none of chance, in this crate.

use gantry_core::scheduling::Millis;
use std::{
    fmt::Debug,
    time::{SystemTime, UNIX_EPOCH},
};

/// Tells the time of day.
pub trait Clock: Debug + Send + Sync {
    /// Milliseconds since 1970. It may jump, in both directions.
    fn now(&self) -> Millis;
}

/// The computer's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
