//! Forwarding to replicas, with retries.

use super::{RequestGuard, Worker, headers, local_response, request_body};
use crate::{
    body::{ResponseBody, Streamed},
    policy::retry,
    routes::{InFlightRequest, SelectError},
    upstream::Failure,
};
use bytes::Bytes;
use futures::FutureExt as _;
use gantry_oip::{Code, Error, server::Reply};
use gantry_transport::{
    Protocol,
    body::{Payload, UpstreamBody, exceeded_limit},
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version, header, uri::Scheme};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::{panic::AssertUnwindSafe, sync::Arc};
use tokio::time::Instant;

/// A routed request.
pub(super) struct Call {
    pub(super) model: Arc<str>,
    pub(super) sticky: Option<HeaderValue>,
    pub(super) protocol: Protocol,
    pub(super) infer: bool,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) trace: Option<gantry_trace::SpanContext>,
}

/// The upstream path, resolved once the version is known.
pub(super) enum Target<'a> {
    /// `/v2/models/<internal>`, this tail and query.
    Rest { tail: &'a str, query: Option<&'a str>, infer: bool },
    /// The path is unchanged.
    Grpc(&'a Uri),
}

pub(super) struct Head {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) request_id: HeaderValue,
}

impl Worker {
    pub(super) fn acquire(
        &self,
        model: &str,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
        excluded: &[u64],
    ) -> Result<InFlightRequest, Error> {
        let max_in_flight = self.shared.config.max_in_flight_per_replica;
        let sticky = sticky.map(HeaderValue::as_bytes);
        let in_flight = self.shared.routes.acquire(model, sticky, fastrand::u64(..), excluded, max_in_flight);
        in_flight.map_err(|error| self.select_error(&error, model, protocol))
    }

    /// Selects a replica for inference. A model that is scaled to zero is woken and waited for, up to the deadline.
    pub(super) async fn acquire_or_wake(
        &self,
        model: &str,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
        deadline: Instant,
    ) -> Result<InFlightRequest, Error> {
        let max_in_flight = self.shared.config.max_in_flight_per_replica;
        let sticky = sticky.map(HeaderValue::as_bytes);
        let mut woken = false;
        loop {
            let error = match self.shared.routes.acquire(model, sticky, fastrand::u64(..), &[], max_in_flight)
            {
                Ok(in_flight) => return Ok(in_flight),
                Err(error) => error,
            };
            // After the wake-up the model stays without replicas until it is loaded.
            let retry =
                matches!(&error, SelectError::NoReplica { scaled_to_zero, .. } if *scaled_to_zero || woken);
            if !retry {
                return Err(self.select_error(&error, model, protocol));
            }
            woken = true;
            let changed = tokio::time::timeout_at(deadline, self.shared.routes.wait_for_replica(model));
            if changed.await.is_err() {
                return Err(self.select_error(&error, model, protocol));
            }
        }
    }

    fn select_error(&self, error: &SelectError, model: &str, protocol: Protocol) -> Error {
        let mut nearest = None;
        match error {
            SelectError::AtCapacity { .. } => {
                self.shared.metrics.shed.inc();
            }
            SelectError::UnknownModel => nearest = self.shared.routes.nearest(model),
            _ => {}
        }
        local_response::select_error(error, model, protocol, nearest)
    }

    /// Sends to a replica; retries on another one if nothing was sent.
    pub(super) async fn forward(
        self: &Arc<Self>,
        call: &Call,
        in_flight: InFlightRequest,
        target: &Target<'_>,
        mut head: Head,
        mut payload: Payload,
    ) -> Result<Response<ResponseBody>, Error> {
        let mut in_flight = in_flight;
        let mut excluded: Vec<u64> = Vec::new();
        loop {
            headers::to_replica(&mut head.headers, &in_flight.version, &head.request_id);
            let mut guard =
                RequestGuard::new(&self.shared, in_flight, call.protocol, call.infer, call.started);
            guard.trace(call.trace.clone(), &mut head.headers);
            if let Some(local) = guard.in_flight.endpoint.local() {
                return self.local(call, guard, &local.0, target, head, payload).await;
            }
            let endpoint = Arc::clone(&guard.in_flight.endpoint);
            let request = self.request(&guard.in_flight, target, head, payload)?;
            let sending = async {
                match call.protocol {
                    Protocol::Rest => self.pools.http(&endpoint, request).await,
                    Protocol::Grpc => self.pools.grpc(&endpoint, request).await,
                }
            };
            let Failure { unsent, error } = match tokio::time::timeout_at(call.deadline, sending).await {
                Err(_) => {
                    guard.on_timeout();
                    return Err(deadline_exceeded(call));
                }
                Ok(Ok((response, reuse))) => return respond(call, guard, response, reuse).await,
                Ok(Err(failure)) => failure,
            };
            if let Some(limit) = exceeded_limit(&*error) {
                return Err(request_body::too_large(limit));
            }
            if unsent.is_none() && error.downcast_ref().is_some_and(hyper::Error::is_user) {
                return Err(Error::invalid("the request body ended early"));
            }
            guard.on_failure();
            excluded.push(endpoint.id);
            let failed = retry::Attempt {
                sent: unsent.is_none(),
                replayable: unsent.is_some(),
                attempts: u32::try_from(excluded.len()).unwrap_or(u32::MAX),
            };
            drop(guard);
            let next = if retry::should_retry(failed) {
                self.acquire(&call.model, call.sticky.as_ref(), call.protocol, &excluded).ok()
            } else {
                None
            };
            let (Some(next), Some(unsent)) = (next, unsent) else {
                tracing::debug!(model = &*call.model, server = endpoint.server, replica = endpoint.replica, %error, "upstream request failed");
                return Err(replica_unavailable(&endpoint, failed.sent, call));
            };
            self.shared.metrics.retries.inc();
            in_flight = next;
            let (parts, body) = unsent.into_parts();
            let request_id = parts.headers.get(headers::REQUEST_ID).cloned();
            head = Head {
                method: parts.method,
                request_id: request_id.unwrap_or(HeaderValue::from_static("0")),
                headers: parts.headers,
            };
            payload = body.into();
        }
    }

