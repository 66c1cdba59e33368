//! The trace of a run. Two runs of one seed produce the same lines.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) invariant: String,
    pub(crate) details: String,
    /// Virtual milliseconds.
    pub(crate) at: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.invariant, clock(self.at), self.details)
    }
}

/// Shared between clones.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    inner: Arc<Mutex<Inner>>,
    start: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    lines: Vec<String>,
    violation: Option<Violation>,
}

impl Trace {
    /// Needs the tokio runtime: its clock is virtual.
    pub(crate) fn new() -> Self {
        Self { inner: Arc::default(), start: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Virtual time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn note(&self, actor: impl fmt::Display, what: impl fmt::Display) {
        let line = format!("{} {actor}: {what}", clock(self.millis()));
        self.lock().lines.push(line);
    }

    /// Only the first violation is kept: later ones may be consequences.
    pub(crate) fn violate(&self, invariant: &str, details: impl Into<String>) {
        let (details, at) = (details.into(), self.millis());
        self.note("VIOLATED", format_args!("{invariant}: {details}"));
        self.lock().violation.get_or_insert(Violation { invariant: invariant.into(), details, at });
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }
}

/// Such as `12:03.450`.
fn clock(millis: u64) -> String {
    format!("{:02}:{:02}.{:03}", millis / 60_000, millis / 1000 % 60, millis % 1000)
}

/// FNV-1a over all lines.
pub(crate) fn digest(lines: &[impl AsRef<str>]) -> u64 {
    let bytes = lines.iter().flat_map(|line| line.as_ref().bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
