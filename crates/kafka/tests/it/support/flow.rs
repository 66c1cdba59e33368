//! Records of one pipeline, written and read as any other program would.

use super::{Broker, TIMEOUT};
use bytes::Bytes;
use gantry_kafka::{
    Consumed, Produced,
    dead_letter::original,
    encoding::{Tensors, decode, encode_inputs},
    headers::{self, Headers},
    topics::{Side, Topics},
};
use gantry_oip::Limits;
use gantry_tensor::{Elements, Tensor};
use krafka::{
    Kafka, KrafkaError, Record,
    admin::{CreateTopicsOptions, NewTopic},
    consumer::{AutoOffsetReset, Consumer},
    error::ErrorCode,
    producer::Producer,
};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

pub(crate) struct Flow {
    pub(crate) name: String,
    topics: Topics,
    kafka: Kafka,
    producer: Producer,
    readers: Vec<(String, Consumer, Vec<Output>)>,
    partitions: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Input {
    pub(crate) key: Option<String>,
    pub(crate) value: Option<Bytes>,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Input {
    /// The tensor `x` with one element.
    pub(crate) fn number(key: &str, x: i64) -> Self {
        let key = Some(key.to_owned()).filter(|key| !key.is_empty());
        Self { key, value: Some(encode_inputs("", tensors(x))), headers: Vec::new() }
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

pub(crate) fn tensors(x: i64) -> Tensors {
    let tensor = Tensor::new("x", vec![1], Elements::Int64(vec![x])).unwrap();
    Tensors { tensors: vec![tensor.into()], ..Tensors::default() }
}

#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) partition: i32,
    pub(crate) key: String,
    pub(crate) value: Bytes,
    pub(crate) headers: Headers,
}

impl Output {
    pub(crate) fn header(&self, name: &str) -> &str {
        headers::get(&self.headers, name).unwrap_or_default()
    }

    /// The element of the tensor `x`.
    pub(crate) fn number(&self, side: Side) -> i64 {
        let decoded = decode(self.value.clone(), &self.headers, side, &Limits::default()).unwrap();
        match decoded.tensors[0].tensor.elements() {
            Elements::Int64(values) => values[0],
            other => panic!("{other:?}"),
        }
    }

    /// The record that a dead letter carries.
    pub(crate) fn original(&self) -> Option<Produced> {
        let key = Some(self.key.clone()).filter(|key| !key.is_empty()).map(Bytes::from);
        let (value, headers) = (self.value.clone(), self.headers.clone());
        original(&Consumed { topic: "".into(), partition: self.partition, offset: 0, key, value, headers })
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.value).unwrap()
    }
}

/// The distinct numbers, in the order of their first occurrence.
pub(crate) fn distinct(outputs: &[Output]) -> Vec<i64> {
    let mut seen = BTreeSet::new();
    outputs.iter().map(|output| output.number(Side::Outputs)).filter(|number| seen.insert(*number)).collect()
}

impl Flow {
    /// Creates the topics of inputs and outputs.
    pub(crate) async fn new(broker: &Broker, name: &str, partitions: u32) -> Self {
        Self::with_inputs(broker, name, partitions, None).await
    }

    /// With a limit of the bytes of a record of the inputs.
    pub(crate) async fn with_inputs(
        broker: &Broker,
        name: &str,
        partitions: u32,
        max_bytes: Option<u32>,
    ) -> Self {
        let kafka = connect(broker).await;
        let producer = kafka.producer().delivery_timeout(TIMEOUT).build().await.unwrap();
        let topics = Topics::new("", "").unwrap();
        let flow = Self { name: name.to_owned(), topics, kafka, producer, readers: Vec::new(), partitions };
        let (inputs, outputs) = (flow.pipeline(Side::Inputs), flow.pipeline(Side::Outputs));
        flow.create(&inputs, max_bytes).await;
        flow.create(&outputs, None).await;
        flow
    }

    pub(crate) fn pipeline(&self, side: Side) -> String {
        self.topics.pipeline(&self.name, side)
    }

    pub(crate) fn model(&self, step: &str, side: Side) -> String {
        self.topics.model(&format!("{}-{step}", self.name), side)
    }

    pub(crate) fn errors(&self) -> String {
        self.topics.errors()
    }

    async fn create(&self, topic: &str, max_bytes: Option<u32>) {
        let partitions = i32::try_from(self.partitions).unwrap();
        let mut new = NewTopic::new(topic, partitions, 1).unwrap();
        if let Some(bytes) = max_bytes {
            new = new.with_config("max.message.bytes", bytes.to_string());
        }
        let mut created =
            self.kafka.admin().create_topics([new], CreateTopicsOptions::default()).await.unwrap();
        match created.remove(topic).unwrap() {
            Ok(()) | Err(KrafkaError::Broker { code: ErrorCode::TopicAlreadyExists, .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn send(&self, input: Input) {
        self.send_to(&self.pipeline(Side::Inputs), input).await;
    }

    pub(crate) async fn send_to(&self, topic: &str, input: Input) {
        let metadata = self.producer.send(record(topic, input)).await.unwrap();
        assert!(metadata.is_persisted());
    }

    /// Without waiting for each record.
    pub(crate) async fn send_all(&self, inputs: impl Iterator<Item = Input>) {
        let mut acknowledgements = Vec::new();
        for input in inputs {
            let record = record(&self.pipeline(Side::Inputs), input);
            acknowledgements.push(self.producer.enqueue(record).await.unwrap());
        }
        for acknowledgement in acknowledgements {
            assert!(acknowledgement.await.unwrap().is_persisted());
        }
    }

    /// Reads a topic from its start until the condition holds; returns all its records so far.
    pub(crate) async fn read_until(
        &mut self,
        topic: &str,
        what: &str,
        mut condition: impl FnMut(&[Output]) -> bool,
    ) -> Vec<Output> {
        let deadline = Instant::now() + TIMEOUT;
        if !self.readers.iter().any(|(name, ..)| name == topic) {
            self.create(topic, None).await;
            let consumer = self.kafka.consumer_without_group().auto_offset_reset(AutoOffsetReset::Earliest);
            let consumer = consumer.build().await.unwrap();
            // Another flow may have created the topic of errors.
            let partitions = self.producer.partitions_for(topic).await.unwrap();
            let partitions = (0..i32::try_from(partitions.len()).unwrap()).collect();
            consumer.assign(topic, partitions).await.unwrap();
            self.readers.push((topic.to_owned(), consumer, Vec::new()));
        }
        let (_, consumer, outputs) = self.readers.iter_mut().find(|(name, ..)| name == topic).unwrap();
        while !condition(outputs) {
            assert!(
                Instant::now() < deadline,
                "timed out waiting for {what} in {topic}: {} records",
                outputs.len()
            );
            // Fails while the broker is down.
            let Ok(records) = consumer.poll(Duration::from_millis(100)).await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            outputs.extend(records.into_iter().map(|record| {
                Output {
                    partition: record.partition,
                    key: record.key_str().unwrap_or_default().to_owned(),
                    headers: record
                        .headers
                        .iter()
                        .map(|(k, v)| (k.clone().into(), v.clone().unwrap_or_default()))
                        .collect(),
                    value: record.value.unwrap_or_default(),
                }
            }));
        }
        outputs.clone()
    }

    /// Reads outputs until there are this many records.
    pub(crate) async fn outputs(&mut self, count: usize) -> Vec<Output> {
        let topic = self.pipeline(Side::Outputs);
        self.read_until(&topic, &format!("{count} outputs"), |outputs| outputs.len() >= count).await
    }

    /// Reads outputs until there are this many distinct ones.
    pub(crate) async fn distinct_outputs(&mut self, count: usize) -> Vec<Output> {
        let topic = self.pipeline(Side::Outputs);
        let what = format!("{count} distinct outputs");
        self.read_until(&topic, &what, |outputs| distinct(outputs).len() >= count).await
    }
}

fn record(topic: &str, input: Input) -> Record {
    let mut record = Record::new(topic, input.value.clone().unwrap_or_default());
    if input.value.is_none() {
        record = record.without_value();
    }
    if let Some(key) = input.key {
        record = record.key(key);
    }
    for (name, value) in input.headers {
        record = record.header(name, value);
    }
    record
}

async fn connect(broker: &Broker) -> Kafka {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Kafka::builder(broker.address()).connect().await {
            Ok(kafka) => return kafka,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
