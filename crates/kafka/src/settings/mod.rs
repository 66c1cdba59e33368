//! `kafka.json`, as Seldon's `kafkaConfig`, and the environment for TLS and SASL.

mod properties;
mod security;

pub use security::{Mechanism, Sasl, Secret, Security, Tls};

use crate::topics::{InvalidName, Topics};
use properties::Properties;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read {}: {error}", .path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("kafka.json is invalid: {0}")]
    Json(#[from] serde_json::Error),
    #[error("kafka.json has no bootstrap.servers: add it as \"host:port\", or several with commas")]
    NoBroker,
    #[error("{key} is {value:?}: {expected}")]
    Value { key: String, value: String, expected: &'static str },
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("{0}")]
    Security(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub bootstrap_servers: String,
    pub group_prefix: String,
    pub topics: Topics,
    pub partitions: i32,
    pub replication: i16,
    pub consumer: ConsumerSettings,
    pub producer: ProducerSettings,
    pub worker: WorkerSettings,
    pub security: Security,
    /// Settings that have no effect, each with the reason.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerSettings {
    pub session_timeout: Duration,
    pub max_poll_interval: Duration,
    /// Where a new group starts: at the first record, or after the last.
    pub from_earliest: bool,
    pub fetch_max_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerSettings {
    pub linger: Duration,
    pub max_bytes: u32,
    /// `none`, `gzip`, `snappy` or `lz4`.
    pub compression: String,
    pub delivery_timeout: Duration,
}

/// Limits of a pipeline's worker: the section `worker`, which Seldon does not have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WorkerSettings {
    /// Records of a pipeline that run or wait for their key; at this number its partitions are paused.
    pub max_in_flight: usize,
    /// The same in bytes.
    pub max_in_flight_bytes: usize,
    /// How long a record is retried after failures that may pass; then it goes to the errors topic.
    pub retry_timeout_ms: u64,
    /// How long a rebalance and a shutdown wait for records in flight.
    pub drain_timeout_ms: u64,
    /// Between commits.
    pub commit_interval_ms: u64,
    /// Whether inputs and outputs of each step are written to the topics of its model.
    pub step_topics: bool,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 512,
            max_in_flight_bytes: 64 << 20,
            retry_timeout_ms: 600_000,
            drain_timeout_ms: 20_000,
            commit_interval_ms: 100,
            step_topics: true,
        }
    }
}

impl WorkerSettings {
    pub const fn retry_timeout(&self) -> Duration {
        Duration::from_millis(self.retry_timeout_ms)
    }

    pub const fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.drain_timeout_ms)
    }

    pub const fn commit_interval(&self) -> Duration {
        Duration::from_millis(if self.commit_interval_ms == 0 { 1 } else { self.commit_interval_ms })
    }
}

/// A number or a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum IntOrString {
    Int(i64),
    Bool(bool),
    Text(String),
}

