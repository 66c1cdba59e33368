//! The admin server: health, metrics, logs, statistics, dashboard.

use super::{admin_dashboard::AdminDashboard, log::LogBuffer};
use crate::servers::Report;
use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::StreamExt as _;
use gantry_dashboard::guard;
use gantry_scheduler::Liveness;
use prometheus_client::registry::Registry;
use std::{collections::HashMap, net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tokio_util::sync::CancellationToken;

pub struct AdminServer {
    pub registry: Registry,
    pub logs: LogBuffer,
    /// Why the process needs a restart, if it does.
    pub stuck: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Whether this process leads.
    pub role: Box<dyn Fn() -> Role + Send + Sync>,
    /// Encodes metrics that come and go.
    pub more_metrics: MoreMetrics,
    /// Reasons for not being ready; empty if ready.
    pub not_ready: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Requests and latencies by model.
    pub top: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// The last runs of a pipeline; `None` if there is no such pipeline.
    pub runs: Runs,
    /// Processes of supervised servers.
    pub servers: Report,
    /// The pages at `/`; a scheduler of its own has none.
    pub dashboard: Option<AdminDashboard>,
}

/// Whether a process leads, if it has a standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Single,
    Leader { epoch: u64 },
    Standby { reason: String },
}

type MoreMetrics = Box<dyn Fn(&mut String) -> Result<(), std::fmt::Error> + Send + Sync>;
type Runs = Box<dyn Fn(&str) -> Option<serde_json::Value> + Send + Sync>;

impl AdminServer {
    /// A server that is live and ready from the start.
    pub fn new(mut registry: Registry, logs: LogBuffer) -> Self {
        gantry_transport::process_metrics::register(&mut registry);
        Self {
            registry,
            logs,
            stuck: Box::new(|| None),
            role: Box::new(|| Role::Single),
            more_metrics: Box::new(|_| Ok(())),
            not_ready: Box::new(Vec::new),
            top: Box::new(|| serde_json::json!({})),
            runs: Box::new(|_| None),
            servers: Report::default(),
            dashboard: None,
        }
    }

    /// Why logs and runs of pipelines are not served to a caller, if they are not.
    fn refusal(&self, peer: SocketAddr, headers: &HeaderMap, what: &str) -> Option<Response> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let is_served = self.logs.remote || peer.ip().to_canonical().is_loopback();
        let problem = if is_served {
            guard::foreign_host(Some(peer), host)?
        } else {
            format!(
                "{what} are served to this machine only: use kubectl port-forward, or start with --remote-logs"
            )
        };
        Some((StatusCode::FORBIDDEN, problem + "\n").into_response())
    }

    /// As OpenMetrics text.
    pub(super) fn metrics(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &self.registry)?;
        (self.more_metrics)(&mut text)?;
        prometheus_client::encoding::text::encode_eof(&mut text)?;
        Ok(text)
    }

    /// Processes of supervised servers.
    pub(super) fn processes(&self) -> serde_json::Value {
        serde_json::json!({ "replicas": self.servers.get() })
    }
}

/// Why the scheduler needs a restart, if it does.
pub fn stuck_reason(liveness: Liveness) -> Option<String> {
    match liveness {
        Liveness::Live => None,
        Liveness::Stuck { waiting, since } => Some(format!(
            "the scheduler has made no progress for {} s with {waiting} messages queued: check the disk for stalled writes",
            since.as_secs()
        )),
        Liveness::Stopped => Some("the scheduler has stopped".into()),
    }
}

/// Serves until `stop` is cancelled.
pub async fn serve(mut admin: AdminServer, listener: TcpListener, stop: CancellationToken) {
    let ended = stop.clone();
    let dashboard = admin.dashboard.take();
    let admin = Arc::new(admin);
    let state = Arc::new(Shared { admin: Arc::clone(&admin), ended });
    let mut router = Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        // Paths of Seldon's scheduler.
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/startup", get(started))
        .route("/metrics", get(metrics))
        .route("/logs", get(logs))
        .route("/top", get(top))
        .route("/servers", get(servers))
        .route("/pipelines/{pipeline}/runs", get(runs))
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "not found: try /livez, /readyz, /metrics, /logs, /top, /servers or /pipelines/NAME/runs\n",
            )
        })
        .with_state(state);
    if let Some(dashboard) = dashboard {
        router = router.merge(dashboard.router(admin));
    }
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let served = axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(%error, "admin server failed");
    }
}

struct Shared {
    admin: Arc<AdminServer>,
    ended: CancellationToken,
}

