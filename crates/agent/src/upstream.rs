//! HTTP clients for the server in the same pod.

use bytes::Bytes;
use gantry_transport::BoxError;
use http_body::Body;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Below MLServer's 5 s keep-alive timeout.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);

pub(crate) type HttpClient<B> = Client<HttpConnector, B>;

/// A client for REST, and one for gRPC (HTTP/2 without TLS).
pub(crate) fn clients<B>() -> (HttpClient<B>, HttpClient<B>)
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = || {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).timer(TokioTimer::new()).pool_idle_timeout(POOL_IDLE_TIMEOUT);
        builder
    };
    let grpc = builder()
        .http2_only(true)
        .http2_initial_stream_window_size(1 << 20)
        .http2_initial_connection_window_size(8 << 20)
        .build(connector.clone());
    (builder().build(connector), grpc)
}
