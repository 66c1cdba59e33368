//! A partition, from its assignment to its revocation.

use crate::{offsets::Offsets, queues::KeyQueues, record::Consumed};
use bytes::Bytes;
use std::collections::HashMap;
use tokio::task::AbortHandle;

/// Differs between two assignments of the same partition.
pub(super) type Epoch = u64;

pub(super) struct Partition {
    pub(super) epoch: Epoch,
    pub(super) offsets: Offsets,
    queues: KeyQueues<Consumed>,
    /// By offset, with their bytes.
    running: HashMap<i64, (AbortHandle, usize)>,
    /// The highest offset that was started.
    highest: i64,
}

/// What a record takes of the worker's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Partition {
    pub(super) fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            offsets: Offsets::default(),
            queues: KeyQueues::default(),
            running: HashMap::new(),
            highest: -1,
        }
    }

    /// Returns the record if it can start now.
    pub(super) fn push(&mut self, record: Consumed) -> Option<Consumed> {
        let key = record.key.clone();
        self.queues.push(key.as_ref(), record)
    }

    pub(super) fn started(&mut self, offset: i64, task: AbortHandle, bytes: usize) {
        self.running.insert(offset, (task, bytes));
        self.highest = self.highest.max(offset);
    }

    /// A record is done: returns the next one of its key.
    pub(super) fn finish(&mut self, offset: i64, key: Option<&Bytes>) -> Option<Consumed> {
        self.running.remove(&offset);
        self.offsets.finish(offset);
        self.queues.finish(key)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Drops the records that wait behind all that were started: another worker will read them. Those between others are
    /// still run, because what is done behind them could not be committed.
    pub(super) fn drop_behind(&mut self) -> Load {
        let highest = self.highest;
        Self::load(&self.queues.remove(|record| record.offset > highest))
    }

    fn drop_waiting(&mut self) -> Load {
        Self::load(&self.queues.remove(|_| true))
    }

    fn load(records: &[Consumed]) -> Load {
        Load { records: records.len(), bytes: records.iter().map(Consumed::bytes).sum() }
    }

    /// Aborts the records that run, and drops those that wait: another worker will read them.
    pub(super) fn abort(&mut self) -> Load {
        let waiting = self.drop_waiting();
        self.running.drain().fold(waiting, |load, (_, (task, bytes))| {
            task.abort();
            Load { records: load.records + 1, bytes: load.bytes + bytes }
        })
    }
}
