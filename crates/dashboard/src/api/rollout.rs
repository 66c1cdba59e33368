//! Rollouts: weights, stage and evidence.

use super::{ApiError, list::prepare, reply};
use crate::{Dashboard, rows::RolloutRow};
use axum::{extract::State, response::Response};
use gantry_proto::gantry::{RevisionStatus, RolloutPolicy};
use serde_json::{Value, json};
use std::sync::Arc;

/// Rollouts in one response.
const MAX_ROLLOUTS: usize = 200;

pub(crate) async fn list(State(dashboard): State<Arc<Dashboard>>) -> Result<Response, ApiError> {
    prepare(&dashboard).await;
    let policies = dashboard.scheduler.policies().await?;
    let inventory = dashboard.follower.inventory();
    let rows: Vec<Value> = inventory.rollouts.values().take(MAX_ROLLOUTS).map(document).collect();
    let policies: Vec<Value> = policies.iter().take(MAX_ROLLOUTS).map(policy).collect();
    let page = json!({
        "link": inventory.link,
        "notices": inventory.notices,
        "total": inventory.rollouts.len(),
        "rows": rows,
        "policies": policies,
    });
    Ok(reply(&page))
}

fn policy(policy: &RolloutPolicy) -> Value {
    json!({
        "name": policy.name,
        "models": policy.models,
        "pipelines": policy.pipelines,
        "owner": policy.manager,
        "spec": serde_json::from_slice::<Value>(&policy.spec).ok(),
    })
}

pub(crate) fn document(row: &RolloutRow) -> Value {
    let status = &row.status;
    let history: Vec<Value> = status
        .history
        .iter()
        .rev()
        .map(|entry| {
            json!({
                "revision": entry.revision,
                "startedMs": entry.started_ms,
                "endedMs": entry.ended_ms,
                "outcome": entry.outcome,
                "reason": entry.reason,
            })
        })
        .collect();
    let failed: Vec<Value> = status
        .failed
        .iter()
        .rev()
        .map(|failed| {
            json!({
                "revision": failed.revision,
                "reason": failed.reason,
                "message": failed.message,
                "atMs": failed.at_ms,
            })
        })
        .collect();
    json!({
        "name": row.name,
        "policy": status.policy,
        "phase": status.phase,
        "message": status.message,
        "stable": status.stable.as_ref().map(revision),
        "candidate": status.candidate.as_ref().map(revision),
        "stage": status.stage,
        "stages": status.stages,
        "mirrorPercent": status.mirror_percent,
        "pause": status.pause,
        "stageMs": status.stage_ms,
        "holdMs": status.hold_ms,
        "watch": status.watch,
        "previous": status.previous,
        "failed": failed,
        "history": history,
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
        "p99Ms": (revision.p99_micros > 0).then(|| revision.p99_micros as f64 / 1e3),
        "replicas": revision.available_replicas,
    })
}
