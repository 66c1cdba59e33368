//! The kind RolloutPolicy: how new versions replace old ones.

mod convert;
mod notifications;
mod rules;
mod status;

#[cfg(test)]
mod tests;

use crate::{Metadata, SpecDuration};
pub use convert::policy_of_json;
use gantry_proto::gantry as pb;
pub use notifications::{NotificationsSpec, RolloutEvent, WebhookSpec, webhooks_of_json};
pub(crate) use rules::{ROLLOUT_POLICY, rollout_policy_errors};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
pub use status::{RolloutPolicyStatus, RolloutResult, RolloutVersion, TargetRollout};
use std::{borrow::Cow, collections::BTreeMap};

/// Group and version of Gantry's own kinds.
pub const GANTRY_V1ALPHA1: &str = "gantry.dev/v1alpha1";

/// A rollout policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPolicy {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: RolloutPolicySpec,
    /// Accepted so that the output of `kubectl get -o yaml` can be applied; ignored.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
    /// Names of the Models that the target or selector stands for, also those of InferenceServices; set by
    /// `resolve_policies`.
    #[serde(skip)]
    pub models: Vec<String>,
    /// Names of the Pipelines, likewise.
    #[serde(skip)]
    pub pipelines: Vec<String>,
}

impl RolloutPolicy {
    pub fn named(name: impl Into<String>, spec: RolloutPolicySpec) -> Self {
        Self {
            api_version: GANTRY_V1ALPHA1.into(),
            kind: "RolloutPolicy".into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec,
            status: None,
            models: Vec::new(),
            pipelines: Vec::new(),
        }
    }

    /// The policy in the scheduler's gRPC API.
    pub fn to_proto(&self) -> pb::RolloutPolicy {
        pb::RolloutPolicy {
            name: self.metadata.name.clone(),
            models: self.models.clone(),
            pipelines: self.pipelines.clone(),
            spec: serde_json::to_vec(&self.spec).unwrap_or_default(),
            ..pb::RolloutPolicy::default()
        }
    }

    /// The manifest of a policy reported by the scheduler; `None` for a spec of another version.
    pub fn from_proto(policy: &pb::RolloutPolicy) -> Option<Self> {
        let spec = serde_json::from_slice(&policy.spec).ok()?;
        let (models, pipelines) = (policy.models.clone(), policy.pipelines.clone());
        Some(Self { models, pipelines, ..Self::named(&policy.name, spec) })
    }
}

/// Desired state of a RolloutPolicy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPolicySpec {
    /// The object whose versions are rolled out; mutually exclusive with selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// The objects whose versions are rolled out, by label; mutually exclusive with targetRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<TargetSelector>,
    /// How traffic moves to a new version: canary, blueGreen or mirrorFirst.
    pub strategy: StrategySpec,
    /// How a new version is judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisSpec>,
    /// Longest time without progress, beyond the hold of a step, before the version is rolled back; default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline: Option<SpecDuration>,
    /// How long the previous version stays loaded after a promotion, ready to return; default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bake: Option<SpecDuration>,
    /// Watches the outputs of the promoted version after the bake; off unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftSpec>,
    /// Time after a rollback in which drift does not cause another one; default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cool_down: Option<SpecDuration>,
    /// Where decisions are reported, beside events and metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notifications: Option<NotificationsSpec>,
}

/// Kinds that a policy may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetKind {
    Model,
    Pipeline,
    InferenceService,
    Algorithm,
}

impl TargetKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Pipeline => "Pipeline",
            Self::InferenceService => "InferenceService",
            Self::Algorithm => "Algorithm",
        }
    }
}

// Not derived: documented variants become `oneOf` constants, which a structural schema forbids.
impl JsonSchema for TargetKind {
    fn schema_name() -> Cow<'static, str> {
        "TargetKind".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["Model", "Pipeline", "InferenceService", "Algorithm"] })
    }
}

/// An object by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// Kind of the object: Model, Pipeline or InferenceService.
    pub kind: TargetKind,
    /// Name of the object.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// Objects by label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetSelector {
    /// Kind of the objects: Model, Pipeline or InferenceService.
    pub kind: TargetKind,
    /// Labels that the objects have, with these values.
    pub match_labels: BTreeMap<String, String>,
}

impl TargetSelector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    }
}

/// Exactly one of the strategies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StrategySpec {
    /// Increasing shares of the traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
    /// All traffic at once; the old version is kept until the analysis passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blue_green: Option<BlueGreenSpec>,
    /// Copies of requests first, whose answers do not reach clients; then the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror_first: Option<MirrorFirstSpec>,
}

/// Increasing shares of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanarySpec {
    /// Shares of the traffic in order; 1 to 20.
    #[schemars(length(max = 20))]
    pub steps: Vec<StepSpec>,
}

