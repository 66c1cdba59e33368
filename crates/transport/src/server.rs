//! Listeners and connections: HTTP/1.1 and HTTP/2 without TLS on one port.

use crate::{
    BoxError,
    activity::{Activity, TrackedBody},
    client_io::ClientIo,
};
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
    /// Time to receive the headers of a request, counted from the end of the previous one: also limits the first bytes
    /// of a connection and closes idle ones.
    pub header_timeout: Duration,
    /// How long a client may leave a part of a response unread; then its connection is closed.
    pub unread_timeout: Duration,
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
            // Longer than a gateway keeps an idle connection.
            header_timeout: Duration::from_mins(1),
            unread_timeout: Duration::from_secs(20),
            max_headers: 64 << 10,
            max_connections: 10_000,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// A configured server of connections.
pub struct Http {
    builder: auto::Builder<TokioExecutor>,
    header_timeout: Duration,
    unread_timeout: Duration,
}

impl ServerOptions {
    pub fn http(&self) -> Http {
        Http {
            builder: self.builder(),
            header_timeout: self.header_timeout,
            unread_timeout: self.unread_timeout,
        }
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
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

/// Serves one connection. After `stop` it stays open for `linger`, then shuts down gracefully. A connection that is idle,
/// or whose client leaves a response unread, is closed: gracefully first, because other requests may be in flight on it.
pub async fn serve_connection<F, B>(
    http: &Http,
    stream: TcpStream,
    handler: impl Fn(Request<Incoming>) -> F,
    stop: &CancellationToken,
    linger: Duration,
) where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let activity = Arc::new(Activity::default());
    let service = service_fn(|request| {
        let active = Activity::begin(&activity);
        let response = handler(request);
        async move { Ok::<_, Infallible>(response.await.map(|body| TrackedBody::new(body, active))) }
    });
    let io = TokioIo::new(ClientIo::new(stream, &activity));
    let mut connection = pin!(http.builder.serve_connection(io, service));
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(linger).await;
    };
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = activity.stalled(http.header_timeout, http.unread_timeout) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(http.unread_timeout, connection).await {
                Ok(ended) => ended,
                Err(_) => Err("the client is idle or reads no response".into()),
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
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let http = Arc::new(options.http());
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
        let (http, handler, stop) = (Arc::clone(&http), handler.clone(), stop.clone());
        connections.spawn(async move {
            let _slot = slot;
            serve_connection(&http, stream, handler, &stop, Duration::ZERO).await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_oip::server::Reply;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn silent_connections_make_room_for_others() {
        let timeout = Duration::from_millis(100);
        let options = ServerOptions {
            header_timeout: timeout,
            unread_timeout: timeout,
            max_connections: 2,
            ..ServerOptions::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let handler = |_| async { Response::new(Reply::new("served".into())) };
        let serving = tokio::spawn(serve(listener, options, handler, stop.clone()));
        let _silent =
            [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(20), reading).await.expect("no room").unwrap();
        assert!(answer.ends_with("served"), "{answer}");
        stop.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_wait() {
        let options = ServerOptions { max_connections: 2, ..ServerOptions::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, served) = (CancellationToken::new(), Arc::new(Semaphore::new(0)));
        // Requests that run now, and the most that ran at a time.
        let counters = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let counted = Arc::clone(&counters);
        let handler = move |_| {
            let counted = Arc::clone(&counted);
            async move {
                let [running, most] = &*counted;
                most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
                running.fetch_sub(1, SeqCst);
                Response::new(Reply::new("served".into()))
            }
        };
        let serving = tokio::spawn(serve(listener, options, handler, stop.clone()));
        for _ in 0..8 {
            let served = Arc::clone(&served);
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
                stream.read_to_end(&mut Vec::new()).await.unwrap();
                served.add_permits(1);
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(20), served.acquire_many(8)).await;
        drop(all.expect("all are served").unwrap());
        assert_eq!(counters[1].load(SeqCst), 2);
        stop.cancel();
        serving.await.unwrap();
    }
}
