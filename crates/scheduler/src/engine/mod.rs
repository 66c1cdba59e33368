//! The engine: a single writer that applies messages in order, commits, then responds and publishes.

mod commit_batch;
mod connections;
mod demand;
mod writer;

pub(crate) use connections::Acknowledged;

use crate::{
    clock::Clock,
    definitions::{Encoded, EncodedDefinition, digest},
    liveness::{Heartbeat, Liveness},
    metrics::Metrics,
    notices::{self, RolloutNotice},
    outbox::{AgentOrder, Outbox, RouteChanges, Subscribers},
    read_model::ReadModel,
    restore::Restored,
    scheduler::Config,
    service_traffic::ServiceTraffic,
};
use gantry_core::scheduling::{
    Command, ExperimentDefinition, Millis, Owner, PipelineDefinition, Rejection, ReplicaId, RolloutTarget,
    State,
};
use gantry_proto::gantry::{ModelDemand, ModelTraffic};
use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Semaphore, broadcast, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use writer::Writer;

/// Senders wait when this many messages are queued.
const QUEUE_CAPACITY: usize = 4096;
/// Messages per commit.
const BATCH_SIZE: usize = 1024;
/// Interval of gateway expiry.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error("change rejected, the store write failed: {reason}")]
    NotStored { reason: String, full: bool },
    #[error(
        "it is not known whether the change is stored: {reason}; the next leader knows: repeat the change there"
    )]
    Lost { reason: String },
    #[error("the scheduler is stopping")]
    Stopping,
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, CommandError>>;

/// A read of the durable state, run by the engine.
pub(crate) type Query = Box<dyn FnOnce(&State) + Send>;

/// Ends a stream when dropped: its client was replaced or lags behind, and has to subscribe again.
pub(crate) type StreamGuard = DropGuard;

pub(crate) enum Message {
    /// A durable change. The reply is sent after the commit.
    Command {
        command: Command,
        /// The encoded definition of what the command creates or updates.
        definition: Option<Arc<[u8]>>,
        reply: Reply<()>,
        at: Instant,
    },
    /// An agent's report. Not durable: agents report their inventory again when they rejoin.
    Report {
        id: ReplicaId,
        subscription: Option<Subscription>,
        command: Command,
    },
    AgentJoined {
        id: ReplicaId,
        connection: u64,
        outbox: Arc<Outbox<VecDeque<AgentOrder>>>,
        guard: StreamGuard,
        command: Command,
        /// Sent after the read model is updated.
        reply: Reply<()>,
    },
    AgentLeft {
        id: ReplicaId,
        connection: u64,
    },
    /// Replies when the replica is empty; `false` when not every model could be moved.
    Drain {
        id: ReplicaId,
        reply: Reply<bool>,
    },
    GatewayJoined {
        name: Arc<str>,
        connection: u64,
        outbox: Arc<Outbox<RouteChanges>>,
        guard: StreamGuard,
        /// Sent when its name is durable: from then on nothing is unloaded that it may route to.
        reply: Reply<()>,
    },
    GatewayLeft {
        name: Arc<str>,
        connection: u64,
    },
    GatewayAcknowledged {
        name: Arc<str>,
        latest: Acknowledged,
    },
    Demand {
        gateway: Arc<str>,
        models: Vec<ModelDemand>,
    },
    /// A gateway's statistics of models and pipelines with a rollout policy.
    Traffic {
        gateway: Arc<str>,
        instance: u64,
        sequence: u64,
        models: Vec<ModelTraffic>,
    },
    Query(Query),
}

/// Identifies one start of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Another one after a loss of the state, when epochs begin again.
    pub(crate) state_id: u64,
    pub(crate) epoch: u64,
}

/// An agent's subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub(crate) start: Start,
    pub(crate) connection: u64,
}

/// The services' handle to the engine.
#[derive(Clone)]
pub(crate) struct Handle {
    sender: mpsc::Sender<Message>,
    pub(crate) read_model: Arc<ReadModel>,
    pub(crate) models: Arc<Subscribers>,
    pub(crate) servers: Arc<Subscribers>,
    pub(crate) pipelines: Arc<Subscribers>,
    pub(crate) experiments: Arc<Subscribers>,
    pub(crate) services: Arc<Subscribers>,
    pub(crate) service_traffic: Arc<ServiceTraffic>,
    pub(crate) rollouts: Arc<Subscribers<RolloutTarget>>,
    pub(crate) policies: Arc<Subscribers>,
    pub(crate) notices: broadcast::Sender<RolloutNotice>,
    clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) start: Start,
    pub(crate) stop: CancellationToken,
    /// Dry runs hold a copy of the state.
    pub(crate) dry_runs: Arc<Semaphore>,
    heartbeat: Arc<Heartbeat>,
    last_connection: Arc<AtomicU64>,
}

impl Handle {
    /// Wall-clock time.
    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Unique connection number.
    pub(crate) fn next_connection(&self) -> u64 {
        self.last_connection.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Queued messages.
    pub(crate) fn waiting(&self) -> usize {
        self.sender.max_capacity().saturating_sub(self.sender.capacity())
    }

    pub(crate) fn liveness(&self) -> Liveness {
        self.heartbeat.liveness(self.waiting(), self.sender.is_closed())
    }

    /// `false` when the engine has stopped.
    pub(crate) async fn send(&self, message: Message) -> bool {
        self.sender.send(message).await.is_ok()
    }

    /// Sends from a non-async context; when the queue is full, a task waits for capacity.
    pub(crate) fn send_detached(&self, message: Message) {
        if let Err(mpsc::error::TrySendError::Full(message)) = self.sender.try_send(message)
            // No runtime during process exit.
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let sender = self.sender.clone();
            runtime.spawn(async move { sender.send(message).await.is_ok() });
        }
    }

