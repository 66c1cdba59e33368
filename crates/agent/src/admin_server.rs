//! Admin ports: metrics, readiness, drain, and the debug service.

use crate::model_cache::ModelCache;
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_proto::agent_debug::{
    ModelReplicaState, ReplicaStatusRequest, ReplicaStatusResponse,
    agent_debug_service_server::{AgentDebugService, AgentDebugServiceServer},
    model_replica_state::State,
};
use gantry_transport::ServerOptions;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use std::{sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

/// Connections per port; further ones wait.
const MAX_CONNECTIONS: usize = 64;

/// Status, content type, body.
pub(crate) type Page = (StatusCode, &'static str, String);

/// Handles a path; `None` becomes 404.
pub(crate) type Pages = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Page>> + Send + Sync>;

pub(crate) async fn serve(listener: TcpListener, pages: Pages, stop: CancellationToken) {
    let options = ServerOptions {
        max_connections: MAX_CONNECTIONS,
        drain_timeout: Duration::from_secs(1),
        ..ServerOptions::default()
    };
    gantry_transport::serve(listener, options, move |request| handle(pages.clone(), request), stop).await;
}

async fn handle(pages: Pages, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let page = pages(request.uri().path().to_owned()).await;
    let missing = || {
        (
            StatusCode::NOT_FOUND,
            "text/plain",
            "not found
"
            .to_owned(),
        )
    };
    let (status, kind, text) = page.unwrap_or_else(missing);
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// `agent_debug`: residency and last access of each model.
pub(crate) async fn serve_debug(listener: TcpListener, cache: ModelCache, stop: CancellationToken) {
    let served = Server::builder()
        .add_service(AgentDebugServiceServer::new(Debug { cache }))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "debug server failed");
    }
}

struct Debug {
    cache: ModelCache,
}

#[tonic::async_trait]
impl AgentDebugService for Debug {
    async fn replica_status(
        &self,
        _: tonic::Request<ReplicaStatusRequest>,
    ) -> Result<tonic::Response<ReplicaStatusResponse>, tonic::Status> {
        let state = |in_memory: bool| if in_memory { State::InMemory } else { State::Evicted };
        let models = self.cache.models().into_iter().map(|model| ModelReplicaState {
            state: state(model.in_memory) as i32,
            last_accessed: Some(model.used.into()),
            name: model.name.to_string(),
        });
        Ok(tonic::Response::new(ReplicaStatusResponse {
            available_memory_bytes: self.cache.memory_free(),
            models: models.collect(),
        }))
    }
}
