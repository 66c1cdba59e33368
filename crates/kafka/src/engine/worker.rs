//! The worker of one pipeline: a member of its consumer group.
//!
//! One task polls, because a group member has to poll while its records run; this loop starts records, counts them, and
//! commits the offsets before which everything is done.

use super::{
    Context, Executor, Pipeline,
    client::consumed,
    partition::{Epoch, Load, Partition},
    process::{Backoff, process},
    rebalance::{Event, Listener},
};
use crate::{record::Consumed, topics::Side};
use bytes::Bytes;
use krafka::{
    CloseOptions, KrafkaError,
    consumer::{Consumer, OffsetAndMetadata, TopicPartition},
};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc},
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

const POLL_TIMEOUT: Duration = Duration::from_secs(1);
/// A worker that is full for longer pauses its partitions, so that polling goes on, which keeps the membership.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// After a poll without records; a consumer whose partitions are paused returns at once.
const IDLE_INTERVAL: Duration = Duration::from_millis(10);
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until `stop` is cancelled; after a failure it joins the group again.
pub(super) async fn run<E: Executor>(
    context: Arc<Context<E>>,
    pipeline: Arc<Pipeline>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new();
    while !stop.is_cancelled() {
        let started = Instant::now();
        match run_once(&context, &pipeline, &stop).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(
                    pipeline = &*pipeline.name,
                    error,
                    "the worker of a pipeline failed: starting it again"
                );
            }
        }
        if started.elapsed() > Duration::from_mins(1) {
            backoff = Backoff::new();
        }
        tokio::select! {
            () = backoff.wait() => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn run_once<E: Executor>(
    context: &Arc<Context<E>>,
    pipeline: &Arc<Pipeline>,
    stop: &CancellationToken,
) -> Result<(), String> {
    let settings = &context.settings;
    let topic = settings.topics.pipeline(&pipeline.name, Side::Inputs);
    let mut topics = vec![
        topic.clone(),
        settings.topics.pipeline(&pipeline.name, Side::Outputs),
        settings.topics.errors(),
    ];
    if settings.worker.step_topics {
        let of_step =
            |step: &Arc<str>| [Side::Inputs, Side::Outputs].map(|side| settings.topics.model(step, side));
        topics.extend(pipeline.steps.iter().flat_map(of_step));
    }
    let (events, received) = mpsc::channel(1);
    let is_closing = Arc::new(AtomicBool::new(false));
    let timeout = settings.worker.drain_timeout() + 2 * COMMIT_TIMEOUT;
    let listener = Listener { events: events.clone(), is_closing: Arc::clone(&is_closing), timeout };
    let starting = async {
        context.client.create_topics(&topics).await?;
        let consumer = context.client.consumer(&settings.group(&pipeline.name), listener).await;
        let consumer = consumer.map_err(|error| error.to_string())?;
        context.client.subscribe(&consumer, std::slice::from_ref(&topic)).await?;
        Ok::<_, String>(Arc::new(consumer))
    };
    let consumer = tokio::select! {
        consumer = starting => consumer?,
        () = stop.cancelled() => return Ok(()),
    };
    tracing::info!(pipeline = &*pipeline.name, topic, "consuming a pipeline");
    let polling = stop.child_token();
    let _stop_polling = polling.clone().drop_guard();
    let resumed = Arc::new(Notify::new());
    let poll = tokio::spawn(poll(Arc::clone(&consumer), events, Arc::clone(&resumed), polling.clone()));
    let mut worker = Worker {
        context: Arc::clone(context),
        pipeline: Arc::clone(&pipeline.name),
        consumer,
        partitions: HashMap::new(),
        tasks: JoinSet::new(),
        load: Load::default(),
        full_since: None,
        is_paused: false,
        resumed,
        epoch: 0,
        committing: None,
    };
    let ended = worker.serve(received, stop).await;
    polling.cancel();
    let polled = poll.await;
    worker.drain(None).await;
    worker.commit_now(None).await;
    worker.abandon(None);
    is_closing.store(true, Ordering::Relaxed);
    if let Err(error) = worker.consumer.close_with(CloseOptions::new().timeout(CLOSE_TIMEOUT)).await {
        tracing::warn!(pipeline = &*pipeline.name, %error, "the consumer did not leave its group cleanly");
    }
    match (ended, polled) {
        (Ended::Stopped, _) => Ok(()),
        (Ended::PollFailed, Ok(Err(error))) => Err(error.to_string()),
        (Ended::PollFailed, _) => Err("polling ended".to_owned()),
    }
}

/// Polls until it is cancelled or the consumer cannot continue.
async fn poll(
    consumer: Arc<Consumer>,
    events: mpsc::Sender<Event>,
    resumed: Arc<Notify>,
    stop: CancellationToken,
) -> Result<(), KrafkaError> {
    let mut backoff = Backoff::new();
    loop {
        let polled = tokio::select! {
            polled = consumer.poll(POLL_TIMEOUT) => polled,
            () = stop.cancelled() => return Ok(()),
        };
        match polled {
            Ok(records) => {
                backoff = Backoff::new();
                if records.is_empty() {
                    let _ = tokio::time::timeout(IDLE_INTERVAL, resumed.notified()).await;
                    continue;
                }
                tokio::select! {
                    sent = events.send(Event::Records(records)) => if sent.is_err() { return Ok(()) },
                    () = stop.cancelled() => return Ok(()),
                }
            }
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "polling failed: retrying");
                tokio::select! {
                    () = backoff.wait() => {}
                    () = stop.cancelled() => return Ok(()),
                }
            }
        }
    }
}

