//! Observed state of a RolloutPolicy.

use crate::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observed state of a RolloutPolicy.
///
/// Zero counts and empty conditions are serialized: `kubectl wait` fails on an object without conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPolicyStatus {
    /// Generation of the spec that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`: valid, with targets of its own. `Ready`: in effect in the scheduler.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Objects that the policy applies to.
    #[serde(default)]
    pub targets: i32,
    /// Of these, with a version that is rolled out or rolled back now.
    #[serde(default)]
    pub progressing: i32,
    /// Of these, at an older version because the latest one was rolled back.
    #[serde(default)]
    pub rolled_back: i32,
    /// Rollouts of the targets, at most 100: those under way first, then those that were rolled back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rollouts: Vec<TargetRollout>,
}

/// The rollout of one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetRollout {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// `Deploying`, `Running`, `Progressing`, `RollingBack` or `Reverting`.
    pub phase: String,
    /// What the rollout waits for, or what is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Current step, 1 for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i32>,
    /// Number of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<i32>,
    /// `Command` or `Approval`, if the rollout is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// The version that was promoted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable: Option<RolloutVersion>,
    /// The version that is rolled out, rolled back or returned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<RolloutVersion>,
    /// The last rollout that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<RolloutResult>,
}

/// A version and its share of the requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutVersion {
    /// Number of the version; 0 if it is not loaded any more.
    pub version: i32,
    /// Percentage of the requests.
    pub weight: i32,
}

/// How a rollout ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutResult {
    /// `Promoted`, `RolledBack`, `Cancelled` or `Reverted`.
    pub outcome: String,
    /// Machine-readable reason of `RolledBack`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable message of `RolledBack`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ended (RFC 3339).
    pub time: String,
}
