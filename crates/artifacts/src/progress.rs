//! Fetch progress.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::FetchError;

/// Receives the progress of a fetch. Called often; must return at once.
pub trait ProgressSink: Send + Sync {
    /// Bytes received so far (fewer again after a restart), and how many there will be, if known.
    fn bytes(&self, done: u64, total: Option<u64>);

    /// An event worth a log line: a retry, a restart, an archive being unpacked.
    fn note(&self, _text: &str) {}
}

/// A sink that shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl ProgressSink for Silent {
    fn bytes(&self, _done: u64, _total: Option<u64>) {}
}

/// Counts the bytes of one fetch over all its files, and stops it at the limit.
pub(crate) struct Meter<'a> {
    sink: &'a dyn ProgressSink,
    done: AtomicU64,
    /// `u64::MAX` while unknown.
    total: AtomicU64,
    limit: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(sink: &'a dyn ProgressSink, limit: u64) -> Self {
        Self { sink, done: AtomicU64::new(0), total: AtomicU64::new(u64::MAX), limit }
    }

    /// Announces the size before anything is received, refused when it exceeds the limit.
    pub(crate) fn expect(&self, total: u64) -> Result<(), FetchError> {
        self.total.store(total, Ordering::Relaxed);
        self.sink.bytes(self.done.load(Ordering::Relaxed), Some(total));
        if total > self.limit { Err(self.exceeded(total)) } else { Ok(()) }
    }

    pub(crate) fn has_total(&self) -> bool {
        self.total.load(Ordering::Relaxed) != u64::MAX
    }

    pub(crate) fn add(&self, bytes: u64) -> Result<(), FetchError> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        self.report(done);
        if done > self.limit { Err(self.exceeded(done)) } else { Ok(()) }
    }

    /// Takes bytes back that a restart will receive again.
    pub(crate) fn take_back(&self, bytes: u64) {
        let left = |done: u64| Some(done.saturating_sub(bytes));
        let before = self.done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).unwrap_or_default();
        self.report(before.saturating_sub(bytes));
    }

    pub(crate) fn note(&self, text: &str) {
        self.sink.note(text);
    }

    fn report(&self, done: u64) {
        let total = self.total.load(Ordering::Relaxed);
        self.sink.bytes(done, (total != u64::MAX).then_some(total));
    }

    fn exceeded(&self, bytes: u64) -> FetchError {
        FetchError::too_large(format!("the artifact has at least {bytes} bytes, the limit is {}", self.limit))
            .remedy("raise the limit for artifact bytes if this size is intended")
    }
}