enum Ended {
    Stopped,
    PollFailed,
}

/// A record whose results are in the log.
struct Finished {
    topic: Arc<str>,
    partition: i32,
    epoch: Epoch,
    offset: i64,
    key: Option<Bytes>,
    bytes: usize,
}

type PartitionKey = (Arc<str>, i32);
/// All partitions when absent.
type Which<'a> = Option<&'a [TopicPartition]>;
type Commit = (Vec<(TopicPartition, i64)>, Result<(), String>);

struct Worker<E> {
    context: Arc<Context<E>>,
    pipeline: Arc<str>,
    consumer: Arc<Consumer>,
    partitions: HashMap<PartitionKey, Partition>,
    tasks: JoinSet<Finished>,
    load: Load,
    /// Records of the topic wait in the channel meanwhile.
    full_since: Option<Instant>,
    is_paused: bool,
    /// Notified when partitions are resumed.
    resumed: Arc<Notify>,
    epoch: Epoch,
    committing: Option<JoinHandle<Commit>>,
}

impl<E: Executor> Worker<E> {
    async fn serve(&mut self, mut events: mpsc::Receiver<Event>, stop: &CancellationToken) -> Ended {
        let mut commit = tokio::time::interval(self.context.settings.worker.commit_interval());
        commit.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ended::Stopped,
                Some(finished) = self.tasks.join_next(), if !self.tasks.is_empty() => self.finish(finished.ok()),
                event = events.recv(), if self.full_since.is_none() || self.is_paused => match event {
                    Some(event) => self.handle(event).await,
                    None => return Ended::PollFailed,
                },
                Some(done) = ended(&mut self.committing) => self.committed(done),
                _ = commit.tick(), if self.committing.is_none() => self.commit(),
                () = stalled(self.full_since), if !self.is_paused => self.pause().await,
            }
            self.check_limits().await;
        }
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Records(records) => {
                for record in records {
                    self.take(consumed(record));
                }
            }
            Event::Assigned(partitions) => {
                tracing::info!(
                    pipeline = &*self.pipeline,
                    partitions = partitions.len(),
                    "partitions assigned"
                );
                // They are not paused yet.
                self.is_paused = false;
            }
            Event::Revoked(partitions, reply) => {
                tracing::info!(
                    pipeline = &*self.pipeline,
                    partitions = partitions.len(),
                    "partitions revoked"
                );
                self.context.metrics.rebalances.inc();
                self.drain(Some(&partitions)).await;
                self.commit_now(Some(&partitions)).await;
                self.abandon(Some(&partitions));
                let _ = reply.send(());
            }
            Event::Lost(partitions) => {
                tracing::warn!(pipeline = &*self.pipeline, partitions = partitions.len(), "partitions lost");
                self.context.metrics.rebalances.inc();
                self.abandon(Some(&partitions));
            }
        }
    }

    fn take(&mut self, record: Consumed) {
        let key = (Arc::clone(&record.topic), record.partition);
        let epoch = &mut self.epoch;
        let partition = self.partitions.entry(key).or_insert_with(|| {
            *epoch += 1;
            Partition::new(*epoch)
        });
        if !partition.offsets.start(record.offset) {
            return;
        }
        self.add(Load { records: 1, bytes: record.bytes() });
        let key = (Arc::clone(&record.topic), record.partition);
        if let Some(record) = self.partitions.get_mut(&key).and_then(|partition| partition.push(record)) {
            self.start(record);
        }
    }

    fn start(&mut self, record: Consumed) {
        let Some(partition) = self.partitions.get_mut(&(Arc::clone(&record.topic), record.partition)) else {
            return;
        };
        let (context, pipeline) = (Arc::clone(&self.context), Arc::clone(&self.pipeline));
        let (offset, bytes, epoch) = (record.offset, record.bytes(), partition.epoch);
        let task = self.tasks.spawn(async move {
            process(&context, &pipeline, &record).await;
            let Consumed { topic, partition, offset, key, .. } = record;
            Finished { topic, partition, epoch, offset, key, bytes }
        });
        partition.started(offset, task, bytes);
    }

    /// `None` for a record that was aborted.
    fn finish(&mut self, finished: Option<Finished>) {
        let Some(Finished { topic, partition, epoch, offset, key, bytes }) = finished else { return };
        let current = self.partitions.get_mut(&(topic, partition)).filter(|current| current.epoch == epoch);
        let Some(current) = current else { return };
        let next = current.finish(offset, key.as_ref());
        self.remove(Load { records: 1, bytes });
        if let Some(next) = next {
            self.start(next);
        }
    }

    fn add(&mut self, load: Load) {
        self.load.records += load.records;
        self.load.bytes += load.bytes;
        self.context.metrics.in_flight.inc_by(load.records as i64);
        self.context.metrics.in_flight_bytes.inc_by(load.bytes as i64);
    }

    fn remove(&mut self, load: Load) {
        self.load.records = self.load.records.saturating_sub(load.records);
        self.load.bytes = self.load.bytes.saturating_sub(load.bytes);
        self.context.metrics.in_flight.dec_by(load.records as i64);
        self.context.metrics.in_flight_bytes.dec_by(load.bytes as i64);
    }

    /// At the limit no more records are taken; paused partitions are resumed at half of it.
    async fn check_limits(&mut self) {
        let limits = &self.context.settings.worker;
        let Load { records, bytes } = self.load;
        if records >= limits.max_in_flight || bytes >= limits.max_in_flight_bytes {
            self.full_since.get_or_insert_with(Instant::now);
            return;
        }
        self.full_since = None;
        let has_room = records <= limits.max_in_flight / 2 && bytes <= limits.max_in_flight_bytes / 2;
        if has_room && self.is_paused {
            for (topic, partitions) in self.consumer.assignment().await {
                self.consumer.resume(&topic, &partitions).await;
            }
            self.resumed.notify_one();
            self.is_paused = false;
        }
    }

    async fn pause(&mut self) {
        for (topic, partitions) in self.consumer.assignment().await {
            self.consumer.pause(&topic, &partitions).await;
        }
        self.is_paused = true;
    }

    /// Starts a commit in the background: records go on while the broker is slow or gone.
    fn commit(&mut self) {
        let offsets = self.to_commit(None);
        if !offsets.is_empty() {
            let consumer = Arc::clone(&self.consumer);
            self.committing = Some(tokio::spawn(commit(consumer, offsets)));
        }
    }

    /// Commits these partitions, and waits for it.
    async fn commit_now(&mut self, which: Which<'_>) {
        if let Some(committing) = self.committing.take() {
            let done = committing.await.ok();
            self.committed(done);
        }
        let offsets = self.to_commit(which);
        if !offsets.is_empty() {
            let done = commit(Arc::clone(&self.consumer), offsets).await;
            self.committed(Some(done));
        }
    }

    fn to_commit(&self, which: Which<'_>) -> Vec<(TopicPartition, i64)> {
        let partitions = self.partitions.iter().filter(|(key, _)| selects(which, key));
        let offset = |((topic, number), partition): (&PartitionKey, &Partition)| {
            Some((TopicPartition::new(&**topic, *number), partition.offsets.to_commit()?))
        };
        partitions.filter_map(offset).collect()
    }

    fn committed(&mut self, done: Option<Commit>) {
        self.committing = None;
        let Some((offsets, result)) = done else { return };
        match result {
            Ok(()) => {
                for (partition, offset) in offsets {
                    let key = (Arc::from(partition.topic()), partition.partition());
                    if let Some(partition) = self.partitions.get_mut(&key) {
                        partition.offsets.committed(offset);
                    }
                }
                self.context.metrics.commit("ok");
            }
            Err(error) => {
                tracing::warn!(pipeline = &*self.pipeline, error, "offsets were not committed: retrying");
                self.context.metrics.commit("failed");
            }
        }
    }

    /// Waits for the records in flight of these partitions, up to a limit; those behind them do not start.
    async fn drain(&mut self, which: Which<'_>) {
        let deadline = Instant::now() + self.context.settings.worker.drain_timeout();
        let mut dropped = Vec::new();
        for (_, partition) in self.partitions.iter_mut().filter(|(key, _)| selects(which, key)) {
            dropped.push(partition.drop_behind());
        }
        for load in dropped {
            self.remove(load);
        }
        while self.partitions.iter().any(|(key, partition)| selects(which, key) && !partition.is_idle()) {
            match tokio::time::timeout_at(deadline, self.tasks.join_next()).await {
                Ok(Some(finished)) => self.finish(finished.ok()),
                Ok(None) => return,
                Err(_) => {
                    tracing::warn!(
                        pipeline = &*self.pipeline,
                        "records in flight are abandoned: they will be read again"
                    );
                    return;
                }
            }
        }
    }

    /// Forgets these partitions.
    fn abandon(&mut self, which: Which<'_>) {
        let mut dropped = Vec::new();
        self.partitions.retain(|key, partition| {
            let is_kept = !selects(which, key);
            if !is_kept {
                dropped.push(partition.abort());
            }
            is_kept
        });
        for load in dropped {
            self.remove(load);
        }
    }
}

