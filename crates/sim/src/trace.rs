//! What happened, in order, with the virtual time: two runs of one seed must agree in every line.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The property's name.
    pub(crate) property: String,
    /// What was seen.
    pub(crate) seen: String,
    /// When, in virtual milliseconds.
    pub(crate) at: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.property, clock(self.at), self.seen)
    }
}

/// The record of a run; clones are the same record.
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
    /// A record that starts now. Within a runtime only: its clock is the virtual one.
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

    /// The same in milliseconds.
    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn note(&self, actor: impl fmt::Display, what: impl fmt::Display) {
        let line = format!("{} {actor}: {what}", clock(self.millis()));
        self.lock().lines.push(line);
    }

    /// Notes that a property does not hold. The first one counts: what follows may follow from it.
    pub(crate) fn violate(&self, property: &str, seen: impl Into<String>) {
        let (seen, at) = (seen.into(), self.millis());
        self.note("VIOLATED", format_args!("{property}: {seen}"));
        self.lock().violation.get_or_insert(Violation { property: property.into(), seen, at });
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    /// Every line so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }
}

/// A virtual time for people: `12:03.450`.
fn clock(millis: u64) -> String {
    format!("{:02}:{:02}.{:03}", millis / 60_000, millis / 1000 % 60, millis % 1000)
}

/// A number that stands for all lines (FNV-1a).
pub(crate) fn digest(lines: &[String]) -> u64 {
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
