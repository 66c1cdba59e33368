//! Fetched files of loads that failed for a transient reason, for their retry.

use crate::{artifact::Files, inventory::Key};
use gantry_proto::scheduler::ModelSpec;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Longer than the scheduler's longest backoff.
const RETENTION: Duration = Duration::from_mins(15);
/// The artifact cache cannot evict retained files.
const MAX_ENTRIES: usize = 64;

struct Entry {
    key: Key,
    spec: ModelSpec,
    files: Files,
    since: Instant,
}

#[derive(Default)]
pub(crate) struct RetainedFiles(Mutex<VecDeque<Entry>>);

impl RetainedFiles {
    /// Without expired entries.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.since.elapsed() < RETENTION);
        entries
    }

    pub(crate) fn put(&self, key: &Key, spec: ModelSpec, files: Files) {
        let mut entries = self.lock();
        entries.retain(|entry| entry.key != *key);
        if entries.len() >= MAX_ENTRIES {
            entries.pop_front();
        }
        entries.push_back(Entry { key: key.clone(), spec, files, since: Instant::now() });
    }

    /// The files of an unchanged definition.
    pub(crate) fn take(&self, key: &Key, spec: &ModelSpec) -> Option<Files> {
        let mut entries = self.lock();
        let at = entries.iter().position(|entry| entry.key == *key)?;
        entries.remove(at).filter(|entry| entry.spec == *spec).map(|entry| entry.files)
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.lock().retain(|entry| entry.key != *key);
    }
}
