//! Sharded map from name to slot; a shard is replaced as a whole when an entry is added or removed.

use arc_swap::{ArcSwap, Guard};
use hashbrown::HashTable;
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

/// About ten entries per shard with ten thousand entries.
const SHARDS: usize = 1024;

type Shard<T> = HashTable<Arc<T>>;

pub(super) trait Named {
    fn name(&self) -> &str;
}

pub(super) struct Table<T> {
    hasher: RandomState,
    shards: Box<[ArcSwap<Shard<T>>]>,
}

/// Keeps a shard alive without touching its reference count.
pub(super) struct ShardGuard<T> {
    shard: Guard<Arc<Shard<T>>>,
    hash: u64,
}

impl<T: Named> ShardGuard<T> {
    pub(super) fn slot(&self, name: &str) -> Option<&Arc<T>> {
        self.shard.find(self.hash, |slot| slot.name() == name)
    }
}

impl<T: Named> Table<T> {
    pub(super) fn new() -> Self {
        let empty = Arc::new(Shard::new());
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| ArcSwap::new(Arc::clone(&empty))).collect(),
        }
    }

    fn shard(&self, hash: u64) -> Option<&ArcSwap<Shard<T>>> {
        // The hash table uses the low and the highest bits; the shard index uses middle bits.
        self.shards.get((hash >> 32) as usize % SHARDS)
    }

    pub(super) fn find(&self, name: &str) -> Option<ShardGuard<T>> {
        let hash = self.hasher.hash_one(name);
        self.shard(hash).map(|shard| ShardGuard { shard: shard.load(), hash })
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<T>> {
        self.find(name)?.slot(name).map(Arc::clone)
    }

    /// Returns the slot of a name, creating it if needed. Writers are serialised by the caller.
    pub(super) fn get_or_insert(&self, name: &str, new: impl FnOnce() -> T) -> Arc<T> {
        self.get(name).unwrap_or_else(|| {
            let slot = Arc::new(new());
            self.replace(Arc::clone(&slot));
            slot
        })
    }

    /// Inserts an entry, and returns the one that it replaces.
    pub(super) fn replace(&self, entry: Arc<T>) -> Option<Arc<T>> {
        let hash = self.hasher.hash_one(entry.name());
        let shard = self.shard(hash)?;
        let mut new = Shard::clone(&shard.load());
        let old = new.find_entry(hash, |slot| slot.name() == entry.name()).ok().map(|old| old.remove().0);
        new.insert_unique(hash, entry, |slot| self.hasher.hash_one(slot.name()));
        shard.store(Arc::new(new));
        old
    }

    pub(super) fn remove(&self, name: &str) -> Option<Arc<T>> {
        let hash = self.hasher.hash_one(name);
        let shard = self.shard(hash)?;
        let mut new = Shard::clone(&shard.load());
        let (slot, _) = new.find_entry(hash, |slot| slot.name() == name).ok()?.remove();
        shard.store(Arc::new(new));
        Some(slot)
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.load().len()).sum()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.shards
            .iter()
            .flat_map(|s| s.load().iter().map(|slot| slot.name().to_owned()).collect::<Vec<_>>())
            .collect()
    }

    pub(super) fn slots(&self) -> Vec<Arc<T>> {
        self.shards.iter().flat_map(|s| s.load().iter().map(Arc::clone).collect::<Vec<_>>()).collect()
    }
}
