//! What the writer does with messages: decide, make durable, answer, tell.

use super::{
    CommandError, Handle, Message, Question,
    peers::{Agent, Farewell, Peers},
    turn::Turn,
};
use crate::{
    clock::Clock, metrics::Metrics, outbox::Audience, record, restore::Restored, scheduler::Config,
    view::Publisher,
};
use gantry_core::scheduling::{Command, Effects, Millis, Order, Refusal, ReplicaId, State};
use gantry_store::{Change, Store, StoreError, Table};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// How many changes beyond twice the number of models may wait for a gateway before it starts again.
const ROUTE_SLACK: usize = 4096;
/// While core waits for a time it is told the time at least this often, because it does not believe in long steps: a
/// clock may jump.
const LONGEST_STEP: Duration = Duration::from_secs(2);

pub(super) struct Writer {
    clock: Arc<dyn Clock>,
    state: State,
    store: Store,
    epoch: u64,
    peers: Peers,
    publisher: Publisher,
    models: Arc<Audience>,
    servers: Arc<Audience>,
    metrics: Arc<Metrics>,
    /// What the last settlement was, so that nothing is settled twice.
    settled: (u64, u64),
    /// When core next wants to know the time.
    wake_at: Option<Millis>,
    /// When core was last told the time.
    told_time: Instant,
    /// Records that are out of date, and that nobody waits for.
    stale: Stale,
    /// Orders to unload that wait until gateways of the last life, which may still route there, are back.
    held_back: Vec<Order>,
    /// Whether the last write failed: it is said once.
    disk_fails: bool,
    /// Replicas of the last life that have not joined again, and since when they are waited for.
    missing: BTreeSet<ReplicaId>,
    started: Instant,
}

/// Names of records that are out of date.
#[derive(Default)]
struct Stale {
    models: BTreeSet<Arc<str>>,
    servers: BTreeSet<Arc<str>>,
    gateways: BTreeSet<Arc<str>>,
}

impl Stale {
    fn is_empty(&self) -> bool {
        self.models.is_empty() && self.servers.is_empty() && self.gateways.is_empty()
    }
}

impl Writer {
    pub(super) fn new(config: Config, restored: Restored, handle: &Handle) -> Self {
        let Restored { state, gateways } = restored;
        let mut writer = Self {
            clock: config.clock,
            publisher: Publisher::new(handle.view.clone(), handle.metrics.clone()),
            epoch: config.store.epoch(),
            peers: Peers::new(gateways),
            store: config.store,
            models: handle.models.clone(),
            servers: handle.servers.clone(),
            metrics: handle.metrics.clone(),
            settled: (0, 0),
            // The first look at the clock comes at once: what was restored may have waited for a time that is past.
            wake_at: Some(0),
            told_time: Instant::now(),
            stale: Stale::default(),
            held_back: Vec::new(),
            disk_fails: false,
            missing: known_replicas(&state),
            started: Instant::now(),
            state,
        };
        writer.publisher.everything(&writer.state);
        writer
    }

    /// When the writer wants to be woken though nothing is sent.
    pub(super) fn wake(&self) -> Instant {
        let now = Instant::now();
        let Some(at) = self.wake_at else { return now + Duration::from_hours(1) };
        (now + Duration::from_millis(at.saturating_sub(self.clock.now()))).min(self.told_time + LONGEST_STEP)
    }

    fn wants_time(&self) -> bool {
        self.wake_at.is_some_and(|at| at <= self.clock.now() || self.told_time.elapsed() >= LONGEST_STEP)
    }

    pub(super) fn drop_dead_gateways(&mut self) {
        self.stale.gateways.extend(self.peers.drop_dead_gateways(self.state.sequence()));
        if !self.peers.expects_gateways() && !self.held_back.is_empty() {
            let orders = std::mem::take(&mut self.held_back);
            self.give(&orders);
        }
    }

