//! Sending a request to a replica and its answer back.

use super::{Finish, Worker, headers, read, respond};
use crate::{
    body::{CutOff, RequestBody, ResponseBody, Streamed},
    decide::retry,
    metrics::Protocol,
    routes::{Entered, Refused},
    upstream::Failure,
};
use bytes::Bytes;
use futures::FutureExt as _;
use gantry_oip::{Code, Error, server::Reply};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version, header, uri::Scheme};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

/// A request that has its model.
pub(super) struct Call {
    pub(super) model: Arc<str>,
    pub(super) sticky: Option<HeaderValue>,
    pub(super) protocol: Protocol,
    pub(super) infer: bool,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    /// The request's place in its trace, if traces are told.
    pub(super) trace: Option<gantry_trace::Context>,
}

/// The path to ask for, made once the version is known.
pub(super) enum Target<'a> {
    /// `/v2/models/<internal>` and this tail and query.
    Rest { tail: &'a str, query: Option<&'a str>, infer: bool },
    /// The path as it is.
    Grpc(&'a Uri),
}

/// The body of a request, and whether it is all here.
pub(super) enum Payload {
    Whole(Bytes),
    Partial { first: Bytes, rest: Incoming },
}

/// Everything of a request but its body.
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) request_id: HeaderValue,
}

/// When a request that may take so long must be answered.
pub(super) fn deadline(started: Instant, allowed: Duration) -> Instant {
    // A time that does not fit is as good as none.
    started.checked_add(allowed).unwrap_or_else(|| started + Duration::from_hours(24))
}

impl Worker {
    /// Chooses a replica for a request of this model.
    pub(super) fn enter(
        &self,
        model: &str,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
        tried: &[u64],
    ) -> Result<Entered, Error> {
        let most = self.shared.config.max_in_flight_per_replica;
        let sticky = sticky.map(HeaderValue::as_bytes);
        let entered = self.shared.routes.enter(model, sticky, self.ticket(), tried, most);
        entered.map_err(|refused| self.refusal(&refused, model, protocol))
    }

    /// Chooses a replica for an inference; wakes a model that sleeps and waits for it, as long as the request may.
    pub(super) async fn enter_awake(
        &self,
        model: &str,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
        deadline: Instant,
    ) -> Result<Entered, Error> {
        let most = self.shared.config.max_in_flight_per_replica;
        let sticky = sticky.map(HeaderValue::as_bytes);
        let mut woken = false;
        loop {
            let refused = match self.shared.routes.enter(model, sticky, self.ticket(), &[], most) {
                Ok(entered) => return Ok(entered),
                Err(refused) => refused,
            };
            // Once woken it is loaded, and meanwhile has no replica either.
            let waits = matches!(&refused, Refused::NoReplica { sleeps, .. } if *sleeps || woken);
            if !waits {
                return Err(self.refusal(&refused, model, protocol));
            }
            woken = true;
            let changed = tokio::time::timeout_at(deadline.into(), self.shared.routes.wake(model));
            if changed.await.is_err() {
                return Err(self.refusal(&refused, model, protocol));
            }
        }
    }

    fn refusal(&self, refused: &Refused, model: &str, protocol: Protocol) -> Error {
        let mut nearest = None;
        match refused {
            Refused::Full { .. } => {
                self.shared.metrics.shed.inc();
            }
            Refused::Unknown => nearest = self.shared.routes.nearest(model),
            _ => {}
        }
        respond::refused(refused, model, protocol, nearest)
    }

    /// Answers a call: chooses a replica, sends, tries another where nothing was sent.
    pub(super) async fn forward(
        self: &Arc<Self>,
        call: &Call,
        entered: Entered,
        target: &Target<'_>,
        mut head: Head,
        mut payload: Payload,
    ) -> Result<Response<ResponseBody>, Error> {
        let mut entered = entered;
        let mut tried: Vec<u64> = Vec::new();
        loop {
            headers::to_replica(&mut head.headers, &entered.version, &head.request_id);
            let mut finish = Finish::new(&self.shared, entered, call.protocol, call.infer, call.started);
            finish.trace(call.trace, &mut head.headers);
            if let Some(local) = finish.entered.endpoint.local() {
                return self.local(call, finish, &local.0, target, head, payload).await;
            }
            let endpoint = Arc::clone(&finish.entered.endpoint);
            let request = self.request(&finish.entered, target, head, payload)?;
            let sending = async {
                match call.protocol {
                    Protocol::Rest => self.pools.http(&endpoint, request).await,
                    Protocol::Grpc => self.pools.grpc(&endpoint, request).await,
                }
            };
            let Failure { unsent, error } = match tokio::time::timeout_at(call.deadline.into(), sending).await
            {
                Err(_) => {
                    finish.timed_out();
                    return Err(too_late(call));
                }
                Ok(Ok((response, reuse))) => return answer(call, finish, response, reuse).await,
                Ok(Err(failure)) => failure,
            };
            if let Some(limit) = too_large(&*error) {
                return Err(read::too_large(limit));
            }
            if unsent.is_none() && error.downcast_ref().is_some_and(hyper::Error::is_user) {
                return Err(Error::invalid("the body of the request broke off"));
            }
            finish.failed();
            tried.push(endpoint.id);
            let failed = retry::Try {
                sent: unsent.is_none(),
                replayable: unsent.is_some(),
                tries: u32::try_from(tried.len()).unwrap_or(u32::MAX),
            };
            drop(finish);
            let next = if retry::again(failed) {
                self.enter(&call.model, call.sticky.as_ref(), call.protocol, &tried).ok()
            } else {
                None
            };
            let (Some(next), Some(unsent)) = (next, unsent) else {
                tracing::debug!(model = &*call.model, server = endpoint.server, replica = endpoint.replica, %error, "a replica failed");
                return Err(gone(&endpoint, failed.sent, call));
            };
            self.shared.metrics.retries.inc();
            entered = next;
            let (parts, body) = unsent.into_parts();
            let request_id = parts.headers.get(headers::REQUEST_ID).cloned();
            head = Head {
                method: parts.method,
                request_id: request_id.unwrap_or(HeaderValue::from_static("0")),
                headers: parts.headers,
            };
            payload = match body {
                RequestBody::Whole(bytes) => Payload::Whole(bytes),
                RequestBody::Streamed { first, rest, .. } => Payload::Partial { first, rest },
            };
        }
    }

