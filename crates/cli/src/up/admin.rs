//! The admin port: health, metrics, logs.

use super::servers::Report;
use crate::roles::log::Lines;
use axum::{
    Router,
    body::Body,
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::StreamExt as _;
use prometheus_client::registry::Registry;
use std::{collections::HashMap, sync::Arc};
use tokio::net::TcpListener;
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tokio_util::sync::CancellationToken;

/// What the admin port tells about.
pub(crate) struct Admin {
    pub(crate) registry: Registry,
    pub(crate) lines: Lines,
    /// Why the process is worth a restart, if it is: it answers, and does nothing.
    pub(crate) stuck: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// What is not ready yet; empty when all is.
    pub(crate) not_ready: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Requests and times by model.
    pub(crate) top: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// The processes of servers.
    pub(crate) servers: Report,
}

/// Serves until `stop` is cancelled.
pub(crate) async fn serve(admin: Admin, listener: TcpListener, stop: CancellationToken) {
    let ended = stop.clone();
    let state = Arc::new(Shared { admin, ended });
    let router = Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        // The names of Seldon's scheduler.
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/startup", get(ready))
        .route("/metrics", get(metrics))
        .route("/logs", get(logs))
        .route("/top", get(top))
        .route("/servers", get(servers))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "there is /livez, /readyz, /metrics, /logs, /top and /servers\n")
        })
        .with_state(state);
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(%error, "the admin port failed");
    }
}

struct Shared {
    admin: Admin,
    ended: CancellationToken,
}

async fn live(State(shared): State<Arc<Shared>>) -> Response {
    match (shared.admin.stuck)() {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let missing = (shared.admin.not_ready)();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shared.admin.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn top(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], (shared.admin.top)().to_string()).into_response()
}

async fn servers(State(shared): State<Arc<Shared>>) -> Response {
    let text = serde_json::json!({ "replicas": shared.admin.servers.get() }).to_string();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn logs(State(shared): State<Arc<Shared>>, Query(query): Query<HashMap<String, String>>) -> Response {
    let count = match query.get("lines").map(|l| l.parse::<usize>()) {
        None => 100,
        Some(Ok(count)) => count,
        Some(Err(_)) => return (StatusCode::BAD_REQUEST, "lines must be a whole number\n").into_response(),
    };
    let follow = query.get("follow").is_some_and(|f| f == "1" || f == "true");
    let wanted = move |line: &str| {
        ["model", "server"].iter().filter_map(|kind| Some((kind, query.get(*kind)?))).all(|(kind, name)| {
            let text = format!(" {kind}={name} ");
            let json = format!("\"{kind}\":\"{name}\"");
            line.contains(&text) || line.contains(&json)
        })
    };
    let (kept, coming) = shared.admin.lines.tail(usize::MAX);
    let mut kept: Vec<_> = kept.into_iter().filter(|l| wanted(l)).collect();
    kept.drain(..kept.len().saturating_sub(count));
    let past: String = kept.iter().flat_map(|l| [&**l, "\n"]).collect();
    if !follow {
        return past.into_response();
    }
    let future = BroadcastStream::new(coming).filter_map(move |line| {
        let text = match line {
            Ok(line) => wanted(&line).then(|| format!("{line}\n")),
            Err(BroadcastStreamRecvError::Lagged(missed)) => {
                Some(format!("({missed} lines were too many to send)\n"))
            }
        };
        futures::future::ready(text)
    });
    let all = futures::stream::once(futures::future::ready(past)).chain(future);
    let until = shared.ended.clone().cancelled_owned();
    let body = all.take_until(until).map(Ok::<_, std::convert::Infallible>);
    Body::from_stream(body).into_response()
}
