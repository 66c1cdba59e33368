//! Message processing: apply, commit, publish, reply.

use super::{
    CommandError, Handle, Message, Query, Start,
    commit_batch::CommitBatch,
    connections::{Acknowledged, Agent, Connections, Disconnect, ReportId},
};
use crate::{
    clock::Clock,
    convert,
    definitions::{self, Definitions},
    encoding,
    metrics::Metrics,
    notices::{self, RolloutNotice},
    outbox::{AgentOrder, RouteChange, Subscribers},
    read_model::Publisher,
    restore::Restored,
    scheduler::Config,
    service_traffic::ServiceTraffic,
};
use gantry_core::{
    rollout::{Event, Exposure, Finding, ObservationId},
    scheduling::{
        Command, Effects, Kind, LoadedVersion, Millis, Order, Rejection, Removal, ReplicaId, ReplicaState,
        RolloutKind, RolloutTarget, State, Traffic, Version,
    },
};
use gantry_proto::gantry::ModelTraffic;
use gantry_store::{Change, Store, StoreError, Table};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::broadcast, time::Instant};

/// Pending route changes beyond twice the number of objects before a gateway is reset.
const ROUTE_SLACK: usize = 4096;
/// After a start with empty state, unexpected models stay loaded this long: the control plane may send the desired
/// state again, and gateways of a lost state may still route to them.
const RESYNC_GRACE: Duration = Duration::from_secs(30);
/// The record of gateways that a lost state knew: a restart does not shorten the time that they have. No gateway has this
/// name.
const UNKNOWN_GATEWAYS: &str = "";
/// Retry interval after a failed write, unless a command waits.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// With a timer pending, core gets a tick at least this often, because its logical clock caps long steps.
const MAX_TICK_INTERVAL: Duration = Duration::from_secs(2);

/// No gateway acknowledges this: core has received no `GatewaysAcknowledged`.
const UNREPORTED: Option<u64> = Some(u64::MAX);

pub(super) struct Writer {
    clock: Arc<dyn Clock>,
    state: State,
    definitions: Definitions,
    store: Store,
    start: Start,
    connections: Connections,
    publisher: Publisher,
    models: Arc<Subscribers>,
    servers: Arc<Subscribers>,
    pipelines: Arc<Subscribers>,
    experiments: Arc<Subscribers>,
    services: Arc<Subscribers>,
    service_traffic: Arc<ServiceTraffic>,
    rollouts: Arc<Subscribers<RolloutTarget>>,
    policies: Arc<Subscribers>,
    notices: broadcast::Sender<RolloutNotice>,
    metrics: Arc<Metrics>,
    /// Of the last report that core received.
    observation: ObservationId,
    /// Last `RoutesAcknowledged` sent to core.
    acknowledged: Acknowledged,
    /// Last `GatewaysAcknowledged` sent to core.
    applied: Option<u64>,
    /// Core's next timer.
    wake_at: Option<Millis>,
    last_tick: Instant,
    /// Records to write.
    dirty: DirtyRecords,
    /// See `defers_unloads`; also those of models whose record could not be written.
    deferred_unloads: Vec<Order>,
    /// What agents had loaded when they joined an empty state: gateways of a lost state may route there.
    inherited: BTreeSet<Removal>,
    /// Time of the last failed write; logged once.
    store_failed_at: Option<Instant>,
    /// Replicas from before the restart that have not rejoined.
    unsynced_replicas: BTreeSet<ReplicaId>,
    started: Instant,
    /// Ends the engine.
    stop: tokio_util::sync::CancellationToken,
    /// Until the first start with an empty state has lasted [`RESYNC_GRACE`].
    resyncing: bool,
}

#[derive(Default)]
struct DirtyRecords {
    models: BTreeSet<Arc<str>>,
    servers: BTreeSet<Arc<str>>,
    pipelines: BTreeSet<Arc<str>>,
    experiments: BTreeSet<Arc<str>>,
    services: BTreeSet<Arc<str>>,
    policies: BTreeSet<Arc<str>>,
    gateways: BTreeSet<Arc<str>>,
}

