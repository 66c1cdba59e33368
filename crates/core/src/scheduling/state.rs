//! The state, and how a command changes it.

use super::{
    Millis, Policy,
    clock::Clock,
    command::{Command, Effects, Refusal},
    desk::Desk,
    index::{Index, Shape},
    journal::Journal,
    model::Model,
    route::Route,
    server::{ReplicaId, Server},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::Included,
    sync::Arc,
};

/// Everything the scheduler knows. Only [`State::apply`] changes it.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(super) policy: Policy,
    pub(super) models: BTreeMap<Arc<str>, Model>,
    pub(super) servers: BTreeMap<Arc<str>, Server>,
    /// The last route change.
    pub(super) sequence: u64,
    pub(super) clock: Clock,
    pub(super) index: Index,
    /// Shapes whose models are to be tried again in parts, and the last one that was.
    pub(super) stale: BTreeMap<Arc<Shape>, Option<(u64, Arc<str>)>>,
    /// Versions that agents hold and that nobody wants, by the route change that gateways have to be done with before
    /// they may be unloaded.
    pub(super) strays: BTreeSet<(u64, ReplicaId, Arc<str>, u32)>,
    /// The last route change that gateways said to be done with.
    pub(super) drained: u64,
    pub(super) journal: Option<Box<Journal>>,
}

impl State {
    /// Nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// The numbers that decisions follow.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// All models, by name.
    pub const fn models(&self) -> &BTreeMap<Arc<str>, Model> {
        &self.models
    }

    /// All servers, by name.
    pub const fn servers(&self) -> &BTreeMap<Arc<str>, Server> {
        &self.servers
    }

    /// The number of the last route change.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many models want more replicas than they have.
    pub fn waiting(&self) -> usize {
        self.index.waiting.values().map(std::collections::BTreeSet::len).sum()
    }

    /// The route of a model.
    pub fn route(&self, name: &str) -> Route {
        self.models.get(name).map(Route::of).unwrap_or_default()
    }

    /// How many model replicas are loaded on a server replica.
    pub fn loaded_on(&self, id: &ReplicaId) -> usize {
        let Some(held) = self.index.on(&id.server, id.index) else { return 0 };
        held.models
            .keys()
            .filter_map(|name| self.models.get(name))
            .flat_map(|m| &m.versions)
            .filter(|v| v.status(&id.server, id.index).is_some_and(|r| r.state.is_routed()))
            .count()
    }

    /// Carries out one command.
    pub fn apply(&mut self, command: Command, now: Millis) -> Result<Effects, Refusal> {
        self.clock.advance(now, self.policy.longest_step);
        let mut effects = Effects::default();
        let fx = &mut effects;
        match command {
            Command::LoadModel { definition, by } => self.load_model(*definition, by, now, fx)?,
            Command::UnloadModel { name, by } => self.unload_model(&name, &by, now, fx)?,
            Command::AdoptModel { name, by } => self.adopt_model(name, by, fx)?,
            Command::AdoptServer { name, by } => self.adopt_server(name, by, fx)?,
            Command::ExpectServer { name, expected, shared, namespace, by } => {
                self.expect_server(&name, expected, shared, namespace, by, now, fx)?;
            }
            Command::ReplicaJoined { id, replica, shared, loaded } => {
                self.replica_joined(&id, replica, shared, loaded, now, fx);
            }
            Command::ReplicaSilent { id } => self.replica_silent(&id, now, fx),
            Command::ReplicaLost { id } => self.replica_lost(&id, now, fx),
            Command::ReplicaReported { id, model, version, event, memory_free } => {
                self.replica_reported(&id, &model, version, event, memory_free, now, fx);
            }
            Command::DrainReplica { id } => self.drain_replica(&id, now, fx),
            Command::RoutesSettled { applied, drained } => self.routes_settled(applied, drained, now, fx),
            Command::ScaleModel { name, version, change } => {
                self.with(&name, now, fx, |desk, model| {
                    desk.scale_by(model, version, change);
                    desk.settle(model, false);
                });
            }
            Command::DemandSeen { model, in_flight_milli, answered, waiting } => {
                self.with(&model, now, fx, |desk, model| {
                    desk.see_demand(model, in_flight_milli, answered, waiting);
                    desk.settle(model, false);
                });
            }
            Command::Tick => self.tick(now, fx),
        }
        effects.wake_at = self.wake_at(now);
        Ok(effects)
    }

    /// Works on one model. Whatever changes it ends with [`Desk::settle`].
    pub(super) fn with<R>(
        &mut self,
        name: &str,
        now: Millis,
        fx: &mut Effects,
        work: impl FnOnce(&mut Desk<'_>, &mut Model) -> R,
    ) -> Option<R> {
        // The map's own copy of the name is what is kept everywhere: one for each model, whoever said it.
        let (name, model) = self.models.range_mut::<str, _>((Included(name), Included(name))).next()?;
        if let Some(journal) = &mut self.journal {
            journal.remember(name, Some(&*model));
        }
        let mut desk = Desk {
            name,
            servers: &mut self.servers,
            index: &mut self.index,
            policy: &self.policy,
            sequence: &mut self.sequence,
            now,
            passed: self.clock.passed,
            fx,
            dirty: false,
        };
        Some(work(&mut desk, model))
    }

    /// Settles everything that has something on a replica.
    pub(super) fn settle_all_on(&mut self, id: &ReplicaId, again: bool, now: Millis, fx: &mut Effects) {
        for name in self.index.models_on(id) {
            self.with(&name, now, fx, |desk, model| desk.settle(model, again));
        }
    }

    /// Checks that what is derived agrees with what it is derived from. For tests.
    #[cfg(test)]
    pub(super) fn check_index(&self) {
        let mut fresh = Index::rebuild(&self.models, &self.servers);
        for (sequence, name) in &fresh.settling {
            assert_eq!(
                self.index.settling.get(sequence),
                Some(name),
                "{name} waits, and nobody will wake it"
            );
        }
        // What waits for a route change may be woken once too often, never once too seldom.
        fresh.settling.clone_from(&self.index.settling);
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
                        "{name}: a route change was not told"
                    );
                }
            }
        }
    }
}