async fn live(State(shared): State<Arc<Shared>>) -> Response {
    match (shared.admin.stuck)() {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

/// A standby has started: it waits for as long as the leader leads.
async fn started(shared: State<Arc<Shared>>) -> Response {
    match (shared.admin.role)() {
        Role::Standby { reason } => format!("standby: {reason}\n").into_response(),
        Role::Single | Role::Leader { .. } => ready(shared).await,
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let role = (shared.admin.role)();
    if let Role::Standby { reason } = role {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("standby: {reason}\n")).into_response();
    }
    let missing = (shared.admin.not_ready)();
    if missing.is_empty() {
        return match role {
            Role::Leader { epoch } => format!("leader, epoch {epoch}\n").into_response(),
            Role::Single | Role::Standby { .. } => "ok\n".into_response(),
        };
    }
    (StatusCode::SERVICE_UNAVAILABLE, missing.join("\n") + "\n").into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match shared.admin.metrics() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn top(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], (shared.admin.top)().to_string()).into_response()
}

async fn runs(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Path(pipeline): Path<String>,
) -> Response {
    if let Some(refusal) = shared.admin.refusal(peer, &headers, "runs") {
        return refusal;
    }
    match (shared.admin.runs)(&pipeline) {
        Some(runs) => ([(header::CONTENT_TYPE, "application/json")], runs.to_string()).into_response(),
        None => (StatusCode::NOT_FOUND, format!("there is no pipeline {pipeline:?}\n")).into_response(),
    }
}

async fn servers(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.admin.processes().to_string();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn logs(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    if let Some(refusal) = shared.admin.refusal(peer, &headers, "logs") {
        return refusal;
    }
    let count = match query.get("lines").map(|l| l.parse::<usize>()) {
        None => 100,
        Some(Ok(count)) => count,
        Some(Err(_)) => return (StatusCode::BAD_REQUEST, "lines must be an integer\n").into_response(),
    };
    let follow = query.get("follow").is_some_and(|f| f == "1" || f == "true");
    let matches = move |line: &str| {
        ["model", "server"].iter().filter_map(|kind| Some((kind, query.get(*kind)?))).all(|(kind, name)| {
            let text = format!(" {kind}={name} ");
            let json = format!("\"{kind}\":\"{name}\"");
            line.contains(&text) || line.contains(&json)
        })
    };
    let (buffered, new) = shared.admin.logs.subscribe();
    let mut buffered: Vec<_> = buffered.into_iter().filter(|l| matches(l)).collect();
    buffered.drain(..buffered.len().saturating_sub(count));
    let buffered: String = buffered.iter().flat_map(|l| [&**l, "\n"]).collect();
    if !follow {
        return buffered.into_response();
    }
    let new = BroadcastStream::new(new).filter_map(move |line| {
        let text = match line {
            Ok(line) => matches(&line).then(|| format!("{line}\n")),
            Err(BroadcastStreamRecvError::Lagged(missed)) => Some(format!("({missed} lines dropped)\n")),
        };
        futures::future::ready(text)
    });
    let all = futures::stream::once(futures::future::ready(buffered)).chain(new);
    let until = shared.ended.clone().cancelled_owned();
    let body = all.take_until(until).map(Ok::<_, std::convert::Infallible>);
    Body::from_stream(body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn status_of_logs(remote: bool, peer: &str, host: &str) -> StatusCode {
        let admin = Arc::new(AdminServer::new(Registry::default(), LogBuffer::new(remote)));
        let shared = Arc::new(Shared { admin, ended: CancellationToken::new() });
        let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        logs(State(shared), ConnectInfo(peer.parse().unwrap()), headers, Query(HashMap::new())).await.status()
    }

    #[tokio::test]
    async fn logs_are_served_to_other_machines_only_on_request() {
        for local in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(status_of_logs(false, local, "localhost:9003").await, StatusCode::OK, "{local}");
        }
        assert_eq!(status_of_logs(false, "10.0.0.7:1", "gateway:9003").await, StatusCode::FORBIDDEN);
        assert_eq!(status_of_logs(true, "10.0.0.7:1", "gateway:9003").await, StatusCode::OK);
    }

    #[tokio::test]
    async fn logs_are_not_served_under_the_name_of_another_site() {
        for remote in [false, true] {
            let status = status_of_logs(remote, "127.0.0.1:1", "evil.example:9003").await;
            assert_eq!(status, StatusCode::FORBIDDEN);
        }
    }

    #[tokio::test]
    async fn runs_of_pipelines_are_served_to_this_machine() {
        for (peer, pipeline, expected) in [
            ("127.0.0.1:1", "join", StatusCode::OK),
            ("127.0.0.1:1", "other", StatusCode::NOT_FOUND),
            ("10.0.0.7:1", "join", StatusCode::FORBIDDEN),
        ] {
            let known = |pipeline: &str| (pipeline == "join").then(|| serde_json::json!({ "runs": [] }));
            let admin = AdminServer {
                runs: Box::new(known),
                ..AdminServer::new(Registry::default(), LogBuffer::new(false))
            };
            let shared = Arc::new(Shared { admin: Arc::new(admin), ended: CancellationToken::new() });
            let (peer_at, path) = (ConnectInfo(peer.parse().unwrap()), Path(pipeline.to_owned()));
            let response = runs(State(shared), peer_at, HeaderMap::new(), path).await;
            assert_eq!(response.status(), expected, "{peer} {pipeline}");
        }
    }

    #[test]
    fn stuck_scheduler_is_reported() {
        assert_eq!(stuck_reason(Liveness::Live), None);
        let stuck = Liveness::Stuck { waiting: 7, since: Duration::from_secs(20) };
        let reason = stuck_reason(stuck).unwrap();
        assert!(reason.starts_with("the scheduler has made no progress for 20 s with 7 messages queued"));
        assert!(stuck_reason(Liveness::Stopped).is_some());
    }
}
