//! The client library: connections, topics and acknowledged writes.

use crate::{
    record::{Consumed, Produced},
    settings::{Mechanism, Security, Settings},
};
use krafka::{
    Compression, Kafka, KrafkaError, Record,
    admin::{CreateTopicsOptions, DeleteTopicsOptions, DescribeTopicsOptions, NewTopic},
    auth::{AuthConfig, TlsConfig},
    consumer::{AutoOffsetReset, Consumer, ConsumerRebalanceListener, PartitionAssignmentStrategy},
    error::{ErrorCode, ProtocolErrorKind},
    producer::{Acks, DeliveryHandle, Producer, RecordMetadata},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const ADMIN_TIMEOUT: Duration = Duration::from_secs(20);
/// A broker knows a new topic a moment after it was created.
const NEW_TOPIC_TIMEOUT: Duration = Duration::from_secs(2);
const NEW_TOPIC_INTERVAL: Duration = Duration::from_millis(50);
/// Records of one poll, at most half of those in flight: the limit is exceeded by so many.
const MAX_POLL_RECORDS: usize = 500;

/// One connection for writes and topics. Each consumer has its own, because a fetch that waits for records holds up the
/// requests behind it.
pub struct Client {
    kafka: Kafka,
    producer: Producer,
    settings: Arc<Settings>,
    /// Numbers of partitions, which only grow.
    partitions: Mutex<HashMap<String, i32>>,
}

/// A write that was not acknowledged.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ProduceError {
    /// Whether the record itself is the reason: it can never be written.
    pub is_permanent: bool,
    pub message: String,
}

impl ProduceError {
    /// Of a record that was not sent: the client checks its size and its headers.
    fn before_sending(error: KrafkaError) -> Self {
        let is_invalid =
            matches!(error, KrafkaError::Protocol { kind: ProtocolErrorKind::InvalidLength, .. });
        let error = Self::from(error);
        Self { is_permanent: error.is_permanent || is_invalid, ..error }
    }
}

impl From<KrafkaError> for ProduceError {
    fn from(error: KrafkaError) -> Self {
        let is_permanent = match &error {
            KrafkaError::Broker { code, .. } => {
                matches!(
                    code,
                    ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge | ErrorCode::InvalidRecord
                )
            }
            KrafkaError::Config { .. } | KrafkaError::Serialization { .. } => true,
            _ => false,
        };
        Self { is_permanent, message: error.to_string() }
    }
}

impl Client {
    pub async fn connect(settings: &Arc<Settings>) -> Result<Self, String> {
        Self::open(settings).await.map_err(|error| error.to_string())
    }

    async fn open(settings: &Arc<Settings>) -> krafka::Result<Self> {
        let kafka = connect(settings).await?;
        let limits = &settings.producer;
        let producer = kafka
            .producer()
            .acks(Acks::All)
            .idempotent(true)
            .linger(limits.linger)
            .max_request_size(limits.max_bytes as usize)
            .delivery_timeout(limits.delivery_timeout.max(REQUEST_TIMEOUT + limits.linger))
            .compression(match limits.compression.as_str() {
                "gzip" => Compression::Gzip,
                "snappy" => Compression::Snappy,
                "lz4" => Compression::Lz4,
                _ => Compression::None,
            })
            .build()
            .await?;
        Ok(Self { kafka, producer, settings: Arc::clone(settings), partitions: Mutex::default() })
    }

    /// Writes records in their order and waits until the broker has acknowledged all of them.
    pub async fn produce(&self, records: &[Produced]) -> Result<(), ProduceError> {
        let mut acknowledgements = Vec::with_capacity(records.len());
        #[cfg(feature = "failpoints")]
        let mut progress = super::failpoint::Progress::default();
        for record in records {
            #[cfg(feature = "failpoints")]
            if super::failpoint::Progress::is_next(record) {
                acknowledged(std::mem::take(&mut acknowledgements)).await?;
                progress.before_next();
            }
            let partition = match record.partition {
                Some(wanted) => self.existing(&record.topic, wanted).await?,
                None => None,
            };
            let headers = record.headers.iter();
            let mut message = Record::new(record.topic.clone(), record.value.clone());
            message.key = record.key.clone();
            message.partition = partition;
            message.headers =
                headers.map(|(name, value)| (name.clone().into_owned(), Some(value.clone()))).collect();
            let enqueued = self.producer.enqueue(message).await;
            acknowledgements.push(enqueued.map_err(ProduceError::before_sending)?);
        }
        acknowledged(acknowledgements).await?;
        #[cfg(feature = "failpoints")]
        progress.end();
        Ok(())
    }

