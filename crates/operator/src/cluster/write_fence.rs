//! Write fence: the time until which this operator may write.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Checked before every write, by a monotonic clock: a process that was paused finds its lease expired before it can
/// write.
#[derive(Clone, Debug)]
pub struct WriteFence(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    OpenUntil(Instant),
    AlwaysOpen,
}

impl WriteFence {
    /// For an operator without leader election.
    pub fn always_open() -> Self {
        Self(Arc::new(Mutex::new(State::AlwaysOpen)))
    }

    /// Until the first lease.
    pub fn closed() -> Self {
        Self(Arc::new(Mutex::new(State::Closed)))
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the fence until then; never shortens it.
    pub fn extend(&self, until: Instant) {
        self.with(|state| {
            *state = match *state {
                State::OpenUntil(known) => State::OpenUntil(known.max(until)),
                State::Closed => State::OpenUntil(until),
                State::AlwaysOpen => State::AlwaysOpen,
            }
        });
    }

    pub fn close(&self) {
        self.with(|state| *state = State::Closed);
    }

    /// Time limit of a write that starts now; `None` when none may start.
    pub fn remaining(&self) -> Option<Duration> {
        match self.with(|state| *state) {
            State::AlwaysOpen => Some(Duration::MAX),
            State::OpenUntil(end) => end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()),
            State::Closed => None,
        }
    }
}