impl DirtyRecords {
    fn is_empty(&self) -> bool {
        let Self { models, servers, pipelines, experiments, services, policies, gateways } = self;
        let all = [models, servers, pipelines, experiments, services, policies, gateways];
        all.into_iter().all(BTreeSet::is_empty)
    }

    /// Takes what the effects of commands have to store.
    fn add(&mut self, effects: &mut Effects) {
        self.models.append(&mut effects.store_models);
        self.servers.append(&mut effects.store_servers);
        self.pipelines.append(&mut effects.store_pipelines);
        self.experiments.append(&mut effects.store_experiments);
        self.services.append(&mut effects.store_services);
        // They are published, too.
        self.policies.extend(effects.store_rollout_policies.iter().cloned());
    }
}

impl Writer {
    pub(super) fn new(config: Config, restored: Restored, handle: &Handle) -> Self {
        let Restored { state, definitions, mut gateways } = restored;
        let resyncing = gateways.remove(UNKNOWN_GATEWAYS) || state.models().is_empty();
        let mut writer = Self {
            clock: config.clock,
            publisher: Publisher::new(handle.read_model.clone(), handle.metrics.clone()),
            start: handle.start,
            connections: Connections::new(gateways),
            store: config.store,
            models: handle.models.clone(),
            servers: handle.servers.clone(),
            pipelines: handle.pipelines.clone(),
            experiments: handle.experiments.clone(),
            services: handle.services.clone(),
            service_traffic: handle.service_traffic.clone(),
            rollouts: handle.rollouts.clone(),
            policies: handle.policies.clone(),
            notices: handle.notices.clone(),
            metrics: handle.metrics.clone(),
            observation: ObservationId { epoch: handle.start.epoch, sequence: 0 },
            acknowledged: Acknowledged::default(),
            applied: UNREPORTED,
            // Tick at once: restored timers may be overdue.
            wake_at: Some(0),
            last_tick: Instant::now(),
            dirty: DirtyRecords {
                gateways: resyncing.then(|| UNKNOWN_GATEWAYS.into()).into_iter().collect(),
                ..DirtyRecords::default()
            },
            deferred_unloads: Vec::new(),
            inherited: BTreeSet::new(),
            store_failed_at: None,
            unsynced_replicas: known_replicas(&state),
            started: Instant::now(),
            stop: handle.stop.clone(),
            resyncing,
            state,
            definitions,
        };
        writer.publisher.publish_all(&writer.state, &writer.definitions);
        writer
    }

    /// When to wake without messages.
    pub(super) fn wake(&self) -> Instant {
        let now = Instant::now();
        let Some(at) = self.wake_at else { return now + Duration::from_hours(1) };
        (now + Duration::from_millis(at.saturating_sub(self.clock.now())))
            .min(self.last_tick + MAX_TICK_INTERVAL)
    }

    fn tick_due(&self) -> bool {
        self.wake_at.is_some_and(|at| at <= self.clock.now() || self.last_tick.elapsed() >= MAX_TICK_INTERVAL)
    }

    /// Called after the messages of a batch, which may contain the acknowledgement that a gateway is expired for. `sent`
    /// is the last route change before the batch.
    fn expire_gateways(&mut self, sent: u64) {
        self.dirty.gateways.extend(self.connections.expire_gateways(sent));
        if self.resyncing && !self.is_resyncing() {
            self.resyncing = false;
            self.dirty.gateways.insert(UNKNOWN_GATEWAYS.into());
        }
        if !self.defers_unloads() {
            self.inherited.clear();
        }
    }

    /// Sends deferred unloads whose reason is gone.
    fn release_unloads(&mut self) {
        if self.deferred_unloads.is_empty() || self.defers_unloads() {
            return;
        }
        let mut orders = std::mem::take(&mut self.deferred_unloads);
        // It may be desired again meanwhile.
        orders.retain(|order| !is_placed(&self.state, order, ReplicaState::counts_as_desired));
        let undrained = self.connections.acknowledged_by_all(0).undrained;
        let dirty = &self.dirty.models;
        let in_use = |order: &mut Order| dirty.contains(&order.model) || undrained.contains(&removal(order));
        self.deferred_unloads = orders.extract_if(.., in_use).collect();
        self.send_orders(&orders);
    }

