//! Connection pooling.

use super::{Failure, connect::connect};
use crate::routes::Endpoint;
use gantry_transport::{BoxError, body::UpstreamBody};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

const MAX_IDLE_PER_REPLICA: usize = 256;
/// Below the 10 s after which agents close idle connections: no request meets a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_STREAMS_PER_CONNECTION: usize = 100;

/// The pools of one worker; the lock is uncontended.
pub(crate) struct Pools {
    connect_timeout: Duration,
    idle_timeout: Duration,
    by_endpoint: Mutex<HashMap<u64, Pool>>,
}

struct Pool {
    endpoint: Weak<Endpoint>,
    idle: Vec<Idle>,
    shared: Vec<Shared>,
}

struct Idle {
    sender: http1::SendRequest<UpstreamBody>,
    since: Instant,
}

/// An HTTP/2 connection with multiplexed requests.
#[derive(Clone)]
struct Shared {
    sender: http2::SendRequest<UpstreamBody>,
    /// Counts streams: one reference per request, plus one for the pool.
    streams: Arc<()>,
}

/// Returns an HTTP/1 connection to the pool once its response has been read.
pub(crate) type ReleaseConnection = Box<dyn FnOnce() + Send>;

impl Pools {
    pub(crate) fn new(connect_timeout: Duration) -> Self {
        Self { connect_timeout, idle_timeout: IDLE_TIMEOUT, by_endpoint: Mutex::default() }
    }

    fn with<T>(&self, endpoint: &Arc<Endpoint>, work: impl FnOnce(&mut Pool) -> T) -> T {
        let mut pools = self.by_endpoint.lock().unwrap_or_else(PoisonError::into_inner);
        work(pools.entry(endpoint.id).or_insert_with(|| Pool {
            endpoint: Arc::downgrade(endpoint),
            idle: Vec::new(),
            shared: Vec::new(),
        }))
    }

