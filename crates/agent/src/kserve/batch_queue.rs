//! Which requests share a batch: pure, with the time as an argument.

use gantry_oip::v1::Instances;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchLimits {
    /// Instances of a batch. A request with more is a batch of its own.
    pub(super) size: usize,
    /// Bytes of the instances of a batch; the same applies.
    pub(super) bytes: usize,
    /// How long the first request of a batch waits for others.
    pub(super) latency: Duration,
}

/// What requests of one batch have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchKey {
    /// With the query.
    pub(super) path: String,
    /// Members of the body other than the instances.
    pub(super) others: Vec<u8>,
}

/// Requests that are sent as one.
#[derive(Debug)]
pub(super) struct Batch<M> {
    pub(super) path: String,
    /// In the order of their arrival.
    pub(super) members: Vec<(Instances, M)>,
}

struct Pending<M> {
    batch: Batch<M>,
    size: usize,
    bytes: usize,
    due: Instant,
}

/// Requests that wait for others.
pub(super) struct BatchQueue<M> {
    limits: BatchLimits,
    pending: BTreeMap<BatchKey, Pending<M>>,
}

impl<M> BatchQueue<M> {
    pub(super) const fn new(limits: BatchLimits) -> Self {
        Self { limits, pending: BTreeMap::new() }
    }

    /// Adds a request; returns the batches that are complete, at most two.
    pub(super) fn add(&mut self, path: &str, instances: Instances, member: M, now: Instant) -> Vec<Batch<M>> {
        let mut complete = Vec::new();
        let key = BatchKey { path: path.to_owned(), others: instances.others.clone() };
        let (count, length) = (instances.count, instances.elements.len());
        let limits = self.limits;
        let is_full = |size: usize, bytes: usize| size >= limits.size || bytes >= limits.bytes;
        let exceeds = |pending: &Pending<M>| {
            pending.size.saturating_add(count) > limits.size
                || pending.bytes.saturating_add(length) > limits.bytes
        };
        if self.pending.get(&key).is_some_and(exceeds)
            && let Some(earlier) = self.pending.remove(&key)
        {
            complete.push(earlier.batch);
        }
        let pending = self.pending.entry(key.clone()).or_insert_with(|| Pending {
            batch: Batch { path: path.to_owned(), members: Vec::new() },
            size: 0,
            bytes: 0,
            due: now.checked_add(limits.latency).unwrap_or(now),
        });
        pending.batch.members.push((instances, member));
        pending.size += count;
        pending.bytes += length;
        if is_full(pending.size, pending.bytes)
            && let Some(full) = self.pending.remove(&key)
        {
            complete.push(full.batch);
        }
        complete
    }

    /// When the next incomplete batch is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.due).min()
    }

    /// Removes the batches that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Batch<M>> {
        let due = self.pending.extract_if(.., |_, pending| pending.due <= now);
        due.map(|(_, pending)| pending.batch).collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<Batch<M>> {
        std::mem::take(&mut self.pending).into_values().map(|pending| pending.batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LIMITS: BatchLimits = BatchLimits { size: 4, bytes: 1000, latency: Duration::from_millis(50) };

    fn instances(count: usize) -> Instances {
        Instances { elements: Bytes::from(vec![b'1'; count]), count, others: Vec::new() }
    }

    fn ids(batches: &[Batch<usize>]) -> Vec<Vec<usize>> {
        batches.iter().map(|batch| batch.members.iter().map(|(_, id)| *id).collect()).collect()
    }

    #[test]
    fn batch_is_complete_by_size_bytes_or_time() {
        let start = Instant::now();
        let mut queue = BatchQueue::new(LIMITS);
        assert!(queue.add("/a", instances(1), 0, start).is_empty());
        assert!(queue.add("/a", instances(2), 1, start).is_empty());
        assert_eq!(ids(&queue.add("/a", instances(1), 2, start)), [[0, 1, 2]], "exactly full");
        assert!(queue.add("/a", instances(3), 3, start).is_empty());
        assert_eq!(ids(&queue.add("/a", instances(2), 4, start)), [[3]], "the next one does not fit");
        assert_eq!(ids(&queue.add("/a", instances(9), 5, start)), [[4], [5]], "larger than a batch");
        let large = Instances { count: 1, ..instances(600) };
        assert!(queue.add("/a", large.clone(), 6, start).is_empty());
        assert_eq!(ids(&queue.add("/a", large, 7, start)), [[6]], "too many bytes");
        assert_eq!(queue.next_due(), Some(start + LIMITS.latency));
        assert!(queue.take_due(start).is_empty());
        assert_eq!(ids(&queue.take_due(start + LIMITS.latency)), [[7]]);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn paths_and_other_members_are_not_mixed() {
        let start = Instant::now();
        let mut queue = BatchQueue::new(LIMITS);
        let other = Instances { others: b",\"signature_name\":\"x\"".to_vec(), ..instances(2) };
        assert!(queue.add("/a", instances(2), 0, start).is_empty());
        assert!(queue.add("/b", instances(2), 1, start).is_empty());
        assert!(queue.add("/a", other.clone(), 2, start).is_empty());
        assert_eq!(ids(&queue.add("/a", other, 3, start)), [[2, 3]]);
        assert_eq!(ids(&queue.take_all()), [[0], [1]]);
    }

    proptest! {
        /// Every request is in exactly one batch, in the order of arrival, and leaves the queue in time.
        #[test]
        fn every_request_is_in_one_batch_within_the_limits(
            arrivals in prop::collection::vec((0..3_usize, 1..7_usize, 0..80_u64), 1..40),
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut queue = BatchQueue::new(LIMITS);
            let (mut batches, mut arrived) = (Vec::new(), Vec::new());
            for (id, (path, count, wait)) in arrivals.iter().enumerate() {
                now += Duration::from_millis(*wait);
                batches.extend(queue.take_due(now));
                prop_assert!(queue.next_due().is_none_or(|due| due > now && due <= now + LIMITS.latency));
                arrived.push(format!("/{path}"));
                batches.extend(queue.add(&format!("/{path}"), instances(*count), id, now));
            }
            batches.extend(queue.take_all());
            let mut seen = BTreeSet::new();
            for batch in &batches {
                let size: usize = batch.members.iter().map(|(instances, _)| instances.count).sum();
                prop_assert!(size <= LIMITS.size || batch.members.len() == 1);
                let ids: Vec<usize> = batch.members.iter().map(|(_, id)| *id).collect();
                prop_assert!(!ids.is_empty() && ids.is_sorted());
                for id in ids {
                    prop_assert_eq!(&arrived[id], &batch.path);
                    prop_assert!(seen.insert(id), "{} is in two batches", id);
                }
            }
            prop_assert_eq!(seen.len(), arrivals.len());
        }
    }
}