    /// Applies messages in order, commits, then publishes and replies. `expire` also expires lagging gateways.
    pub(super) fn process(&mut self, messages: &mut Vec<Message>, expire: bool) {
        self.connections.advance_clock();
        let sent = self.state.sequence();
        let has_commands = messages.iter().any(|m| matches!(m, Message::Command { .. }));
        let mut batch = CommitBatch::new(has_commands);
        let mut queries = Vec::new();
        if has_commands {
            self.state.begin();
        }
        for message in messages.drain(..) {
            self.handle(message, &mut batch, &mut queries);
        }
        if expire {
            self.expire_gateways(sent);
        }
        if self.tick_due() {
            self.apply_report(Command::Tick, &mut batch);
        }
        self.acknowledge_routes(&mut batch);
        let changed = redefined(&batch.effects);
        self.dirty.add(&mut batch.effects);
        let stored = self.persist(has_commands);
        // After the commit, so that nothing is sent that another leader may contradict.
        if let Some(lost) = stored.as_ref().err().filter(|e| e.is_lost()) {
            return self.step_down(&mut batch, lost);
        }
        let answer = match stored {
            Err(error) if has_commands => Err(self.roll_back(&mut batch, &error)),
            _ => {
                self.state.commit();
                Ok(())
            }
        };
        // Publish before replying: callers must read their own writes.
        self.publisher.publish(&self.state, &self.definitions, &batch.effects);
        self.dispatch(std::mem::take(&mut batch.effects));
        if expire {
            self.release_unloads();
        }
        // After the dispatch: orders of this batch may use definitions that it replaced.
        for (kind, name) in &changed {
            self.definitions.prune(*kind, name, &self.state);
        }
        let metrics = &self.metrics;
        let refused = answer.is_err();
        batch.answer(&answer, |at| {
            if refused {
                metrics.refused("not_stored");
            } else {
                metrics.schedule_seconds.observe(at.elapsed().as_secs_f64());
            }
        });
        for reply in batch.joined {
            // Also after a failed write: a full disk must not stop routing.
            let _ = reply.send(Ok(()));
        }
        self.check_resync();
        for query in queries {
            query(&self.state);
        }
    }

