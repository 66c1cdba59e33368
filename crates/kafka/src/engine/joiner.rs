//! Pipelines that read other pipelines: their data is joined, and written to the topic of the pipeline's inputs, where its
//! worker takes it as any other record.
//!
//! A second member of a consumer group, `<group>-inputs`. The offsets of a join's records are committed when it has ended.

use super::{
    Context, Executor, Pipeline,
    client::consumed,
    process::{self, Backoff},
};
use crate::{
    dead_letter::Failure,
    encoding::{self, Tensors},
    headers::{self, RunHeaders},
    join::{self, Joined, Joins},
    offsets::Offsets,
    record::{Consumed, Produced},
    topics::Side,
};
use bytes::Bytes;
use gantry_core::pipeline::{External, Externals};
use gantry_oip::{Limits, Parameters};
use http::HeaderMap;
use krafka::{
    CloseOptions,
    consumer::{Consumer, ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition},
};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const POLL_TIMEOUT: Duration = Duration::from_millis(200);
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that wait for data of other pipelines; the oldest ones end early.
const MAX_REQUESTS: usize = 10_000;
/// Pipelines that start each other one after another: cycles of pipelines end.
const MAX_HOPS: u32 = 8;
/// How many pipelines led to a record.
const HOPS: &str = "x-gantry-hops";

