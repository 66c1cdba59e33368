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
}

/// What a record takes of the worker's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Partition {
    pub(super) fn new(epoch: Epoch) -> Self {
        Self { epoch, offsets: Offsets::default(), queues: KeyQueues::default(), running: HashMap::new() }
    }

    /// Returns the record if it can start now.
    pub(super) fn push(&mut self, record: Consumed) -> Option<Consumed> {
        let key = record.key.clone();
        self.queues.push(key.as_ref(), record)
    }

    pub(super) fn started(&mut self, offset: i64, task: AbortHandle, bytes: usize) {
        self.running.insert(offset, (task, bytes));
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

    /// Drops the records that wait: another worker will read them.
    pub(super) fn drop_waiting(&mut self) -> Load {
        self.queues.clear().fold(Load::default(), |load, record| Load {
            records: load.records + 1,
            bytes: load.bytes + record.bytes(),
        })
    }

    /// Aborts the records that run: another worker will read them.
    pub(super) fn abort(&mut self) -> Load {
        self.running.drain().fold(Load::default(), |load, (_, (task, bytes))| {
            task.abort();
            Load { records: load.records + 1, bytes: load.bytes + bytes }
        })
    }
}