    fn handle(&mut self, message: Message, batch: &mut CommitBatch, queries: &mut Vec<Query>) {
        match message {
            Message::Command { command, definition, reply, at } => {
                let encoded = definition.and_then(|bytes| Some((definitions::key(&command)?, bytes)));
                match self.apply(command, batch) {
                    Ok(()) => {
                        if let Some((key, bytes)) = encoded {
                            self.definitions.insert_used(key, bytes, &self.state);
                        }
                        batch.commands.push((reply, at));
                    }
                    Err(rejection) => {
                        self.metrics.refused("refused");
                        let _ = reply.send(Err(rejection.into()));
                    }
                }
            }
            Message::Report { id, subscription, command } => {
                // Reports of an earlier subscription are superseded by the current inventory.
                if self.connections.is_current(&id, self.start, subscription) {
                    self.apply_report(command, batch);
                }
            }
            Message::AgentJoined { id, connection, outbox, guard, command, reply } => {
                batch.joined.push(reply);
                tracing::info!(server = %id.server, replica = id.index, "replica joined");
                // Its inventory is evaluated again.
                self.deferred_unloads.retain(|order| order.replica != id);
                if let Command::ReplicaJoined { loaded, .. } = &command
                    && self.is_resyncing()
                {
                    self.inherited.extend(loaded.iter().map(|LoadedVersion { model, version, .. }| {
                        Removal { model: model.clone(), version: *version, replica: id.clone() }
                    }));
                }
                self.connections.agent_joined(id, Agent { connection, outbox, _guard: guard });
                self.apply_report(command, batch);
            }
            Message::AgentLeft { id, connection } => match self.connections.agent_left(&id, connection) {
                Some(Disconnect::Drained) => {
                    tracing::info!(server = %id.server, replica = id.index, "replica left");
                    self.apply_report(Command::ReplicaLost { id }, batch);
                }
                Some(Disconnect::ConnectionLost) => {
                    tracing::warn!(server = %id.server, replica = id.index, "replica connection lost");
                    self.apply_report(Command::ReplicaDisconnected { id }, batch);
                }
                None => {}
            },
            Message::Drain { id, reply } => {
                if self.connections.agents.contains_key(&id) {
                    self.connections.drain(id.clone(), reply);
                    self.apply_report(Command::DrainReplica { id }, batch);
                } else {
                    // An unknown replica holds nothing.
                    let _ = reply.send(Ok(true));
                }
            }
            Message::GatewayJoined { name, connection, outbox, guard, reply } => {
                tracing::info!(gateway = %name, "gateway joined");
                if !self.connections.may_route(&name) {
                    self.dirty.gateways.insert(name.clone());
                }
                batch.joined.push(reply);
                self.connections.gateway_joined(name, connection, outbox, guard);
            }
            Message::GatewayLeft { name, connection } => {
                if self.connections.gateway_left(&name, connection) {
                    tracing::info!(gateway = %name, "gateway left");
                    let models = self.connections.demand.forget(&name);
                    let services = self.connections.service_demand.report(&name, &[], |_| None);
                    for command in models.into_iter().chain(services) {
                        self.apply_report(command, batch);
                    }
                }
            }
            Message::GatewayAcknowledged { name, latest } => self.connections.acknowledged(&name, latest),
            Message::Demand { gateway, models } => {
                if self.connections.has_gateway(&gateway) {
                    let services = self.state.services();
                    let find = |name: &str| services.get_key_value(name).map(|(name, _)| name.clone());
                    let of_services = self.connections.service_demand.report(&gateway, &models, find);
                    let known = self.state.models();
                    let find = |name: &str| known.get_key_value(name).map(|(name, _)| name.clone());
                    let of_models = self.connections.demand.report(&gateway, models, find);
                    for command in of_models.into_iter().chain(of_services) {
                        self.apply_report(command, batch);
                    }
                }
            }
            Message::Traffic { gateway, instance, sequence, models } => {
                if self.connections.is_new_traffic(&gateway, ReportId { instance, sequence }) {
                    for traffic in models {
                        self.observe_traffic(traffic, batch);
                    }
                }
            }
            Message::Query(query) => queries.push(query),
        }
    }

    fn observe_traffic(&mut self, traffic: ModelTraffic, batch: &mut CommitBatch) {
        let target = convert::rollout_target(&traffic.model, &traffic.pipeline, &traffic.service);
        let Some(target) = target else { return };
        self.observation.sequence += 1;
        let traffic = Traffic {
            id: self.observation,
            generation: traffic.generation,
            versions: traffic.versions.into_iter().map(convert::version_traffic).collect(),
        };
        if target.kind == RolloutKind::Service {
            let services = self.state.services();
            if services.get(&target.name).is_some_and(|service| service.rollout.is_none()) {
                // The rollout of an Algorithm is the operator's.
                self.service_traffic.add(&target.name, traffic.generation, &traffic.versions);
            }
            self.service_traffic.retain(services.len(), |name| services.contains_key(name));
        }
        self.apply_report(Command::TrafficObserved { target, traffic }, batch);
    }

    fn apply(&mut self, command: Command, batch: &mut CommitBatch) -> Result<(), Rejection> {
        let effects = self.state.apply(command, self.clock.now())?;
        self.wake_at = effects.wake_at;
        self.last_tick = Instant::now();
        batch.effects.merge(effects);
        Ok(())
    }

    /// Applies a report, which has no reply.
    fn apply_report(&mut self, command: Command, batch: &mut CommitBatch) {
        if let Some(reports) = &mut batch.reports {
            reports.push(command.clone());
        }
        // A rejection changes nothing.
        let _ = self.apply(command, batch);
    }

    /// Reports the gateways' acknowledgements to core until nothing changes.
    fn acknowledge_routes(&mut self, batch: &mut CommitBatch) {
        loop {
            let latest = self.connections.acknowledged_by_all(self.state.sequence());
            if latest == self.acknowledged {
                break;
            }
            self.acknowledged = latest.clone();
            let Acknowledged { applied, drained, undrained } = latest;
            let _ = self.apply(Command::RoutesAcknowledged { applied, drained, undrained }, batch);
        }
        let applied = self.connections.applied_by_connected();
        if self.applied != applied {
            self.applied = applied;
            let _ = self.apply(Command::GatewaysAcknowledged { applied }, batch);
        }
    }

