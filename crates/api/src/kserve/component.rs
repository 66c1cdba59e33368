//! Fields that predictor, transformer and explainer share.

use crate::k8s_passthrough::{IntOrString, optional_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Scaling, traffic and metadata of a component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentSpec {
    /// Smallest number of replicas; 1 if unset. 0 scales to zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,
    /// Largest number of replicas; 0 or unset means `minReplicas`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_replicas: Option<i32>,
    /// Target value of `scaleMetric`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_target: Option<i32>,
    /// Metric that the autoscaler follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["cpu", "memory", "concurrency", "rps", null]))]
    pub scale_metric: Option<String>,
    /// Type of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Utilization", "Value", "AverageValue", null]))]
    pub scale_metric_type: Option<String>,
    /// Metrics and behaviour of the autoscaler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_scaling: Option<AutoScalingSpec>,
    /// Concurrent requests of a replica; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub container_concurrency: Option<i64>,
    /// Seconds until a request fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub timeout: Option<i64>,
    /// Share of the traffic for the latest revision; the previous one has the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub canary_traffic_percent: Option<i64>,
    /// Logs requests and responses as `CloudEvents`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logger: Option<LoggerSpec>,
    /// Collects requests into batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batcher: Option<BatcherSpec>,
    /// Labels of the component's objects and pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the component's objects and pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Update strategy of the Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub deployment_strategy: Option<Value>,
}

/// Metrics and behaviour of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoScalingSpec {
    /// Metrics, of which the one that asks for most replicas counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub metrics: Vec<MetricSpec>,
    /// Behaviour of the `HorizontalPodAutoscaler` (autoscaling/v2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub behavior: Option<Value>,
}

/// One metric of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricSpec {
    /// Which of the sources is set.
    #[schemars(extend("enum" = ["Resource", "External", "PodMetric"]))]
    pub r#type: String,
    /// CPU or memory of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub resource: Option<MetricSource>,
    /// A query of Prometheus or Graphite.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub external: Option<MetricSource>,
    /// A metric that the pods export.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-crd-fields" = []))]
    pub podmetric: Option<MetricSource>,
}

/// Where a metric comes from, and its target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricSource {
    /// cpu or memory, of a resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Backend, server address and query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub metric: Option<Value>,
    /// Credentials of the metric's server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub authentication_ref: Option<Value>,
    /// The value that the autoscaler keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<MetricTarget>,
}

/// Target of a metric. Quantities keep their text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricTarget {
    /// Which of the values is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Utilization", "Value", "AverageValue", null]))]
    pub r#type: Option<String>,
    /// Total value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<IntOrString>,
    /// Value of each pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_value: Option<IntOrString>,
    /// Percentage of the requested resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_utilization: Option<i32>,
}

/// Logger of requests and responses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoggerSpec {
    /// Where `CloudEvents` are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Which events are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["all", "request", "response", null]))]
    pub mode: Option<String>,
    /// Request headers that are added to events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metadata_headers: Vec<String>,
    /// Pod annotations that are added to events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metadata_annotations: Vec<String>,
    /// Storage for events instead of a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub storage: Option<Value>,
    /// Service that encodes events for the storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marshaller_url: Option<String>,
    /// Events in one write to the storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<i32>,
    /// Longest time between two writes to the storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_interval: Option<String>,
}

/// Batches of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatcherSpec {
    /// Instances in one batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<i32>,
    /// Milliseconds until an incomplete batch is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_latency: Option<i32>,
    /// Seconds until a batch fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i32>,
}
