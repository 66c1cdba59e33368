//! Limit of the memory that large requests in flight need.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    total: usize,
    reserved: Arc<AtomicUsize>,
}

impl MemoryBudget {
    pub(crate) fn new(total: usize) -> Self {
        Self { total, reserved: Arc::default() }
    }

    pub(crate) const fn total(&self) -> usize {
        self.total
    }

    /// `None` if too much is reserved. A request larger than the budget runs alone.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        let bytes = bytes.min(self.total);
        let add = |reserved: usize| reserved.checked_add(bytes).filter(|sum| *sum <= self.total);
        self.reserved.fetch_update(Relaxed, Relaxed, add).ok()?;
        Some(Reserved { budget: self.reserved.clone(), bytes })
    }
}

/// Bytes of a budget; returned on drop.
#[derive(Debug)]
pub(crate) struct Reserved {
    budget: Arc<AtomicUsize>,
    bytes: usize,
}

impl Reserved {
    /// Returns what is reserved beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        self.budget.fetch_sub(excess, Relaxed);
        self.bytes -= excess;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_never_exceeded() {
        let budget = MemoryBudget::new(100);
        let mut first = budget.reserve(80).unwrap();
        assert!(budget.reserve(21).is_none());
        first.shrink(50);
        first.shrink(60);
        let second = budget.reserve(50).unwrap();
        assert!(budget.reserve(1).is_none());
        drop((first, second));
        let alone = budget.reserve(usize::MAX).unwrap();
        assert!(budget.reserve(1).is_none());
        drop(alone);
        assert_eq!(budget.reserved.load(Relaxed), 0);
    }
}
