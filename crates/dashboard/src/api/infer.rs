//! One request to the inference port, for the form of a page.

use super::ApiError;
use crate::Dashboard;
use axum::{
    extract::{Path, State},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use std::{sync::Arc, time::Instant};

/// Headers of a page's request that the inference port gets.
const FORWARDED: [&str; 2] = ["authorization", "content-type"];
/// Headers of the answer that the page gets.
const RETURNED: [&str; 4] = ["content-type", "x-seldon-route", "x-request-id", "retry-after"];
const TOOK: &str = "x-gantry-took-ms";

type Name = Path<String>;

pub(crate) async fn model_metadata(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let path = model_path(&dashboard, &name, "")?;
    forward(&dashboard, Method::GET, &path, &headers, Bytes::new()).await
}

pub(crate) async fn model(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let path = model_path(&dashboard, &name, "/infer")?;
    forward(&dashboard, Method::POST, &path, &headers, body).await
}

pub(crate) async fn pipeline_metadata(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    check_name("pipeline", &name)?;
    forward(&dashboard, Method::GET, &format!("/v2/pipelines/{name}"), &headers, Bytes::new()).await
}

pub(crate) async fn pipeline(
    State(dashboard): State<Arc<Dashboard>>,
    Path(name): Name,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    check_name("pipeline", &name)?;
    forward(&dashboard, Method::POST, &format!("/v2/pipelines/{name}/infer"), &headers, body).await
}

/// The description of the inference API.
pub(crate) async fn openapi(
    State(dashboard): State<Arc<Dashboard>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    forward(&dashboard, Method::GET, "/openapi.json", &headers, Bytes::new()).await
}

/// That of an InferenceService has its namespace.
fn model_path(dashboard: &Dashboard, name: &str, tail: &str) -> Result<String, ApiError> {
    check_name("model", name)?;
    let inventory = dashboard.follower.inventory();
    let namespace = inventory.models.get(name).and_then(|row| row.namespace.as_deref());
    let prefix = namespace.map(|namespace| format!("/serving/{namespace}/{name}")).unwrap_or_default();
    Ok(format!("{prefix}/v2/models/{name}{tail}"))
}

/// A name is one segment of a path.
fn check_name(kind: &str, name: &str) -> Result<(), ApiError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(ApiError::not_found(kind, name))
}

async fn forward(
    dashboard: &Dashboard,
    method: Method,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut request = Request::builder().method(method).uri(path);
    for name in FORWARDED {
        if let Some(value) = headers.get(name) {
            request = request.header(name, value);
        }
    }
    let request = request.body(body).map_err(|error| ApiError::invalid(&error.to_string()))?;
    let started = Instant::now();
    let answered = dashboard.source.infer(request).await;
    let answer = answered.map_err(|error| ApiError::new(StatusCode::BAD_GATEWAY, &error))?;
    let took = started.elapsed().as_secs_f64() * 1e3;
    let (parts, body) = answer.into_parts();
    let mut response = (parts.status, body).into_response();
    response.headers_mut().remove(header::CONTENT_TYPE);
    for name in RETURNED {
        if let Some(value) = parts.headers.get(name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response.headers_mut().insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    if let Ok(took) = format!("{took:.2}").parse() {
        response.headers_mut().insert(TOOK, took);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_segment_of_a_path_are_rejected() {
        for name in ["iris", "a.b", "a_b-1"] {
            assert!(check_name("model", name).is_ok(), "{name}");
        }
        for name in ["", "..", ".x", "a/b", "a?b", "a#b", "a b", "a%2fb", "é"] {
            assert!(check_name("model", name).is_err(), "{name}");
        }
    }
}
