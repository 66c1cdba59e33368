//! What the writer does with messages: decide, make durable, answer, tell.

use super::{
    CommandError, Handle, Message, Query,
    connections::{Agent, Disconnect, Connections},
    commit_batch::CommitBatch,
};
use crate::{
    clock::Clock, metrics::Metrics, encoding, outbox::Subscribers, restore::Restored, scheduler::Config,
    read_model::Publisher,
};
use gantry_core::scheduling::{
    Command, Effects, Millis, Order, Rejection, ReplicaId, ReplicaState, State, Version,
};
use gantry_store::{Change, Store, StoreError, Table};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// How many changes beyond twice the number of models may wait for a gateway before it starts again.
const ROUTE_SLACK: usize = 4096;
/// How long agents keep what nobody has asked for yet after a start from nothing: when a state is lost, a control plane
/// sends it again.
const RESYNC_GRACE: Duration = Duration::from_secs(15);
/// How long a disk that failed is left alone when nobody waits for it.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// While core waits for a time it is told the time at least this often, because it does not believe in long steps: a
/// clock may jump.
const MAX_TICK_INTERVAL: Duration = Duration::from_secs(2);

pub(super) struct Writer {
    clock: Arc<dyn Clock>,
    state: State,
    store: Store,
    epoch: u64,
    connections: Connections,
    publisher: Publisher,
    models: Arc<Subscribers>,
    servers: Arc<Subscribers>,
    metrics: Arc<Metrics>,
    /// What the last settlement was, so that nothing is settled twice.
    acknowledged: (u64, u64),
    /// When core next wants to know the time.
    wake_at: Option<Millis>,
    /// When core was last told the time.
    last_tick: Instant,
    /// Records that are out of date, and that nobody waits for.
    dirty: DirtyRecords,
    /// Orders to unload that wait: see `holds_back`.
    deferred_unloads: Vec<Order>,
    /// When the last write failed, if it did: that is said once.
    store_failed_at: Option<Instant>,
    /// Replicas of the last life that have not joined again, and since when they are waited for.
    unsynced_replicas: BTreeSet<ReplicaId>,
    started: Instant,
    /// Whether there was no model at the start.
    started_empty: bool,
}

/// Names of records that are out of date.
#[derive(Default)]
struct DirtyRecords {
    models: BTreeSet<Arc<str>>,
    servers: BTreeSet<Arc<str>>,
    gateways: BTreeSet<Arc<str>>,
}

impl DirtyRecords {
    fn is_empty(&self) -> bool {
        self.models.is_empty() && self.servers.is_empty() && self.gateways.is_empty()
    }
}

impl Writer {
    pub(super) fn new(config: Config, restored: Restored, handle: &Handle) -> Self {
        let Restored { state, gateways } = restored;
        let mut writer = Self {
            clock: config.clock,
            publisher: Publisher::new(handle.read_model.clone(), handle.metrics.clone()),
            epoch: config.store.epoch(),
            connections: Connections::new(gateways),
            store: config.store,
            models: handle.models.clone(),
            servers: handle.servers.clone(),
            metrics: handle.metrics.clone(),
            acknowledged: (0, 0),
            // The first look at the clock comes at once: what was restored may have waited for a time that is past.
            wake_at: Some(0),
            last_tick: Instant::now(),
            dirty: DirtyRecords::default(),
            deferred_unloads: Vec::new(),
            store_failed_at: None,
            unsynced_replicas: known_replicas(&state),
            started: Instant::now(),
            started_empty: state.models().is_empty(),
            state,
        };
        writer.publisher.publish_all(&writer.state);
        writer
    }

    /// When the writer wants to be woken though nothing is sent.
    pub(super) fn wake(&self) -> Instant {
        let now = Instant::now();
        let Some(at) = self.wake_at else { return now + Duration::from_hours(1) };
        (now + Duration::from_millis(at.saturating_sub(self.clock.now()))).min(self.last_tick + MAX_TICK_INTERVAL)
    }

    fn tick_due(&self) -> bool {
        self.wake_at.is_some_and(|at| at <= self.clock.now() || self.last_tick.elapsed() >= MAX_TICK_INTERVAL)
    }

    pub(super) fn expire_gateways(&mut self) {
        self.dirty.gateways.extend(self.connections.expire_gateways(self.state.sequence()));
        if !self.defers_unloads() && !self.deferred_unloads.is_empty() {
            let mut orders = std::mem::take(&mut self.deferred_unloads);
            // Somebody may have asked for it meanwhile.
            orders.retain(|order| !is_placed(&self.state, order, ReplicaState::counts_as_desired));
            self.send_orders(&orders);
        }
    }

