//! Removal of series whose model version or replica is gone, so that updates and restarts do not leak series.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long series outlive their last user: several scrape intervals.
pub(super) const RETENTION: Duration = Duration::from_mins(5);

/// Label sets in use, and those that are to be removed.
pub(super) struct Retained<L> {
    references: Arc<Mutex<References<L>>>,
}

struct References<L> {
    counts: HashMap<L, usize>,
    /// Label sets without users, oldest first.
    unreferenced: VecDeque<(Instant, L)>,
}

/// The label sets of one user, in use until it is dropped.
pub(crate) struct Used<L: Clone + Eq + Hash> {
    labels: Mutex<Vec<L>>,
    references: Arc<Mutex<References<L>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L: Clone + Eq + Hash> Retained<L> {
    pub(super) fn new() -> Self {
        let references = References { counts: HashMap::new(), unreferenced: VecDeque::new() };
        Self { references: Arc::new(Mutex::new(references)) }
    }

    pub(super) fn user(&self) -> Used<L> {
        Used { labels: Mutex::default(), references: Arc::clone(&self.references) }
    }

    /// Forgets label sets that have been unused for [`RETENTION`] and removes each.
    pub(super) fn sweep(&self, now: Instant, remove: impl Fn(&L)) {
        let mut references = lock(&self.references);
        while let Some((since, labels)) = references.unreferenced.pop_front() {
            if now.duration_since(since) < RETENTION {
                references.unreferenced.push_front((since, labels));
                return;
            }
            // They may be in use again.
            if references.counts.get(&labels) == Some(&0) {
                references.counts.remove(&labels);
                remove(&labels);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let references = lock(&self.references);
        references.counts.is_empty() && references.unreferenced.is_empty()
    }
}

impl<L: Clone + Eq + Hash> Used<L> {
    pub(super) fn add(&self, labels: &L) {
        let mut in_use = lock(&self.labels);
        if !in_use.contains(labels) {
            in_use.push(labels.clone());
            *lock(&self.references).counts.entry(labels.clone()).or_default() += 1;
        }
    }
}

impl<L: Clone + Eq + Hash> Drop for Used<L> {
    fn drop(&mut self) {
        let in_use = std::mem::take(&mut *lock(&self.labels));
        if in_use.is_empty() {
            return;
        }
        let mut references = lock(&self.references);
        for labels in in_use {
            if let Some(count) = references.counts.get_mut(&labels) {
                *count -= 1;
                if *count == 0 {
                    references.unreferenced.push_back((Instant::now(), labels));
                }
            }
        }
    }
}