    /// Takes messages in order, makes durable what must last, then answers and tells.
    pub(super) fn turn(&mut self, batch: &mut Vec<Message>) {
        let has_lasting = batch.iter().any(|m| matches!(m, Message::Command { .. }));
        let mut turn = Turn::new(has_lasting);
        let mut questions = Vec::new();
        if has_lasting {
            self.state.begin();
        }
        for message in batch.drain(..) {
            self.take(message, &mut turn, &mut questions);
        }
        if self.wants_time() {
            self.pass(Command::Tick, &mut turn);
        }
        self.settle(&mut turn);
        self.stale.models.append(&mut turn.effects.store_models);
        self.stale.servers.append(&mut turn.effects.store_servers);
        let stored = self.persist();
        let answer = match stored {
            Err(error) if has_lasting => Err(self.take_back(&mut turn, &error)),
            _ => {
                self.state.keep();
                Ok(())
            }
        };
        // Whoever is answered and asks at once sees what was changed: published first.
        self.publisher.publish(&self.state, &turn.effects);
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
        self.tell(turn.effects);
        for question in questions {
            question(&self.state);
        }
    }

    fn take(&mut self, message: Message, turn: &mut Turn, questions: &mut Vec<Question>) {
        match message {
            Message::Command { command, reply, at } => match self.decide(command, turn) {
                Ok(()) => turn.lasting.push((reply, at)),
                Err(refusal) => {
                    self.metrics.refused("refused");
                    let _ = reply.send(Err(refusal.into()));
                }
            },
            Message::Report { id, subscription, command } => {
                // A late report of an earlier subscription speaks of a replica that has said since how it is.
                if self.peers.is_current(&id, self.epoch, subscription) {
                    self.pass(command, turn);
                }
            }
            Message::AgentJoined { id, connection, outbox, line, command } => {
                tracing::info!(server = %id.server, replica = id.index, "replica joined");
                self.found(&id);
                // What it holds and should not is decided anew.
                self.held_back.retain(|order| order.replica != id);
                self.peers.agent_joined(id, Agent { connection, outbox, _line: line });
                self.pass(command, turn);
            }
            Message::AgentLeft { id, connection } => match self.peers.agent_left(&id, connection) {
                Some(Farewell::Goodbye) => {
                    tracing::info!(server = %id.server, replica = id.index, "replica left");
                    self.pass(Command::ReplicaLost { id }, turn);
                }
                Some(Farewell::Silence) => {
                    tracing::warn!(server = %id.server, replica = id.index, "the connection to a replica ended");
                    self.pass(Command::ReplicaSilent { id }, turn);
                }
                None => {}
            },
            Message::Drain { id, reply } => {
                if self.peers.agents.contains_key(&id) {
                    self.peers.drain(id.clone(), reply);
                    self.pass(Command::DrainReplica { id }, turn);
                } else {
                    // Nothing of ours is there.
                    let _ = reply.send(Ok(true));
                }
            }
            Message::GatewayJoined { name, connection, outbox, line, reply } => {
                tracing::info!(gateway = %name, "gateway joined");
                if !self.peers.counts_on(&name) {
                    self.stale.gateways.insert(name.clone());
                }
                turn.joined.push(reply);
                self.peers.gateway_joined(name, connection, outbox, line);
            }
            Message::GatewayLeft { name, connection } => {
                if self.peers.gateway_left(&name, connection) {
                    tracing::info!(gateway = %name, "gateway left");
                    for command in self.peers.demand.forget(&name) {
                        self.pass(command, turn);
                    }
                }
            }
            Message::GatewayAcknowledged { name, applied, drained } => {
                self.peers.acknowledged(&name, applied, drained);
            }
            Message::Demand { gateway, models } => {
                if self.peers.has_gateway(&gateway) {
                    let known = self.state.models();
                    let find = |name: &str| known.get_key_value(name).map(|(name, _)| name.clone());
                    for command in self.peers.demand.report(&gateway, models, find) {
                        self.pass(command, turn);
                    }
                }
            }
            Message::Ask(question) => questions.push(question),
        }
    }

    fn decide(&mut self, command: Command, turn: &mut Turn) -> Result<(), Refusal> {
        let effects = self.state.apply(command, self.clock.now())?;
        self.wake_at = effects.wake_at;
        self.told_time = Instant::now();
        turn.effects.merge(effects);
        Ok(())
    }

    /// Carries out what nobody waits for.
    fn pass(&mut self, command: Command, turn: &mut Turn) {
        if let Some(passing) = &mut turn.passing {
            passing.push(command.clone());
        }
        // A refusal has no reader here, and changes nothing.
        let _ = self.decide(command, turn);
    }

    /// Tells core how far the gateways are, for as long as that changes anything.
    fn settle(&mut self, turn: &mut Turn) {
        loop {
            let (applied, drained) = self.peers.settled(self.state.sequence());
            if (applied, drained) == self.settled {
                return;
            }
            self.settled = (applied, drained);
            let _ = self.decide(Command::RoutesSettled { applied, drained }, turn);
        }
    }

