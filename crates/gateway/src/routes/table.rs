//! Sharded map from model name to slot; a shard is replaced as a whole when a model is added or removed.

use super::ModelSlot;
use arc_swap::{ArcSwap, Guard};
use hashbrown::HashTable;
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, atomic::AtomicUsize},
};
use tokio::sync::Notify;

/// About ten models per shard with ten thousand models.
const SHARDS: usize = 1024;

type Shard = HashTable<Arc<ModelSlot>>;

pub(super) struct Table {
    hasher: RandomState,
    shards: Box<[ArcSwap<Shard>]>,
}

/// Keeps a shard alive without touching its reference count.
pub(super) struct ShardGuard {
    shard: Guard<Arc<Shard>>,
    hash: u64,
}

impl ShardGuard {
    pub(super) fn slot(&self, model: &str) -> Option<&Arc<ModelSlot>> {
        self.shard.find(self.hash, |slot| &*slot.model == model)
    }
}

impl Table {
    pub(super) fn new() -> Self {
        let empty = Arc::new(Shard::new());
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| ArcSwap::new(Arc::clone(&empty))).collect(),
        }
    }

    fn shard(&self, hash: u64) -> Option<&ArcSwap<Shard>> {
        // The hash table uses the low and the highest bits; the shard index uses middle bits.
        self.shards.get((hash >> 32) as usize % SHARDS)
    }

    pub(super) fn find(&self, model: &str) -> Option<ShardGuard> {
        let hash = self.hasher.hash_one(model);
        self.shard(hash).map(|shard| ShardGuard { shard: shard.load(), hash })
    }

    /// Returns the model's slot, creating it if needed. Writers are serialised by the caller.
    pub(super) fn insert(&self, model: &str) -> Option<Arc<ModelSlot>> {
        let hash = self.hasher.hash_one(model);
        let shard = self.shard(hash)?;
        let old = shard.load();
        if let Some(slot) = old.find(hash, |slot| &*slot.model == model) {
            return Some(Arc::clone(slot));
        }
        let slot = Arc::new(ModelSlot {
            model: model.into(),
            route: None.into(),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
        });
        let mut new = Shard::clone(&old);
        new.insert_unique(hash, Arc::clone(&slot), |c| self.hasher.hash_one(&*c.model));
        shard.store(Arc::new(new));
        Some(slot)
    }

    pub(super) fn remove(&self, model: &str) -> Option<Arc<ModelSlot>> {
        let hash = self.hasher.hash_one(model);
        let shard = self.shard(hash)?;
        let mut new = Shard::clone(&shard.load());
        let (slot, _) = new.find_entry(hash, |slot| &*slot.model == model).ok()?.remove();
        shard.store(Arc::new(new));
        Some(slot)
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.load().len()).sum()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.shards
            .iter()
            .flat_map(|s| s.load().iter().map(|c| c.model.to_string()).collect::<Vec<_>>())
            .collect()
    }

    pub(super) fn slots(&self) -> Vec<Arc<ModelSlot>> {
        self.shards.iter().flat_map(|s| s.load().iter().map(Arc::clone).collect::<Vec<_>>()).collect()
    }
}