fn selects(which: Which<'_>, (topic, number): &PartitionKey) -> bool {
    let is_same =
        |partition: &TopicPartition| partition.partition() == *number && partition.topic() == &**topic;
    which.is_none_or(|partitions| partitions.iter().any(is_same))
}

async fn commit(consumer: Arc<Consumer>, offsets: Vec<(TopicPartition, i64)>) -> Commit {
    let wanted: Vec<_> = offsets
        .iter()
        .map(|(partition, offset)| (partition.clone(), OffsetAndMetadata::new(*offset)))
        .collect();
    let result = match tokio::time::timeout(COMMIT_TIMEOUT, consumer.commit_offsets(wanted)).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the broker did not respond in time".to_owned()),
    };
    (offsets, result)
}

/// When a worker has been full for too long.
async fn stalled(full_since: Option<Instant>) {
    match full_since {
        Some(since) => tokio::time::sleep_until(since + STALL_TIMEOUT).await,
        None => std::future::pending().await,
    }
}

/// The result of a commit in flight; pending without one. `Some(None)` if it panicked.
async fn ended(committing: &mut Option<JoinHandle<Commit>>) -> Option<Option<Commit>> {
    match committing {
        Some(committing) => Some(committing.await.ok()),
        None => std::future::pending().await,
    }
}