    /// The partition, if the topic has it.
    async fn existing(&self, topic: &str, partition: i32) -> Result<Option<i32>, ProduceError> {
        let known = self.partitions.lock().unwrap_or_else(PoisonError::into_inner).get(topic).copied();
        if known.is_some_and(|count| partition < count) {
            return Ok(Some(partition));
        }
        let partitions = self.producer.partitions_for(topic).await?;
        let count = i32::try_from(partitions.len()).unwrap_or(i32::MAX);
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.to_owned(), count);
        Ok((partition < count).then_some(partition))
    }

    /// Creates the topics that do not exist.
    pub async fn create_topics(&self, names: &[String]) -> Result<(), String> {
        let Settings { partitions, replication, .. } = *self.settings;
        let new = names.iter().map(|name| NewTopic::new(name.clone(), partitions, replication));
        let topics: Vec<NewTopic> = new.collect::<krafka::Result<_>>().map_err(|error| error.to_string())?;
        let admin = self.kafka.admin();
        let creating = admin.create_topics(topics, CreateTopicsOptions::default());
        let results =
            tokio::time::timeout(ADMIN_TIMEOUT, creating).await.map_err(|_| "timed out".to_owned())?;
        for (topic, result) in results.map_err(|error| error.to_string())? {
            match result {
                Ok(()) => tracing::info!(topic, partitions, replication, "topic created"),
                Err(KrafkaError::Broker { code: ErrorCode::TopicAlreadyExists, .. }) => {}
                Err(error) => return Err(format!("topic {topic} cannot be created: {error}")),
            }
        }
        Ok(())
    }

    pub(super) async fn delete_topics(&self, names: &[String]) -> Result<(), String> {
        let admin = self.kafka.admin();
        let deleting = admin.delete_topics(names, DeleteTopicsOptions::default());
        let results =
            tokio::time::timeout(ADMIN_TIMEOUT, deleting).await.map_err(|_| "timed out".to_owned())?;
        for (topic, result) in results.map_err(|error| error.to_string())? {
            match result {
                Ok(()) => tracing::info!(topic, "topic deleted"),
                Err(KrafkaError::Broker { code: ErrorCode::UnknownTopicOrPartition, .. }) => {}
                Err(error) => return Err(format!("topic {topic} cannot be deleted: {error}")),
            }
        }
        Ok(())
    }

    /// The last records of a topic, at most `count` of each partition, in the order of their time. The error is the reason.
    pub async fn read_last(
        &self,
        topic: &str,
        count: u32,
        timeout: Duration,
    ) -> Result<Vec<Consumed>, String> {
        let reading = async {
            let numbers = self.partition_numbers(topic).await?;
            self.read_partitions(topic, numbers, count).await.map_err(|error| error.to_string())
        };
        match tokio::time::timeout(timeout, reading).await {
            Ok(read) => read,
            Err(_) => Err(format!("topic {topic} was not read in time")),
        }
    }

    async fn partition_numbers(&self, topic: &str) -> Result<Vec<i32>, String> {
        let admin = self.kafka.admin();
        let deadline = Instant::now() + NEW_TOPIC_TIMEOUT;
        loop {
            let described = admin.describe_topics([topic], DescribeTopicsOptions::default()).await;
            match described.map_err(|error| error.to_string())?.remove(topic) {
                Some(Ok(found)) => {
                    let count = i32::try_from(found.partitions.len()).unwrap_or(i32::MAX);
                    return Ok((0..count).collect());
                }
                Some(Err(KrafkaError::Broker { code: ErrorCode::UnknownTopicOrPartition, .. })) | None => {
                    if Instant::now() >= deadline {
                        return Err(format!("topic {topic} does not exist"));
                    }
                    tokio::time::sleep(NEW_TOPIC_INTERVAL).await;
                }
                Some(Err(error)) => return Err(format!("topic {topic}: {error}")),
            }
        }
    }

    async fn read_partitions(
        &self,
        topic: &str,
        numbers: Vec<i32>,
        count: u32,
    ) -> krafka::Result<Vec<Consumed>> {
        let kafka = connect(&self.settings).await?;
        let consumer =
            kafka.consumer_without_group().auto_offset_reset(AutoOffsetReset::Earliest).build().await?;
        consumer.assign(topic, numbers.clone()).await?;
        let mut missing = HashMap::new();
        for number in numbers {
            let (low, high) = consumer.fetch_watermarks(topic, number).await?;
            let start = high.saturating_sub(i64::from(count)).max(low);
            if start < high {
                missing.insert(number, high);
            }
            consumer.seek(topic, number, start.min(high)).await?;
        }
        let mut records = Vec::new();
        while !missing.is_empty() {
            for record in consumer.poll(Duration::from_millis(500)).await? {
                if missing.get(&record.partition).is_some_and(|end| record.offset + 1 >= *end) {
                    missing.remove(&record.partition);
                }
                records.push((record.timestamp, consumed(record)));
            }
        }
        let closed = consumer.close().await;
        drop(closed);
        records.sort_by_key(|(time, _)| *time);
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }

    /// A member of the group, not yet subscribed.
    pub(super) async fn consumer(
        &self,
        group: &str,
        listener: impl ConsumerRebalanceListener + 'static,
    ) -> krafka::Result<Consumer> {
        let limits = &self.settings.consumer;
        let reset = if limits.from_earliest { AutoOffsetReset::Earliest } else { AutoOffsetReset::Latest };
        let records = (self.settings.worker.max_in_flight / 2).min(MAX_POLL_RECORDS);
        let bytes = i32::try_from(limits.fetch_max_bytes).unwrap_or(i32::MAX);
        let kafka = connect(&self.settings).await?;
        kafka
            .consumer(group)
            .enable_auto_commit(false)
            .auto_offset_reset(reset)
            .session_timeout(limits.session_timeout)
            .heartbeat_interval((limits.session_timeout / 4).min(Duration::from_secs(3)))
            .max_poll_interval(limits.max_poll_interval.max(limits.session_timeout))
            .max_poll_records(records.max(1) as i32)
            .fetch_max_bytes(bytes)
            .max_partition_fetch_bytes(bytes)
            // Equal numbers of partitions of several topics go to the same worker, which joins need.
            .partition_assignment_strategy(PartitionAssignmentStrategy::Range)
            .rebalance_listener(listener)
            .build()
            .await
    }

    /// Joins the group of the consumer. It must know the topics before: with one that it does not know it joins without
    /// partitions, and does not notice the topic later. A broker knows a new topic a moment after it was created.
    pub(super) async fn subscribe(&self, consumer: &Consumer, topics: &[String]) -> Result<(), String> {
        for topic in topics {
            let deadline = Instant::now() + ADMIN_TIMEOUT;
            loop {
                let found = consumer.fetch_metadata(Some(topic)).await.map_err(|error| error.to_string())?;
                if found.topics.iter().any(|found| !found.partitions.is_empty()) {
                    break;
                }
                if Instant::now() >= deadline {
                    return Err(format!("topic {topic} does not exist"));
                }
                tokio::time::sleep(NEW_TOPIC_INTERVAL).await;
            }
        }
        consumer.subscribe(topics).await.map_err(|error| error.to_string())
    }

    pub async fn close(&self) {
        if let Err(error) = self.producer.close().await {
            tracing::warn!(%error, "the producer did not close cleanly");
        }
    }
}

