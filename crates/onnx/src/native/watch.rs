//! When a run has to stop: cancelled by its caller, or beyond its time limit.

use super::value::OpError;
use gantry_tensor::CancelToken;
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Units of work between two looks at the clock: well below a millisecond of arithmetic. A unit is one element of a
/// simple operator; shorter runs never look.
const LOOK_EVERY: usize = 1 << 16;
/// Elements between two accounts of a loop.
const PIECE: usize = 1 << 12;

/// Counts the work of one run.
pub(crate) struct Watch<'a> {
    cancel: &'a CancelToken,
    limit: Duration,
    /// The first look at the clock.
    started: Cell<Option<Instant>>,
    left: Cell<usize>,
    stopped: Cell<bool>,
}

impl<'a> Watch<'a> {
    pub(crate) const fn new(cancel: &'a CancelToken, limit: Duration) -> Self {
        Self {
            cancel,
            limit,
            started: Cell::new(None),
            left: Cell::new(LOOK_EVERY),
            stopped: Cell::new(false),
        }
    }

    /// Accounts for work; an error when the run has to stop.
    #[inline]
    pub(crate) fn spend(&self, work: usize) -> Result<(), OpError> {
        match self.left.get().checked_sub(work) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => self.look(),
        }
    }

    #[cold]
    fn look(&self) -> Result<(), OpError> {
        self.left.set(LOOK_EVERY);
        let started = self.started.get().unwrap_or_else(Instant::now);
        self.started.set(Some(started));
        if !self.stopped.get() && (self.cancel.is_cancelled() || started.elapsed() >= self.limit) {
            self.stopped.set(true);
        }
        self.check()
    }

    /// An error when the run has to stop, as far as it is known: a loop over [`Self::polled`] may have ended early.
    pub(crate) fn check(&self) -> Result<(), OpError> {
        if self.stopped.get() { Err(self.error()) } else { Ok(()) }
    }

    /// Why the run has to stop.
    pub(crate) fn error(&self) -> OpError {
        if self.cancel.is_cancelled() { OpError::Cancelled } else { OpError::TimeLimit(self.limit) }
    }

    /// Whether the run has to stop, for loops on other threads.
    pub(crate) fn stop(&self) -> impl Fn() -> bool + Sync + use<'a> {
        let (cancel, limit) = (self.cancel, self.limit);
        let started = OnceLock::new();
        if let Some(at) = self.started.get() {
            let _ = started.set(at);
        }
        move || cancel.is_cancelled() || started.get_or_init(Instant::now).elapsed() >= limit
    }

    /// The same items; ends early when the run has to stop. Plans discard the result of a step that was stopped.
    pub(crate) const fn polled<I: Iterator>(&self, items: I) -> Polled<'_, I> {
        Polled { items, watch: self, passed: 0 }
    }

    /// `f` of each element.
    pub(crate) fn map<T, U>(&self, values: &[T], f: impl Fn(&T) -> U) -> Result<Vec<U>, OpError> {
        let mut result = Vec::with_capacity(values.len());
        for piece in values.chunks(PIECE) {
            result.extend(piece.iter().map(&f));
            self.spend(piece.len())?;
        }
        Ok(result)
    }

    /// `f` of each pair of elements.
    pub(crate) fn zip<T, U, V>(&self, a: &[T], b: &[U], f: impl Fn(&T, &U) -> V) -> Result<Vec<V>, OpError> {
        let mut result = Vec::with_capacity(a.len().min(b.len()));
        for (a, b) in a.chunks(PIECE).zip(b.chunks(PIECE)) {
            result.extend(a.iter().zip(b).map(|(x, y)| f(x, y)));
            self.spend(a.len())?;
        }
        Ok(result)
    }
}

/// See [`Watch::polled`].
#[derive(Clone)]
pub(crate) struct Polled<'w, I> {
    items: I,
    watch: &'w Watch<'w>,
    passed: usize,
}

impl<I: Iterator> Iterator for Polled<'_, I> {
    type Item = I::Item;

    #[inline]
    fn next(&mut self) -> Option<I::Item> {
        let item = self.items.next();
        if item.is_some() && self.passed < PIECE {
            self.passed += 1;
            return item;
        }
        let passed = std::mem::take(&mut self.passed);
        self.watch.spend(passed).ok().and(item)
    }

    /// Too high when the run has to stop, which costs nothing but capacity: the result is discarded.
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_end_after_cancellation() {
        let cancel = CancelToken::default();
        let watch = Watch::new(&cancel, Duration::MAX);
        let mut passed = 0usize;
        for i in watch.polled(0..10_000_000usize) {
            if i == 1_000_000 {
                cancel.cancel();
            }
            passed = i;
        }
        assert!((1_000_000..1_000_000 + LOOK_EVERY + 2 * PIECE).contains(&passed), "{passed}");
        assert_eq!(watch.check(), Err(OpError::Cancelled));
        assert_eq!(watch.map(&vec![0u8; 2 * LOOK_EVERY], |&x| x), Err(OpError::Cancelled));
        assert!(watch.stop()());
    }

    #[test]
    fn many_short_loops_count_together() {
        let cancel = CancelToken::default();
        cancel.cancel();
        let watch = Watch::new(&cancel, Duration::MAX);
        let rounds = (0..1_000_000).take_while(|_| {
            watch.polled(0..100).for_each(drop);
            watch.check().is_ok()
        });
        assert!(rounds.count() <= LOOK_EVERY / 100 + 1);
    }

    #[test]
    fn short_runs_do_not_look_at_the_clock() {
        let cancel = CancelToken::default();
        let watch = Watch::new(&cancel, Duration::ZERO);
        assert_eq!(watch.spend(LOOK_EVERY), Ok(()));
        assert!(watch.started.get().is_none());
        assert_eq!(watch.spend(1), Err(OpError::TimeLimit(Duration::ZERO)));
    }
}
