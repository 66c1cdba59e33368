//! The kind `Algorithm` (`ai.alien6.io/v1`): a container image that is rolled out in steps and watched afterwards.
//!
//! Fields without a value have a default, which the methods of the spec return.

mod duration;
mod rules;
mod status;

pub(crate) use rules::{ALGORITHM, algorithm_errors};
pub use status::{
    AlgorithmAnalysis, AlgorithmPhase, AlgorithmStatus, FailedAlgorithmRevision, RevisionRecord,
    RevisionTemplate,
};

use crate::{
    IntOrString, Quantity,
    k8s_passthrough::{objects_with_name, optional_object},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, fmt, time::Duration};

/// Group and version of `Algorithm`.
pub const ALGORITHM_V1: &str = "ai.alien6.io/v1";

const DEFAULT_GPU: &str = "nvidia.com/gpu";
const DEFAULT_PORT: u16 = 8080;
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
const DEFAULT_WINDOW: Duration = Duration::from_mins(1);

/// Desired state of an Algorithm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmSpec {
    /// Container image.
    #[schemars(length(max = 1024))]
    pub image: String,
    /// Pods of the stable revision without `scaling`; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Resources of each pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<AlgorithmResources>,
    /// Range of the autoscaler, and the latency that requests should have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<AlgorithmScaling>,
    /// How a new revision replaces the stable one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<AlgorithmLifecycle>,
    /// Ports of the container, the first of which receives requests; default `http` 8080.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub ports: Vec<AlgorithmPort>,
    /// Environment variables of the container, as in a `PodSpec`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "objects_with_name")]
    pub env: Vec<Value>,
    /// Files by name, in `/etc/algorithm` of the container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
    /// Readiness probe of the container, as in a `PodSpec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub probe: Option<Value>,
    /// The route from outside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose: Option<AlgorithmExpose>,
    /// Limits of a rolling update; default one more pod and none less up to 3 replicas, then 25 % of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// Where the evidence for a rollout comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<AlgorithmMetrics>,
    /// A measure of drift of the stable revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<AlgorithmDrift>,
    /// Holds the rollout at its current weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Resources of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmResources {
    /// Resource name of the GPUs; default `nvidia.com/gpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 316))]
    pub gpu: Option<String>,
    /// Number of GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1024))]
    pub gpu_count: Option<u32>,
    /// Requested processor time, such as 500m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Requested memory, which is also the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Range of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmScaling {
    /// Smallest number of pods; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,
    /// Largest number of pods; default `minReplicas`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_replicas: Option<i32>,
    /// Latency in milliseconds that 99 % of the requests should not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_latency_ms: Option<i64>,
}

/// How a new revision replaces the stable one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmLifecycle {
    /// Percentage of the traffic that a new revision receives under analysis; 0 (default) is a rolling update without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub canary_weight: Option<u32>,
    /// Smallest accepted share of requests without a 5xx answer; default 0.99.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_threshold: Option<f64>,
    /// Watch the stable revision after its promotion, and return to the previous one when it fails or drifts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_on_drift: Option<bool>,
    /// Increasing percentages of the traffic; default one step of `canaryWeight`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub steps: Vec<u32>,
    /// Time between two checks; default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub interval: Option<String>,
    /// Time that a query covers; default 1m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub window: Option<String>,
    /// Passed checks per step; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub checks: Option<u32>,
    /// Consecutive failed checks that roll a revision back; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub failure_threshold: Option<u32>,
    /// Requests per check below which it is inconclusive; default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_requests: Option<u32>,
    /// Factor on `targetLatencyMs`, at least 1; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_tolerance: Option<f64>,
    /// Seconds without progress until a revision is rolled back; default 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: Option<u32>,
    /// Seconds after a promotion in which failed checks return to the previous revision; default 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bake_seconds: Option<u32>,
    /// `Thresholds` (default) judges each check by itself, `Sequential` compares all requests of both revisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisMethod>,
}

/// How evidence is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum AnalysisMethod {
    #[default]
    Thresholds,
    Sequential,
}

/// A port of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmPort {
    /// Name of the port.
    #[schemars(length(max = 15))]
    pub name: String,
    /// Number of the port.
    #[schemars(range(min = 1, max = 65535))]
    pub container_port: u32,
}

/// The route from outside the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmExpose {
    /// The Gateway of the Gateway API to attach to, as NAMESPACE/NAME or NAME; without it the route is that of Gantry's own
    /// gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub gateway: Option<String>,
    /// Host names of the route; without any it takes those of the Gateway. Gantry's own gateway has
    /// NAME-NAMESPACE.DOMAIN and the path /serving/NAMESPACE/NAME besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub hostnames: Vec<String>,
}