    pub(crate) async fn http(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        mut request: Request<UpstreamBody>,
    ) -> Result<(Response<Incoming>, ReleaseConnection), Failure> {
        loop {
            let (mut sender, fresh) = match self.idle(endpoint).await {
                Some(sender) => (sender, false),
                None => match self.open_http(endpoint).await {
                    Ok(sender) => (sender, true),
                    Err(error) => return Err(Failure { unsent: Some(Box::new(request)), error }),
                },
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let pools = Arc::downgrade(self);
                    let endpoint = Arc::downgrade(endpoint);
                    let release = move || {
                        if let (Some(pools), Some(endpoint)) = (pools.upgrade(), endpoint.upgrade()) {
                            pools.release(&endpoint, sender);
                        }
                    };
                    return Ok((response, Box::new(release)));
                }
                Err(mut failed) => match failed.take_message() {
                    // The pooled connection was closed: retry on another one.
                    Some(unsent) if !fresh => request = unsent,
                    unsent => {
                        return Err(Failure {
                            unsent: unsent.map(Box::new),
                            error: failed.into_error().into(),
                        });
                    }
                },
            }
        }
    }

    async fn idle(&self, endpoint: &Arc<Endpoint>) -> Option<http1::SendRequest<UpstreamBody>> {
        loop {
            let mut idle = self.with(endpoint, |pool| pool.idle.pop())?;
            if idle.sender.is_closed() || idle.since.elapsed() > self.idle_timeout {
                continue;
            }
            if idle.sender.is_ready() || idle.sender.ready().await.is_ok() {
                return Some(idle.sender);
            }
        }
    }

    async fn open_http(&self, endpoint: &Endpoint) -> Result<http1::SendRequest<UpstreamBody>, BoxError> {
        let io = connect(endpoint, endpoint.http_port, self.connect_timeout).await?;
        let (sender, connection) = http1::handshake(io).await?;
        tokio::spawn(async move {
            // Errors surface in the request.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn release(&self, endpoint: &Arc<Endpoint>, sender: http1::SendRequest<UpstreamBody>) {
        if sender.is_closed() {
            return;
        }
        self.with(endpoint, |pool| {
            if pool.idle.len() < MAX_IDLE_PER_REPLICA {
                pool.idle.push(Idle { sender, since: Instant::now() });
            }
        });
    }

    pub(crate) async fn grpc(
        &self,
        endpoint: &Arc<Endpoint>,
        mut request: Request<UpstreamBody>,
    ) -> Result<(Response<Incoming>, ReleaseConnection), Failure> {
        loop {
            let known = self.with(endpoint, |pool| {
                pool.shared.retain(|s| !s.sender.is_closed());
                pool.shared
                    .iter()
                    .find(|s| Arc::strong_count(&s.streams) <= MAX_STREAMS_PER_CONNECTION)
                    .cloned()
            });
            let (mut shared, fresh) = match known {
                Some(shared) => (shared, false),
                None => match self.open_grpc(endpoint).await {
                    Ok(shared) => (shared, true),
                    Err(error) => return Err(Failure { unsent: Some(Box::new(request)), error }),
                },
            };
            match shared.sender.try_send_request(request).await {
                Ok(response) => {
                    let streams = shared.streams;
                    return Ok((response, Box::new(move || drop(streams))));
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !fresh => {
                        request = unsent;
                        self.with(endpoint, |pool| {
                            pool.shared.retain(|s| !Arc::ptr_eq(&s.streams, &shared.streams));
                        });
                    }
                    unsent => {
                        return Err(Failure {
                            unsent: unsent.map(Box::new),
                            error: failed.into_error().into(),
                        });
                    }
                },
            }
        }
    }

    async fn open_grpc(&self, endpoint: &Arc<Endpoint>) -> Result<Shared, BoxError> {
        let io = connect(endpoint, endpoint.grpc_port, self.connect_timeout).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20)
            .max_frame_size(1 << 18)
            .keep_alive_interval(Duration::from_secs(20))
            .handshake(io)
            .await?;
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let shared = Shared { sender, streams: Arc::new(()) };
        self.with(endpoint, |pool| pool.shared.push(shared.clone()));
        Ok(shared)
    }

    /// Closes idle connections, and those of removed replicas.
    pub(crate) fn sweep(&self) {
        let mut pools = self.by_endpoint.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|_, pool| {
            pool.idle.retain(|i| !i.sender.is_closed() && i.since.elapsed() <= self.idle_timeout);
            pool.shared.retain(|s| !s.sender.is_closed());
            pool.endpoint.strong_count() > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metrics::Metrics, routes::Registry};
    use gantry_proto::gantry as pb;
    use http_body_util::BodyExt as _;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    #[test]
    fn idle_connections_close_before_agents_close_them() {
        let agent = gantry_transport::ServerOptions::default().header_timeout;
        let idle = Pools::new(Duration::from_secs(1)).idle_timeout;
        assert!(idle * 2 <= agent, "{idle:?} {agent:?}");
    }

    /// The number of connections for two requests, one after the other.
    async fn connections(idle_timeout: Duration) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http_port = listener.local_addr().unwrap().port().into();
        let wanted = pb::Endpoint { host: "127.0.0.1".into(), http_port, ..pb::Endpoint::default() };
        let endpoint = Registry::default().endpoint(&wanted, &Metrics::new());
        let accepted = Arc::new(());
        let token = Arc::clone(&accepted);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let token = Arc::clone(&token);
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    while stream.read(&mut request).await.unwrap() > 0 {
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                    }
                    std::future::pending::<()>().await;
                    drop(token);
                });
            }
        });
        let pools = Arc::new(Pools { idle_timeout, ..Pools::new(Duration::from_secs(10)) });
        for _ in 0..2 {
            let request = Request::get("/").body(UpstreamBody::Whole(bytes::Bytes::new())).unwrap();
            let Ok((response, release)) = pools.http(&endpoint, request).await else { panic!("no response") };
            response.into_body().collect().await.unwrap();
            release();
        }
        // One for this function, one for the listener.
        Arc::strong_count(&accepted) - 2
    }

    #[tokio::test]
    async fn connection_that_was_idle_for_too_long_is_not_used_again() {
        assert_eq!(connections(Duration::from_hours(1)).await, 1);
        assert_eq!(connections(Duration::ZERO).await, 2);
    }
}
