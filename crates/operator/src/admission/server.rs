//! HTTPS server of the webhook, with limits on connections, body size and time.

use super::{
    review::{AdmissionRequest, Decision, decode},
    validate::validate,
};
use crate::context::Context;
use bytes::Bytes;
use futures::StreamExt as _;
use gantry_tls::{Connection, Server, incoming};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub(super) const PATH: &str = "/validate";
/// Two objects of the maximum size in etcd, with room for overhead.
const MAX_BODY_SIZE: usize = 4 << 20;
/// The API server waits for two seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Further connections are closed immediately.
const MAX_CONNECTIONS: usize = 128;
/// Bounds the memory of request bodies.
const MAX_CONCURRENT_REQUESTS: usize = 8;
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Limit for in-flight requests on shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

struct AdmissionHandler {
    context: Arc<Context>,
    request_slots: Semaphore,
}

pub(super) async fn serve(
    listener: TcpListener,
    tls: Server,
    context: Arc<Context>,
    stop: CancellationToken,
) {
    let handler =
        Arc::new(AdmissionHandler { context, request_slots: Semaphore::new(MAX_CONCURRENT_REQUESTS) });
    let mut arriving = pin!(incoming(listener, Some(tls)));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            Some(Ok(connection)) = arriving.next() => {
                if connections.len() < MAX_CONNECTIONS {
                    connections.spawn(serve_connection(connection, Arc::clone(&handler), stop.clone()));
                }
            }
        }
    }
    let _ =
        tokio::time::timeout(SHUTDOWN_TIMEOUT, async { while connections.join_next().await.is_some() {} })
            .await;
}

async fn serve_connection(connection: Connection, handler: Arc<AdmissionHandler>, stop: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(64);
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, Infallible>(handle(request, &handler).await) }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let outcome = tokio::select! {
        outcome = serving.as_mut() => outcome,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "webhook connection closed");
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
            let body = serde_json::to_vec(&decision.review(&request)).unwrap_or_default();
            let mut response = Response::new(Full::from(body));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
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

fn text_response(code: StatusCode, why: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(why + "\n"));
    *response.status_mut() = code;
    response
}
