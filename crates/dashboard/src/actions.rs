//! Changes, with the right to act only: diff, apply, delete, steer a rollout.

use crate::{
    Dashboard,
    api::{ApiError, reply},
    manifest,
    scheduler::{as_cli, within},
};
use axum::{Json, extract::State, response::Response};
use gantry_api::Kind;
use gantry_proto::gantry::{
    PlannedChange, SteerRolloutRequest, planned_change::Action as Planned, steer_rollout_request::Action,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Deserialize)]
pub(crate) struct Manifest {
    manifest: String,
}

#[derive(Deserialize)]
pub(crate) struct Named {
    kind: String,
    name: String,
}

#[derive(Deserialize)]
pub(crate) struct Steering {
    /// As a list of rollouts names it.
    name: String,
    action: String,
}

impl Dashboard {
    fn check_actions(&self) -> Result<(), ApiError> {
        if self.settings.actions {
            return Ok(());
        }
        Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "the dashboard is read-only: start with --dashboard-actions to change objects from it",
        ))
    }
}

/// What applying a manifest would change.
pub(crate) async fn plan(
    State(dashboard): State<Arc<Dashboard>>,
    Json(body): Json<Manifest>,
) -> Result<Response, ApiError> {
    dashboard.check_actions()?;
    let objects =
        manifest::objects(&body.manifest).map_err(|errors| ApiError::invalid(&errors.join("\n")))?;
    let changes = dashboard.scheduler.plan(manifest::plan(&objects)).await?;
    let mut shown: Vec<Value> = changes.iter().map(change).collect();
    let policies = objects.iter().filter(|parsed| parsed.object.kind() == Kind::RolloutPolicy);
    shown.extend(policies.map(|parsed| {
        json!({ "kind": "rolloutpolicy", "name": parsed.object.name(), "action": "put", "effects": [] })
    }));
    Ok(reply(&json!({ "changes": shown })))
}

/// What deleting an object would change.
pub(crate) async fn plan_deletion(
    State(dashboard): State<Arc<Dashboard>>,
    Json(body): Json<Named>,
) -> Result<Response, ApiError> {
    dashboard.check_actions()?;
    let changes = match manifest::plan_deletion(kind(&body.kind)?, &body.name) {
        Some(request) => dashboard.scheduler.plan(request).await?,
        None => Vec::new(),
    };
    Ok(reply(&json!({ "changes": changes.iter().map(change).collect::<Vec<_>>() })))
}

pub(crate) async fn apply(
    State(dashboard): State<Arc<Dashboard>>,
    Json(body): Json<Manifest>,
) -> Result<Response, ApiError> {
    dashboard.check_actions()?;
    let objects =
        manifest::objects(&body.manifest).map_err(|errors| ApiError::invalid(&errors.join("\n")))?;
    let mut results = Vec::new();
    for parsed in &objects {
        let applied = manifest::apply(&dashboard.scheduler, &parsed.object).await;
        tracing::info!(
            kind = parsed.object.kind().name(),
            name = parsed.object.name(),
            applied = applied.is_ok(),
            "the dashboard applied an object"
        );
        results.push(json!({
            "kind": parsed.object.kind().name().to_lowercase(),
            "name": parsed.object.name(),
            "error": applied.err().map(|status| status.message().to_owned()),
        }));
    }
    Ok(reply(&json!({ "results": results })))
}

pub(crate) async fn delete(
    State(dashboard): State<Arc<Dashboard>>,
    Json(body): Json<Named>,
) -> Result<Response, ApiError> {
    dashboard.check_actions()?;
    manifest::delete(&dashboard.scheduler, kind(&body.kind)?, &body.name).await?;
    tracing::info!(kind = body.kind, name = body.name, "the dashboard deleted an object");
    Ok(reply(&json!({})))
}

pub(crate) async fn steer(
    State(dashboard): State<Arc<Dashboard>>,
    Json(body): Json<Steering>,
) -> Result<Response, ApiError> {
    dashboard.check_actions()?;
    let action = match body.action.as_str() {
        "promote" => Action::Promote,
        "promoteFull" => Action::PromoteFull,
        "pause" => Action::Pause,
        "resume" => Action::Resume,
        "abort" => Action::Abort,
        "retry" => Action::Retry,
        "undo" => Action::Undo,
        other => return Err(ApiError::invalid(&format!("there is no action {other:?} of a rollout"))),
    };
    let mut request = SteerRolloutRequest { action: action.into(), ..SteerRolloutRequest::default() };
    match body.name.split_once('/') {
        Some(("pipeline", name)) => name.clone_into(&mut request.pipeline),
        Some((_, service)) => service.clone_into(&mut request.service),
        None => request.model.clone_from(&body.name),
    }
    within(dashboard.scheduler.rollouts().steer_rollout(as_cli(request))).await?;
    tracing::info!(name = body.name, action = body.action, "the dashboard steered a rollout");
    Ok(reply(&json!({})))
}

fn kind(name: &str) -> Result<Kind, ApiError> {
    let found = Kind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| ApiError::invalid(&format!("there is no kind {name:?}")))
}

fn change(change: &PlannedChange) -> Value {
    let action = match change.action() {
        Planned::Unchanged => "unchanged",
        Planned::Create => "create",
        Planned::Update => "update",
        Planned::Adjust => "adjust",
        Planned::Delete => "delete",
        Planned::Refuse => "refuse",
    };
    json!({
        "kind": change.kind,
        "name": change.name,
        "action": action,
        "fromVersion": change.from_version,
        "toVersion": change.to_version,
        "effects": change.effects,
        "placed": change.placed,
    })
}
