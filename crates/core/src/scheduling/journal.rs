//! Taking back commands that could not be stored.
//!
//! Whoever makes commands durable in groups asks [`State::begin`], applies them, stores the records, and then says
//! [`State::keep`]; or, when they could not be stored, [`State::undo`], and refuses what was asked. What agents and
//! gateways reported in between are facts: they are applied again.

use super::{index::Index, model::Model, server::Server, state::State};
use std::{collections::BTreeMap, sync::Arc};

/// What was, of everything that changed.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    models: BTreeMap<Arc<str>, Option<Model>>,
    /// There are few servers: all of them.
    servers: BTreeMap<Arc<str>, Server>,
    sequence: u64,
}

impl Journal {
    /// Remembers a model as it was, unless it is remembered already.
    pub(super) fn remember(&mut self, name: &Arc<str>, model: Option<&Model>) {
        if !self.models.contains_key(name) {
            self.models.insert(name.clone(), model.cloned());
        }
    }
}

impl State {
    /// From now on remembers what was, for [`State::undo`]. Costs what the commands touch.
    pub fn begin(&mut self) {
        self.journal = Some(Box::new(Journal {
            models: BTreeMap::new(),
            servers: self.servers.clone(),
            sequence: self.sequence,
        }));
    }

    /// Takes back every command since [`State::begin`]. Nothing of their effects may have been told to anybody.
    ///
    /// Costs what there is, because what is derived is derived anew: it is for the rare time that a disk is full.
    pub fn undo(&mut self) {
        let Some(journal) = self.journal.take() else { return };
        for (name, model) in journal.models {
            match model {
                Some(model) => self.models.insert(name, model),
                None => self.models.remove(&name),
            };
        }
        self.servers = journal.servers;
        self.sequence = journal.sequence;
        self.index = Index::rebuild(&self.models, &self.servers);
        // Which of those that wait were to be tried again is not remembered: all of them are.
        self.stale = self.index.waiting.keys().map(|shape| (shape.clone(), None)).collect();
    }

    /// Forgets what was remembered since [`State::begin`].
    pub fn keep(&mut self) {
        self.journal = None;
    }
}
