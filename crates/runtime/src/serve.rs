//! The runtime alone, on a port of its own.

use crate::Runtime;
use bytes::Bytes;
use gantry_oip::{
    Code, Error,
    server::{self, InferenceServer as _},
};
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a client may take to send its headers.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// How long a request may take from its first byte to its answer.
const REQUEST_TIME: Duration = Duration::from_mins(1);
/// How long requests under way have when the runtime stops.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// Why the runtime cannot serve.
#[derive(Debug, thiserror::Error)]
#[error("the runtime cannot listen on {address}: {source}; choose another with --port, 0 for any free one")]
pub struct ServeError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Serves REST and gRPC on one port until `stop` is cancelled; tells the address through `bound`.
pub async fn serve(
    runtime: Arc<Runtime>,
    address: SocketAddr,
    stop: CancellationToken,
    bound: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    let failed = |source| ServeError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    bound(listener.local_addr().map_err(failed)?);
    let connections = TaskTracker::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIME);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(HEADER_TIME));
    loop {
        let socket = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    // Out of file descriptors, most likely: give connections time to end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        let _ = socket.set_nodelay(true);
        let runtime = runtime.clone();
        let service = service_fn(move |request| answer(runtime.clone(), request));
        let connection = builder.serve_connection(TokioIo::new(socket), service).into_owned();
        let stop = stop.clone();
        connections.spawn(async move {
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    connections.close();
    let _ = tokio::time::timeout(DRAIN_TIME, connections.wait()).await;
    Ok(())
}

async fn answer(
    runtime: Arc<Runtime>,
    request: Request<Incoming>,
) -> Result<Response<server::Reply>, Infallible> {
    let is_grpc = request.uri().path().starts_with("/inference.");
    let limit = runtime.config.limits.body;
    let answered = tokio::time::timeout(REQUEST_TIME, async {
        let (parts, body) = request.into_parts();
        let body: Bytes = match Limited::new(body, limit).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) if e.is::<http_body_util::LengthLimitError>() => {
                let message = format!("the body is larger than the {limit} bytes that are allowed");
                return Err(Error::new(Code::PayloadTooLarge, message));
            }
            Err(e) => return Err(Error::invalid(format!("the body could not be read: {e}"))),
        };
        Ok(runtime.call(Request::from_parts(parts, body)).await)
    });
    let late = || Error::new(Code::DeadlineExceeded, "the request took too long");
    let result = answered.await.unwrap_or_else(|_| Err(late()));
    Ok(result.unwrap_or_else(|e| if is_grpc { server::grpc_error(&e) } else { server::rest_error(&e) }))
}
