//! Observed state of an Algorithm.

use crate::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observed state of an Algorithm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmStatus {
    /// Generation of the spec that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the rollout is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<AlgorithmPhase>,
    /// Available, Progressing, `CanaryHealthy`, Drifted, `RolledBack`, `MetricsAvailable` and Ready.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The revision that serves by default: 10 hexadecimal digits over the pod-affecting fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable_revision: Option<String>,
    /// The revision under analysis, or on its way back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary_revision: Option<String>,
    /// Percentage of the requests for the canary.
    #[serde(default)]
    pub canary_weight: i32,
    /// Percentage that the numbers of pods give, where no Gateway splits the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_weight: Option<f64>,
    /// Index of the current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i32>,
    /// Passed checks of this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks_passed: Option<i32>,
    /// Consecutive failed checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<i32>,
    /// Consecutive failed queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_errors: Option<i32>,
    /// The last evidence, and what it led to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_analysis: Option<AlgorithmAnalysis>,
    /// Revisions that are not rolled out again, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_revisions: Vec<FailedAlgorithmRevision>,
    /// Rollouts, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<RevisionRecord>,
    /// Pods of the stable revision.
    #[serde(default)]
    pub replicas: i32,
    /// Ready pods of the stable revision.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Time of the last change of this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_reconciled: Option<String>,
    /// Consecutive failed attempts to create or change an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<i32>,
    /// Time of the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<String>,
    /// The last value of the annotation `ai.alien6.io/retry` that was handled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handled_retry: Option<String>,
    /// Templates of revisions that objects may have to be rebuilt from. Internal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revisions: Vec<RevisionTemplate>,
    /// State of the rollout engine. Internal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
}

/// Where a rollout is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum AlgorithmPhase {
    #[default]
    Pending,
    Deploying,
    Canary,
    Promoting,
    Running,
    RollingBack,
    Degraded,
    Paused,
}

/// Evidence and its verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlgorithmAnalysis {
    /// Time of the queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Share of the requests to the analysed revision without a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<f64>,
    /// Latency of the analysed revision in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// Requests to the analysed revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<i64>,
    /// Share of the requests to the stable revision without a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_success_rate: Option<f64>,
    /// Pass, Fail, Inconclusive or Error.
    pub verdict: String,
    /// Why.
    pub message: String,
}

/// A revision that was rolled back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedAlgorithmRevision {
    /// Its digest.
    pub revision: String,
    /// Reason, such as `HigherFailureRatio`.
    pub reason: String,
    /// What was measured.
    pub message: String,
    /// Time of the rollback.
    pub time: String,
}

/// A finished rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionRecord {
    /// Digest of the revision.
    pub revision: String,
    /// Its image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Start of the rollout.
    pub from: String,
    /// End of the rollout.
    pub to: String,
    /// Deployed, Promoted, Cancelled, Reverted, or `RolledBack` with its reason.
    pub result: String,
}

/// The pod-affecting fields of a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionTemplate {
    /// Digest of the revision.
    pub revision: String,
    /// The fields as JSON.
    pub template: String,
}