    /// Takes messages in order, makes durable what must last, then answers and tells.
    pub(super) fn turn(&mut self, batch: &mut Vec<Message>) {
        let has_commands = batch.iter().any(|m| matches!(m, Message::Command { .. }));
        let mut turn = CommitBatch::new(has_commands);
        let mut queries = Vec::new();
        if has_commands {
            self.state.begin();
        }
        for message in batch.drain(..) {
            self.take(message, &mut turn, &mut queries);
        }
        if self.tick_due() {
            self.apply_report(Command::Tick, &mut turn);
        }
        self.acknowledge_routes(&mut turn);
        self.dirty.models.append(&mut turn.effects.store_models);
        self.dirty.servers.append(&mut turn.effects.store_servers);
        let stored = self.persist(has_commands);
        let answer = match stored {
            Err(error) if has_commands => Err(self.roll_back(&mut turn, &error)),
            _ => {
                self.state.commit();
                Ok(())
            }
        };
        // Whoever is answered and asks at once sees what was changed, and it is not news any more.
        self.publisher.publish(&self.state, &turn.effects);
        self.dispatch(std::mem::take(&mut turn.effects));
        let metrics = &self.metrics;
        let refused = answer.is_err();
        turn.answer(&answer, |at| {
            if refused {
                metrics.refused("not_stored");
            } else {
                metrics.schedule_seconds.observe(at.elapsed().as_secs_f64());
            }
        });
        for reply in turn.joined {
            // Also when its name could not be stored: a full disk is no reason to route nothing.
            let _ = reply.send(Ok(()));
        }
        self.check_resync();
        for query in queries {
            query(&self.state);
        }
    }

    fn take(&mut self, message: Message, turn: &mut CommitBatch, queries: &mut Vec<Query>) {
        match message {
            Message::Command { command, reply, at } => match self.apply(command, turn) {
                Ok(()) => turn.commands.push((reply, at)),
                Err(rejection) => {
                    self.metrics.refused("refused");
                    let _ = reply.send(Err(rejection.into()));
                }
            },
            Message::Report { id, subscription, command } => {
                // A late report of an earlier subscription speaks of a replica that has said since how it is.
                if self.connections.is_current(&id, self.epoch, subscription) {
                    self.apply_report(command, turn);
                }
            }
            Message::AgentJoined { id, connection, outbox, guard, command, reply } => {
                turn.joined.push(reply);
                tracing::info!(server = %id.server, replica = id.index, "replica joined");
                // What it holds and should not is decided anew.
                self.deferred_unloads.retain(|order| order.replica != id);
                self.connections.agent_joined(id, Agent { connection, outbox, _guard: guard });
                self.apply_report(command, turn);
            }
            Message::AgentLeft { id, connection } => match self.connections.agent_left(&id, connection) {
                Some(Disconnect::Drained) => {
                    tracing::info!(server = %id.server, replica = id.index, "replica left");
                    self.apply_report(Command::ReplicaLost { id }, turn);
                }
                Some(Disconnect::ConnectionLost) => {
                    tracing::warn!(server = %id.server, replica = id.index, "the connection to a replica ended");
                    self.apply_report(Command::ReplicaDisconnected { id }, turn);
                }
                None => {}
            },
            Message::Drain { id, reply } => {
                if self.connections.agents.contains_key(&id) {
                    self.connections.drain(id.clone(), reply);
                    self.apply_report(Command::DrainReplica { id }, turn);
                } else {
                    // Nothing of ours is there.
                    let _ = reply.send(Ok(true));
                }
            }
            Message::GatewayJoined { name, connection, outbox, guard, reply } => {
                tracing::info!(gateway = %name, "gateway joined");
                if !self.connections.may_route(&name) {
                    self.dirty.gateways.insert(name.clone());
                }
                turn.joined.push(reply);
                self.connections.gateway_joined(name, connection, outbox, guard);
            }
            Message::GatewayLeft { name, connection } => {
                if self.connections.gateway_left(&name, connection) {
                    tracing::info!(gateway = %name, "gateway left");
                    for command in self.connections.demand.forget(&name) {
                        self.apply_report(command, turn);
                    }
                }
            }
            Message::GatewayAcknowledged { name, applied, drained } => {
                self.connections.acknowledged(&name, applied, drained);
            }
            Message::Demand { gateway, models } => {
                if self.connections.has_gateway(&gateway) {
                    let known = self.state.models();
                    let find = |name: &str| known.get_key_value(name).map(|(name, _)| name.clone());
                    for command in self.connections.demand.report(&gateway, models, find) {
                        self.apply_report(command, turn);
                    }
                }
            }
            Message::Query(query) => queries.push(query),
        }
    }

    fn apply(&mut self, command: Command, turn: &mut CommitBatch) -> Result<(), Rejection> {
        let effects = self.state.apply(command, self.clock.now())?;
        self.wake_at = effects.wake_at;
        self.last_tick = Instant::now();
        turn.effects.merge(effects);
        Ok(())
    }

    /// Carries out what nobody waits for.
    fn apply_report(&mut self, command: Command, turn: &mut CommitBatch) {
        if let Some(reports) = &mut turn.reports {
            reports.push(command.clone());
        }
        // A refusal has no reader here, and changes nothing.
        let _ = self.apply(command, turn);
    }