/// A share of the traffic, and the conditions for the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepSpec {
    /// Percentage of the requests for the new version, 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub weight: i32,
    /// Shortest time at this weight; default 0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<SpecDuration>,
    /// Whether `gantry rollout promote` is needed to continue; default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approval: bool,
}

/// All traffic at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlueGreenSpec {
    /// Shortest time before promotion; default 0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<SpecDuration>,
    /// Whether `gantry rollout promote` is needed; default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approval: bool,
}

/// Copies of requests, then increasing shares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorFirstSpec {
    /// Percentage of the requests that are copied, 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub percent: i32,
    /// Shortest time of mirroring; default 0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<SpecDuration>,
    /// Shares of the traffic that follow; 1 to 20.
    #[schemars(length(max = 20))]
    pub steps: Vec<StepSpec>,
    /// Compares the answers to copies with those of the old version; off unless set. Needs the sequential tests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<CompareSpec>,
}

/// Compares answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompareSpec {
    /// Relative difference up to which numbers are equal, 0 to 1; default 0.001.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tolerance: Option<f64>,
    /// Up to this share of different answers the versions count as equal, 0 to 1; default 0.01.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tolerated: Option<f64>,
    /// A version with this share of different answers is not promoted, 0 to 1; default 0.05.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub rejected: Option<f64>,
}

/// How a version is judged: objectives of its own, and a comparison with the old version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisSpec {
    /// Share of requests that have to succeed, 0 to 1; default 0.99.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub success_rate: Option<f64>,
    /// Latency objective; none unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencySpec>,
    /// Requests to the new version per step, or per check, below which there is no verdict; default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub min_requests: Option<i64>,
    /// Length of a threshold check and of a drift window; default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<SpecDuration>,
    /// Consecutive failures of the source of evidence that are reported as an error; default 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub error_limit: Option<i32>,
    /// Sequential tests against the old version; the default. Mutually exclusive with thresholds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential: Option<SequentialSpec>,
    /// Fixed thresholds per interval; mutually exclusive with sequential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<ThresholdsSpec>,
}

/// A latency objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LatencySpec {
    /// Latency that the quantile must not exceed.
    pub target: SpecDuration,
    /// Quantile of the requests, 0 to 1; default 0.99.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub quantile: Option<f64>,
    /// Factor on the target, at least 1; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub tolerance: Option<f64>,
}

/// Sequential tests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SequentialSpec {
    /// Bound on the probability that an equal version is rolled back; default 0.001.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 0.5))]
    pub false_rollback: Option<f64>,
    /// Bound on the probability that a worse version is promoted; default 0.001.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 0.5))]
    pub false_promotion: Option<f64>,
    /// Differences of the failure ratio; default 0.005 tolerated, 0.02 rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<MarginsSpec>,
    /// Differences of the share of slow requests; default 0.025 tolerated, 0.05 rejected, at quantile 0.95.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyMarginsSpec>,
}

/// Differences between the new and the old version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MarginsSpec {
    /// Up to this difference the versions count as equal, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tolerated: Option<f64>,
    /// A version with this difference is not promoted, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub rejected: Option<f64>,
}

/// Differences of the share of requests that are slower than a quantile of the old version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LatencyMarginsSpec {
    /// Quantile of the old version beyond which a request is slow, 0 to 1; default 0.95.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub quantile: Option<f64>,
    /// Up to this difference the versions count as equal, 0 to 1; default 0.025.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tolerated: Option<f64>,
    /// A version with this difference is not promoted, 0 to 1; default 0.05.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub rejected: Option<f64>,
}

/// Fixed thresholds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThresholdsSpec {
    /// Passed checks per step; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub checks: Option<i32>,
    /// Consecutive failed checks that roll back; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub failure_threshold: Option<i32>,
    /// A failure ratio above this multiple of the error budget rolls back without further checks; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 1000.0))]
    pub hard_breach: Option<f64>,
}

/// A measure of the difference between two distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum DriftMeasureSpec {
    Psi,
    Ks,
}

impl JsonSchema for DriftMeasureSpec {
    fn schema_name() -> Cow<'static, str> {
        "DriftMeasure".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["PSI", "KS"] })
    }
}

/// Watches a promoted version after the bake.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriftSpec {
    /// Name of the output tensor whose values are compared with those of the bake; none unless set. Of a Pipeline, one of its
    /// outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub output: Option<String>,
    /// Name of the input tensor whose values are compared; mutually exclusive with output.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub input: Option<String>,
    /// PSI (population stability index) or KS (Kolmogorov-Smirnov); default PSI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure: Option<DriftMeasureSpec>,
    /// Value of the measure above which a window drifted; default 0.25.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub threshold: Option<f64>,
    /// Consecutive windows above the threshold; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub windows: Option<i32>,
    /// Values per window below which it is not compared; default 500.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub min_outputs: Option<i64>,
    /// Whether a window that misses the objectives counts, too; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objectives: Option<bool>,
    /// Return to the previous version, or only report; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<bool>,
}