    /// Applies a command and waits until it is durable.
    pub(crate) async fn command(&self, command: Command) -> Result<(), CommandError> {
        self.apply(command, None).await
    }

    /// Creates or updates a model and waits until it is durable.
    pub(crate) async fn load_model(&self, encoded: EncodedDefinition, by: Owner) -> Result<(), CommandError> {
        let Encoded { definition, bytes } = encoded;
        self.apply(Command::LoadModel { definition: Box::new(definition), by }, Some(bytes)).await
    }

    /// Creates or updates a pipeline and waits until it is durable.
    pub(crate) async fn load_pipeline(
        &self,
        encoded: Encoded<PipelineDefinition>,
        by: Owner,
    ) -> Result<(), CommandError> {
        let Encoded { definition, bytes } = encoded;
        let (definition, uid) = (Box::new(definition), self.new_uid());
        self.apply(Command::LoadPipeline { definition, uid, by }, Some(bytes)).await
    }

    /// Creates or updates an experiment and waits until it is durable.
    pub(crate) async fn start_experiment(
        &self,
        encoded: Encoded<ExperimentDefinition>,
        by: Owner,
    ) -> Result<(), CommandError> {
        let Encoded { definition, bytes } = encoded;
        self.apply(Command::StartExperiment { definition: Box::new(definition), by }, Some(bytes)).await
    }

    /// 20 characters, as Seldon's; another one for each call, also after a restart or a loss of the state.
    pub(crate) fn new_uid(&self) -> Arc<str> {
        const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
        let Start { state_id, epoch } = self.start;
        let parts = [state_id, epoch, self.next_connection()].map(u64::to_le_bytes);
        let hash = digest(parts.as_flattened()).0;
        let character =
            |place: u32| ALPHABET.get((hash >> (place * 5)) as usize % 32).copied().unwrap_or(b'0');
        (0..20).map(|place| char::from(character(place))).collect::<String>().into()
    }

    async fn apply(&self, command: Command, definition: Option<Arc<[u8]>>) -> Result<(), CommandError> {
        let at = Instant::now();
        self.call(|reply| Message::Command { command, definition, reply, at }).await
    }

    /// Sends a message and waits for the reply.
    pub(crate) async fn call<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, CommandError> {
        let (reply, answer) = oneshot::channel();
        if !self.send(message(reply)).await {
            return Err(CommandError::Stopping);
        }
        answer.await.unwrap_or(Err(CommandError::Stopping))
    }

    /// Reads the whole state. Frequent reads use the read model instead.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&State) -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        self.call(|reply: Reply<T>| {
            Message::Query(Box::new(move |state| {
                // The caller may be gone.
                let _ = reply.send(Ok(query(state)));
            }))
        })
        .await
    }
}

/// The single writer. Ends when the scheduler stops or every handle is dropped.
pub struct Engine {
    receiver: mpsc::Receiver<Message>,
    stop: CancellationToken,
    heartbeat: Arc<Heartbeat>,
    writer: Writer,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Thread {
    ended: oneshot::Receiver<()>,
}

impl Thread {
    pub async fn ended(self) {
        // The sender is dropped when the thread ends, also by a panic.
        let _ = self.ended.await;
    }
}

pub(crate) fn new(config: Config, restored: Restored) -> (Handle, Engine) {
    let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
    let handle = Handle {
        sender,
        read_model: Arc::default(),
        models: Arc::default(),
        servers: Arc::default(),
        pipelines: Arc::default(),
        experiments: Arc::default(),
        services: Arc::default(),
        service_traffic: Arc::default(),
        rollouts: Arc::default(),
        policies: Arc::default(),
        notices: broadcast::Sender::new(notices::CAPACITY),
        clock: config.clock.clone(),
        metrics: Arc::new(Metrics::new()),
        start: Start { state_id: config.store.state_id(), epoch: config.store.epoch() },
        stop: CancellationToken::new(),
        dry_runs: Arc::new(Semaphore::new(1)),
        heartbeat: Arc::new(Heartbeat::new()),
        last_connection: Arc::default(),
    };
    let writer = Writer::new(config, restored, &handle);
    let engine = Engine { receiver, stop: handle.stop.clone(), heartbeat: handle.heartbeat.clone(), writer };
    (handle, engine)
}

impl Engine {
    /// Runs on a dedicated thread, because commits block.
    pub fn spawn_thread(self) -> std::io::Result<Thread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (on_end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("scheduler".into()).spawn(move || {
            let _on_end = on_end;
            runtime.block_on(self.run());
        })?;
        Ok(Thread { ended })
    }

    /// Runs on the caller's task, for single-threaded simulation. Blocks during commits.
    pub async fn run(mut self) {
        let mut messages = Vec::with_capacity(BATCH_SIZE);
        let mut tick = Instant::now();
        loop {
            self.heartbeat.beat();
            let wake = tick.min(self.writer.wake());
            let taken = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                count = self.receiver.recv_many(&mut messages, BATCH_SIZE) => match count {
                    0 => return,
                    count => count,
                },
                () = tokio::time::sleep_until(wake) => 0,
            };
            // Not a `select!` arm: under load the message arm would always win. A full batch leaves messages in the
            // queue, and one of them may be the acknowledgement of a gateway that seems to lag.
            let expire = Instant::now() >= tick && taken < BATCH_SIZE;
            if expire {
                tick = Instant::now() + TICK_INTERVAL;
            }
            self.writer.process(&mut messages, expire);
        }
    }
}
