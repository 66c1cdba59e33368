//! The webhook's answers.

use super::{
    review::{AdmissionRequest, Decision, decode},
    validate::validate,
};
use crate::{
    context::Context,
    https::{Handler, json_response, text_response},
};
use bytes::Bytes;
use gantry_tls::Peer;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

pub(super) const PATH: &str = "/validate";
/// Two objects of the maximum size in etcd, with room for overhead.
const MAX_BODY_SIZE: usize = 4 << 20;
/// The API server waits for two seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Bounds the memory of request bodies.
const MAX_CONCURRENT_REQUESTS: usize = 8;

pub(super) struct AdmissionHandler {
    context: Arc<Context>,
    request_slots: Semaphore,
}

impl AdmissionHandler {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, request_slots: Semaphore::new(MAX_CONCURRENT_REQUESTS) }
    }
}

impl Handler for AdmissionHandler {
    async fn handle(&self, request: Request<Incoming>, _: &Peer) -> Response<Full<Bytes>> {
        handle(request, self).await
    }
}

async fn handle(request: Request<Incoming>, handler: &AdmissionHandler) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return text_response(StatusCode::NOT_FOUND, format!("not found: the webhook serves {PATH}"));
    }
    if request.method() != Method::POST {
        return text_response(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("method not allowed: POST an AdmissionReview to {PATH}"),
        );
    }
    let outcome = match tokio::time::timeout(REQUEST_TIMEOUT, review(request, handler)).await {
        Ok(outcome) => outcome,
        Err(_) => Err((
            StatusCode::REQUEST_TIMEOUT,
            format!("request timed out after {} s", REQUEST_TIMEOUT.as_secs()),
        )),
    };
    match outcome {
        Ok((request, decision)) => {
            handler.context.metrics.reviewed(plural(&request), decision.outcome());
            json_response(StatusCode::OK, serde_json::to_vec(&decision.review(&request)).unwrap_or_default())
        }
        Err((code, why)) => {
            handler.context.metrics.reviewed("unknown", "unreadable");
            text_response(code, why)
        }
    }
}

/// Releases the request slot before the response is written.
async fn review(
    request: Request<Incoming>,
    handler: &AdmissionHandler,
) -> Result<(AdmissionRequest, Decision), (StatusCode, String)> {
    let Ok(_slot) = handler.request_slots.acquire().await else {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "the webhook is shutting down".into()));
    };
    let body = Limited::new(request.into_body(), MAX_BODY_SIZE).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let limit = MAX_BODY_SIZE >> 20;
            (StatusCode::PAYLOAD_TOO_LARGE, format!("the body exceeds {limit} MiB"))
        } else {
            (StatusCode::BAD_REQUEST, format!("failed to read the body: {error}"))
        }
    })?;
    let request = decode(&body.to_bytes()).map_err(|error| (StatusCode::BAD_REQUEST, error))?;
    let decision = validate(&request, &handler.context.caches);
    if let Some(reason) = &decision.rejection {
        let (kind, name) = (&request.resource.resource, &request.name);
        let namespace = request.namespace.as_deref().unwrap_or_default();
        tracing::info!(%kind, %namespace, %name, "admission request rejected: {reason}");
    }
    Ok((request, decision))
}

/// The metric label: bounded, whatever the request contains.
fn plural(request: &AdmissionRequest) -> &'static str {
    let mut controllers = gantry_api::resources().into_iter().map(|resource| resource.plural);
    controllers.find(|plural| *plural == request.resource.resource).unwrap_or("unknown")
}
