//! Listeners and connections: HTTP/1.1 and HTTP/2 without TLS on one port.

use crate::BoxError;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Protocol limits of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Time to receive the headers of a request, counted from the end of the previous one.
    pub header_timeout: Duration,
    /// Request header limit in bytes.
    pub max_headers: usize,
    /// Further connections wait in the backlog.
    pub max_connections: usize,
    /// How long in-flight requests may run after shutdown.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            max_headers: 64 << 10,
            max_connections: Semaphore::MAX_PERMITS,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl ServerOptions {
    pub fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_timeout)
            .max_buf_size(self.max_headers.max(8192))
            .max_headers(128);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(self.max_headers).unwrap_or(u32::MAX))
            .max_concurrent_streams(1000)
            // Rapid-reset protection.
            .max_pending_accept_reset_streams(Some(20))
            .max_local_error_reset_streams(Some(64))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20)
            .max_frame_size(1 << 18)
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(20));
        builder
    }
}

/// The next connection. Accept errors are logged and retried.
pub async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                // Most likely out of file descriptors: wait for connections to close.
                tracing::warn!(%error, "failed to accept connection");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

/// Serves one connection. After `stop` it stays open for `linger`, then shuts down gracefully.
pub async fn serve_connection<F, B>(
    builder: &auto::Builder<TokioExecutor>,
    stream: TcpStream,
    handler: impl Fn(Request<Incoming>) -> F,
    stop: &CancellationToken,
    linger: Duration,
) where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let response = handler(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            if let Ok(ended) = tokio::time::timeout(linger, connection.as_mut()).await {
                ended
            } else {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection closed with an error");
    }
}

/// Serves connections until `stop` is cancelled, then drains.
pub async fn serve<F, B>(
    listener: TcpListener,
    options: ServerOptions,
    handler: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    stop: CancellationToken,
) where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let builder = Arc::new(options.builder());
    let slots = Arc::new(Semaphore::new(options.max_connections));
    let connections = TaskTracker::new();
    loop {
        let accepting = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (accept(&listener).await, slot)
        };
        let (stream, slot) = tokio::select! {
            accepted = accepting => accepted,
            () = stop.cancelled() => break,
        };
        let (builder, handler, stop) = (Arc::clone(&builder), handler.clone(), stop.clone());
        connections.spawn(async move {
            let _slot = slot;
            serve_connection(&builder, stream, handler, &stop, Duration::ZERO).await;
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(options.drain_timeout, connections.wait()).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "drain timeout: closing connections with requests in flight"
        );
    }
}
