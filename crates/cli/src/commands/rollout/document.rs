//! Rollouts as JSON.

use super::text::time;
use crate::client::RolledOut;
use gantry_proto::gantry::{RevisionStatus, RolloutStatus};
use serde_json::{Value, json};

pub(super) fn rollout(rollout: &RolloutStatus) -> Value {
    let failed = |failed: &gantry_proto::gantry::FailedRevision| {
        json!({
            "revision": failed.revision, "reason": failed.reason, "message": failed.message, "at": time(failed.at_ms),
        })
    };
    let object = RolledOut::of(rollout);
    json!({
        "kind": object.kind(),
        "name": object.name(),
        "policy": rollout.policy,
        "phase": rollout.phase,
        "message": rollout.message,
        "stable": rollout.stable.as_ref().map(revision),
        "candidate": rollout.candidate.as_ref().map(revision),
        "stage": rollout.stage,
        "stages": rollout.stages,
        "mirrorPercent": rollout.mirror_percent,
        "pause": if rollout.pause.is_empty() { Value::Null } else { rollout.pause.clone().into() },
        "stageMs": rollout.stage_ms,
        "holdMs": rollout.hold_ms,
        "watch": rollout.watch,
        "failed": rollout.failed.iter().map(failed).collect::<Value>(),
        "history": history(rollout),
    })
}

fn revision(revision: &RevisionStatus) -> Value {
    json!({
        "revision": revision.revision,
        "version": revision.version,
        "weight": revision.weight,
        "ready": revision.ready,
        "requests": revision.requests,
        "failures": revision.failures,
        "p99Ms": revision.p99_micros as f64 / 1000.0,
    })
}

/// Oldest first.
pub(super) fn history(rollout: &RolloutStatus) -> Value {
    let entry = |entry: &gantry_proto::gantry::RolloutHistory| {
        json!({
            "revision": entry.revision,
            "started": time(entry.started_ms),
            "ended": time(entry.ended_ms),
            "outcome": entry.outcome,
            "reason": entry.reason,
        })
    };
    rollout.history.iter().map(entry).collect()
}
