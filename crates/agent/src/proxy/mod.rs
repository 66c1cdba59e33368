//! Reverse proxy in front of the server: rewrites model names, loads models on demand, records metrics.
//!
//! ```text
//! gateway ──▶ proxy ── acquire the model (load it if evicted) ──▶ server
//!                 └─── the server lost the model: reload, retry once ──┘
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
    model_cache::{ModelCache, Rejected},
    upstream::{HttpClient, clients},
};
use body::ResponseBody;
use gantry_oip::{
    Code, Error,
    server::{NO_MODEL, NO_SERVER, UNPROCESSED},
};
use gantry_trace::{Span, Tracer};
use gantry_transport::{Protocol, ServerOptions, body::UpstreamBody, request_id::RequestIds};
use http::{HeaderValue, Request, Response, uri::Authority};
use hyper::body::Incoming;
use std::{sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug)]
pub struct RequestLimits {
    /// Bytes.
    pub max_body: usize,
    /// Default deadline.
    pub timeout: Duration,
    /// Upper bound for client deadlines.
    pub max_timeout: Duration,
    /// Excess requests are rejected.
    pub max_in_flight: usize,
    /// Whether the server accepts `ModelStreamInfer`.
    pub supports_streams: bool,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            max_body: 64 << 20,
            timeout: Duration::from_mins(1),
            max_timeout: Duration::from_hours(1),
            max_in_flight: 4096,
            supports_streams: false,
        }
    }
}

/// Serves both proxy ports; each accepts REST and gRPC.
pub(crate) struct Proxy {
    cache: ModelCache,
    metrics: Arc<Metrics>,
    limits: RequestLimits,
    tracer: Tracer,
    slots: Arc<Semaphore>,
    ids: RequestIds,
    http: HttpClient<UpstreamBody>,
    grpc: HttpClient<UpstreamBody>,
    http_at: Authority,
    grpc_at: Authority,
}

impl Proxy {
    pub(crate) fn new(
        cache: ModelCache,
        metrics: Arc<Metrics>,
        limits: RequestLimits,
        tracer: Tracer,
        http_at: &str,
        grpc_at: &str,
    ) -> Result<Arc<Self>, String> {
        let authority = |at: &str| {
            at.parse::<Authority>().map_err(|_| format!("\"{}\" is not an address", at.escape_debug()))
        };
        let (http, grpc) = clients();
        Ok(Arc::new(Self {
            cache,
            metrics,
            slots: Arc::new(Semaphore::new(limits.max_in_flight.clamp(1, Semaphore::MAX_PERMITS))),
            ids: RequestIds::new(0),
            limits,
            tracer,
            http,
            grpc,
            http_at: authority(http_at)?,
            grpc_at: authority(grpc_at)?,
        }))
    }

    /// Serves until `stop` is cancelled, then drains.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let handler = move |request| Arc::clone(&self).handle(request);
        gantry_transport::serve(listener, ServerOptions::default(), handler, stop).await;
    }

    async fn handle(self: Arc<Self>, mut request: Request<Incoming>) -> Response<ResponseBody> {
        let protocol = Protocol::of(request.headers());
        let mut span = self.trace(&mut request);
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            let error = Error {
                retry_after: Some(1),
                ..Error::new(Code::ResourceExhausted, "too many requests in flight")
            };
            return respond(&error, protocol);
        };
        let answered = match protocol {
            Protocol::Rest => self.rest(request, slot).await,
            Protocol::Grpc => self.grpc(request, slot).await,
        };
        answered.unwrap_or_else(|Failed { error, unprocessed }| {
            span.fail(&error.message);
            let mut response = respond(&error, protocol);
            if let Some(cause) = unprocessed {
                response.headers_mut().insert(UNPROCESSED, HeaderValue::from_static(cause.header()));
            }
            response
        })
    }

    /// Continues the trace and propagates it to the server.
    fn trace(&self, request: &mut Request<Incoming>) -> Span {
        // Low-cardinality name: the last path segment.
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

    fn deadline(&self, requested: Option<Duration>) -> Instant {
        let timeout = requested.unwrap_or(self.limits.timeout).min(self.limits.max_timeout);
        gantry_transport::deadline(Instant::now(), timeout)
    }
}

fn respond(error: &Error, protocol: Protocol) -> Response<ResponseBody> {
    protocol.error(error).map(ResponseBody::Own)
}

/// An error of the proxy itself.
struct Failed {
    error: Error,
    /// Set if no model has processed the request: gateways retry it on another replica.
    unprocessed: Option<Unprocessed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unprocessed {
    /// Not a model of this replica.
    UnknownModel,
    ModelNotLoaded,
    ServerUnreachable,
}

impl Unprocessed {
    const fn header(self) -> &'static str {
        match self {
            Self::UnknownModel | Self::ModelNotLoaded => NO_MODEL,
            Self::ServerUnreachable => NO_SERVER,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, unprocessed: None }
    }
}

fn rejected(refused: Rejected, name: &str) -> Failed {
    match refused {
        Rejected::Unknown => Failed {
            error: Error::not_found(format!("model {name} is not on this replica")),
            unprocessed: Some(Unprocessed::UnknownModel),
        },
        Rejected::Failed(reason) => Failed {
            error: Error::unavailable(format!("model {name} could not be loaded: {reason}"), 1),
            unprocessed: Some(Unprocessed::ModelNotLoaded),
        },
    }
}

fn deadline_exceeded(name: &str) -> Error {
    Error::new(Code::DeadlineExceeded, format!("model {name} did not respond in time"))
}