impl From<IntOrString> for String {
    fn from(value: IntOrString) -> Self {
        match value {
            IntOrString::Int(value) => value.to_string(),
            IntOrString::Bool(value) => value.to_string(),
            IntOrString::Text(value) => value,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct File {
    #[serde(rename = "bootstrap.servers")]
    bootstrap_servers: String,
    consumer_group_id_prefix: String,
    topic_prefix: String,
    debug: String,
    consumer: BTreeMap<String, IntOrString>,
    producer: BTreeMap<String, IntOrString>,
    streams: BTreeMap<String, IntOrString>,
    topics: BTreeMap<String, IntOrString>,
    worker: WorkerSettings,
}

/// Of one fetch.
const FETCH_MAX_BYTES: u32 = 4 << 20;

/// Reads an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    /// Reads `kafka.json`; an empty namespace is `default`.
    pub fn read(path: &Path, namespace: &str, environment: Environment<'_>) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Read { path: path.to_owned(), error })?;
        Self::parse(&text, namespace, environment)
    }

    /// The defaults with a broker: `host:port`.
    pub fn with_broker(
        broker: &str,
        namespace: &str,
        environment: Environment<'_>,
    ) -> Result<Self, SettingsError> {
        let file = File { bootstrap_servers: broker.to_owned(), ..File::default() };
        Self::resolve(file, namespace, environment)
    }

    pub fn parse(text: &str, namespace: &str, environment: Environment<'_>) -> Result<Self, SettingsError> {
        Self::resolve(serde_json::from_str(text)?, namespace, environment)
    }

    fn resolve(file: File, namespace: &str, environment: Environment<'_>) -> Result<Self, SettingsError> {
        let mut warnings = Vec::new();
        if !file.debug.is_empty() {
            warnings.push("debug has no effect: set the log level instead".to_owned());
        }
        let mut consumer = Properties::new("consumer", file.consumer);
        let mut producer = Properties::new("producer", file.producer);
        let mut streams = Properties::new("streams", file.streams);
        let mut topics = Properties::new("topics", file.topics);
        let own = consumer.text("bootstrap.servers")?;
        let bootstrap_servers =
            if file.bootstrap_servers.is_empty() { own.unwrap_or_default() } else { file.bootstrap_servers };
        if bootstrap_servers.trim().is_empty() {
            return Err(SettingsError::NoBroker);
        }
        let is_address = |server: &str| {
            let parts = server.trim().rsplit_once(':');
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if let Some(value) = bootstrap_servers.split(',').find(|server| !is_address(server)) {
            let (key, value) = ("bootstrap.servers".to_owned(), value.to_owned());
            return Err(SettingsError::Value {
                key,
                value,
                expected: "use host:port, or several with commas",
            });
        }
        let settings = Self {
            bootstrap_servers,
            group_prefix: file.consumer_group_id_prefix,
            topics: Topics::new(&file.topic_prefix, namespace)?,
            partitions: topics.number("numPartitions", 1..=10_000)?.unwrap_or(1) as i32,
            replication: topics.number("replicationFactor", 1..=100)?.unwrap_or(1) as i16,
            consumer: ConsumerSettings {
                session_timeout: consumer
                    .millis("session.timeout.ms", 100)?
                    .unwrap_or(Duration::from_secs(6)),
                max_poll_interval: consumer
                    .millis("max.poll.interval.ms", 1000)?
                    .unwrap_or(Duration::from_mins(5)),
                from_earliest: consumer.choice("auto.offset.reset", &["earliest", "latest"])?.as_deref()
                    != Some("latest"),
                fetch_max_bytes: consumer
                    .number("fetch.max.bytes", 1024..=1_000_000_000)?
                    .map_or(FETCH_MAX_BYTES, |bytes| bytes as u32),
            },
            producer: ProducerSettings {
                linger: producer.millis("linger.ms", 0)?.unwrap_or(Duration::ZERO),
                max_bytes: producer
                    .number("message.max.bytes", 1024..=1_000_000_000)?
                    .map_or(1_000_000_000, |bytes| bytes as u32),
                compression: producer
                    .choice("compression.type", &["none", "gzip", "snappy", "lz4"])?
                    .unwrap_or_else(|| "none".to_owned()),
                delivery_timeout: producer
                    .millis("delivery.timeout.ms", 1000)?
                    .unwrap_or(Duration::from_mins(2)),
            },
            worker: file.worker,
            security: Security::from_environment(environment)?,
            warnings: Vec::new(),
        };
        // Written by Seldon's charts; the values are those of Gantry anyway, or have no meaning here.
        consumer.ignore(&["message.max.bytes", "topic.metadata.propagation.max.ms", "enable.auto.commit"]);
        producer.ignore(&[
            "bootstrap.servers",
            "acks",
            "enable.idempotence",
            "topic.metadata.propagation.max.ms",
        ]);
        streams.ignore(&["bootstrap.servers", "replication.factor", "num.stream.threads"]);
        for properties in [consumer, producer, streams, topics] {
            warnings.extend(properties.unused());
        }
        if settings.worker.max_in_flight == 0 || settings.worker.max_in_flight_bytes == 0 {
            let key = "worker.maxInFlight".to_owned();
            return Err(SettingsError::Value {
                key,
                value: "0".to_owned(),
                expected: "at least 1 is needed",
            });
        }
        Ok(Self { warnings, ..settings })
    }

    pub fn group(&self, pipeline: &str) -> String {
        self.topics.group(&self.group_prefix, pipeline)
    }
}

#[cfg(test)]
mod tests;