/// Limits of a rolling update, as in a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Pods beyond the replicas, as a number or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Replicas that may be unavailable, as a number or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// Where the evidence for a rollout comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmMetrics {
    /// A Prometheus server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSource>,
    /// Queries instead of the default ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queries: Option<MetricQueries>,
}

/// A Prometheus server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusSource {
    /// Its URL, such as <http://prometheus.monitoring:9090>.
    #[schemars(length(max = 2048))]
    pub address: String,
}

/// `PromQL` with the placeholders `{{algorithm}}`, `{{namespace}}`, `{{track}}`, `{{revision}}` and `{{window}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricQueries {
    /// Share of the requests without a failure, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub success_rate: Option<String>,
    /// Number of requests in the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub requests: Option<String>,
    /// Latency in milliseconds, to compare with `targetLatencyMs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub latency: Option<String>,
    /// Score of drift.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub drift: Option<String>,
}

/// A measure of drift.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmDrift {
    /// Name of the metric; default `algorithm_drift_score`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub metric: Option<String>,
    /// Score from which a check counts as drifted; default 0.25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Consecutive drifted checks that are reported or rolled back; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub windows: Option<u32>,
}

/// The fields of a spec that its pods are built from; a change of one is a new revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    pub image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<(String, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    pub ports: Vec<AlgorithmPort>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Value>,
}

/// A source of evidence about revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvidenceSource {
    /// Prometheus at this URL.
    Prometheus(String),
    /// The statistics of Gantry's own gateway.
    Gateway,
}

impl fmt::Display for EvidenceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prometheus(address) => write!(f, "Prometheus at {address}"),
            Self::Gateway => f.write_str("the scheduler of the gateway"),
        }
    }
}

impl AlgorithmSpec {
    /// The pod-affecting fields with their defaults, so that a default that is written out is no new revision.
    pub fn pod_template(&self) -> PodTemplate {
        let resources = self.resources.clone().unwrap_or_default();
        let gpu_count = resources.gpu_count.filter(|count| *count > 0);
        let default_port =
            || vec![AlgorithmPort { name: "http".into(), container_port: DEFAULT_PORT.into() }];
        PodTemplate {
            image: self.image.clone(),
            gpu: gpu_count.map(|count| (resources.gpu.unwrap_or_else(|| DEFAULT_GPU.into()), count)),
            cpu: resources.cpu.map(|cpu| cpu.to_string()),
            memory: resources.memory.map(|memory| memory.to_string()),
            ports: if self.ports.is_empty() { default_port() } else { self.ports.clone() },
            env: self.env.clone(),
            config: self.config.clone(),
            probe: self.probe.clone(),
        }
    }

    /// Smallest and largest number of pods.
    pub fn range(&self) -> (u32, u32) {
        let number = |value: i32| u32::try_from(value).unwrap_or_default();
        match &self.scaling {
            Some(AlgorithmScaling { min_replicas, max_replicas, .. })
                if min_replicas.is_some() || max_replicas.is_some() =>
            {
                let min = number(min_replicas.unwrap_or(1));
                (min, max_replicas.map_or(min, number).max(min))
            }
            _ => (number(self.replicas.unwrap_or(1)), number(self.replicas.unwrap_or(1))),
        }
    }

    /// Whether an autoscaler sets the number of pods.
    pub fn is_autoscaled(&self) -> bool {
        let (min, max) = self.range();
        min < max
    }

    /// Pods of a new stable revision, before an autoscaler sets their number.
    pub fn initial_replicas(&self) -> u32 {
        let (min, max) = self.range();
        let wanted = u32::try_from(self.replicas.unwrap_or(1)).unwrap_or_default();
        if min < max { wanted.clamp(min.max(1), max) } else { min }
    }

    pub fn target_latency_ms(&self) -> Option<u64> {
        self.scaling.as_ref()?.target_latency_ms.and_then(|ms| u64::try_from(ms).ok())
    }

    /// Weights of the steps; none for a rolling update.
    pub fn steps(&self) -> Vec<u32> {
        match &self.lifecycle {
            Some(lifecycle) if !lifecycle.steps.is_empty() => lifecycle.steps.clone(),
            Some(lifecycle) => lifecycle.canary_weight.filter(|weight| *weight > 0).into_iter().collect(),
            None => Vec::new(),
        }
    }

    pub fn interval(&self) -> Duration {
        self.duration(|lifecycle| &lifecycle.interval, DEFAULT_INTERVAL)
    }

    /// The time that a query covers.
    pub fn window(&self) -> Duration {
        self.duration(|lifecycle| &lifecycle.window, DEFAULT_WINDOW)
    }

    fn duration(&self, of: fn(&AlgorithmLifecycle) -> &Option<String>, default: Duration) -> Duration {
        let text = self.lifecycle.as_ref().and_then(|lifecycle| of(lifecycle).as_deref());
        text.and_then(|text| duration::parse(text).ok()).unwrap_or(default)
    }

