//! Loaded models and loads in progress.

use crate::{artifact::Files, model_server::LoadedModel};
use gantry_proto::{agent as pb, scheduler};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

/// Model name and version.
pub(crate) type Key = (String, u32);

struct Entry {
    definition: scheduler::Model,
    /// Actual or expected memory.
    memory: u64,
    loaded: bool,
    /// Cancels the load.
    cancel: CancellationToken,
    /// Locked during a load: an unload waits for it.
    busy: Arc<AsyncMutex<()>>,
    /// Keeps the files in the cache while loaded: engines may map them.
    #[allow(dead_code, reason = "loaded, not read")]
    files: Option<Files>,
}

/// What an order to load a version finds.
pub(crate) enum Begin {
    Load(LoadPermit),
    /// It is loaded or loading already.
    Present,
    /// Another content is loaded or loading under its name, as by a scheduler that lost its state.
    Other,
}

/// Permission to load one version, with cancellation.
pub(crate) struct LoadPermit {
    pub(crate) cancel: CancellationToken,
    _busy: OwnedMutexGuard<()>,
}

#[derive(Default)]
pub(crate) struct Inventory {
    entries: Mutex<BTreeMap<Key, Entry>>,
}

impl Inventory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a load, unless the version is there.
    pub(crate) fn begin(&self, key: &Key, definition: scheduler::Model) -> Begin {
        let mut entries = self.lock();
        if let Some(entry) = entries.get(key) {
            return if is_same(&entry.definition, &definition) { Begin::Present } else { Begin::Other };
        }
        let cancel = CancellationToken::new();
        let busy = Arc::new(AsyncMutex::new(()));
        let Ok(guard) = busy.clone().try_lock_owned() else { return Begin::Present };
        let permit = LoadPermit { cancel: cancel.clone(), _busy: guard };
        let memory = definition.model_spec.as_ref().and_then(|s| s.memory_bytes).unwrap_or(0);
        let entry = Entry { definition, memory, loaded: false, cancel, busy, files: None };
        entries.insert(key.clone(), entry);
        Begin::Load(permit)
    }

    /// Marks a version as loaded; `files` must stay in the cache.
    pub(crate) fn loaded(&self, key: &Key, memory: u64, files: Option<Files>) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.loaded = true;
            entry.memory = entry.memory.max(memory);
            entry.files = files;
        }
    }

    /// Replaces the loaded models with the server's; loads in progress continue.
    pub(crate) fn adopt(&self, loaded: Vec<LoadedModel>) {
        let mut entries = self.lock();
        entries.retain(|_, entry| !entry.loaded);
        for LoadedModel { definition, memory_bytes } in loaded {
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

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn is_loaded(&self, key: &Key) -> bool {
        self.lock().get(key).is_some_and(|e| e.loaded)
    }

    /// Cancels a load and waits for its end.
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

    /// Loaded models, for a subscription.
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

    /// Memory of all loaded versions.
    pub(crate) fn memory(&self) -> u64 {
        self.lock().values().filter(|e| e.loaded).map(|e| e.memory).sum()
    }
}

/// Whether two definitions load the same content. Runtime info is added by agents.
fn is_same(a: &scheduler::Model, b: &scheduler::Model) -> bool {
    let spec = |model: &scheduler::Model| {
        let mut spec = model.model_spec.clone()?;
        spec.model_runtime_info = None;
        Some(spec)
    };
    // Without a spec there is nothing to compare.
    spec(a).zip(spec(b)).is_none_or(|(a, b)| a == b)
}
