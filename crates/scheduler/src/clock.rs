//! Wall clock.
//!
//! Stored and displayed times come from a [`Clock`]; durations are measured with `tokio::time`, so that tests can advance
//! time. This crate has no other source of time, and none of randomness.

use gantry_core::scheduling::Millis;
use std::{
    fmt::Debug,
    time::{SystemTime, UNIX_EPOCH},
};

pub trait Clock: Debug + Send + Sync {
    /// Milliseconds since the Unix epoch. May jump in both directions.
    fn now(&self) -> Millis;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
