//! The kind `SeldonConfig`: which components a runtime has, how their pods look, and their settings.

use crate::embedded::{IntOrString, VolumeClaimTemplate, any_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What every `SeldonRuntime` that names this configuration starts from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeldonConfigSpec {
    /// The components of a runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub components: Vec<ComponentSpec>,
    /// Settings that the components read.
    #[serde(default)]
    pub config: SeldonConfiguration,
}

/// One component, such as `seldon-scheduler`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentSpec {
    /// The component's name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Labels for its pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations for its pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Accepted for compatibility; a runtime's override says how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The `PodSpec` of a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub pod_spec: Option<serde_json::Value>,
    /// Volumes that each replica gets for itself; a component with some becomes a `StatefulSet`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
}

/// Settings that the components read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeldonConfiguration {
    /// Where spans go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing_config: Option<TracingConfig>,
    /// How Kafka is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka_config: Option<KafkaConfig>,
    /// How agents fetch models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_config: Option<AgentConfig>,
    /// How Services are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_config: Option<ServiceConfig>,
    /// What scales by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling_config: Option<ScalingConfig>,
}

/// Where spans go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracingConfig {
    /// Send none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable: Option<bool>,
    /// The collector's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otel_exporter_endpoint: Option<String>,
    /// How it is spoken to, such as `grpc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otel_exporter_protocol: Option<String>,
    /// Share of requests that are traced, such as `"0.5"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<String>,
}

/// How Kafka is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaConfig {
    /// Brokers to begin with.
    #[serde(rename = "bootstrap.servers", skip_serializing_if = "Option::is_none")]
    pub bootstrap_servers: Option<String>,
    /// Goes before the names of consumer groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_group_id_prefix: Option<String>,
    /// What the client logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug: Option<String>,
    /// Goes before the names of topics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_prefix: Option<String>,
    /// Settings of consumers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub consumer: BTreeMap<String, IntOrString>,
    /// Settings of producers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub producer: BTreeMap<String, IntOrString>,
    /// Settings of streams.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub streams: BTreeMap<String, IntOrString>,
    /// Settings of topics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topics: BTreeMap<String, IntOrString>,
}

/// How agents fetch models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// The download program's remotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rclone: Option<RcloneConfig>,
}

/// The download program's remotes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RcloneConfig {
    /// Secrets that hold a remote each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_secrets: Vec<String>,
    /// Remotes, written out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<String>,
}

/// How Services are made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceConfig {
    /// Goes before the names of ports that speak gRPC, for service meshes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_service_prefix: Option<String>,
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
}

/// What scales by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingConfig {
    /// Models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<ModelScalingConfig>,
    /// Servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerScalingConfig>,
    /// Pipelines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipelines: Option<PipelineScalingConfig>,
}

/// Whether models scale by themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelScalingConfig {
    /// They do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Whether servers scale by themselves, and how they shrink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerScalingConfig {
    /// They do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Models may be moved to free a replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_down_packing_enabled: Option<bool>,
    /// How often that is tried, of a hundred chances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_down_packing_percentage: Option<i32>,
}

/// Over how many replicas a pipeline is spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineScalingConfig {
    /// Replicas of a component that one pipeline may use.
    #[serde(default = "one")]
    pub max_shard_count_multiplier: i32,
}

impl Default for PipelineScalingConfig {
    fn default() -> Self {
        Self { max_shard_count_multiplier: one() }
    }
}

const fn one() -> i32 {
    1
}