/// Runs until `stop` is cancelled; after a failure it joins the group again.
pub(super) async fn run<E: Executor>(
    context: Arc<Context<E>>,
    pipeline: Arc<Pipeline>,
    spec: Arc<Externals>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new();
    while !stop.is_cancelled() {
        match run_once(&context, &pipeline, &spec, &stop).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(pipeline = &*pipeline.name, error, "joining inputs failed: starting again");
            }
        }
        tokio::select! {
            () = backoff.wait() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// All partitions are revoked together, with the protocol that is used; what is not committed is read again.
struct Listener(Arc<AtomicBool>);

impl ConsumerRebalanceListener for Listener {
    async fn on_partitions_assigned(&self, _: &[TopicPartition]) {}

    async fn on_partitions_revoked(&self, _: &[TopicPartition]) {
        self.0.store(true, Ordering::Relaxed);
    }

    async fn on_partitions_lost(&self, _: &[TopicPartition]) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn run_once<E: Executor>(
    context: &Arc<Context<E>>,
    pipeline: &Arc<Pipeline>,
    spec: &Arc<Externals>,
    stop: &CancellationToken,
) -> Result<(), String> {
    let settings = &context.settings;
    let topics: HashMap<String, Side> = join::topics(spec, &settings.topics).into_iter().collect();
    let names: Vec<String> = topics.keys().cloned().collect();
    let is_revoked = Arc::new(AtomicBool::new(false));
    let group = format!("{}-inputs", settings.group(&pipeline.name));
    let starting = async {
        let mut created = names.clone();
        created.push(settings.topics.pipeline(&pipeline.name, Side::Inputs));
        created.push(settings.topics.errors());
        created.sort_unstable();
        created.dedup();
        context.client.create_topics(&created).await?;
        let consumer = context.client.consumer(&group, Listener(Arc::clone(&is_revoked))).await;
        let consumer = consumer.map_err(|error| error.to_string())?;
        context.client.subscribe(&consumer, &names).await?;
        Ok::<_, String>(consumer)
    };
    let consumer = tokio::select! {
        consumer = starting => consumer?,
        () = stop.cancelled() => return Ok(()),
    };
    tracing::info!(pipeline = &*pipeline.name, topics = names.join(","), "joining inputs of a pipeline");
    let mut joiner = Joiner {
        context,
        pipeline,
        topics,
        spec,
        joins: Joins::new(Arc::clone(spec), MAX_REQUESTS),
        offsets: HashMap::new(),
        started: Instant::now(),
    };
    let ended = joiner.serve(&consumer, &is_revoked, stop).await;
    if let Err(error) = consumer.close_with(CloseOptions::new().timeout(CLOSE_TIMEOUT)).await {
        tracing::warn!(pipeline = &*pipeline.name, %error, "the consumer did not leave its group cleanly");
    }
    ended
}

struct Joiner<'a, E> {
    context: &'a Arc<Context<E>>,
    pipeline: &'a Arc<Pipeline>,
    topics: HashMap<String, Side>,
    spec: &'a Arc<Externals>,
    joins: Joins<Held>,
    offsets: HashMap<(Arc<str>, i32), Offsets>,
    started: Instant,
}

/// What a poll leads to.
enum Write {
    /// Inputs of the pipeline, and their dead letter, which gets the reason.
    Inputs(Produced, Produced),
    DeadLetter(Produced),
}

impl Write {
    const fn record(&self) -> &Produced {
        match self {
            Self::Inputs(record, _) | Self::DeadLetter(record) => record,
        }
    }
}

/// What is kept of a record until its join ends.
#[derive(Debug)]
struct Held {
    topic: Arc<str>,
    partition: i32,
    offset: i64,
    key: Option<Bytes>,
    forwarded: HeaderMap,
    parameters: Parameters,
    hops: u32,
}

impl<E: Executor> Joiner<'_, E> {
    async fn serve(
        &mut self,
        consumer: &Consumer,
        is_revoked: &AtomicBool,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        let mut backoff = Backoff::new();
        loop {
            let polled = tokio::select! {
                polled = consumer.poll(POLL_TIMEOUT) => polled,
                () = stop.cancelled() => return Ok(()),
            };
            if is_revoked.swap(false, Ordering::Relaxed) {
                self.joins.clear();
                self.offsets.clear();
            }
            let records = match polled {
                Ok(records) => records,
                Err(error) if error.is_fatal() => return Err(error.to_string()),
                Err(error) => {
                    tracing::warn!(%error, "polling failed: retrying");
                    tokio::select! {
                        () = backoff.wait() => continue,
                        () = stop.cancelled() => return Ok(()),
                    }
                }
            };
            backoff = Backoff::new();
            let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            let mut ended = self.joins.expire(now);
            let mut written = Vec::new();
            for record in records {
                self.take(now, &consumed(record), &mut ended, &mut written);
            }
            let mut released = Vec::new();
            for joined in ended {
                written.extend(self.joined(&joined));
                released.extend(joined.records);
            }
            tokio::select! {
                () = self.write(written) => {}
                () = stop.cancelled() => return Ok(()),
            }
            for Held { topic, partition, offset, .. } in released {
                if let Some(offsets) = self.offsets.get_mut(&(topic, partition)) {
                    offsets.finish(offset);
                }
            }
            self.commit(consumer).await;
        }
    }

    fn take(&mut self, now: u64, record: &Consumed, ended: &mut Vec<Joined<Held>>, written: &mut Vec<Write>) {
        let position = (Arc::clone(&record.topic), record.partition);
        let offsets = self.offsets.entry(position).or_default();
        if !offsets.start(record.offset) {
            return;
        }
        let side = self.topics.get(&*record.topic).copied().unwrap_or(Side::Outputs);
        let of = headers::get(&record.headers, headers::PIPELINE);
        let topics = &self.context.settings.topics;
        let is_source =
            |source: &External| join::topic(topics, source).0 == *record.topic && join::is_of(source, of);
        if !self.spec.inputs.iter().chain(&self.spec.triggers).any(is_source) {
            offsets.finish(record.offset);
            return;
        }
        let limits = Limits { body: self.context.settings.producer.max_bytes as usize, ..Limits::default() };
        let decoded = encoding::decode(record.value.clone(), &record.headers, side, &limits);
        let hops = headers::get(&record.headers, HOPS).and_then(|text| text.parse().ok()).unwrap_or(0u32);
        let decoded = decoded.map_err(|error| error.message).and_then(|tensors| {
            if hops < MAX_HOPS {
                Ok(tensors)
            } else {
                Err(format!("{MAX_HOPS} pipelines started each other"))
            }
        });
        let id = process::request_id(record);
        match decoded {
            Ok(Tensors { tensors, parameters, .. }) => {
                let held = Held {
                    topic: Arc::clone(&record.topic),
                    partition: record.partition,
                    offset: record.offset,
                    key: record.key.clone(),
                    forwarded: headers::forwarded(&record.headers),
                    parameters,
                    hops,
                };
                ended.extend(self.joins.arrive(now, &id, is_source, &tensors, held));
            }
            Err(message) => {
                let (forwarded, message) =
                    (headers::forwarded(&record.headers), format!("{} : {message}", self.pipeline.name));
                let failure = Failure {
                    topics,
                    run: RunHeaders {
                        pipeline: &self.pipeline.name,
                        version: 0,
                        request_id: &id,
                        forwarded: &forwarded,
                    },
                    step: &self.pipeline.name,
                    message: &message,
                };
                written.push(Write::DeadLetter(failure.dead_letter(record)));
                offsets.finish(record.offset);
            }
        }
    }

    /// The record of the pipeline's inputs.
    fn joined(&self, joined: &Joined<Held>) -> Option<Write> {
        let tensors = joined.tensors.clone()?;
        let last = joined.records.last()?;
        let mut forwarded = last.forwarded.clone();
        let hops = joined.records.iter().map(|record| record.hops).max().unwrap_or(0) + 1;
        forwarded.insert(HOPS, hops.into());
        let (name, topics) = (&self.pipeline.name, &self.context.settings.topics);
        let run = RunHeaders { pipeline: name, version: 0, request_id: &joined.id, forwarded: &forwarded };
        let mut headers = run.with_routes([]);
        headers.retain(|(name, _)| name != headers::PIPELINE_VERSION);
        let tensors = Tensors { tensors, parameters: last.parameters.clone(), id: String::new() };
        let inputs = Produced {
            topic: topics.pipeline(name, Side::Inputs),
            partition: None,
            key: last.key.clone(),
            value: encoding::encode_inputs("", tensors),
            headers,
        };
        let positions = joined
            .records
            .iter()
            .map(|Held { topic, partition, offset, .. }| format!("{topic}/{partition}/{offset}"));
        let dead_letter =
            Failure { topics, run, step: name, message: "" }.of_join(last.key.clone(), positions);
        Some(Write::Inputs(inputs, dead_letter))
    }

    /// Returns when the broker has acknowledged everything; inputs that can never be written become dead letters.
    async fn write(&self, writes: Vec<Write>) {
        let (context, name) = (self.context, &self.pipeline.name);
        let all = writes.iter().map(|write| write.record().clone()).collect();
        if process::write(context, name, all).await.is_ok() {
            return;
        }
        // One or more of them are the reason: each on its own.
        for write in writes {
            match write {
                Write::Inputs(inputs, mut dead_letter) => {
                    let Err(error) = process::write(context, name, vec![inputs]).await else { continue };
                    tracing::warn!(pipeline = &**name, %error, "joined inputs cannot be written: they are a dead letter");
                    dead_letter.value =
                        format!("{name} : the joined inputs cannot be written: {error}").into();
                    process::write_dead_letter(context, name, dead_letter).await;
                    context.metrics.record("failed");
                }
                Write::DeadLetter(dead_letter) => {
                    process::write_dead_letter(context, name, dead_letter).await;
                }
            }
        }
    }

    async fn commit(&mut self, consumer: &Consumer) {
        let positions: Vec<_> = self
            .offsets
            .iter()
            .filter_map(|((topic, partition), offsets)| {
                Some((
                    TopicPartition::new(&**topic, *partition),
                    OffsetAndMetadata::new(offsets.to_commit()?),
                ))
            })
            .collect();
        if positions.is_empty() {
            return;
        }
        match tokio::time::timeout(COMMIT_TIMEOUT, consumer.commit_offsets(positions.clone())).await {
            Ok(Ok(())) => {
                self.context.metrics.commit("ok");
                for (partition, offset) in positions {
                    let key = (Arc::from(partition.topic()), partition.partition());
                    if let Some(offsets) = self.offsets.get_mut(&key) {
                        offsets.committed(offset.offset);
                    }
                }
            }
            failed => {
                self.context.metrics.commit("failed");
                let error = failed.map_or_else(
                    |_| "timed out".to_owned(),
                    |r| r.map_or_else(|e| e.to_string(), |()| String::new()),
                );
                tracing::warn!(
                    pipeline = &*self.pipeline.name,
                    error,
                    "offsets were not committed: retrying"
                );
            }
        }
    }
}
