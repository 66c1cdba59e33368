//! The kind `SeldonConfig`: components of a runtime, their pod templates and settings.

use crate::k8s_passthrough::{IntOrString, VolumeClaimTemplate, optional_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Template for the `SeldonRuntimes` that reference this configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeldonConfigSpec {
    /// Components of a runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub components: Vec<ComponentSpec>,
    /// Settings of the components.
    #[serde(default)]
    pub config: SeldonConfiguration,
}

/// A component, such as `seldon-scheduler`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentSpec {
    /// Component name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Labels of its pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of its pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Accepted for compatibility; not used. Set replicas in the overrides of a `SeldonRuntime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// `PodSpec` of a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub pod_spec: Option<serde_json::Value>,
    /// Volumes claimed by each replica; a component with volumes runs as a `StatefulSet`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
}

/// Settings of the components.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeldonConfiguration {
    /// OpenTelemetry tracing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing_config: Option<TracingConfig>,
    /// Kafka connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka_config: Option<KafkaConfig>,
    /// Model download settings of agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_config: Option<AgentConfig>,
    /// Service settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_config: Option<ServiceConfig>,
    /// Autoscaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling_config: Option<ScalingConfig>,
}

/// OpenTelemetry tracing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracingConfig {
    /// Disable tracing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable: Option<bool>,
    /// Address of the collector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otel_exporter_endpoint: Option<String>,
    /// Export protocol, such as `grpc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otel_exporter_protocol: Option<String>,
    /// Sampling ratio, such as `"0.5"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<String>,
}

/// Kafka connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaConfig {
    /// Bootstrap brokers.
    #[serde(rename = "bootstrap.servers", skip_serializing_if = "Option::is_none")]
    pub bootstrap_servers: Option<String>,
    /// Prefix of consumer group IDs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_group_id_prefix: Option<String>,
    /// Debug contexts of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug: Option<String>,
    /// Prefix of topic names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_prefix: Option<String>,
    /// Consumer settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub consumer: BTreeMap<String, IntOrString>,
    /// Producer settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub producer: BTreeMap<String, IntOrString>,
    /// Kafka Streams settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub streams: BTreeMap<String, IntOrString>,
    /// Topic settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topics: BTreeMap<String, IntOrString>,
    /// Limits of the gateway for each pipeline; Seldon has no such section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<KafkaWorkerConfig>,
}

/// Limits of the gateway for each pipeline on Kafka.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaWorkerConfig {
    /// Records that run or wait for their key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<i32>,
    /// The same in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight_bytes: Option<i64>,
    /// How long a record is retried after failures that may pass, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub retry_timeout_ms: Option<i64>,
    /// How long a rebalance and a shutdown wait for records in flight, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub drain_timeout_ms: Option<i64>,
    /// Time between commits, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub commit_interval_ms: Option<i64>,
    /// Whether the data of steps is written to the topics of their models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_topics: Option<bool>,
}

/// Model download settings of agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// rclone remotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rclone: Option<RcloneConfig>,
}

/// rclone remotes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RcloneConfig {
    /// Secrets with one remote each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_secrets: Vec<String>,
    /// Inline remotes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<String>,
}

/// Service settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceConfig {
    /// Prefix of gRPC port names, for service meshes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_service_prefix: Option<String>,
    /// Service type: `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
}

/// Autoscaling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingConfig {
    /// Model autoscaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<ModelScalingConfig>,
    /// Server autoscaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerScalingConfig>,
    /// Pipeline scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipelines: Option<PipelineScalingConfig>,
}

/// Model autoscaling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelScalingConfig {
    /// Enable autoscaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Server autoscaling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerScalingConfig {
    /// Enable autoscaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Move models between replicas so that one can be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_down_packing_enabled: Option<bool>,
    /// Percentage of scale-down attempts that pack models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_down_packing_percentage: Option<i32>,
}

/// Pipeline scaling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineScalingConfig {
    /// Maximum replicas of a component used by one pipeline; 1 if neither the configuration nor the runtime sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_shard_count_multiplier: Option<i32>,
}
