//! The data of the pages, as JSON.

mod detail;
mod infer;
mod list;
mod overview;
mod rollout;

use crate::{Dashboard, actions, scheduler::is_unknown};
use axum::{
    Router,
    extract::DefaultBodyLimit,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use tonic::Code;

/// Largest request that a page sends: a manifest, or an inference request of its form.
const MAX_BODY: usize = 16 << 20;

pub(crate) fn routes(dashboard: Arc<Dashboard>) -> Router {
    Router::new()
        .route("/api/overview", get(overview::overview))
        .route("/api/models", get(list::models))
        .route("/api/models/{name}", get(detail::model))
        .route("/api/models/{name}/metadata", get(infer::model_metadata))
        .route("/api/models/{name}/infer", post(infer::model))
        .route("/api/servers", get(list::servers))
        .route("/api/servers/{name}", get(detail::server))
        .route("/api/pipelines", get(list::pipelines))
        .route("/api/pipelines/{name}", get(detail::pipeline))
        .route("/api/pipelines/{name}/metadata", get(infer::pipeline_metadata))
        .route("/api/pipelines/{name}/infer", post(infer::pipeline))
        .route("/api/experiments", get(list::experiments))
        .route("/api/experiments/{name}", get(detail::experiment))
        .route("/api/rollouts", get(rollout::list))
        .route("/api/events", get(list::events))
        .route("/api/openapi.json", get(infer::openapi))
        .route("/api/plan", post(actions::plan))
        .route("/api/plan-deletion", post(actions::plan_deletion))
        .route("/api/apply", post(actions::apply))
        .route("/api/delete", post(actions::delete))
        .route("/api/steer", post(actions::steer))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(dashboard)
}

/// A response that is never stored.
pub(crate) fn reply(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => {
            let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
            (headers, text).into_response()
        }
        Err(error) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()).into_response(),
    }
}

/// A status and a message for the page.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: &str) -> Self {
        Self { status, message: message.to_owned() }
    }

    pub(crate) fn invalid(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(kind: &str, name: &str) -> Self {
        let shown: String = name.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, &format!("there is no {kind} {shown:?}"))
    }

    /// Of a read: a name that the scheduler does not know is not found.
    pub(crate) fn of_read(status: &tonic::Status, kind: &str, name: &str) -> Self {
        if is_unknown(status) { Self::not_found(kind, name) } else { Self::from(status.clone()) }
    }
}

impl From<tonic::Status> for ApiError {
    fn from(status: tonic::Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
            Code::PermissionDenied | Code::Unauthenticated => StatusCode::FORBIDDEN,
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        let message = match status.message() {
            "" => format!("the scheduler returned {:?}", status.code()),
            message => message.to_owned(),
        };
        Self { status: code, message }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
        (self.status, headers, json!({ "error": self.message }).to_string()).into_response()
    }
}
