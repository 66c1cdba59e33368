//! The one writer: takes messages in order, lets core decide, makes it durable, then tells everybody.

use crate::{
    clock::Clock,
    convert,
    outbox::{Audience, Outbox, RouteChanges},
    progress::{Progress, Pulse},
    scheduler::Config,
};
use gantry_core::scheduling::{Command, Effects, Order, Refusal, ReplicaId, State};
use gantry_store::{Change, Store, Table};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How many messages wait before a sender has to.
const QUEUE: usize = 1024;
/// How many messages share one write to the store.
const BATCH: usize = 256;
/// A gateway that is this late with an acknowledgement is taken for dead.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(30);
/// How often the writer looks around when nothing is sent.
const TICK: Duration = Duration::from_secs(1);

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the change could not be stored and is not acknowledged: {0}")]
    NotStored(String),
    #[error("the scheduler is stopping")]
    Stopping,
}

pub(crate) enum Message {
    Command { command: Command, reply: oneshot::Sender<Result<(), CommandError>> },
    AgentJoined { id: ReplicaId, connection: u64, outbox: Arc<Outbox<VecDeque<Order>>>, command: Command },
    AgentLeft { id: ReplicaId, connection: u64 },
    GatewayJoined { name: Arc<str>, connection: u64, outbox: Arc<Outbox<RouteChanges>> },
    GatewayLeft { name: Arc<str>, connection: u64 },
    GatewayAcknowledged { name: Arc<str>, applied: u64, drained: u64 },
}

/// What the services hold: a way to send messages, and to read what is known.
#[derive(Clone)]
pub(crate) struct Handle {
    sender: mpsc::Sender<Message>,
    state: Arc<RwLock<State>>,
    pub(crate) models: Arc<Audience>,
    pub(crate) servers: Arc<Audience>,
    pub(crate) epoch: u64,
    pub(crate) stop: CancellationToken,
    pulse: Arc<Pulse>,
    connections: Arc<AtomicU64>,
}

impl Handle {
    /// Tells connections of the same name apart.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether the writer takes what it is sent.
    pub(crate) fn progress(&self) -> Progress {
        let waiting = self.sender.max_capacity().saturating_sub(self.sender.capacity());
        self.pulse.judge(waiting, self.sender.is_closed())
    }

    /// What is known now. Do not hold it over an await.
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        // The writer panics nowhere between two valid states: core does not panic.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message; false when the engine has stopped.
    pub(crate) async fn send(&self, message: Message) -> bool {
        self.sender.send(message).await.is_ok()
    }

    /// Sends a message from where nobody can wait. A full queue is waited for in a task of its own.
    pub(crate) fn send_later(&self, message: Message) {
        if let Err(mpsc::error::TrySendError::Full(message)) = self.sender.try_send(message) {
            let sender = self.sender.clone();
            tokio::spawn(async move { sender.send(message).await.is_ok() });
        }
    }

    /// Carries out a command and waits until it is durable.
    pub(crate) async fn command(&self, command: Command) -> Result<(), CommandError> {
        let (reply, answer) = oneshot::channel();
        if !self.send(Message::Command { command, reply }).await {
            return Err(CommandError::Stopping);
        }
        answer.await.unwrap_or(Err(CommandError::Stopping))
    }
}

struct Agent {
    connection: u64,
    outbox: Arc<Outbox<VecDeque<Order>>>,
}

struct Gateway {
    connection: u64,
    outbox: Arc<Outbox<RouteChanges>>,
    applied: u64,
    drained: u64,
    progress: Instant,
}

