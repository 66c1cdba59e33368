//! The one writer: takes messages in order, lets core decide, makes it durable, then tells everybody.

mod demand;
mod connections;
mod commit_batch;
mod writer;

use crate::{
    metrics::Metrics,
    outbox::{Subscribers, Outbox, RouteChanges},
    liveness::{Heartbeat, Liveness},
    restore::Restored,
    scheduler::Config,
    read_model::ReadModel,
};
use gantry_core::scheduling::{Command, Order, Rejection, ReplicaId, State};
use gantry_proto::gantry::ModelDemand;
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
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use writer::Writer;

/// How many messages wait before a sender has to.
const QUEUE_CAPACITY: usize = 4096;
/// How many messages share one write to the store.
const BATCH_SIZE: usize = 1024;
/// How often the writer looks around when nothing is sent.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a command was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error("the change could not be stored, so it is not made: {reason}")]
    NotStored { reason: String, full: bool },
    #[error("the scheduler is stopping")]
    Stopping,
}

/// The answer to a command.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CommandError>>;

/// What the writer is asked to look up in the state, as it was last made durable.
pub(crate) type Query = Box<dyn FnOnce(&State) + Send>;

/// Keeps a stream open: when the writer lets go of it, because somebody took the place or did not keep up, it ends, and
/// whoever reads it starts again.
pub(crate) type StreamGuard = DropGuard;

pub(crate) enum Message {
    /// What must last. It is answered when it is on disk.
    Command {
        command: Command,
        reply: Reply<()>,
        at: Instant,
    },
    /// An agent's report. Nobody waits for it: what is lost with the scheduler, agents say again when they join.
    Report {
        id: ReplicaId,
        subscription: Option<(u64, u64)>,
        command: Command,
    },
    AgentJoined {
        id: ReplicaId,
        connection: u64,
        outbox: Arc<Outbox<VecDeque<Order>>>,
        guard: StreamGuard,
        command: Command,
        /// Answered when it is known to everybody.
        reply: Reply<()>,
    },
    AgentLeft {
        id: ReplicaId,
        connection: u64,
    },
    /// Answered when nothing is served from there any more; `false` when not everything could be moved.
    Drain {
        id: ReplicaId,
        reply: Reply<bool>,
    },
    GatewayJoined {
        name: Arc<str>,
        connection: u64,
        outbox: Arc<Outbox<RouteChanges>>,
        guard: StreamGuard,
        /// Answered when its name is durable: from then on nothing is unloaded that it may route to.
        reply: Reply<()>,
    },
    GatewayLeft {
        name: Arc<str>,
        connection: u64,
    },
    GatewayAcknowledged {
        name: Arc<str>,
        applied: u64,
        drained: u64,
    },
    Demand {
        gateway: Arc<str>,
        models: Vec<ModelDemand>,
    },
    Query(Query),
}

/// What the services hold: a way to send messages, and to read what is known.
#[derive(Clone)]
pub(crate) struct Handle {
    sender: mpsc::Sender<Message>,
    pub(crate) read_model: Arc<ReadModel>,
    pub(crate) models: Arc<Subscribers>,
    pub(crate) servers: Arc<Subscribers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) epoch: u64,
    pub(crate) stop: CancellationToken,
    heartbeat: Arc<Heartbeat>,
    last_connection: Arc<AtomicU64>,
}

impl Handle {
    /// Tells connections of the same name apart.
    pub(crate) fn next_connection(&self) -> u64 {
        self.last_connection.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many messages wait for the writer.
    pub(crate) fn waiting(&self) -> usize {
        self.sender.max_capacity().saturating_sub(self.sender.capacity())
    }

    /// Whether the writer takes what it is sent.
    pub(crate) fn liveness(&self) -> Liveness {
        self.heartbeat.liveness(self.waiting(), self.sender.is_closed())
    }

    /// Sends a message; false when the engine has stopped.
    pub(crate) async fn send(&self, message: Message) -> bool {
        self.sender.send(message).await.is_ok()
    }

    /// Sends a message from where nobody can wait. A full queue is waited for in a task of its own.
    pub(crate) fn send_detached(&self, message: Message) {
        if let Err(mpsc::error::TrySendError::Full(message)) = self.sender.try_send(message)
            // There is none when the process ends.
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let sender = self.sender.clone();
            runtime.spawn(async move { sender.send(message).await.is_ok() });
        }
    }

    /// Carries out a command and waits until it is durable.
    pub(crate) async fn command(&self, command: Command) -> Result<(), CommandError> {
        let at = Instant::now();
        self.call(|reply| Message::Command { command, reply, at }).await
    }

    /// Sends a message that is answered, and waits for the answer.
    pub(crate) async fn call<T>(
        &self,
        message: impl FnOnce(Reply<T>) -> Message,
    ) -> Result<T, CommandError> {
        let (reply, answer) = oneshot::channel();
        if !self.send(message(reply)).await {
            return Err(CommandError::Stopping);
        }
        answer.await.unwrap_or(Err(CommandError::Stopping))
    }

    /// Looks something up in the whole state. What is asked often is in the view instead.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&State) -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        self.call(|reply: Reply<T>| {
            Message::Query(Box::new(move |state| {
                // Whoever asked may have gone away.
                let _ = reply.send(Ok(query(state)));
            }))
        })
        .await
    }
}

/// The one writer, ready to run. It ends when the scheduler stops or nobody can reach it any more.
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

/// A writer around a state, and the way to reach it.
pub(crate) fn new(config: Config, restored: Restored) -> (Handle, Engine) {
    let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
    let handle = Handle {
        sender,
        read_model: Arc::default(),
        models: Arc::default(),
        servers: Arc::default(),
        metrics: Arc::new(Metrics::new()),
        epoch: config.store.epoch(),
        stop: CancellationToken::new(),
        heartbeat: Arc::new(Heartbeat::new()),
        last_connection: Arc::default(),
    };
    let writer = Writer::new(config, restored, &handle);
    let engine = Engine { receiver, stop: handle.stop.clone(), heartbeat: handle.heartbeat.clone(), writer };
    (handle, engine)
}

impl Engine {
    /// Runs on a thread of its own, because it waits for the disk.
    pub fn spawn_thread(self) -> std::io::Result<Thread> {
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
        let mut batch = Vec::with_capacity(BATCH_SIZE);
        let mut tick = Instant::now();
        loop {
            self.heartbeat.beat();
            let wake = tick.min(self.writer.wake());
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                count = self.receiver.recv_many(&mut batch, BATCH_SIZE) => if count == 0 { return },
                () = tokio::time::sleep_until(wake) => {}
            }
            // Looked at here and not in an arm above, because there is always a message when many are sent.
            if Instant::now() >= tick {
                tick = Instant::now() + TICK_INTERVAL;
                self.writer.expire_gateways();
            }
            self.writer.turn(&mut batch);
        }
    }
}