    /// Rolls back the commands of a batch that could not be stored, and reapplies its reports.
    fn roll_back(&mut self, batch: &mut CommitBatch, error: &StoreError) -> CommandError {
        self.state.rollback();
        // Acknowledgements and timers were rolled back too.
        (self.acknowledged, self.applied) = (Acknowledged::default(), UNREPORTED);
        self.wake_at = Some(0);
        batch.effects = Effects::default();
        for command in batch.reports.take().unwrap_or_default() {
            let _ = self.apply(command, batch);
        }
        self.acknowledge_routes(batch);
        self.dirty.add(&mut batch.effects);
        CommandError::NotStored { reason: error.to_string(), full: error.is_full() }
    }

    /// Ends the engine without an effect: another process may lead, and the batch may be stored or not.
    fn step_down(&mut self, batch: &mut CommitBatch, error: &StoreError) {
        tracing::warn!(%error, "the engine stops: this scheduler no longer leads");
        let metrics = &self.metrics;
        batch.answer(&Err(CommandError::Lost { reason: error.to_string() }), |_| {
            metrics.refused("not_stored");
        });
        self.stop.cancel();
    }

    /// Writes all dirty records. They stay dirty after a failure and are retried.
    fn persist(&mut self, has_commands: bool) -> Result<(), StoreError> {
        // Do not retry for every report: reopening checks the whole file.
        let rests =
            self.store_failed_at.is_some_and(|at| at.elapsed() < STORE_RETRY_INTERVAL) && !has_commands;
        if self.dirty.is_empty() || rests {
            return self.store.check();
        }
        let state = &self.state;
        let models = self.dirty.models.iter().map(|name| Change {
            table: Table::Models,
            key: name.to_string(),
            value: state.model_record(name).map(|r| encoding::encode_model(&r, &self.definitions)),
        });
        let servers = self.dirty.servers.iter().map(|name| Change {
            table: Table::Servers,
            key: name.to_string(),
            value: state.server_record(name).map(|r| encoding::encode_server(&r)),
        });
        let pipelines = self.dirty.pipelines.iter().map(|name| Change {
            table: Table::Pipelines,
            key: name.to_string(),
            value: state.pipeline_record(name).map(|r| encoding::encode_pipeline(&r, &self.definitions)),
        });
        let experiments = self.dirty.experiments.iter().map(|name| Change {
            table: Table::Experiments,
            key: name.to_string(),
            value: state.experiment_record(name).map(|r| encoding::encode_experiment(&r, &self.definitions)),
        });
        let services = self.dirty.services.iter().map(|name| Change {
            table: Table::Services,
            key: name.to_string(),
            value: state.service_record(name).map(|r| encoding::encode_service(&r)),
        });
        let policies = self.dirty.policies.iter().map(|name| Change {
            table: Table::Policies,
            key: name.to_string(),
            value: state.rollout_policies().get(name).map(|policy| policy.content.to_vec()),
        });
        let gateways = self.dirty.gateways.iter().map(|name| Change {
            table: Table::Gateways,
            key: name.to_string(),
            value: match &**name {
                UNKNOWN_GATEWAYS => self.resyncing.then(Vec::new),
                name => self.connections.may_route(name).then(Vec::new),
            },
        });
        let changes: Vec<Change> = models
            .chain(servers)
            .chain(pipelines)
            .chain(experiments)
            .chain(services)
            .chain(policies)
            .chain(gateways)
            .collect();
        let start = Instant::now();
        let committed = self.store.commit(&changes);
        self.metrics.committed(start.elapsed(), committed.is_ok());
        match committed.and_then(|()| self.store.check()) {
            Ok(()) => {
                self.dirty = DirtyRecords::default();
                if self.store_failed_at.take().is_some() {
                    tracing::info!("store writes recovered");
                }
                Ok(())
            }
            Err(error) => {
                if self.store_failed_at.replace(Instant::now()).is_none() {
                    tracing::error!(%error, "store write failed; rejecting changes, serving continues");
                }
                Err(error)
            }
        }
    }