/// The one writer, ready to run. It ends when the scheduler stops or nobody can reach it any more.
pub struct Engine {
    receiver: mpsc::Receiver<Message>,
    stop: CancellationToken,
    pulse: Arc<Pulse>,
    writer: Writer,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The thread that an engine runs on.
#[derive(Debug)]
pub struct Thread {
    ended: oneshot::Receiver<()>,
}

impl Thread {
    /// Waits until the engine has ended and its store is closed.
    pub async fn ended(self) {
        // The sender is dropped when the thread ends, however it ends.
        let _ = self.ended.await;
    }
}

struct Writer {
    clock: Arc<dyn Clock>,
    state: Arc<RwLock<State>>,
    store: Store,
    agents: BTreeMap<ReplicaId, Agent>,
    gateways: BTreeMap<Arc<str>, Gateway>,
    models: Arc<Audience>,
    servers: Arc<Audience>,
    /// What the last settlement was, so that nothing is settled twice.
    settled: (u64, u64),
    /// Records that could not be stored yet.
    unstored: Effects,
}

/// A writer around a state, and the way to reach it.
pub(crate) fn new(config: Config, state: State) -> (Handle, Engine) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let handle = Handle {
        sender,
        state: Arc::new(RwLock::new(state)),
        models: Arc::default(),
        servers: Arc::default(),
        epoch: config.store.epoch(),
        stop: CancellationToken::new(),
        pulse: Arc::new(Pulse::new()),
        connections: Arc::default(),
    };
    let writer = Writer {
        clock: config.clock,
        state: handle.state.clone(),
        store: config.store,
        agents: BTreeMap::new(),
        gateways: BTreeMap::new(),
        models: handle.models.clone(),
        servers: handle.servers.clone(),
        settled: (0, 0),
        unstored: Effects::default(),
    };
    let engine = Engine { receiver, stop: handle.stop.clone(), pulse: handle.pulse.clone(), writer };
    (handle, engine)
}

impl Engine {
    /// Runs on a thread of its own, because it waits for the disk.
    pub fn on_a_thread(self) -> std::io::Result<Thread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (on_end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("scheduler".into()).spawn(move || {
            let _on_end = on_end;
            runtime.block_on(self.run());
        })?;
        Ok(Thread { ended })
    }

    /// Runs where it is polled: for a world in which everything happens on one thread. It blocks while it writes.
    pub async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut tick = Instant::now() + TICK;
        loop {
            self.pulse.beat();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                count = self.receiver.recv_many(&mut batch, BATCH) => if count == 0 { return },
                () = tokio::time::sleep_until(tick) => {}
            }
            // Looked at here and not in an arm above, because there is always a message when many are sent.
            if Instant::now() >= tick {
                tick = Instant::now() + TICK;
                self.writer.drop_dead_gateways();
            }
            self.writer.turn(&mut batch);
        }
    }
}

impl Writer {
    /// Takes messages in order, makes durable what must last, then answers and tells.
    fn turn(&mut self, batch: &mut Vec<Message>) {
        let mut effects = Effects::default();
        let mut replies = Vec::new();
        for message in batch.drain(..) {
            if let Some(reply) = self.take(message, &mut effects) {
                replies.push(reply);
            }
        }
        self.settle(&mut effects);
        let stored = self.persist(&effects);
        for (reply, result) in replies {
            let result = match &stored {
                Ok(()) => result,
                Err(error) => result.and_then(|()| Err(CommandError::NotStored(error.clone()))),
            };
            // Whoever asked may have gone away; the decision stands all the same.
            let _ = reply.send(result);
        }
        self.tell(effects);
    }

    #[allow(clippy::type_complexity, reason = "a reply and what to say in it")]
    fn take(
        &mut self,
        message: Message,
        effects: &mut Effects,
    ) -> Option<(oneshot::Sender<Result<(), CommandError>>, Result<(), CommandError>)> {
        match message {
            Message::Command { command, reply } => {
                let result = self.decide(command, effects).map_err(CommandError::from);
                return Some((reply, result));
            }
            Message::AgentJoined { id, connection, outbox, command } => {
                tracing::info!(server = %id.server, replica = id.index, "replica joined");
                self.agents.insert(id, Agent { connection, outbox });
                let _ = self.decide(command, effects);
            }
            Message::AgentLeft { id, connection } => {
                // A replica that has subscribed again is not lost when its old connection ends.
                if self.agents.get(&id).is_some_and(|a| a.connection == connection) {
                    tracing::warn!(server = %id.server, replica = id.index, "replica lost");
                    self.agents.remove(&id);
                    let _ = self.decide(Command::ReplicaLost { id }, effects);
                }
            }
            Message::GatewayJoined { name, connection, outbox } => {
                let gateway =
                    Gateway { connection, outbox, applied: 0, drained: 0, progress: Instant::now() };
                self.gateways.insert(name, gateway);
            }
            Message::GatewayLeft { name, connection } => {
                if self.gateways.get(&name).is_some_and(|g| g.connection == connection) {
                    self.gateways.remove(&name);
                }
            }
            Message::GatewayAcknowledged { name, applied, drained } => {
                if let Some(gateway) = self.gateways.get_mut(&name) {
                    gateway.applied = gateway.applied.max(applied);
                    gateway.drained = gateway.drained.max(drained);
                    gateway.progress = Instant::now();
                }
            }
        }
        None
    }