    /// Tells core how far the gateways are, for as long as that changes anything.
    fn acknowledge_routes(&mut self, turn: &mut CommitBatch) {
        loop {
            let (applied, drained) = self.connections.acknowledged_by_all(self.state.sequence());
            if (applied, drained) == self.acknowledged {
                return;
            }
            self.acknowledged = (applied, drained);
            let _ = self.apply(Command::RoutesAcknowledged { applied, drained }, turn);
        }
    }

    /// What must last could not be stored: as if it had never been asked for. What happened besides happened.
    fn roll_back(&mut self, turn: &mut CommitBatch, error: &StoreError) -> CommandError {
        self.state.rollback();
        // What was settled belongs to what was taken back, and so does what core waits for.
        self.acknowledged = (0, 0);
        self.wake_at = Some(0);
        turn.effects = Effects::default();
        for command in turn.reports.take().unwrap_or_default() {
            let _ = self.apply(command, turn);
        }
        self.acknowledge_routes(turn);
        self.dirty.models.append(&mut turn.effects.store_models);
        self.dirty.servers.append(&mut turn.effects.store_servers);
        CommandError::NotStored { reason: error.to_string(), full: matches!(error, StoreError::Full { .. }) }
    }

    /// Writes every record that is out of date. What could not be written stays so, and is tried again.
    fn persist(&mut self, has_commands: bool) -> Result<(), StoreError> {
        // A disk that fails is not asked at every report: each time costs a look at the whole file.
        let rests = self.store_failed_at.is_some_and(|at| at.elapsed() < STORE_RETRY_INTERVAL) && !has_commands;
        if self.dirty.is_empty() || rests {
            return Ok(());
        }
        let state = &self.state;
        let models = self.dirty.models.iter().map(|name| Change {
            table: Table::Models,
            key: name.to_string(),
            value: state.model_record(name).map(|r| encoding::encode_model(&r)),
        });
        let servers = self.dirty.servers.iter().map(|name| Change {
            table: Table::Servers,
            key: name.to_string(),
            value: state.server_record(name).map(|r| encoding::encode_server(&r)),
        });
        let gateways = self.dirty.gateways.iter().map(|name| Change {
            table: Table::Gateways,
            key: name.to_string(),
            value: self.connections.may_route(name).then(Vec::new),
        });
        let changes: Vec<Change> = models.chain(servers).chain(gateways).collect();
        let start = Instant::now();
        let committed = self.store.commit(&changes);
        self.metrics.committed(start.elapsed(), committed.is_ok());
        match committed {
            Ok(()) => {
                self.dirty = DirtyRecords::default();
                if self.store_failed_at.take().is_some() {
                    tracing::info!("the disk takes changes again");
                }
                Ok(())
            }
            Err(error) => {
                if self.store_failed_at.replace(Instant::now()).is_none() {
                    tracing::error!(%error, "changes cannot be stored and are refused; what serves goes on");
                }
                Err(error)
            }
        }
    }

    /// Lets everybody know whom it concerns.
    fn dispatch(&mut self, effects: Effects) {
        for (id, all) in effects.drained {
            self.connections.drained(id, all);
        }
        let mut orders = effects.orders;
        if self.defers_unloads() {
            let every = self.connections.awaits_gateways();
            let state = &self.state;
            self.deferred_unloads.extend(
                orders.extract_if(.., |o| o.load.is_none() && (every || !is_placed(state, o, |_| true))),
            );
        }
        self.send_orders(&orders);
        if !effects.routes.is_empty() && self.connections.gateways() > 0 {
            let known = self.state.models();
            let mut changes: Vec<(u64, Arc<str>)> = effects
                .routes
                .iter()
                // A model that is forgotten was taken from the routes when it was deleted.
                .filter_map(|name| known.get(name).map(|m| (m.route_sequence, name.clone())))
                .collect();
            changes.sort_unstable();
            self.connections.routes_changed(&changes, known.len() * 2 + ROUTE_SLACK);
        }
        let servers: BTreeSet<_> =
            effects.servers.iter().chain(effects.scale_servers.keys()).cloned().collect();
        self.models.notify(&effects.models);
        self.servers.notify(&servers);
    }

    /// Whether not everything is to be unloaded for now: a gateway of the last life may still route there; or the state
    /// was empty, and of what nobody has asked for yet whoever knows has not had the time to say so.
    fn defers_unloads(&self) -> bool {
        let is_too_early = self.started_empty && self.started.elapsed() < RESYNC_GRACE;
        self.connections.awaits_gateways() || is_too_early
    }

    /// Gives orders to their agents. Those of one replica go into its box at once, so that its reader wakes once.
    fn send_orders(&self, orders: &[Order]) {
        let mut by_replica = BTreeMap::<&ReplicaId, Vec<_>>::new();
        for order in orders {
            by_replica.entry(&order.replica).or_default().push(order.clone());
        }
        for (replica, orders) in by_replica {
            if let Some(agent) = self.connections.agents.get(replica) {
                agent.outbox.extend(orders);
            }
        }
    }

    /// Looks whether every replica of the last life is there again, or given up.
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
                "every replica of the last life has joined again or is given up"
            );
        }
    }
}

/// Whether a version is, in such a state, on the replica that an order would take it from.
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
