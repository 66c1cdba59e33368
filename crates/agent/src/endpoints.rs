//! The small ports: metrics, readiness, drain. And the service that shows what is in memory.

use crate::shelf::Shelf;
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_proto::agent_debug::{
    ModelReplicaState, ReplicaStatusRequest, ReplicaStatusResponse,
    agent_debug_service_server::{AgentDebugService, AgentDebugServiceServer},
    model_replica_state::State,
};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

/// How long a client may take to send its request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Connections of one port at once; more wait until one ends.
const CONNECTIONS: usize = 64;

/// An answer: the status, the kind of text, the text.
pub(crate) type Page = (StatusCode, &'static str, String);

/// Answers for a path; `None` when there is nothing under it.
pub(crate) type Pages = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Page>> + Send + Sync>;

/// Serves pages until `stop` is cancelled.
pub(crate) async fn serve(listener: TcpListener, pages: Pages, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let pages = pages.clone();
        let stop = stop.clone();
        tokio::spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request| answer(pages.clone(), request));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME);
            let connection = builder.serve_connection(TokioIo::new(socket), service);
            tokio::select! {
                _ = connection => {}
                // Who is in the middle of an answer at the very end has had his time.
                () = async { stop.cancelled().await; tokio::time::sleep(Duration::from_secs(1)).await } => {}
            }
        });
    }
}

async fn answer(pages: Pages, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let page = pages(request.uri().path().to_owned()).await;
    let missing = || (StatusCode::NOT_FOUND, "text/plain", "there is nothing here\n".to_owned());
    let (status, kind, text) = page.unwrap_or_else(missing);
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    Ok(response)
}

/// `agent_debug`: what is in memory, what is on disk, and when it was last used.
pub(crate) async fn serve_debug(listener: TcpListener, shelf: Shelf, stop: CancellationToken) {
    let served = Server::builder()
        .add_service(AgentDebugServiceServer::new(Debug { shelf }))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "the debug port failed");
    }
}

struct Debug {
    shelf: Shelf,
}

#[tonic::async_trait]
impl AgentDebugService for Debug {
    async fn replica_status(
        &self,
        _: tonic::Request<ReplicaStatusRequest>,
    ) -> Result<tonic::Response<ReplicaStatusResponse>, tonic::Status> {
        let state = |in_memory: bool| if in_memory { State::InMemory } else { State::Evicted };
        let models = self.shelf.shown().into_iter().map(|model| ModelReplicaState {
            state: state(model.in_memory) as i32,
            last_accessed: Some(model.used.into()),
            name: model.name.to_string(),
        });
        Ok(tonic::Response::new(ReplicaStatusResponse {
            available_memory_bytes: self.shelf.memory_free(),
            models: models.collect(),
        }))
    }
}
