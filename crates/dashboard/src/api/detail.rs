//! One object.

use super::{
    ApiError,
    list::{add_candidates, add_replicas, prepare, with_figures},
    reply, rollout,
};
use crate::{
    Dashboard, explain, graph,
    rows::{self, millis},
};
use axum::{
    extract::{Path, State},
    response::Response,
};
use gantry_api::{Experiment, INFERENCE_SERVICE, Model, Pipeline, kserve::InferenceServiceSpec};
use gantry_proto::scheduler::{self as pb, model_replica_status::ModelReplicaState};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

type Name = Path<String>;

pub(crate) async fn model(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
) -> Result<Response, ApiError> {
    let sample = prepare(&dashboard).await;
    let found = dashboard.scheduler.models(Some(&name), true).await;
    let found = found.map_err(|status| ApiError::of_read(&status, "model", &name))?;
    let status = found.into_iter().next().ok_or_else(|| ApiError::not_found("model", &name))?;
    let row = rows::model(status.clone()).map_err(|name| ApiError::not_found("model", &name))?;
    let explanation = explanation(&dashboard, "model", &name).await;
    let mut versions = status.versions;
    versions.sort_by_key(|version| std::cmp::Reverse(version.version));
    let manifest = versions.first().and_then(|version| version.model_defn.as_ref()).map(model_manifest);
    let rollout = dashboard.follower.inventory().rollouts.get(&name).map(rollout::document);
    Ok(reply(&json!({
        "row": with_figures(&row, sample.models.get(&name)),
        "explanation": explanation,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "manifest": manifest,
        "rollout": rollout,
    })))
}

fn version(version: &pb::ModelVersionStatus) -> Value {
    let state = version.state.clone().unwrap_or_default();
    let mut replicas: Vec<_> = version.model_replica_state.iter().collect();
    replicas.sort_by_key(|(index, _)| **index);
    let replicas: Vec<Value> = replicas
        .into_iter()
        .map(|(index, replica)| {
            let state = ModelReplicaState::try_from(replica.state).unwrap_or_default();
            json!({
                "replica": index,
                "state": state.as_str_name(),
                "reason": replica.reason,
                "sinceMs": millis(replica.last_change_timestamp),
            })
        })
        .collect();
    let uri = version.model_defn.as_ref().and_then(|model| model.model_spec.as_ref()).map(|spec| &spec.uri);
    json!({
        "version": version.version,
        "state": state.state().as_str_name().trim_start_matches("Model"),
        "reason": state.reason,
        "server": version.server_name,
        "available": state.available_replicas,
        "desired": state.available_replicas.saturating_add(state.unavailable_replicas),
        "sinceMs": millis(state.last_change_timestamp),
        "storageUri": uri,
        "replicas": replicas,
    })
}

/// The scheduler redacts credentials in statuses.
fn model_manifest(definition: &pb::Model) -> String {
    let manifest = Model::from_proto(definition);
    let mut document = serde_json::to_value(&manifest).unwrap_or_default();
    if manifest.kind == INFERENCE_SERVICE
        && let Some(fields) = document.as_object_mut()
    {
        let spec = InferenceServiceSpec::from(&manifest.spec);
        fields.insert("spec".into(), serde_json::to_value(spec).unwrap_or_default());
    }
    yaml(&document)
}

fn yaml(document: &impl Serialize) -> String {
    let mut value = serde_json::to_value(document).unwrap_or_default();
    prune(&mut value);
    serde_saphyr::to_string(&value).unwrap_or_default()
}

/// Removes fields that are not set.
fn prune(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.values_mut().for_each(prune);
        fields.retain(|_, field| !field.is_null());
    }
}

