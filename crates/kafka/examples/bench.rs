//! Measurements of `cargo xtask bench kafka`, on a broker without other load. Results go to standard output as JSON.
//!
//! - `bench worker HOST:PORT|KAFKA_JSON RECORDS`: records per second through one worker and one step, which returns its inputs.
//! - `bench hops HOST:PORT STEPS REQUESTS`: the time of one request through a chain of steps as Seldon runs it, from topic to
//!   topic: each step is a consumer and a producer, and so is each passage between two steps.

#![allow(clippy::print_stdout, reason = "the result")]

use gantry_kafka::{
    Consumed, Produced, Settings,
    encoding::{Tensors, encode_inputs},
    engine::{self, Client, Execution, Executor, Metrics, Pipeline, Pipelines, RunRequest, StepRecord},
    topics::Side,
};
use gantry_tensor::{Elements, Tensor};
use http::HeaderMap;
use krafka::{
    Kafka, Record,
    consumer::{AutoOffsetReset, Consumer},
    producer::Producer,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One step that returns its inputs.
struct Identity(watch::Sender<Pipelines>);

impl Executor for Identity {
    type Span = ();

    fn span(&self, _: &str, _: &str, _: &Consumed, _: &mut HeaderMap) {}

    fn pipelines(&self) -> watch::Receiver<Pipelines> {
        self.0.subscribe()
    }

    fn is_deleted(&self, _: &str) -> bool {
        false
    }

    async fn execute(&self, request: RunRequest) -> Execution {
        let step = StepRecord {
            step: Arc::clone(&request.pipeline),
            inputs: request.inputs.clone(),
            outputs: Ok(request.inputs.clone()),
            route: None,
        };
        Execution { version: 1, steps: vec![step], result: Ok(Some(request.inputs)) }
    }
}

/// A request of about 200 bytes.
fn value() -> Result<bytes::Bytes, Failure> {
    let tensor = Tensor::new("x", vec![1, 32], Elements::Fp32(vec![0.5; 32]))?;
    Ok(encode_inputs("", Tensors { tensors: vec![tensor.into()], ..Tensors::default() }))
}

async fn worker(broker: &str, records: usize) -> Result<(), Failure> {
    const BATCH: usize = 1000;
    let settings = match broker.strip_suffix(".json") {
        Some(_) => Settings::read(std::path::Path::new(broker), "bench", &|_| None)?,
        None => Settings::with_broker(broker, "bench", &|_| None)?,
    };
    let broker = settings.bootstrap_servers.clone();
    let shared = Arc::new(settings.clone());
    let client = Client::connect(&shared).await?;
    let name = format!("worker-{}", std::process::id());
    let topics = [Side::Inputs, Side::Outputs].map(|side| settings.topics.pipeline(&name, side));
    let [inputs, outputs] = &topics;
    client.create_topics(&topics).await?;
    let value = value()?;
    for batch in 0..records.div_ceil(BATCH) {
        let record = |i: usize| Produced {
            topic: inputs.clone(),
            partition: None,
            key: Some(format!("0.{name}.{}", batch * BATCH + i).into()),
            value: value.clone(),
            headers: Vec::new(),
        };
        let records: Vec<Produced> = (0..BATCH.min(records - batch * BATCH)).map(record).collect();
        client.produce(&records).await?;
    }
    let reader = Kafka::builder(broker).connect().await?.consumer_without_group().build().await?;
    let pipeline =
        Pipeline { name: name.as_str().into(), steps: vec![name.as_str().into()], ..Pipeline::default() };
    let executor = Arc::new(Identity(watch::Sender::new([Arc::new(pipeline)].into())));
    let stop = CancellationToken::new();
    let engine = tokio::spawn(engine::run(settings, executor, Metrics::default(), stop.clone()));
    let written = async |at_least: i64| -> Result<i64, Failure> {
        loop {
            let (_, end) = reader.fetch_watermarks(outputs, 0).await?;
            if end >= at_least {
                return Ok(end);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    // Joining the group is not counted.
    let first = written(1).await?;
    let started = Instant::now();
    let all = written(i64::try_from(records)?).await?;
    let rate = (all - first) as f64 / started.elapsed().as_secs_f64();
    stop.cancel();
    engine.await?;
    println!("{{\"records_per_second\":{rate:.0},\"value_bytes\":{}}}", value.len());
    Ok(())
}

async fn subscribed(broker: &str, group: &str, topic: &str) -> Result<Consumer, Failure> {
    let consumer = Kafka::builder(broker).connect().await?.consumer(group);
    let consumer =
        consumer.auto_offset_reset(AutoOffsetReset::Earliest).enable_auto_commit(true).build().await?;
    consumer.subscribe([topic]).await?;
    Ok(consumer)
}

/// As Seldon configures it.
async fn producer_without_linger(broker: &str) -> Result<Producer, Failure> {
    Ok(Kafka::builder(broker).connect().await?.producer().linger(Duration::ZERO).build().await?)
}

/// Copies records from one topic to the next.
async fn copy(consumer: Consumer, producer: Producer, to: String) -> Result<(), Failure> {
    loop {
        for record in consumer.poll(Duration::from_secs(1)).await? {
            let copied =
                Record::new(to.clone(), record.value.unwrap_or_default()).key(record.key.unwrap_or_default());
            let _: krafka::producer::RecordMetadata = producer.send(copied).await?;
        }
    }
}

async fn hops(broker: &str, steps: usize, requests: usize) -> Result<(), Failure> {
    let settings = Arc::new(Settings::with_broker(broker, "bench", &|_| None)?);
    let client = Client::connect(&settings).await?;
    let run = std::process::id();
    // The inputs and outputs of the pipeline and of each step.
    let topics: Vec<String> = (0..2 * steps + 2).map(|i| format!("hops.{run}.{i}")).collect();
    client.create_topics(&topics).await?;
    let mut copiers = tokio::task::JoinSet::new();
    for pair in topics.windows(2) {
        let [from, to] = pair else { continue };
        let consumer = subscribed(broker, from, from).await?;
        let producer = producer_without_linger(broker).await?;
        copiers.spawn(copy(consumer, producer, to.clone()));
    }
    let (Some(first), Some(last)) = (topics.first(), topics.last()) else { return Ok(()) };
    let answers = subscribed(broker, &format!("hops-{run}"), last).await?;
    let producer = producer_without_linger(broker).await?;
    let value = value()?;
    let mut times = Vec::with_capacity(requests);
    // The first requests wait for the groups.
    let warm_up = requests / 10 + 5;
    for i in 0..warm_up + requests {
        let started = Instant::now();
        let sent = producer.send(Record::new(first.clone(), value.clone()).key(i.to_string())).await?;
        drop(sent);
        while answers.poll(Duration::from_secs(1)).await?.is_empty() {}
        if i >= warm_up {
            times.push(started.elapsed());
        }
    }
    copiers.abort_all();
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).map_or(0, Duration::as_micros);
    println!("{{\"p50_us\":{},\"p99_us\":{},\"topics\":{}}}", at(50), at(99), topics.len());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    const USAGE: &str = "usage: bench worker HOST:PORT RECORDS | bench hops HOST:PORT STEPS REQUESTS";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["worker", broker, records] => worker(broker, records.parse()?).await,
        ["hops", broker, steps, requests] => hops(broker, steps.parse()?, requests.parse()?).await,
        _ => Err(USAGE.into()),
    }
}
