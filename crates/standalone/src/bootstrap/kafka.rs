//! Durable pipelines on Kafka: flags, and the start of the consumers.

use crate::error::CommandError;
use gantry_gateway::Gateway;
use prometheus_client::registry::Registry;
use std::path::PathBuf;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Whether this build has a Kafka client.
pub const HAS_CLIENT: bool = cfg!(feature = "kafka");

#[derive(Clone, Debug, Default, clap::Args)]
pub struct KafkaArgs {
    /// Consume pipelines from Kafka topics, with the settings of this kafka.json. Needs a build with the feature kafka.
    #[arg(long, visible_alias = "kafka", value_name = "FILE")]
    pub kafka_config_path: Option<PathBuf>,

    /// Consume pipelines from Kafka topics of this broker, with default settings.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "kafka_config_path")]
    pub kafka_broker: Option<String>,

    /// Namespace in the names of Kafka topics.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default", value_name = "NAME")]
    pub kafka_namespace: String,
}

impl KafkaArgs {
    const fn is_used(&self) -> bool {
        self.kafka_config_path.is_some() || self.kafka_broker.is_some()
    }

    /// Consumes pipelines until `shutdown`, if a flag asks for it; the task ends when offsets are committed.
    #[cfg(feature = "kafka")]
    pub fn start(
        &self,
        gateway: &Gateway,
        registry: &mut Registry,
        shutdown: &CancellationToken,
    ) -> Result<Option<JoinHandle<()>>, CommandError> {
        use gantry_gateway::kafka::Settings;
        if !self.is_used() {
            return Ok(None);
        }
        let environment = |name: &str| std::env::var(name).ok();
        let settings = match (&self.kafka_config_path, &self.kafka_broker) {
            (Some(path), _) => Settings::read(path, &self.kafka_namespace, &environment),
            (None, broker) => {
                let broker = broker.as_deref().unwrap_or_default();
                Settings::with_broker(broker, &self.kafka_namespace, &environment)
            }
        };
        let settings = settings.map_err(|error| CommandError::failed(error.to_string()))?;
        Ok(Some(gateway.consume_topics(settings, registry, shutdown.clone())))
    }

    /// Refuses the flags: this build has no client.
    #[cfg(not(feature = "kafka"))]
    pub fn start(
        &self,
        _: &Gateway,
        _: &mut Registry,
        _: &CancellationToken,
    ) -> Result<Option<JoinHandle<()>>, CommandError> {
        if self.is_used() {
            return Err(CommandError::failed(
                "this build has no Kafka client: build gantry with `--features kafka`, or remove --kafka-config-path and \
                 --kafka-broker",
            ));
        }
        Ok(None)
    }
}