    /// Sends effects to agents, gateways and subscribers.
    fn dispatch(&mut self, mut effects: Effects) {
        for (id, all) in std::mem::take(&mut effects.drained) {
            self.connections.drained(id, all);
        }
        let mut orders = std::mem::take(&mut effects.orders);
        let (restarted, every) = (self.defers_unloads(), self.connections.awaits_gateways());
        if restarted || !self.dirty.models.is_empty() {
            let (state, inherited, dirty) = (&self.state, &self.inherited, &self.dirty.models);
            let deferred = |o: &mut Order| {
                let may_be_routed =
                    || every || inherited.contains(&removal(o)) || !is_placed(state, o, |_| true);
                // The stored record may route there after a restart.
                o.load.is_none() && (dirty.contains(&o.model) || (restarted && may_be_routed()))
            };
            self.deferred_unloads.extend(orders.extract_if(.., deferred));
        }
        self.send_orders(&orders);
        if self.connections.gateways() > 0 {
            let changes = self.route_changes(&effects);
            if !changes.is_empty() {
                let state = &self.state;
                let kinds = [
                    state.models().len(),
                    state.pipelines().len(),
                    state.experiments().len(),
                    state.services().len(),
                ];
                let objects: usize = kinds.into_iter().sum();
                self.connections.routes_changed(&changes, objects * 2 + ROUTE_SLACK);
            }
        }
        let servers: BTreeSet<_> =
            effects.servers.iter().chain(effects.scale_servers.keys()).cloned().collect();
        self.models.notify(&effects.models);
        self.servers.notify(&servers);
        self.pipelines.notify(&effects.pipelines);
        self.experiments.notify(&effects.experiments);
        self.services.notify(&effects.services);
        self.rollouts.notify(&effects.rollouts);
        self.policies.notify(&effects.store_rollout_policies);
        for (target, event) in &effects.rollout_events {
            self.metrics.rollouts.happened(target, event);
            log_rollout(target, event);
            if self.notices.receiver_count() > 0 {
                // Without a receiver nothing is lost.
                if let Some(notice) = notices::of(&self.state, target, event, self.clock.now()) {
                    let _ = self.notices.send(notice);
                }
            }
        }
    }

    /// Changed routes, ordered by sequence number. An expired tombstone left the routes when it was deleted.
    fn route_changes(&self, effects: &Effects) -> Vec<RouteChange> {
        let state = &self.state;
        let models = effects.routes.iter().filter_map(|name| {
            state.models().get(name).map(|m| (m.route_sequence, (Kind::Model, name.clone())))
        });
        let pipelines = effects.pipeline_routes.iter().filter_map(|name| {
            state.pipelines().get(name).map(|p| (p.route_sequence, (Kind::Pipeline, name.clone())))
        });
        let experiments = effects.experiment_routes.iter().filter_map(|name| {
            state.experiments().get(name).map(|e| (e.route_sequence, (Kind::Experiment, name.clone())))
        });
        let services =
            effects.service_routes.iter().map(|(name, sequence)| (*sequence, (Kind::Service, name.clone())));
        let mut changes: Vec<RouteChange> =
            models.chain(pipelines).chain(experiments).chain(services).collect();
        changes.sort_unstable();
        changes
    }

    /// Whether unloads are deferred after a restart: gateways may still route there, or clients have not re-sent the
    /// desired state yet.
    fn defers_unloads(&self) -> bool {
        self.connections.awaits_gateways() || self.is_resyncing()
    }

    /// Whether the state may be one that was lost, and may still be sent by clients.
    fn is_resyncing(&self) -> bool {
        self.resyncing && self.connections.now() < RESYNC_GRACE
    }

    /// Queues orders, grouped by replica so that each reader wakes once.
    fn send_orders(&self, orders: &[Order]) {
        let mut by_replica = BTreeMap::<&ReplicaId, Vec<_>>::new();
        for order in orders {
            let definition = order.load.as_ref().and_then(|d| self.definitions.model(d).cloned());
            let queued = AgentOrder { order: order.clone(), definition };
            by_replica.entry(&order.replica).or_default().push(queued);
        }
        for (replica, orders) in by_replica {
            if let Some(agent) = self.connections.agents.get(replica) {
                agent.outbox.extend(orders);
            }
        }
    }

