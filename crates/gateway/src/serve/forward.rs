//! Forwarding to replicas, with retries.

use super::{
    RequestGuard, Worker, destination::Wanted, headers, local_response, metadata, request_body, sequence,
};
use crate::{
    body::{ResponseBody, Streamed},
    policy::retry,
    routes::{InFlightRequest, SelectError, Selector, WaitLimits},
    upstream::Failure,
};
use bytes::Bytes;
use futures::FutureExt as _;
use gantry_oip::{
    Code, Error, InferRequest, InferResponse,
    server::{NO_SERVER, Reply, UNPROCESSED},
};
use gantry_transport::{
    BoxError, Protocol,
    body::{Payload, UpstreamBody},
    deadline,
    headers::grpc_status,
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    uri::{PathAndQuery, Scheme},
};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use prometheus_client::metrics::gauge::Gauge;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tokio::time::Instant;

/// A routed request.
pub(crate) struct Call {
    pub(crate) model: Arc<str>,
    pub(crate) sticky: Option<HeaderValue>,
    /// The version that the client named.
    pub(crate) version: Option<u32>,
    /// Key of the sequence in a gRPC message; of REST requests it is read from the body.
    pub(crate) sequence: Option<u64>,
    pub(crate) protocol: Protocol,
    pub(crate) infer: bool,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    pub(crate) trace: Option<gantry_trace::SpanContext>,
    /// The step of a pipeline that makes the call.
    pub(crate) step: Option<Arc<str>>,
    /// `model` is a component of an InferenceService: requests and responses pass unchanged.
    pub(crate) is_component: bool,
}

/// The upstream path, resolved once the version is known.
pub(crate) enum Target<'a> {
    /// `/v2/models/<internal>`, this tail and query.
    Rest { tail: &'a str, query: Option<&'a str>, infer: bool },
    /// The path is unchanged.
    Grpc(&'a Uri),
    /// A path of a pod.
    Pod(&'a PathAndQuery),
}

impl Target<'_> {
    pub(super) const fn protocol(&self) -> Protocol {
        match self {
            Self::Rest { .. } | Self::Pod(_) => Protocol::Rest,
            Self::Grpc(_) => Protocol::Grpc,
        }
    }
}

pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) request_id: HeaderValue,
}

/// Shorter deadlines are no evidence that a replica is silent.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// Releases the gateway-wide slot of a request while it waits for a replica.
struct Waiting<'a>(&'a Gauge);

impl<'a> Waiting<'a> {
    fn new(in_flight: &'a Gauge) -> Self {
        in_flight.dec();
        Self(in_flight)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.inc();
    }
}

impl Worker {
    pub(super) fn acquire(
        &self,
        mut wanted: Wanted<'_>,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
    ) -> Result<InFlightRequest, Error> {
        let selected = self.select(&mut wanted, sticky);
        selected.map_err(|error| self.select_error(&error, &wanted.model, protocol))
    }

