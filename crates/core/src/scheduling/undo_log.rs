//! Rollback of commands whose records could not be stored.
//!
//! A batch is [`State::begin`], any number of commands, then [`State::commit`] when the records are durable or
//! [`State::rollback`] when they are not. After a rollback the caller rejects requests and reapplies reports of agents
//! and gateways, which are facts.

use super::{
    dependants::Dependants,
    experiment::Experiment,
    model::Model,
    pipeline::Pipeline,
    rollout::PolicyRecord,
    route::Removal,
    server::{ReplicaId, Server},
    service::Service,
    state::State,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Previous values, for rollback.
#[derive(Clone, Debug, Default)]
pub(super) struct UndoLog {
    models: BTreeMap<Arc<str>, Option<Model>>,
    pipelines: BTreeMap<Arc<str>, Option<Pipeline>>,
    experiments: BTreeMap<Arc<str>, Option<Experiment>>,
    services: BTreeMap<Arc<str>, Option<Service>>,
    rollout_policies: BTreeMap<Arc<str>, Option<PolicyRecord>>,
    has_gateway: bool,
    /// A copy of all: there are few servers.
    servers: BTreeMap<Arc<str>, Server>,
    sequence: u64,
    drained: u64,
    undrained: BTreeSet<Removal>,
    unexpected_replicas: BTreeSet<(u64, ReplicaId, Arc<str>, u32)>,
}

impl UndoLog {
    /// Saves the first previous value of a model.
    pub(super) fn save_previous(&mut self, name: &Arc<str>, model: Option<&Model>) {
        if !self.models.contains_key(name) {
            self.models.insert(name.clone(), model.cloned());
        }
    }

    /// Saves the first previous value of a pipeline.
    pub(super) fn save_pipeline(&mut self, name: &Arc<str>, pipeline: Option<&Pipeline>) {
        if !self.pipelines.contains_key(name) {
            self.pipelines.insert(name.clone(), pipeline.cloned());
        }
    }

    /// Saves the first previous value of an experiment.
    pub(super) fn save_experiment(&mut self, name: &Arc<str>, experiment: Option<&Experiment>) {
        if !self.experiments.contains_key(name) {
            self.experiments.insert(name.clone(), experiment.cloned());
        }
    }

    /// Saves the first previous value of a rollout policy.
    pub(super) fn save_rollout_policy(&mut self, name: &Arc<str>, policy: Option<&PolicyRecord>) {
        if !self.rollout_policies.contains_key(name) {
            self.rollout_policies.insert(name.clone(), policy.cloned());
        }
    }

    /// Saves the first previous value of a service.
    pub(super) fn save_service(&mut self, name: &Arc<str>, service: Option<&Service>) {
        if !self.services.contains_key(name) {
            self.services.insert(name.clone(), service.cloned());
        }
    }
}

fn restore<T>(values: &mut BTreeMap<Arc<str>, T>, previous: BTreeMap<Arc<str>, Option<T>>) {
    for (name, value) in previous {
        match value {
            Some(value) => values.insert(name, value),
            None => values.remove(&name),
        };
    }
}

impl State {
    /// Starts logging previous values. Cost is proportional to the touched models.
    pub fn begin(&mut self) {
        self.undo_log = Some(Box::new(UndoLog {
            servers: self.servers.clone(),
            has_gateway: self.has_gateway,
            sequence: self.sequence,
            drained: self.drained,
            undrained: self.undrained.clone(),
            unexpected_replicas: self.unexpected_replicas.clone(),
            ..UndoLog::default()
        }));
    }

    /// Reverts every command since [`State::begin`]. None of their effects may have been carried out.
    ///
    /// Cost is proportional to the whole state, because the index is rebuilt; only needed when a write fails.
    pub fn rollback(&mut self) {
        let Some(undo_log) = self.undo_log.take() else { return };
        restore(&mut self.models, undo_log.models);
        restore(&mut self.pipelines, undo_log.pipelines);
        restore(&mut self.experiments, undo_log.experiments);
        restore(&mut self.services, undo_log.services);
        restore(&mut self.rollout_policies, undo_log.rollout_policies);
        self.has_gateway = undo_log.has_gateway;
        self.servers = undo_log.servers;
        self.sequence = undo_log.sequence;
        self.drained = undo_log.drained;
        self.undrained = undo_log.undrained;
        self.unexpected_replicas = undo_log.unexpected_replicas;
        self.index = self.rebuilt_index();
        self.dependants = Dependants::rebuild(&self.pipelines, &self.experiments);
        // The retry queue is not logged: retry every class.
        self.retry_queue = self.index.waiting.keys().map(|class| (class.clone(), None)).collect();
    }

    /// Logs previous values, but not of servers: for a dry run, which does not roll back.
    pub(super) fn track_models(&mut self) {
        self.undo_log = Some(Box::default());
    }

    /// The previous values of models that changed since [`State::track_models`].
    pub(super) fn tracked_models(&mut self) -> BTreeMap<Arc<str>, Option<Model>> {
        self.undo_log.take().map(|log| log.models).unwrap_or_default()
    }

    /// Drops the log since [`State::begin`].
    pub fn commit(&mut self) {
        self.undo_log = None;
    }
}