    async fn local(
        &self,
        call: &Call,
        mut finish: Finish,
        server: &Arc<dyn gantry_oip::server::InferenceServer>,
        target: &Target<'_>,
        head: Head,
        payload: Payload,
    ) -> Result<Response<ResponseBody>, Error> {
        let limit = self.shared.config.max_body;
        let answering = async {
            let body = match payload {
                Payload::Whole(bytes) => bytes,
                Payload::Partial { first, mut rest } => {
                    read::more(&mut rest, first, usize::MAX, limit).await?
                }
            };
            let mut request = Request::new(body);
            *request.method_mut() = head.method;
            *request.uri_mut() = uri(&finish.entered, target, None)?;
            *request.headers_mut() = head.headers;
            // A panic is the end of its request only.
            AssertUnwindSafe(server.call(request))
                .catch_unwind()
                .await
                .map_err(|_| Error::internal(format!("the server of model {} failed", call.model)))
        };
        match tokio::time::timeout_at(call.deadline.into(), answering).await {
            Err(_) => {
                finish.timed_out();
                Err(too_late(call))
            }
            Ok(Err(error)) => Err(error),
            Ok(Ok(mut response)) => {
                finish.answered(response.status(), response.headers());
                if let Some(trailers) = response.body().trailers() {
                    finish.trailers(trailers);
                }
                headers::to_client(response.headers_mut(), &finish.entered.version);
                Ok(respond::own(response))
            }
        }
    }

    fn request(
        &self,
        entered: &Entered,
        target: &Target<'_>,
        mut head: Head,
        payload: Payload,
    ) -> Result<Request<RequestBody>, Error> {
        let limit = self.shared.config.max_body;
        let body = match payload {
            Payload::Whole(bytes) => {
                head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
                RequestBody::Whole(bytes)
            }
            Payload::Partial { first, rest } => {
                RequestBody::Streamed { left: limit.saturating_sub(first.len()), first, rest, limit }
            }
        };
        let mut request = Request::new(body);
        *request.method_mut() = head.method;
        *request.headers_mut() = head.headers;
        *request.uri_mut() = uri(entered, target, entered.endpoint.grpc_authority.as_ref())?;
        *request.version_mut() = match target {
            Target::Rest { .. } => Version::HTTP_11,
            Target::Grpc(_) => Version::HTTP_2,
        };
        Ok(request)
    }
}

fn uri(
    entered: &Entered,
    target: &Target<'_>,
    authority: Option<&http::uri::Authority>,
) -> Result<Uri, Error> {
    let bad = |_| Error::invalid("the path is not valid");
    match target {
        Target::Rest { infer: true, query: None, .. } => Ok(entered.version.infer_uri.clone()),
        Target::Rest { tail, query, .. } => {
            let internal = &entered.version.internal;
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
            Uri::from_parts(parts).map_err(|_| Error::invalid("the path is not valid"))
        }
    }
}

/// A replica's answer, whole when it is small, else as the client takes it.
async fn answer(
    call: &Call,
    mut finish: Finish,
    response: Response<Incoming>,
    reuse: crate::upstream::Returned,
) -> Result<Response<ResponseBody>, Error> {
    let (mut parts, mut body) = response.into_parts();
    finish.answered(parts.status, &parts.headers);
    headers::to_client(&mut parts.headers, &finish.entered.version);
    let small =
        call.protocol == Protocol::Rest && body.size_hint().exact().is_some_and(|n| n <= read::SMALL as u64);
    if !small {
        let streamed =
            Streamed { body, finish: Some(finish), reuse: Some(reuse), deadline: call.deadline, timer: None };
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
    match tokio::time::timeout_at(call.deadline.into(), collecting).await {
        Ok(Ok(data)) => {
            reuse();
            finish.done();
            Ok(Response::from_parts(parts, ResponseBody::Whole(Reply::new(data))))
        }
        Ok(Err(_)) => {
            finish.failed();
            Err(gone(&finish.entered.endpoint, true, call))
        }
        Err(_) => {
            finish.timed_out();
            Err(too_late(call))
        }
    }
}

fn too_late(call: &Call) -> Error {
    let seconds = call.deadline.saturating_duration_since(call.started).as_secs_f64();
    Error::new(Code::DeadlineExceeded, format!("model {} did not answer within {seconds:.1} s", call.model))
}

fn gone(endpoint: &crate::routes::Endpoint, sent: bool, call: &Call) -> Error {
    let what = if sent { "went away before it answered" } else { "cannot be reached" };
    Error::unavailable(
        format!(
            "replica {} of server {} with model {} {what}",
            endpoint.replica, endpoint.server, call.model
        ),
        1,
    )
}

/// The limit that a client's body broke, if that is what an error is about.
fn too_large(error: &(dyn std::error::Error + 'static)) -> Option<usize> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(CutOff::TooLarge(limit)) = error.downcast_ref() {
            return Some(*limit);
        }
        next = error.source();
    }
    None
}
