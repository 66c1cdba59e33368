//! Bounded outboxes between the engine and its stream readers.
//!
//! - status subscribers: a set of changed names; the current status is read when it is sent;
//! - agents: a queue of orders; core sends no second order for a model before the first is reported;
//! - gateways: route changes by sequence number, because they are acknowledged by number; a lagging gateway is reset.

use gantry_core::scheduling::{Kind, Order};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};
use tokio::sync::Notify;

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
        // Poisoning is harmless: every change is a single insertion.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.lock());
        self.filled.notify_one();
    }

    /// Waits until the outbox is not empty, then takes everything.
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

/// An order, with the encoded definition to load.
#[derive(Clone, Debug)]
pub(crate) struct AgentOrder {
    pub(crate) order: Order,
    pub(crate) definition: Option<Arc<[u8]>>,
}

impl<K: Ord> Outbox<BTreeSet<K>> {
    pub(crate) fn changed(&self) -> impl Future<Output = BTreeSet<K>> + '_ {
        self.take(BTreeSet::is_empty)
    }
}

impl Outbox<VecDeque<AgentOrder>> {
    pub(crate) fn extend(&self, more: Vec<AgentOrder>) {
        self.fill(|orders| orders.extend(more));
    }

    pub(crate) fn orders(&self) -> impl Future<Output = VecDeque<AgentOrder>> + '_ {
        self.take(VecDeque::is_empty)
    }
}

/// The object whose route changed, with the sequence number.
pub(crate) type RouteChange = (u64, (Kind, Arc<str>));

/// Route changes by sequence number, or a reset.
#[derive(Debug, Default)]
pub(crate) struct RouteChanges {
    pub(crate) by_sequence: BTreeMap<u64, (Kind, Arc<str>)>,
    pub(crate) reset: bool,
}

impl Outbox<RouteChanges> {
    pub(crate) fn extend(&self, more: &[RouteChange], limit: usize) {
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

/// Subscribers to changes of one kind, by the names of changed objects.
#[derive(Debug)]
pub(crate) struct Subscribers<K = Arc<str>>(Mutex<Vec<Weak<Outbox<BTreeSet<K>>>>>);

impl<K> Default for Subscribers<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Ord> Subscribers<K> {
    /// An outbox for changes from now on, until it is dropped.
    pub(crate) fn join(&self) -> Arc<Outbox<BTreeSet<K>>> {
        let outbox = Outbox::new();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&outbox));
        outbox
    }

    pub(crate) fn notify(&self, names: &BTreeSet<K>) {
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
