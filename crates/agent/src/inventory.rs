//! What the server holds and what is being done about it.

use crate::{artifact::Files, server::Held};
use gantry_proto::{agent as pb, scheduler};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

/// A model version.
pub(crate) type Key = (String, u32);

struct Entry {
    definition: scheduler::Model,
    /// Memory that it takes, or is expected to take.
    memory: u64,
    loaded: bool,
    /// Ends the loading when it is no longer wanted.
    cancel: CancellationToken,
    /// Held while the server is loading it: unloading waits, or the server would be left with it.
    busy: Arc<AsyncMutex<()>>,
    /// Keeps the files in the cache for as long as the model is loaded: engines may map them.
    #[allow(dead_code, reason = "held, not read")]
    files: Option<Files>,
}

/// The right to load one version, and the word that it is not wanted any more.
pub(crate) struct Ticket {
    pub(crate) cancel: CancellationToken,
    _busy: OwnedMutexGuard<()>,
}

/// Every model version that is loaded or being loaded.
#[derive(Default)]
pub(crate) struct Inventory {
    entries: Mutex<BTreeMap<Key, Entry>>,
}

impl Inventory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a version is being loaded; `None` when it is loaded or under way already.
    pub(crate) fn begin(&self, key: &Key, definition: scheduler::Model) -> Option<Ticket> {
        let mut entries = self.lock();
        if entries.contains_key(key) {
            return None;
        }
        let cancel = CancellationToken::new();
        let busy = Arc::new(AsyncMutex::new(()));
        let ticket = Ticket { cancel: cancel.clone(), _busy: busy.clone().try_lock_owned().ok()? };
        let memory = definition.model_spec.as_ref().and_then(|s| s.memory_bytes).unwrap_or(0);
        let entry = Entry { definition, memory, loaded: false, cancel, busy, files: None };
        entries.insert(key.clone(), entry);
        Some(ticket)
    }

    /// Notes that a version is loaded; `files` are those that must stay.
    pub(crate) fn loaded(&self, key: &Key, memory: u64, files: Option<Files>) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.loaded = true;
            entry.memory = entry.memory.max(memory);
            entry.files = files;
        }
    }

    /// Makes what is loaded what the server says it holds. What is being loaded goes on.
    pub(crate) fn adopt(&self, held: Vec<Held>) {
        let mut entries = self.lock();
        entries.retain(|_, entry| !entry.loaded);
        for Held { definition, memory_bytes } in held {
            let Some(model) = definition.model else { continue };
            let Some(name) = model.meta.as_ref().map(|m| m.name.clone()) else { continue };
            entries.entry((name, definition.version)).or_insert(Entry {
                definition: model,
                memory: memory_bytes,
                loaded: true,
                cancel: CancellationToken::new(),
                busy: Arc::default(),
                files: None,
            });
        }
    }

    /// Whether nothing is loaded or being loaded.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn is_loaded(&self, key: &Key) -> bool {
        self.lock().get(key).is_some_and(|e| e.loaded)
    }

    /// Ends the loading of a version that is not wanted any more, and waits until it has ended.
    pub(crate) async fn stop_loading(&self, key: &Key) {
        let busy = self.lock().get(key).map(|entry| {
            entry.cancel.cancel();
            entry.busy.clone()
        });
        if let Some(busy) = busy {
            drop(busy.lock().await);
        }
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// What the scheduler is told on subscribing.
    pub(crate) fn report(&self) -> Vec<pb::ModelVersion> {
        self.lock()
            .iter()
            .filter(|(_, e)| e.loaded)
            .map(|((_, version), e)| pb::ModelVersion {
                model: Some(e.definition.clone()),
                version: *version,
            })
            .collect()
    }

    /// Memory of all versions together.
    pub(crate) fn memory(&self) -> u64 {
        self.lock().values().filter(|e| e.loaded).map(|e| e.memory).sum()
    }
}