    fn decide(&self, command: Command, effects: &mut Effects) -> Result<(), Refusal> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let more = state.apply(command, self.clock.now())?;
        merge(effects, more);
        Ok(())
    }

    /// Tells core how far the gateways are, for as long as that changes anything.
    fn settle(&mut self, effects: &mut Effects) {
        loop {
            let sequence = self.state.read().unwrap_or_else(PoisonError::into_inner).sequence();
            let applied = self.gateways.values().map(|g| g.applied).min().unwrap_or(sequence);
            let drained = self.gateways.values().map(|g| g.drained).min().unwrap_or(sequence);
            if (applied, drained) == self.settled {
                return;
            }
            self.settled = (applied, drained);
            let _ = self.decide(Command::RoutesSettled { applied, drained }, effects);
        }
    }

    fn persist(&mut self, effects: &Effects) -> Result<(), String> {
        self.unstored.store_models.extend(effects.store_models.iter().cloned());
        self.unstored.store_servers.extend(effects.store_servers.iter().cloned());
        let changes = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let models = self.unstored.store_models.iter().map(|name| Change {
                table: Table::Models,
                key: name.to_string(),
                value: state.models().get(name).map(convert::stored),
            });
            let servers = self.unstored.store_servers.iter().map(|name| Change {
                table: Table::Servers,
                key: name.to_string(),
                value: state.servers().get(name).and_then(|s| crate::status::stored_server(name, s)),
            });
            models.chain(servers).collect::<Vec<_>>()
        };
        match self.store.commit(&changes) {
            Ok(()) => {
                self.unstored = Effects::default();
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "a change could not be stored; it is tried again with the next one");
                Err(error.to_string())
            }
        }
    }

    fn tell(&self, effects: Effects) {
        for order in effects.orders {
            if let Some(agent) = self.agents.get(&order.replica) {
                agent.outbox.push(order);
            }
        }
        if !effects.routes.is_empty() {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let limit = state.models().len() * 2 + QUEUE;
            let mut changes: Vec<(u64, &Arc<str>)> = effects
                .routes
                .iter()
                .filter_map(|name| state.models().get(name).map(|m| (m.route_sequence, name)))
                .collect();
            changes.sort_unstable();
            for gateway in self.gateways.values() {
                for (sequence, name) in &changes {
                    gateway.outbox.push(*sequence, (*name).clone(), limit);
                }
            }
        }
        self.models.tell(&effects.models);
        self.servers.tell(&effects.servers);
    }

    /// A gateway that does not keep up must not keep models from being available, or replicas from being unloaded.
    fn drop_dead_gateways(&mut self) {
        let sequence = self.state.read().unwrap_or_else(PoisonError::into_inner).sequence();
        self.gateways.retain(|name, gateway| {
            let dead = gateway.applied < sequence && gateway.progress.elapsed() > GATEWAY_PATIENCE;
            if dead {
                tracing::warn!(gateway = %name, "gateway does not follow the routes and is left behind");
            }
            !dead
        });
    }
}

fn merge(all: &mut Effects, more: Effects) {
    let extend = |to: &mut BTreeSet<Arc<str>>, from: BTreeSet<Arc<str>>| to.extend(from);
    extend(&mut all.store_models, more.store_models);
    extend(&mut all.store_servers, more.store_servers);
    extend(&mut all.models, more.models);
    extend(&mut all.servers, more.servers);
    extend(&mut all.routes, more.routes);
    all.orders.extend(more.orders);
}
