//! The runtime on its own port.

use crate::Runtime;
use gantry_oip::{
    Code, Error,
    server::{InferenceServer as _, Reply},
};
use gantry_transport::{Protocol, ServerOptions, body::read_all, headers::grpc_timeout};
use http::{Request, Response};
use hyper::body::Incoming;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// From the headers of a request to its response; a header `grpc-timeout` can shorten it.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug, thiserror::Error)]
#[error("the runtime cannot listen on {address}: {source}; choose another with --port, 0 for any free one")]
pub struct ServeError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Serves REST and gRPC on one port until `stop` is cancelled; `bound` gets the address. Not generic: the request path
/// is compiled in this crate, with its optimisation level.
pub async fn serve(
    runtime: Arc<Runtime>,
    address: SocketAddr,
    stop: CancellationToken,
    bound: fn(SocketAddr),
) -> Result<(), ServeError> {
    let failed = |source| ServeError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    bound(listener.local_addr().map_err(failed)?);
    let handler = move |request| handle(Arc::clone(&runtime), request);
    gantry_transport::serve(listener, ServerOptions::default(), handler, stop).await;
    Ok(())
}

async fn handle(runtime: Arc<Runtime>, request: Request<Incoming>) -> Response<Reply> {
    let is_grpc = request.uri().path().starts_with(gantry_oip::grpc::SERVICE);
    let protocol = if is_grpc { Protocol::Grpc } else { Protocol::Rest };
    if request.uri().path().strip_prefix(gantry_oip::grpc::SERVICE) == Some("ModelStreamInfer") {
        // Before the body, which ends with the stream.
        return protocol.error(&Error::new(Code::Unimplemented, "the runtime does not support streams"));
    }
    let timeout = grpc_timeout(request.headers()).unwrap_or(REQUEST_TIMEOUT).min(REQUEST_TIMEOUT);
    let answered = tokio::time::timeout(timeout, async {
        let (parts, mut body) = request.into_parts();
        let body = read_all(&mut body, runtime.config.limits.body).await?;
        Ok(runtime.call(Request::from_parts(parts, body)).await)
    });
    let timed_out = || Error::new(Code::DeadlineExceeded, "request deadline exceeded");
    answered.await.unwrap_or_else(|_| Err(timed_out())).unwrap_or_else(|error| protocol.error(&error))
}