    pub(super) fn selector(&self) -> Selector<'static> {
        let max_in_flight = self.shared.config.max_in_flight_per_replica;
        Selector { random: fastrand::u64(..), max_in_flight, ..Selector::default() }
    }

    /// Selects a replica. If an experiment takes the model's name over, `wanted` becomes its choice.
    fn select(
        &self,
        wanted: &mut Wanted<'_>,
        sticky: Option<&HeaderValue>,
    ) -> Result<InFlightRequest, SelectError> {
        let sticky = sticky.map(HeaderValue::as_bytes);
        let routes = &self.shared.routes;
        let (is_chosen, is_component) = (wanted.is_chosen, wanted.is_component);
        let selector = Selector { sticky, is_chosen, is_component, ..self.selector() };
        let mut selected = routes.acquire(&wanted.model, &selector);
        if let Err(SelectError::TakenOver(experiment)) = &selected
            && wanted.choose(Arc::clone(experiment), sticky)
        {
            selected = routes.acquire(&wanted.model, &Selector { is_chosen: true, ..selector });
        }
        let mut in_flight = selected?;
        in_flight.experiment.clone_from(&wanted.experiment);
        Ok(in_flight)
    }

    /// Selects a replica for inference. A model that is scaled to zero is woken and waited for, up to the deadline.
    pub(crate) async fn acquire_or_wake(
        &self,
        mut wanted: Wanted<'_>,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
        deadline: Instant,
    ) -> Result<InFlightRequest, Error> {
        let config = &self.shared.config;
        let limits = WaitLimits { per_model: config.max_in_flight_per_replica, total: config.max_in_flight };
        let mut woken = false;
        loop {
            let error = match self.select(&mut wanted, sticky) {
                Ok(in_flight) => return Ok(in_flight),
                Err(error) => error,
            };
            error.record_unreachable();
            let model = &*wanted.model;
            // After the wake-up the model stays without replicas until it is loaded.
            let retry = matches!(&error, SelectError::NoReplica { scaled_to_zero, failed, .. }
                if *scaled_to_zero || (woken && !failed));
            if !retry {
                return Err(self.select_error(&error, model, protocol));
            }
            woken = true;
            let _waiting = wanted.is_admitted.then(|| Waiting::new(&self.shared.metrics.in_flight));
            let changed =
                tokio::time::timeout_at(deadline, self.shared.routes.wait_for_replica(model, limits));
            match changed.await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    self.shared.metrics.shed.inc();
                    let (subject, _) = local_response::subject(model);
                    let message = format!("too many requests wait for {subject} to load: retry in 1 s");
                    return Err(Error {
                        retry_after: Some(1),
                        ..Error::new(Code::ResourceExhausted, message)
                    });
                }
                Err(_) => return Err(self.select_error(&error, model, protocol)),
            }
        }
    }

    /// Another target, if the version or the sequence of the request belongs to one.
    fn reselect(
        &self,
        call: &Call,
        in_flight: InFlightRequest,
        headers: &HeaderMap,
        payload: &Payload,
    ) -> Result<(InFlightRequest, Option<u64>), Error> {
        if call.is_component {
            return Ok((in_flight, None));
        }
        let sequence = if in_flight.has_alternatives && call.infer {
            sequence::key(call, headers, payload)
        } else {
            None
        };
        let is_version = call.version.is_none_or(|wanted| wanted == in_flight.version.number);
        if sequence.is_none() && is_version {
            return Ok((in_flight, None));
        }
        drop(in_flight);
        let sticky = call.sticky.as_ref().map(HeaderValue::as_bytes);
        let version = call.version;
        let selector = Selector { sticky, version, sequence, is_chosen: true, ..self.selector() };
        let selected = self.shared.routes.acquire(&call.model, &selector).map_err(|error| {
            if call.infer {
                error.record_unreachable();
            }
            self.select_error(&error, &call.model, call.protocol)
        })?;
        Ok((selected, sequence))
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

    /// Sends to a replica; retries on another one if no model has processed the request.
    pub(crate) async fn forward(
        self: &Arc<Self>,
        call: &Call,
        in_flight: InFlightRequest,
        target: &Target<'_>,
        mut head: Head,
        mut payload: Payload,
    ) -> Result<Response<ResponseBody>, Error> {
        let experiment = in_flight.experiment.clone();
        let (mut in_flight, sequence) = self.reselect(call, in_flight, &head.headers, &payload)?;
        let mut excluded: Vec<u64> = Vec::new();
        loop {
            in_flight.experiment.clone_from(&experiment);
            headers::to_replica(&mut head.headers, &in_flight.version, &head.request_id);
            let mut guard =
                RequestGuard::new(&self.shared, in_flight, call.protocol, call.infer, call.started);
            guard.trace(call, &mut head.headers);
            guard.observe_request(&head.headers, &payload);
            if let Some(local) = guard.in_flight.endpoint.local() {
                return self.local(call, guard, &local.0, target, head, payload).await;
            }
            let endpoint = Arc::clone(&guard.in_flight.endpoint);
            let replay = guard.in_flight.has_alternatives.then(|| Replay::of(&head, &payload)).flatten();
            // A stream may wait for the client's next message: no evidence about the replica.
            let is_whole = matches!(payload, Payload::Whole(_));
            let is_stream = matches!(payload, Payload::Messages(_));
            let (sent_at, responses) = (Instant::now(), endpoint.responses());
            let request = upstream_request(&guard.in_flight, target, head, payload)?;
            let sending = async {
                match call.protocol {
                    Protocol::Rest => self.pools.http(&endpoint, request).await,
                    Protocol::Grpc => self.pools.grpc(&endpoint, request).await,
                }
            };
            let answer_by = if is_stream {
                // The deadline of a stream is that of its last message.
                call.deadline.min(deadline(call.started, self.shared.config.request_timeout))
            } else {
                call.deadline
            };
            let failure = match tokio::time::timeout_at(answer_by, sending).await {
                Err(_) => {
                    let silent =
                        is_whole && endpoint.responses() == responses && sent_at.elapsed() >= SILENCE_MIN;
                    guard.on_timeout(silent);
                    return Err(deadline_exceeded(call));
                }
                Ok(Ok((response, reuse))) => {
                    endpoint.on_response();
                    match unprocessed(call, &response) {
                        None => {
                            let version = guard.in_flight.version.number;
                            let response = respond(call, guard, response, reuse).await?;
                            if call.infer {
                                return Ok(response);
                            }
                            let limit = self.shared.config.max_body;
                            return metadata::with_version(call, target, response, version, limit).await;
                        }
                        Some(cause) => Attempt { cause, replay, error: None },
                    }
                }
                Ok(Err(Failure { unsent, error })) => {
                    let cause = if unsent.is_some() { Cause::Unreachable } else { Cause::ConnectionLost };
                    Attempt {
                        cause,
                        replay: unsent.map(|request| Replay::from(*request)),
                        error: Some(error),
                    }
                }
            };
            if failure.cause == Cause::ModelMissing {
                guard.on_missing_model();
            } else {
                guard.on_failure();
            }
            excluded.push(endpoint.id);
            let failed = retry::Attempt {
                sent: failure.cause == Cause::ConnectionLost,
                replayable: failure.replay.is_some(),
                attempts: u32::try_from(excluded.len()).unwrap_or(u32::MAX),
            };
            let (class, tried) = (guard.result_class(), Arc::clone(&guard.in_flight.version));
            let attribution = guard.take_attribution();
            drop(guard);
            let mut next = if retry::should_retry(failed) {
                let sticky = call.sticky.as_ref().map(HeaderValue::as_bytes);
                let version = call.version;
                let excluded = &excluded;
                let is_component = call.is_component;
                let selector = Selector {
                    sticky,
                    version,
                    retried: Some(tried.number),
                    sequence,
                    excluded,
                    is_chosen: true,
                    is_component,
                    ..self.selector()
                };
                self.shared.routes.acquire(&call.model, &selector).ok()
            } else {
                None
            };
            if let Some(attribution) = attribution {
                match &mut next {
                    // The request continues on another replica of its version.
                    Some(next) if Arc::ptr_eq(&next.version, &tried) => {
                        next.attribution = Some(attribution);
                    }
                    _ => attribution.record(class, Instant::now()),
                }
            }
            let (Some(next), Some(again)) = (next, failure.replay) else {
                let (server, replica, cause) = (&endpoint.server, endpoint.replica, failure.cause);
                let error = failure.error.map(|e| e.to_string()).unwrap_or_default();
                tracing::debug!(
                    model = &*call.model,
                    server,
                    replica,
                    ?cause,
                    error,
                    "upstream request failed"
                );
                return Err(replica_unavailable(&endpoint, cause, call));
            };
            self.shared.metrics.retries.inc();
            in_flight = next;
            (head, payload) = (again.head, again.payload);
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
            AssertUnwindSafe(server.call(request)).catch_unwind().await.map_err(|_| {
                tracing::error!(model = &*call.model, "in-process server panicked");
                Error::internal(format!("the server of model {} panicked", call.model))
            })
        };
        match tokio::time::timeout_at(call.deadline, calling).await {
            Err(_) => {
                guard.on_timeout(false);
                Err(deadline_exceeded(call))
            }
            Ok(Err(error)) => {
                guard.on_error(&error);
                Err(error)
            }
            Ok(Ok(mut response)) => {
                guard.on_response(response.status(), response.headers());
                if let Some(trailers) = response.body().trailers() {
                    guard.on_trailers(trailers);
                }
                guard.on_data(response.body().data());
                headers::to_client(response.headers_mut(), &guard.in_flight.version);
                Ok(local_response::from_reply(response))
            }
        }
    }

    /// Inference on an in-process server, without encoding.
    pub(crate) async fn infer_local(
        &self,
        call: &Call,
        in_flight: InFlightRequest,
        server: &Arc<dyn gantry_oip::server::InferenceServer>,
        mut head: HeaderMap,
        mut request: InferRequest,
    ) -> Result<InferResponse, Error> {
        request.model_name = in_flight.version.internal.to_string();
        let mut guard = RequestGuard::new(&self.shared, in_flight, call.protocol, call.infer, call.started);
        guard.trace(call, &mut head);
        guard.observe_tensors(true, &request.inputs);
        let calling = AssertUnwindSafe(server.infer(request, head)).catch_unwind();
        let Ok(answered) = tokio::time::timeout_at(call.deadline, calling).await else {
            guard.on_timeout(false);
            return Err(deadline_exceeded(call));
        };
        let answer = answered.unwrap_or_else(|_| {
            tracing::error!(model = &*call.model, "in-process server panicked");
            Err(Error::internal(format!("the server of model {} panicked", call.model)))
        });
        guard.on_answer(answer.as_ref().err());
        if let Ok(response) = &answer {
            guard.observe_tensors(false, &response.outputs);
        }
        answer
    }
}

