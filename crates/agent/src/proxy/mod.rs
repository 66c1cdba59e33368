//! The way of requests to the server: the name that the server knows, a model that is in memory, and a count.
//!
//! ```text
//! gateway ──▶ proxy ── enter the shelf (wait while the model is brought into memory) ──▶ server
//!                 └─── the server does not know it after all: bring it back, once ──┘
//! ```

mod body;
mod grpc;
mod headers;
mod rest;
mod send;

#[cfg(test)]
mod tests;

use crate::{
    metrics::Metrics,
    shelf::{Refused, Shelf},
};
use body::{Answer, Outgoing};
use gantry_oip::{Code, Error, server};
use gantry_trace::{Span, Tracer};
use http::{Request, Response, uri::Authority};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a client may take to send its headers.
const HEADER_TIME: Duration = Duration::from_secs(10);
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Less than the five seconds after which MLServer closes a connection that is idle.
const IDLE_TIME: Duration = Duration::from_secs(4);
/// How long requests under way have when the proxy stops.
const GOODBYE: Duration = Duration::from_secs(30);

/// What a request may ask for.
#[derive(Clone, Debug)]
pub struct RequestLimits {
    /// Largest body in bytes.
    pub max_body: usize,
    /// How long a request may take that does not say so itself.
    pub timeout: Duration,
    /// The longest time that a request may ask for.
    pub max_timeout: Duration,
    /// Requests under way at once; more are refused.
    pub max_in_flight: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            max_body: 64 << 20,
            timeout: Duration::from_mins(1),
            max_timeout: Duration::from_hours(1),
            max_in_flight: 4096,
        }
    }
}

/// Both proxies: each port takes REST and gRPC.
pub(crate) struct Proxy {
    shelf: Shelf,
    metrics: Arc<Metrics>,
    limits: RequestLimits,
    tracer: Tracer,
    slots: Arc<Semaphore>,
    http: Client<HttpConnector, Outgoing>,
    grpc: Client<HttpConnector, Outgoing>,
    http_at: Authority,
    grpc_at: Authority,
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Rest,
    Grpc,
}

impl Proxy {
    pub(crate) fn new(
        shelf: Shelf,
        metrics: Arc<Metrics>,
        limits: RequestLimits,
        tracer: Tracer,
        http_at: &str,
        grpc_at: &str,
    ) -> Result<Arc<Self>, String> {
        let authority = |at: &str| {
            at.parse::<Authority>().map_err(|_| format!("\"{}\" is not an address", at.escape_debug()))
        };
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIME));
        let builder = || {
            let mut builder = Client::builder(TokioExecutor::new());
            builder.pool_timer(TokioTimer::new()).timer(TokioTimer::new()).pool_idle_timeout(IDLE_TIME);
            builder
        };
        let grpc = builder()
            .http2_only(true)
            .http2_initial_stream_window_size(1 << 20)
            .http2_initial_connection_window_size(8 << 20)
            .build(connector.clone());
        Ok(Arc::new(Self {
            shelf,
            metrics,
            slots: Arc::new(Semaphore::new(limits.max_in_flight.clamp(1, Semaphore::MAX_PERMITS))),
            limits,
            tracer,
            http: builder().build(connector),
            grpc,
            http_at: authority(http_at)?,
            grpc_at: authority(grpc_at)?,
        }))
    }

    /// Serves until `stop` is cancelled, then lets requests finish.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIME);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(HEADER_TIME))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20);
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
            let this = self.clone();
            let service = service_fn(move |request| {
                let this = this.clone();
                async move { Ok::<_, Infallible>(this.answer(request).await) }
            });
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
        drop(listener);
        connections.close();
        let _ = tokio::time::timeout(GOODBYE, connections.wait()).await;
    }

    async fn answer(self: &Arc<Self>, mut request: Request<Incoming>) -> Response<Answer> {
        let protocol = if headers::is_grpc(&request) { Protocol::Grpc } else { Protocol::Rest };
        let mut span = self.trace(&mut request);
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            let error = Error {
                retry_after: Some(1),
                ..Error::new(Code::ResourceExhausted, "too many requests at once")
            };
            return respond(&error, protocol);
        };
        let answered = match protocol {
            Protocol::Rest => self.rest(request, slot).await,
            Protocol::Grpc => self.grpc(request, slot).await,
        };
        answered.unwrap_or_else(|error| {
            span.fail(&error.message);
            respond(&error, protocol)
        })
    }

    /// Goes on with a request's trace; the server goes on from here.
    fn trace(&self, request: &mut Request<Incoming>) -> Span {
        // The last part says what is asked, whichever the protocol; the model is said apart.
        let mut span = self.tracer.server(request.headers(), || {
            request.uri().path().rsplit('/').next().unwrap_or_default().to_owned()
        });
        if span.is_recording()
            && let Some(model) = headers::internal_model(request.headers())
        {
            span.set("gantry.model", model);
        }
        span.inject(request.headers_mut());
        span
    }

    /// When a request that came now must be answered.
    fn deadline(&self, asked: Option<Duration>) -> Instant {
        Instant::now() + asked.unwrap_or(self.limits.timeout).min(self.limits.max_timeout)
    }
}

/// An answer of our own.
fn respond(error: &Error, protocol: Protocol) -> Response<Answer> {
    match protocol {
        Protocol::Rest => server::rest_error(error),
        Protocol::Grpc => server::grpc_error(error),
    }
    .map(Answer::Own)
}

fn refused(refused: Refused, name: &str) -> Error {
    match refused {
        Refused::Unknown => Error::not_found(format!("model {name} is not on this server")),
        Refused::Failed(reason) => {
            Error::unavailable(format!("model {name} could not be brought into memory: {reason}"), 1)
        }
    }
}

fn too_late(name: &str) -> Error {
    Error::new(Code::DeadlineExceeded, format!("model {name} did not answer in time"))
}