    async fn local(
        &self,
        call: &Call,
        mut guard: RequestGuard,
        server: &Arc<dyn gantry_oip::server::InferenceServer>,
        target: &Target<'_>,
        head: Head,
        payload: Payload,
    ) -> Result<Response<ResponseBody>, Error> {
        let limit = self.shared.config.max_body;
        let calling = async {
            let body = payload.into_bytes(limit).await?;
            let mut request = Request::new(body);
            *request.method_mut() = head.method;
            *request.uri_mut() = uri(&guard.in_flight, target, None)?;
            *request.headers_mut() = head.headers;
            // A panic fails its request only.
            AssertUnwindSafe(server.call(request))
                .catch_unwind()
                .await
                .map_err(|_| Error::internal(format!("the server of model {} panicked", call.model)))
        };
        match tokio::time::timeout_at(call.deadline, calling).await {
            Err(_) => {
                guard.on_timeout();
                Err(deadline_exceeded(call))
            }
            Ok(Err(error)) => Err(error),
            Ok(Ok(mut response)) => {
                guard.on_response(response.status(), response.headers());
                if let Some(trailers) = response.body().trailers() {
                    guard.on_trailers(trailers);
                }
                headers::to_client(response.headers_mut(), &guard.in_flight.version);
                Ok(local_response::from_reply(response))
            }
        }
    }

    fn request(
        &self,
        in_flight: &InFlightRequest,
        target: &Target<'_>,
        mut head: Head,
        payload: Payload,
    ) -> Result<Request<UpstreamBody>, Error> {
        let limit = self.shared.config.max_body;
        if let Payload::Whole(bytes) = &payload {
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        }
        let mut request = Request::new(UpstreamBody::new(payload, limit));
        *request.method_mut() = head.method;
        *request.headers_mut() = head.headers;
        *request.uri_mut() = uri(in_flight, target, in_flight.endpoint.grpc_authority.as_ref())?;
        *request.version_mut() = match target {
            Target::Rest { .. } => Version::HTTP_11,
            Target::Grpc(_) => Version::HTTP_2,
        };
        Ok(request)
    }
}

fn uri(
    in_flight: &InFlightRequest,
    target: &Target<'_>,
    authority: Option<&http::uri::Authority>,
) -> Result<Uri, Error> {
    let bad = |_| Error::invalid("invalid path");
    match target {
        Target::Rest { infer: true, query: None, .. } => Ok(in_flight.version.infer_uri.clone()),
        Target::Rest { tail, query, .. } => {
            let internal = &in_flight.version.internal;
            let mark = if query.is_some() { "?" } else { "" };
            let query = query.unwrap_or_default();
            format!("/v2/models/{internal}{tail}{mark}{query}").parse().map_err(bad)
        }
        Target::Grpc(uri) => {
            let mut parts = http::uri::Parts::default();
            parts.path_and_query = uri.path_and_query().cloned();
            if let Some(authority) = authority {
                parts.scheme = Some(Scheme::HTTP);
                parts.authority = Some(authority.clone());
            }
            Uri::from_parts(parts).map_err(|_| Error::invalid("invalid path"))
        }
    }
}

/// Buffers small REST responses, streams all others.
async fn respond(
    call: &Call,
    mut guard: RequestGuard,
    response: Response<Incoming>,
    reuse: crate::upstream::ReleaseConnection,
) -> Result<Response<ResponseBody>, Error> {
    let (mut parts, mut body) = response.into_parts();
    guard.on_response(parts.status, &parts.headers);
    headers::to_client(&mut parts.headers, &guard.in_flight.version);
    let small = call.protocol == Protocol::Rest
        && body.size_hint().exact().is_some_and(|n| n <= request_body::SMALL as u64);
    if !small {
        let streamed =
            Streamed { body, guard: Some(guard), reuse: Some(reuse), deadline: call.deadline, timer: None };
        return Ok(Response::from_parts(parts, ResponseBody::Streamed(Box::new(streamed))));
    }
    let collecting = async {
        let mut data = Bytes::new();
        while let Some(frame) = body.frame().await {
            if let Ok(more) = frame?.into_data() {
                data = if data.is_empty() { more } else { [data, more].concat().into() };
            }
        }
        Ok::<_, hyper::Error>(data)
    };
    match tokio::time::timeout_at(call.deadline, collecting).await {
        Ok(Ok(data)) => {
            reuse();
            guard.done();
            Ok(Response::from_parts(parts, ResponseBody::Whole(Reply::new(data))))
        }
        Ok(Err(_)) => {
            guard.on_failure();
            Err(replica_unavailable(&guard.in_flight.endpoint, true, call))
        }
        Err(_) => {
            guard.on_timeout();
            Err(deadline_exceeded(call))
        }
    }
}

fn deadline_exceeded(call: &Call) -> Error {
    let seconds = call.deadline.saturating_duration_since(call.started).as_secs_f64();
    Error::new(Code::DeadlineExceeded, format!("model {} did not respond within {seconds:.1} s", call.model))
}

fn replica_unavailable(endpoint: &crate::routes::Endpoint, sent: bool, call: &Call) -> Error {
    let what = if sent { "closed the connection before it responded" } else { "is unreachable" };
    Error::unavailable(
        format!("replica {} of server {} (model {}) {what}", endpoint.replica, endpoint.server, call.model),
        1,
    )
}
