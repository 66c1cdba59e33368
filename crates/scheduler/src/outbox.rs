//! What a reader has not seen yet.
//!
//! Three kinds of reader, three bounded boxes:
//! - a subscriber to statuses has a set of names: however often a model changes, it stands there once, and the reader
//!   gets its state as it is then;
//! - an agent has a list of orders: core gives no second order for a model before the first is answered;
//! - a gateway has route changes by number, because it acknowledges by number; if it falls too far behind, it starts
//!   again from the whole.

use gantry_core::scheduling::Order;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use tokio::sync::Notify;

/// A box that one side fills and the other empties.
#[derive(Debug, Default)]
pub(crate) struct Outbox<T> {
    content: Mutex<T>,
    filled: Notify,
}

impl<T: Default> Outbox<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { content: Mutex::new(T::default()), filled: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // The content is valid at every moment: each change is a single insertion.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.lock());
        self.filled.notify_one();
    }

    /// Waits until `is_empty` says no, then takes everything.
    async fn take(&self, is_empty: impl Fn(&T) -> bool) -> T {
        loop {
            let filled = self.filled.notified();
            {
                let mut content = self.lock();
                if !is_empty(&content) {
                    return std::mem::take(&mut *content);
                }
            }
            filled.await;
        }
    }
}

/// Names of what changed.
pub(crate) type Names = BTreeSet<Arc<str>>;

impl Outbox<Names> {
    pub(crate) fn changed(&self) -> impl Future<Output = Names> + '_ {
        self.take(Names::is_empty)
    }
}

impl Outbox<VecDeque<Order>> {
    pub(crate) fn extend(&self, more: Vec<Order>) {
        self.fill(|orders| orders.extend(more));
    }

    pub(crate) fn orders(&self) -> impl Future<Output = VecDeque<Order>> + '_ {
        self.take(VecDeque::is_empty)
    }
}

/// Route changes by number, or the word to start again.
#[derive(Debug, Default)]
pub(crate) struct RouteChanges {
    pub(crate) by_sequence: BTreeMap<u64, Arc<str>>,
    pub(crate) reset: bool,
}

impl Outbox<RouteChanges> {
    pub(crate) fn extend(&self, more: &[(u64, Arc<str>)], limit: usize) {
        self.fill(|changes| {
            changes.by_sequence.extend(more.iter().cloned());
            if changes.by_sequence.len() > limit {
                changes.by_sequence.clear();
                changes.reset = true;
            }
        });
    }

    pub(crate) fn changes(&self) -> impl Future<Output = RouteChanges> + '_ {
        self.take(|c| c.by_sequence.is_empty() && !c.reset)
    }
}

/// Everybody who wants to know about changes of one kind.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<Vec<Weak<Outbox<Names>>>>);

impl Subscribers {
    /// A box that gets the name of everything that changes from now on, for as long as it is kept.
    pub(crate) fn join(&self) -> Arc<Outbox<Names>> {
        let outbox = Outbox::new();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&outbox));
        outbox
    }

    pub(crate) fn notify(&self, names: &Names) {
        if names.is_empty() {
            return;
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|outbox| {
            let Some(outbox) = outbox.upgrade() else { return false };
            outbox.fill(|known| known.extend(names.iter().cloned()));
            true
        });
    }
}
