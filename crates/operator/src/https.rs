//! HTTPS server for calls of the API server, with limits on connections, streams and time.

use bytes::Bytes;
use futures::StreamExt as _;
use gantry_tls::{Connection, Peer, Server, incoming};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected as _;

/// Further connections are closed immediately.
const MAX_CONNECTIONS: usize = 128;
const MAX_STREAMS: u32 = 64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Limit for in-flight requests on shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers requests; each answer has a deadline of its own.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

pub(crate) async fn serve(
    listener: TcpListener,
    tls: Server,
    handler: Arc<impl Handler>,
    stop: CancellationToken,
) {
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
    let finish = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, finish).await;
}

async fn serve_connection(connection: Connection, handler: Arc<impl Handler>, stop: CancellationToken) {
    let peer = Arc::new(connection.connect_info().peer);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS);
    let service = service_fn(move |request| {
        let (handler, peer) = (Arc::clone(&handler), Arc::clone(&peer));
        async move { Ok::<_, Infallible>(handler.handle(request, &peer).await) }
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
        tracing::debug!(%error, "connection of the API server closed");
    }
}

pub(crate) fn text_response(code: StatusCode, why: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(why + "\n"));
    *response.status_mut() = code;
    response
}

pub(crate) fn json_response(code: StatusCode, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