fn upstream_request(
    in_flight: &InFlightRequest,
    target: &Target<'_>,
    mut head: Head,
    payload: Payload,
) -> Result<Request<UpstreamBody>, Error> {
    // Whole bodies are within the limit; streams are bounded by flow control.
    let limit = usize::MAX;
    if let Payload::Whole(bytes) = &payload
        && (!bytes.is_empty() || !matches!(head.method, Method::GET | Method::HEAD))
    {
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    }
    let mut request = Request::new(UpstreamBody::new(payload, limit));
    *request.method_mut() = head.method;
    *request.headers_mut() = head.headers;
    *request.uri_mut() = uri(in_flight, target, in_flight.endpoint.grpc_authority.as_ref())?;
    *request.version_mut() = match target {
        Target::Rest { .. } | Target::Pod(_) => Version::HTTP_11,
        Target::Grpc(_) => Version::HTTP_2,
    };
    Ok(request)
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
        Target::Pod(path) => Ok(Uri::from((*path).clone())),
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
        let streamed = Streamed::new(body, guard, reuse, call.deadline);
        return Ok(Response::from_parts(parts, ResponseBody::Streamed(streamed)));
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
            guard.on_data(&data);
            guard.done();
            Ok(Response::from_parts(parts, ResponseBody::Whole(Reply::new(data))))
        }
        Ok(Err(_)) => {
            guard.on_failure();
            Err(replica_unavailable(&guard.in_flight.endpoint, Cause::ConnectionLost, call))
        }
        Err(_) => {
            guard.on_timeout(false);
            Err(deadline_exceeded(call))
        }
    }
}

