//! Write fence: the time until which this operator may write.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// Checked before every write, by a monotonic clock: a process that was paused finds its lease expired before it can
/// write.
#[derive(Clone, Debug)]
pub struct WriteFence {
    state: Arc<Mutex<State>>,
    /// How often it opened after it was closed or had expired.
    openings: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    OpenUntil(Instant),
    AlwaysOpen,
}

impl State {
    fn remaining(self) -> Option<Duration> {
        match self {
            Self::AlwaysOpen => Some(Duration::MAX),
            Self::OpenUntil(end) => end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()),
            Self::Closed => None,
        }
    }
}

impl WriteFence {
    fn new(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)), openings: watch::Sender::new(0) }
    }

    /// For an operator without leader election.
    pub fn always_open() -> Self {
        Self::new(State::AlwaysOpen)
    }

    /// Until the first lease.
    pub fn closed() -> Self {
        Self::new(State::Closed)
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the fence until then; never shortens it.
    pub fn extend(&self, until: Instant) {
        let is_opened = self.with(|state| {
            let was_open = state.remaining().is_some();
            *state = match *state {
                State::OpenUntil(known) => State::OpenUntil(known.max(until)),
                State::Closed => State::OpenUntil(until),
                State::AlwaysOpen => State::AlwaysOpen,
            };
            !was_open && state.remaining().is_some()
        });
        if is_opened {
            self.openings.send_modify(|count| *count += 1);
        }
    }

    pub fn close(&self) {
        self.with(|state| *state = State::Closed);
    }

    /// Time limit of a write that starts now; `None` when none may start.
    pub fn remaining(&self) -> Option<Duration> {
        self.with(|state| state.remaining())
    }

    /// Changes each time the fence opens.
    pub(crate) fn openings(&self) -> watch::Receiver<u64> {
        self.openings.subscribe()
    }

    /// Waits until the fence is open.
    pub(crate) async fn opened(&self) {
        let mut openings = self.openings();
        while self.remaining().is_none() {
            if openings.changed().await.is_err() {
                return;
            }
        }
    }
}
