//! The scheduling state and command dispatch.

use super::{
    Millis, Policy,
    command::{Command, Effects, Rejection},
    index::{EquivalenceClass, Index},
    logical_clock::LogicalClock,
    model::Model,
    model_context::ModelContext,
    route::Route,
    server::{ReplicaId, Server},
    undo_log::UndoLog,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::Included,
    sync::Arc,
};

/// All scheduling state. Changed only by [`State::apply`].
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(super) policy: Policy,
    pub(super) models: BTreeMap<Arc<str>, Model>,
    pub(super) servers: BTreeMap<Arc<str>, Server>,
    /// Sequence number of the last route change.
    pub(super) sequence: u64,
    pub(super) clock: LogicalClock,
    pub(super) index: Index,
    /// Equivalence classes to retry in batches, each with the last model that was retried.
    pub(super) retry_queue: BTreeMap<Arc<EquivalenceClass>, Option<(u64, Arc<str>)>>,
    /// Loaded versions that are not desired, by the route sequence that gateways must have drained before they may be
    /// unloaded.
    pub(super) unexpected_replicas: BTreeSet<(u64, ReplicaId, Arc<str>, u32)>,
    /// The last route sequence drained by every gateway.
    pub(super) drained: u64,
    pub(super) undo_log: Option<Box<UndoLog>>,
}

impl State {
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub const fn models(&self) -> &BTreeMap<Arc<str>, Model> {
        &self.models
    }

    pub const fn servers(&self) -> &BTreeMap<Arc<str>, Server> {
        &self.servers
    }

    /// Sequence number of the last route change.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Number of models with fewer replicas than desired.
    pub fn waiting(&self) -> usize {
        self.index.waiting.values().map(std::collections::BTreeSet::len).sum()
    }

    pub fn route(&self, name: &str) -> Route {
        self.models.get(name).map(Route::of).unwrap_or_default()
    }

    pub fn loaded_on(&self, id: &ReplicaId) -> usize {
        let Some(assigned) = self.index.on(&id.server, id.index) else { return 0 };
        assigned
            .models
            .keys()
            .filter_map(|name| self.models.get(name))
            .flat_map(|m| &m.versions)
            .filter(|v| v.status(&id.server, id.index).is_some_and(|r| r.state.is_routed()))
            .count()
    }

    pub fn apply(&mut self, command: Command, now: Millis) -> Result<Effects, Rejection> {
        self.clock.advance(now, self.policy.max_clock_step);
        let mut applied = Effects::default();
        let effects = &mut applied;
        match command {
            Command::LoadModel { definition, by } => self.load_model(*definition, by, now, effects)?,
            Command::UnloadModel { name, by } => self.unload_model(&name, &by, now, effects)?,
            Command::AdoptModel { name, by } => self.adopt_model(name, by, effects)?,
            Command::AdoptServer { name, by } => self.adopt_server(name, by, effects)?,
            Command::UpsertServer { name, expected, shared, namespace, by } => {
                self.upsert_server(&name, expected, shared, namespace, by, now, effects)?;
            }
            Command::ReplicaJoined { id, replica, shared, loaded } => {
                self.replica_joined(&id, replica, shared, loaded, now, effects);
            }
            Command::ReplicaDisconnected { id } => self.replica_disconnected(&id, now, effects),
            Command::ReplicaLost { id } => self.replica_lost(&id, now, effects),
            Command::ReplicaReported { id, model, version, event, memory_free } => {
                self.replica_reported(&id, &model, version, event, memory_free, now, effects);
            }
            Command::DrainReplica { id } => self.drain_replica(&id, now, effects),
            Command::RoutesAcknowledged { applied, drained } => {
                self.routes_acknowledged(applied, drained, now, effects);
            }
            Command::ScaleModel { name, version, change } => {
                self.with(&name, now, effects, |ctx, model| {
                    ctx.scale_by(model, version, change);
                    ctx.reconcile(model, false);
                });
            }
            Command::DemandReported { model, in_flight_milli, answered, waiting } => {
                self.with(&model, now, effects, |ctx, model| {
                    ctx.record_demand(model, in_flight_milli, answered, waiting);
                    ctx.reconcile(model, false);
                });
            }
            Command::Tick => self.tick(now, effects),
        }
        applied.wake_at = self.wake_at(now);
        Ok(applied)
    }

    /// Runs `work` on one model. Every change must end with [`ModelContext::reconcile`].
    pub(super) fn with<R>(
        &mut self,
        name: &str,
        now: Millis,
        effects: &mut Effects,
        work: impl FnOnce(&mut ModelContext<'_>, &mut Model) -> R,
    ) -> Option<R> {
        // Clones share the map's key: one allocation per model name.
        let (name, model) = self.models.range_mut::<str, _>((Included(name), Included(name))).next()?;
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_previous(name, Some(&*model));
        }
        let mut ctx = ModelContext {
            name,
            servers: &mut self.servers,
            index: &mut self.index,
            policy: &self.policy,
            sequence: &mut self.sequence,
            now,
            monotonic_now: self.clock.monotonic_now,
            effects,
            dirty: false,
        };
        Some(work(&mut ctx, model))
    }

    /// Reconciles every model with a replica on this server replica.
    pub(super) fn reconcile_all_on(
        &mut self,
        id: &ReplicaId,
        retry_now: bool,
        now: Millis,
        effects: &mut Effects,
    ) {
        for name in self.index.models_on(id) {
            self.with(&name, now, effects, |ctx, model| ctx.reconcile(model, retry_now));
        }
    }

    /// Asserts that the index matches the state.
    #[cfg(test)]
    pub(super) fn check_index(&self) {
        let mut fresh = Index::rebuild(&self.models, &self.servers);
        for (sequence, name) in &fresh.awaiting_routes {
            assert_eq!(
                self.index.awaiting_routes.get(sequence),
                Some(name),
                "{name} waits for a route change and is not indexed"
            );
        }
        // Extra entries are harmless: a model may be woken in vain, but never missed.
        fresh.awaiting_routes.clone_from(&self.index.awaiting_routes);
        assert_eq!(self.index, fresh);
        for (name, model) in &self.models {
            for version in &model.versions {
                assert_eq!(
                    version.server.is_none(),
                    version.replicas.is_empty(),
                    "{name}: a server without replicas"
                );
                for status in version.statuses() {
                    assert_ne!(
                        status.awaits,
                        super::model::NEXT_CHANGE,
                        "{name}: a route change was not published"
                    );
                }
            }
        }
    }
}
