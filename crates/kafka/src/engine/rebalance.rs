//! Rebalances of the consumer group, passed on to the worker.

use krafka::{
    ConsumerRecord,
    consumer::{ConsumerRebalanceListener, TopicPartition},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// What the consumer reports, in its order.
pub(super) enum Event {
    Records(Vec<ConsumerRecord>),
    Assigned(Vec<TopicPartition>),
    /// The partitions are released when the reply is sent.
    Revoked(Vec<TopicPartition>, oneshot::Sender<()>),
    /// They belong to another worker already.
    Lost(Vec<TopicPartition>),
}

/// Runs inside of `poll`.
#[derive(Clone)]
pub(super) struct Listener {
    pub(super) events: mpsc::Sender<Event>,
    /// Set when the worker has ended and no longer receives events.
    pub(super) is_closing: Arc<AtomicBool>,
    /// For the worker's reply, beyond its own limit.
    pub(super) timeout: Duration,
}

impl Listener {
    async fn send(&self, event: Event) {
        if !self.is_closing.load(Ordering::Relaxed) {
            let _ = self.events.send(event).await;
        }
    }
}

impl ConsumerRebalanceListener for Listener {
    async fn on_partitions_assigned(&self, partitions: &[TopicPartition]) {
        self.send(Event::Assigned(partitions.to_vec())).await;
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        if partitions.is_empty() {
            return;
        }
        let (reply, released) = oneshot::channel();
        self.send(Event::Revoked(partitions.to_vec(), reply)).await;
        let _ = tokio::time::timeout(self.timeout, released).await;
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        self.send(Event::Lost(partitions.to_vec())).await;
    }
}