async fn acknowledged(acknowledgements: Vec<DeliveryHandle>) -> Result<(), ProduceError> {
    for acknowledgement in acknowledgements {
        let _: RecordMetadata = acknowledgement.await?;
    }
    Ok(())
}

async fn connect(settings: &Settings) -> krafka::Result<Kafka> {
    Kafka::builder(&settings.bootstrap_servers)
        .client_id("gantry")
        .connect_timeout(CONNECT_TIMEOUT)
        .request_timeout(REQUEST_TIMEOUT)
        .allow_auto_create_topics(false)
        .security(security(&settings.security))
        .connect()
        .await
}

fn security(security: &Security) -> AuthConfig {
    let tls = security.tls.as_ref().map(|tls| {
        let mut config = TlsConfig::new();
        if let Some(ca) = &tls.ca {
            config = config.with_ca_cert(ca.to_string_lossy());
        }
        if let Some((certificate, key)) = &tls.identity {
            config = config.with_client_cert(certificate.to_string_lossy(), key.to_string_lossy());
        }
        config
    });
    let sasl = security.sasl.as_ref().map(|sasl| {
        let (user, password) = (sasl.username.as_str(), sasl.password.0.as_str());
        match sasl.mechanism {
            Mechanism::Plain => AuthConfig::sasl_plain(user, password),
            Mechanism::ScramSha256 => AuthConfig::sasl_scram_sha256(user, password),
            Mechanism::ScramSha512 => AuthConfig::sasl_scram_sha512(user, password),
        }
    });
    match (tls, sasl) {
        (None, None) => AuthConfig::plaintext(),
        (Some(tls), None) => AuthConfig::ssl(tls),
        (None, Some(sasl)) => sasl,
        (Some(tls), Some(sasl)) => sasl.with_tls(tls),
    }
}

pub(super) fn consumed(record: krafka::ConsumerRecord) -> Consumed {
    let headers = record.headers.into_iter();
    Consumed {
        headers: headers.map(|(name, value)| (name.into(), value.unwrap_or_default())).collect(),
        topic: record.topic,
        partition: record.partition,
        offset: record.offset,
        key: record.key,
        value: record.value.unwrap_or_default(),
    }
}