pub(crate) async fn server(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
) -> Result<Response, ApiError> {
    let sample = prepare(&dashboard).await;
    let found = dashboard.scheduler.servers(Some(&name)).await;
    let found = found.map_err(|status| ApiError::of_read(&status, "server", &name))?;
    let status = found.into_iter().next().ok_or_else(|| ApiError::not_found("server", &name))?;
    let row = rows::server(status).map_err(|name| ApiError::not_found("server", &name))?;
    let mut row = with_figures(&row, None);
    let processes = dashboard.source.processes();
    add_replicas(&mut row, &sample, &processes);
    // Processes of replicas that have not joined.
    let own = |process: &&Value| process.get("server").and_then(Value::as_str) == Some(&name);
    let all = processes.get("replicas").and_then(Value::as_array);
    let processes: Vec<&Value> = all.into_iter().flatten().filter(own).collect();
    let explanation = explanation(&dashboard, "server", &name).await;
    Ok(reply(&json!({ "row": row, "explanation": explanation, "processes": processes })))
}

pub(crate) async fn pipeline(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
) -> Result<Response, ApiError> {
    let sample = prepare(&dashboard).await;
    let found = dashboard.scheduler.pipelines(Some(&name), true).await;
    let found = found.map_err(|status| ApiError::of_read(&status, "pipeline", &name))?;
    let status = found.into_iter().next().ok_or_else(|| ApiError::not_found("pipeline", &name))?;
    let row = rows::pipeline(status.clone()).map_err(|name| ApiError::not_found("pipeline", &name))?;
    let mut versions = status.versions;
    let number = |version: &pb::PipelineWithState| version.state.as_ref().map_or(0, |s| s.pipeline_version);
    versions.sort_by_key(|version| std::cmp::Reverse(number(version)));
    let definition = versions.first().and_then(|version| version.pipeline.clone()).unwrap_or_default();
    let steps: Vec<Value> = definition
        .steps
        .iter()
        .map(|step| {
            let mut value = json!({ "name": step.name });
            if let (Some(figures), Some(fields)) = (sample.models.get(&step.name), value.as_object_mut()) {
                fields.insert("figures".into(), serde_json::to_value(figures).unwrap_or_default());
            }
            if let Some(fields) = value.as_object_mut() {
                let inventory = dashboard.follower.inventory();
                let state = inventory.models.get(&step.name).map(|row| row.state);
                fields.insert("state".into(), serde_json::to_value(state).unwrap_or_default());
            }
            value
        })
        .collect();
    let shown = versions.iter().map(|version| {
        let state = version.state.clone().unwrap_or_default();
        json!({
            "version": state.pipeline_version,
            "state": state.status().as_str_name().trim_start_matches("Pipeline"),
            "reason": state.reason,
            "sinceMs": millis(state.last_change_timestamp),
        })
    });
    let shown: Vec<Value> = shown.collect();
    let explanation = explanation(&dashboard, "pipeline", &name).await;
    let rollout =
        dashboard.follower.inventory().rollouts.get(&format!("pipeline/{name}")).map(rollout::document);
    Ok(reply(&json!({
        "row": with_figures(&row, sample.pipelines.get(&name)),
        "explanation": explanation,
        "steps": steps,
        "edges": graph::edges(&definition),
        "inputs": graph::request_inputs(&definition),
        "runs": dashboard.source.runs(&name),
        "versions": shown,
        "manifest": yaml(&Pipeline::from_proto(&definition)),
        "rollout": rollout,
    })))
}

pub(crate) async fn experiment(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
) -> Result<Response, ApiError> {
    let sample = prepare(&dashboard).await;
    let found = dashboard.scheduler.experiments(Some(&name)).await;
    let found = found.map_err(|status| ApiError::of_read(&status, "experiment", &name))?;
    let status = found.into_iter().next().ok_or_else(|| ApiError::not_found("experiment", &name))?;
    let manifest = status.definition.as_ref().map(|definition| yaml(&Experiment::from_proto(definition)));
    let row = rows::experiment(status).map_err(|name| ApiError::not_found("experiment", &name))?;
    let mut row = with_figures(&row, None);
    add_candidates(&mut row, &sample);
    let explanation = explanation(&dashboard, "experiment", &name).await;
    Ok(reply(&json!({ "row": row, "explanation": explanation, "manifest": manifest })))
}

/// Missing if the scheduler cannot be reached: the rest of the page is shown without it.
async fn explanation(dashboard: &Dashboard, kind: &str, name: &str) -> Option<Value> {
    let explained = dashboard.explanations.of(kind, name).await.ok().flatten()?;
    Some(explain::document(&explained))
}
