//! The table from a model's name to its cell: many small maps, each replaced as a whole when a model comes or goes.

use super::Cell;
use arc_swap::{ArcSwap, Guard};
use hashbrown::HashTable;
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, atomic::AtomicUsize},
};
use tokio::sync::Notify;

/// Enough that with ten thousand models a map that is replaced has about ten.
const SHARDS: usize = 1024;

type Shard = HashTable<Arc<Cell>>;

pub(super) struct Table {
    hasher: RandomState,
    shards: Box<[ArcSwap<Shard>]>,
}

/// A look at a cell that keeps it alive without counting.
pub(super) struct Found {
    shard: Guard<Arc<Shard>>,
    hash: u64,
}

impl Found {
    pub(super) fn cell(&self, model: &str) -> Option<&Arc<Cell>> {
        self.shard.find(self.hash, |cell| &*cell.model == model)
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
        // The map uses the low and the highest bits of the hash: take some from the middle.
        self.shards.get((hash >> 32) as usize % SHARDS)
    }

    /// Where this model's cell is, if it has one.
    pub(super) fn find(&self, model: &str) -> Option<Found> {
        let hash = self.hasher.hash_one(model);
        self.shard(hash).map(|shard| Found { shard: shard.load(), hash })
    }

    /// The model's cell, made if there is none. Writers are serialised by the caller.
    pub(super) fn insert(&self, model: &str) -> Option<Arc<Cell>> {
        let hash = self.hasher.hash_one(model);
        let shard = self.shard(hash)?;
        let old = shard.load();
        if let Some(cell) = old.find(hash, |cell| &*cell.model == model) {
            return Some(Arc::clone(cell));
        }
        let cell = Arc::new(Cell {
            model: model.into(),
            route: None.into(),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
        });
        let mut new = Shard::clone(&old);
        new.insert_unique(hash, Arc::clone(&cell), |c| self.hasher.hash_one(&*c.model));
        shard.store(Arc::new(new));
        Some(cell)
    }

    /// Takes the model's cell out.
    pub(super) fn remove(&self, model: &str) -> Option<Arc<Cell>> {
        let hash = self.hasher.hash_one(model);
        let shard = self.shard(hash)?;
        let mut new = Shard::clone(&shard.load());
        let (cell, _) = new.find_entry(hash, |cell| &*cell.model == model).ok()?.remove();
        shard.store(Arc::new(new));
        Some(cell)
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

    pub(super) fn cells(&self) -> Vec<Arc<Cell>> {
        self.shards.iter().flat_map(|s| s.load().iter().map(Arc::clone).collect::<Vec<_>>()).collect()
    }
}
