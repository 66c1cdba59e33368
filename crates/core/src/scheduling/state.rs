//! The scheduling state and command dispatch.

use super::{
    Millis, Policy,
    command::{Command, Effects, Rejection},
    dependants::Dependants,
    experiment::Experiment,
    index::{EquivalenceClass, Index, Timer},
    logical_clock::LogicalClock,
    model::{Digest, Model},
    model_context::ModelContext,
    pipeline::Pipeline,
    rollout::PolicyRecord,
    route::{Removal, Route},
    server::{ReplicaId, Server},
    service::Service,
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
    pub(super) pipelines: BTreeMap<Arc<str>, Pipeline>,
    pub(super) experiments: BTreeMap<Arc<str>, Experiment>,
    pub(super) services: BTreeMap<Arc<str>, Service>,
    pub(super) rollout_policies: BTreeMap<Arc<str>, PolicyRecord>,
    pub(super) has_gateway: bool,
    /// Sequence number of the last route change.
    pub(super) sequence: u64,
    pub(super) clock: LogicalClock,
    pub(super) index: Index,
    pub(super) dependants: Dependants,
    /// Equivalence classes to retry in batches, each with the last model that was retried.
    pub(super) retry_queue: BTreeMap<Arc<EquivalenceClass>, Option<(u64, Arc<str>)>>,
    /// Loaded versions that are not desired, by the route sequence that gateways must have drained before they may be
    /// unloaded.
    pub(super) unexpected_replicas: BTreeSet<(u64, ReplicaId, Arc<str>, u32)>,
    /// The specs of loaded versions that are not desired: their numbers must not be given to other specs.
    pub(super) unexpected_specs: BTreeMap<(Arc<str>, u32), BTreeMap<ReplicaId, Option<Digest>>>,
    /// The last route sequence drained by every gateway, except for `undrained`.
    pub(super) drained: u64,
    /// Removed routes on which a gateway has requests in flight.
    pub(super) undrained: BTreeSet<Removal>,
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
            Command::ReloadModel { name } => self.reload_model(&name, now, effects)?,
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
            Command::RoutesAcknowledged { applied, drained, undrained } => {
                self.routes_acknowledged(applied, drained, undrained, now, effects);
            }
            Command::GatewaysAcknowledged { applied } => self.gateways_acknowledged(applied, now, effects),
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
            Command::LoadPipeline { definition, uid, by } => {
                self.load_pipeline(*definition, uid, by, now, effects)?;
            }
            Command::UnloadPipeline { name, by } => self.unload_pipeline(name, &by, now, effects)?,
            Command::AdoptPipeline { name, by } => self.adopt_pipeline(name, by, now, effects)?,
            Command::PipelineReported { name, uid, failure } => {
                self.pipeline_reported(&name, &uid, failure.as_ref(), now, effects);
            }
            Command::StartExperiment { definition, by } => {
                self.start_experiment(*definition, by, now, effects)?;
            }
            Command::StopExperiment { name, by } => self.stop_experiment(name, &by, now, effects)?,
            Command::AdoptExperiment { name, by } => self.adopt_experiment(name, by, now, effects)?,
            Command::PutService(record) => self.put_service(*record, now, effects),
            Command::DeleteService { name } => self.delete_service(name, effects),
            Command::ServiceDemanded { name, waiting, is_active } => {
                self.service_demanded(&name, waiting, is_active, effects);
            }
            Command::PutRolloutPolicy(record) => self.put_rollout_policy(record, now, effects),
            Command::DeleteRolloutPolicy { name } => self.delete_rollout_policy(name, now, effects),
            Command::SteerRollout { target, steer } => self.steer_rollout(target, steer, now, effects)?,
            Command::TrafficObserved { target, traffic } => {
                self.traffic_observed(&target, &traffic, now, effects);
            }
            Command::Tick => self.tick(now, effects),
        }
        self.update_dependants(now, effects);
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

    /// The index of the current models, servers, pipelines, experiments and services.
    pub(super) fn rebuilt_index(&self) -> Index {
        let mut index = Index::rebuild(&self.models, &self.servers);
        let pipelines =
            self.pipelines.iter().filter_map(|(name, p)| Some((p.due?, Timer::Pipeline(name.clone()))));
        let experiments =
            self.experiments.iter().filter_map(|(name, e)| Some((e.due?, Timer::Experiment(name.clone()))));
        let services =
            self.services.iter().filter_map(|(name, s)| Some((s.due?, Timer::Service(name.clone()))));
        index.timers.extend(pipelines.chain(experiments).chain(services));
        index
    }

    /// Asserts that the index matches the state.
    #[cfg(test)]
    pub(super) fn check_index(&self) {
        let mut fresh = self.rebuilt_index();
        let mut dependants = Dependants::rebuild(&self.pipelines, &self.experiments);
        for (sequence, waits) in &dependants.awaiting {
            assert_eq!(self.dependants.awaiting.get(sequence), Some(waits), "it waits and is not indexed");
        }
        dependants.awaiting.clone_from(&self.dependants.awaiting);
        assert_eq!(self.dependants, dependants);
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
