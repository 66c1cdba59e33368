//! The right to write, for as long as it lasts.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Until when this operator may write. A process that was stopped and goes on asks before each write, by a clock that
/// went on: it finds its time over before it can do harm.
#[derive(Clone, Debug)]
pub struct WriteFence(Arc<Mutex<Right>>);

#[derive(Clone, Copy, Debug)]
enum Right {
    None,
    Until(Instant),
    Always,
}

impl WriteFence {
    /// The right of the only operator: it never ends.
    pub fn alone() -> Self {
        Self(Arc::new(Mutex::new(Right::Always)))
    }

    /// No right yet.
    pub fn none() -> Self {
        Self(Arc::new(Mutex::new(Right::None)))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Right) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The right lasts until then; it is never shortened by this.
    pub fn extend(&self, until: Instant) {
        self.with(|right| {
            *right = match *right {
                Right::Until(known) => Right::Until(known.max(until)),
                Right::None => Right::Until(until),
                Right::Always => Right::Always,
            }
        });
    }

    /// The right is given up.
    pub fn close(&self) {
        self.with(|right| *right = Right::None);
    }

    /// How long something may still take that is begun now; `None` when nothing may be begun.
    pub fn remaining(&self) -> Option<Duration> {
        match self.with(|right| *right) {
            Right::Always => Some(Duration::MAX),
            Right::Until(end) => end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()),
            Right::None => None,
        }
    }
}