    /// The Gateway of the Gateway API with the route.
    pub fn gateway(&self) -> Option<&str> {
        self.expose.as_ref()?.gateway.as_deref()
    }

    /// Whether the route is that of Gantry's own gateway.
    pub fn has_own_route(&self) -> bool {
        self.expose.as_ref().is_some_and(|expose| expose.gateway.is_none())
    }

    /// Where evidence comes from: an address comes before the gateway's own statistics.
    pub fn evidence_source(&self) -> Option<EvidenceSource> {
        let prometheus = self.prometheus().map(|address| EvidenceSource::Prometheus(address.to_owned()));
        prometheus.or_else(|| self.has_own_route().then_some(EvidenceSource::Gateway))
    }

    /// The address of Prometheus.
    pub fn prometheus(&self) -> Option<&str> {
        Some(self.metrics.as_ref()?.prometheus.as_ref()?.address.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(json: Value) -> AlgorithmSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn written_default_is_the_same_template() {
        let short = spec(json!({ "image": "a:1", "resources": { "gpuCount": 2 } }));
        let long = spec(json!({
            "image": "a:1", "replicas": 7, "paused": true,
            "resources": { "gpu": "nvidia.com/gpu", "gpuCount": 2 },
            "ports": [{ "name": "http", "containerPort": 8080 }],
            "lifecycle": { "canaryWeight": 20 }, "scaling": { "maxReplicas": 4 },
        }));
        assert_eq!(short.pod_template(), long.pod_template());
        let none = spec(json!({ "image": "a:1", "resources": { "gpu": "nvidia.com/gpu" } }));
        assert_eq!(none.pod_template().gpu, None);
    }

    #[test]
    fn route_and_source_of_evidence_table() {
        let prometheus = json!({ "prometheus": { "address": "http://p:9090" } });
        let gateway = Some(EvidenceSource::Gateway);
        let from_prometheus = Some(EvidenceSource::Prometheus("http://p:9090".into()));
        for (fields, own_route, source) in [
            (json!({}), false, None),
            (json!({ "expose": {} }), true, gateway.clone()),
            (json!({ "expose": { "hostnames": ["a.example.com"] } }), true, gateway),
            (json!({ "expose": {}, "metrics": prometheus }), true, from_prometheus.clone()),
            (json!({ "expose": { "gateway": "infra/public" } }), false, None),
            (json!({ "expose": { "gateway": "public" }, "metrics": prometheus }), false, from_prometheus),
        ] {
            let mut fields = fields;
            fields["image"] = json!("a:1");
            let spec = spec(fields.clone());
            assert_eq!((spec.has_own_route(), spec.evidence_source()), (own_route, source), "{fields}");
        }
    }

    #[test]
    fn range_table() {
        for (fields, range, initial) in [
            (json!({}), (1, 1), 1),
            (json!({ "replicas": 0 }), (0, 0), 0),
            (json!({ "replicas": 3 }), (3, 3), 3),
            (
                json!({ "replicas": 3, "scaling": { "minReplicas": 1, "maxReplicas": 10, "targetLatencyMs": 50 } }),
                (1, 10),
                3,
            ),
            (json!({ "replicas": 30, "scaling": { "maxReplicas": 10 } }), (1, 10), 10),
            (json!({ "replicas": 0, "scaling": { "minReplicas": 0, "maxReplicas": 2 } }), (0, 2), 1),
            (json!({ "replicas": 9, "scaling": { "minReplicas": 2, "maxReplicas": 2 } }), (2, 2), 2),
            // A latency alone is no range.
            (json!({ "replicas": 4, "scaling": { "targetLatencyMs": 50 } }), (4, 4), 4),
        ] {
            let mut fields = fields;
            fields["image"] = json!("a:1");
            let spec = spec(fields.clone());
            assert_eq!((spec.range(), spec.initial_replicas()), (range, initial), "{fields}");
        }
    }

    #[test]
    fn steps_table() {
        for (lifecycle, expected) in [
            (json!({}), vec![]),
            (json!({ "canaryWeight": 0 }), vec![]),
            (json!({ "canaryWeight": 20 }), vec![20]),
            (json!({ "canaryWeight": 20, "steps": [5, 50] }), vec![5, 50]),
        ] {
            let spec = spec(json!({ "image": "a:1", "lifecycle": lifecycle }));
            assert_eq!(spec.steps(), expected, "{lifecycle}");
        }
        let quick = spec(json!({ "image": "a:1", "lifecycle": { "interval": "1m30s", "window": "soon" } }));
        assert_eq!((quick.interval(), quick.window()), (Duration::from_secs(90), Duration::from_mins(1)));
    }
}
