//! The runtime on its own port.

use crate::Runtime;
use gantry_oip::{
    Code, Error,
    server::{InferenceServer as _, Reply},
};
use gantry_transport::{Protocol, ServerOptions, body::read_all};
use http::{Request, Response};
use hyper::body::Incoming;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// From the headers of a request to its response.
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
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, async {
        let (parts, mut body) = request.into_parts();
        let body = read_all(&mut body, runtime.config.limits.body).await?;
        Ok(runtime.call(Request::from_parts(parts, body)).await)
    });
    let timed_out = || Error::new(Code::DeadlineExceeded, "request deadline exceeded");
    answered.await.unwrap_or_else(|_| Err(timed_out())).unwrap_or_else(|error| protocol.error(&error))
}
