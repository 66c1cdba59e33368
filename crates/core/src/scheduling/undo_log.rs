//! Rollback of commands whose records could not be stored.
//!
//! A batch is [`State::begin`], any number of commands, then [`State::commit`] when the records are durable or
//! [`State::rollback`] when they are not. After a rollback the caller rejects requests and reapplies reports of agents
//! and gateways, which are facts.

use super::{
    index::Index,
    model::Model,
    server::{ReplicaId, Server},
    state::State,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Previous values, for rollback.
#[derive(Clone, Debug)]
pub(super) struct UndoLog {
    models: BTreeMap<Arc<str>, Option<Model>>,
    /// A copy of all: there are few servers.
    servers: BTreeMap<Arc<str>, Server>,
    sequence: u64,
    drained: u64,
    unexpected_replicas: BTreeSet<(u64, ReplicaId, Arc<str>, u32)>,
}

impl UndoLog {
    /// Saves the first previous value of a model.
    pub(super) fn save_previous(&mut self, name: &Arc<str>, model: Option<&Model>) {
        if !self.models.contains_key(name) {
            self.models.insert(name.clone(), model.cloned());
        }
    }
}

impl State {
    /// Starts logging previous values. Cost is proportional to the touched models.
    pub fn begin(&mut self) {
        self.undo_log = Some(Box::new(UndoLog {
            models: BTreeMap::new(),
            servers: self.servers.clone(),
            sequence: self.sequence,
            drained: self.drained,
            unexpected_replicas: self.unexpected_replicas.clone(),
        }));
    }

    /// Reverts every command since [`State::begin`]. None of their effects may have been carried out.
    ///
    /// Cost is proportional to the whole state, because the index is rebuilt; only needed when a write fails.
    pub fn rollback(&mut self) {
        let Some(undo_log) = self.undo_log.take() else { return };
        for (name, model) in undo_log.models {
            match model {
                Some(model) => self.models.insert(name, model),
                None => self.models.remove(&name),
            };
        }
        self.servers = undo_log.servers;
        self.sequence = undo_log.sequence;
        self.drained = undo_log.drained;
        self.unexpected_replicas = undo_log.unexpected_replicas;
        self.index = Index::rebuild(&self.models, &self.servers);
        // The retry queue is not logged: retry every class.
        self.retry_queue = self.index.waiting.keys().map(|class| (class.clone(), None)).collect();
    }

    /// Drops the log since [`State::begin`].
    pub fn commit(&mut self) {
        self.undo_log = None;
    }
}