    /// Reports when all replicas from before the restart have rejoined or expired.
    fn check_resync(&mut self) {
        if self.unsynced_replicas.is_empty() {
            return;
        }
        let servers = self.state.servers();
        let is_silent = |id: &ReplicaId| {
            let replica = servers.get(&id.server).and_then(|s| s.replicas.get(&id.index));
            replica.is_some_and(|r| r.disconnected_since.is_some())
        };
        self.unsynced_replicas.retain(is_silent);
        if self.unsynced_replicas.is_empty() {
            let took = self.started.elapsed();
            self.metrics.resync_seconds.set(took.as_secs_f64());
            tracing::info!(
                seconds = took.as_secs_f64(),
                "resync complete: all known replicas reconnected or expired"
            );
        }
    }
}

fn log_rollout(target: &RolloutTarget, event: &Event) {
    match event {
        // The caller of a rejected command has the reason.
        Event::Deployed { .. } | Event::BakeEnded { .. } | Event::CommandRejected { .. } => {}
        Event::RolledBack { revision, to, finding } => {
            let Finding { reason, message } = finding;
            tracing::warn!(%target, %revision, %to, %reason, "rolled back: {message}");
        }
        Event::Degraded { revision, finding: Finding { reason, message } } => {
            tracing::warn!(%target, %revision, %reason, "the version that serves has a problem: {message}");
        }
        Event::RevertFailed { revision, to } => {
            tracing::warn!(%target, %revision, %to, "not reverted: the previous version is not ready");
        }
        Event::Started { revision } => tracing::info!(%target, %revision, "rollout started"),
        Event::StageEntered { revision, exposure } => match exposure {
            Exposure::Weight(percent) => tracing::info!(%target, %revision, "rolled out to {percent}"),
            Exposure::Mirror(percent) => tracing::info!(%target, %revision, "mirrored at {percent}"),
        },
        Event::Paused { revision } => tracing::info!(%target, %revision, "rollout paused"),
        Event::ApprovalNeeded { revision } => tracing::info!(%target, %revision, "rollout needs approval"),
        Event::Resumed { revision } => tracing::info!(%target, %revision, "rollout resumed"),
        Event::Promoted { revision } => tracing::info!(%target, %revision, "rollout promoted"),
        Event::Cancelled { revision } => {
            tracing::info!(%target, %revision, "rollout cancelled: the desired version changed");
        }
        Event::Reverting { revision, to } => tracing::info!(%target, %revision, %to, "reverting"),
        Event::Reverted { revision, to } => tracing::info!(%target, %revision, %to, "reverted"),
    }
}

/// Objects whose definitions may have been replaced.
fn redefined(effects: &Effects) -> Vec<(Kind, Arc<str>)> {
    let kinds = [
        (Kind::Model, &effects.store_models),
        (Kind::Pipeline, &effects.store_pipelines),
        (Kind::Experiment, &effects.store_experiments),
    ];
    kinds.into_iter().flat_map(|(kind, names)| names.iter().map(move |name| (kind, name.clone()))).collect()
}

/// What an unload order removes.
fn removal(Order { model, version, replica, .. }: &Order) -> Removal {
    Removal { model: model.clone(), version: *version, replica: replica.clone() }
}

/// Whether the version of an order has a replica there in a matching state.
fn is_placed(state: &State, order: &Order, such: impl Fn(ReplicaState) -> bool) -> bool {
    let versions = state.models().get(&order.model).into_iter().flat_map(|m| &m.versions);
    let mut placements = versions.filter(|v| v.number == order.version).flat_map(Version::placements);
    placements.any(|(server, index, status)| {
        *server == order.replica.server && index == order.replica.index && such(status.state)
    })
}

fn known_replicas(state: &State) -> BTreeSet<ReplicaId> {
    let servers = state.servers().iter();
    servers
        .flat_map(|(name, server)| {
            server.replicas.keys().map(move |&index| ReplicaId { server: name.clone(), index })
        })
        .collect()
}