    /// What must last could not be stored: as if it had never been asked for. What happened besides happened.
    fn take_back(&mut self, turn: &mut Turn, error: &StoreError) -> CommandError {
        self.state.undo();
        // What was settled belongs to what was taken back, and so does what core waits for.
        self.settled = (0, 0);
        self.wake_at = Some(0);
        turn.effects = Effects::default();
        for command in turn.passing.take().unwrap_or_default() {
            let _ = self.decide(command, turn);
        }
        self.settle(turn);
        self.stale.models.append(&mut turn.effects.store_models);
        self.stale.servers.append(&mut turn.effects.store_servers);
        CommandError::NotStored { reason: error.to_string(), full: matches!(error, StoreError::Full { .. }) }
    }

    /// Writes every record that is out of date. What could not be written stays so, and is tried again.
    fn persist(&mut self) -> Result<(), StoreError> {
        if self.stale.is_empty() {
            return Ok(());
        }
        let state = &self.state;
        let models = self.stale.models.iter().map(|name| Change {
            table: Table::Models,
            key: name.to_string(),
            value: state.model_record(name).map(|r| record::of_model(&r)),
        });
        let servers = self.stale.servers.iter().map(|name| Change {
            table: Table::Servers,
            key: name.to_string(),
            value: state.server_record(name).map(|r| record::of_server(&r)),
        });
        let gateways = self.stale.gateways.iter().map(|name| Change {
            table: Table::Gateways,
            key: name.to_string(),
            value: self.peers.counts_on(name).then(Vec::new),
        });
        let changes: Vec<Change> = models.chain(servers).chain(gateways).collect();
        let start = Instant::now();
        let committed = self.store.commit(&changes);
        self.metrics.committed(start.elapsed(), committed.is_ok());
        match committed {
            Ok(()) => {
                self.stale = Stale::default();
                if std::mem::take(&mut self.disk_fails) {
                    tracing::info!("the disk takes changes again");
                }
                Ok(())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.disk_fails, true) {
                    tracing::error!(%error, "changes cannot be stored and are refused; what serves goes on");
                }
                Err(error)
            }
        }
    }

    /// Lets everybody know whom it concerns.
    fn tell(&mut self, effects: Effects) {
        for (id, all) in effects.drained {
            self.peers.drained(id, all);
        }
        let mut orders = effects.orders;
        if self.peers.expects_gateways() {
            self.held_back.extend(orders.extract_if(.., |order| order.load.is_none()));
        }
        self.give(&orders);
        if !effects.routes.is_empty() && self.peers.gateways() > 0 {
            let known = self.state.models();
            let mut changes: Vec<(u64, Arc<str>)> = effects
                .routes
                .iter()
                // A model that is forgotten was taken from the routes when it was deleted.
                .filter_map(|name| known.get(name).map(|m| (m.route_sequence, name.clone())))
                .collect();
            changes.sort_unstable();
            self.peers.routes_changed(&changes, known.len() * 2 + ROUTE_SLACK);
        }
        let servers: BTreeSet<_> =
            effects.servers.iter().chain(effects.scale_servers.keys()).cloned().collect();
        self.models.tell(&effects.models);
        self.servers.tell(&servers);
    }

    /// Gives orders to their agents. Those of one replica go into its box at once, so that its reader wakes once.
    fn give(&self, orders: &[Order]) {
        let mut by_replica = BTreeMap::<&ReplicaId, Vec<_>>::new();
        for order in orders {
            by_replica.entry(&order.replica).or_default().push(order.clone());
        }
        for (replica, orders) in by_replica {
            if let Some(agent) = self.peers.agents.get(replica) {
                agent.outbox.extend(orders);
            }
        }
    }

    /// A replica of the last life is there again.
    fn found(&mut self, id: &ReplicaId) {
        if self.missing.remove(id) && self.missing.is_empty() {
            let took = self.started.elapsed();
            self.metrics.resync_seconds.set(took.as_secs_f64());
            tracing::info!(seconds = took.as_secs_f64(), "every replica of the last life has joined again");
        }
    }
}

fn known_replicas(state: &State) -> BTreeSet<ReplicaId> {
    let servers = state.servers().iter();
    servers
        .flat_map(|(name, server)| {
            server.replicas.keys().map(move |&index| ReplicaId { server: name.clone(), index })
        })
        .collect()
}