/// The version that a client names; only the number of a version can be in service.
pub(super) fn version_number(model: &str, text: &str) -> Result<u32, Error> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(100).collect();
        Error::not_found(format!("model {model} has no version {shown:?}: versions are numbers"))
    })
}

fn deadline_exceeded(call: &Call) -> Error {
    let seconds = call.deadline.saturating_duration_since(call.started).as_secs_f64();
    let (subject, _) = local_response::subject(&call.model);
    Error::new(Code::DeadlineExceeded, format!("{subject} did not respond within {seconds:.1} s"))
}

fn replica_unavailable(endpoint: &crate::routes::Endpoint, cause: Cause, call: &Call) -> Error {
    let what = match cause {
        Cause::Unreachable => "is unreachable",
        Cause::ConnectionLost => "closed the connection before it responded",
        Cause::ServerUnreachable => "cannot reach its inference server",
        Cause::ModelMissing => "does not have the model loaded",
    };
    let (subject, _) = local_response::subject(&call.model);
    let replica = if call.is_component {
        format!("pod {}", endpoint.server)
    } else {
        format!("replica {} of server {}", endpoint.replica, endpoint.server)
    };
    Error::unavailable(format!("{replica} ({subject}) {what}"), 1)
}

/// An attempt without a response of the model.
struct Attempt {
    cause: Cause,
    replay: Option<Replay>,
    error: Option<BoxError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Nothing was sent.
    Unreachable,
    /// The model may have run.
    ConnectionLost,
    /// The replica's proxy could not connect to its inference server.
    ServerUnreachable,
    ModelMissing,
}

/// What a retry sends.
struct Replay {
    head: Head,
    payload: Payload,
}

impl Replay {
    /// `None` for a stream.
    fn of(head: &Head, payload: &Payload) -> Option<Self> {
        let Payload::Whole(bytes) = payload else { return None };
        let (method, headers, request_id) =
            (head.method.clone(), head.headers.clone(), head.request_id.clone());
        Some(Self { head: Head { method, headers, request_id }, payload: Payload::Whole(bytes.clone()) })
    }
}

impl From<Request<UpstreamBody>> for Replay {
    fn from(request: Request<UpstreamBody>) -> Self {
        let (parts, body) = request.into_parts();
        let request_id = parts.headers.get(headers::REQUEST_ID).cloned();
        let head = Head {
            method: parts.method,
            request_id: request_id.unwrap_or(HeaderValue::from_static("0")),
            headers: parts.headers,
        };
        Self { head, payload: body.into() }
    }
}

/// Why no model has processed the request, if the response shows that.
fn unprocessed(call: &Call, response: &Response<Incoming>) -> Option<Cause> {
    let headers = response.headers();
    // Absent from most responses.
    if let Some(cause) = headers.get(UNPROCESSED) {
        let is_server = cause.as_bytes() == NO_SERVER.as_bytes();
        return Some(if is_server { Cause::ServerUnreachable } else { Cause::ModelMissing });
    }
    let is_missing = match call.protocol {
        // What a pod responds is its own matter.
        _ if call.is_component => false,
        // Inference servers respond in JSON; a page in plain text is that of a Seldon agent without the model.
        Protocol::Rest => {
            let is_text = |v: &HeaderValue| v.as_bytes().starts_with(b"text/plain");
            response.status() == StatusCode::NOT_FOUND
                && headers.get(header::CONTENT_TYPE).is_some_and(is_text)
        }
        Protocol::Grpc => grpc_status(headers) == Some(u16::from(Code::NotFound.grpc())),
    };
    is_missing.then_some(Cause::ModelMissing)
}
