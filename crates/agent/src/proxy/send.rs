//! Sending a request to the server, and once more if the server had forgotten the model.

use super::{
    Protocol, Proxy,
    body::{Answer, Count, CutOff, Guard, Outgoing, Payload, Relayed},
    headers, refused, too_late,
};
use bytes::Bytes;
use gantry_oip::{Code, Error};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, uri::Scheme,
};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

/// A request that knows its model.
pub(super) struct Call {
    pub(super) protocol: Protocol,
    pub(super) internal: Arc<str>,
    /// Whether it is counted as inference.
    pub(super) infer: bool,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
}

/// What the server said first.
struct Begun {
    parts: http::response::Parts,
    body: Incoming,
    /// A frame that had to be read to know the status.
    first: Option<Frame<Bytes>>,
    /// The HTTP status, or the gRPC status where it is known.
    code: u16,
}

impl Proxy {
    /// Answers a call by the server.
    pub(super) async fn forward(
        &self,
        call: Call,
        payload: Payload,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<Answer>, Error> {
        let name = call.internal.clone();
        let started = call.started;
        let protocol = call.protocol;
        let counted = call.infer.then(|| (self.metrics.clone(), name.clone()));
        let deadline = call.deadline;
        let answering = tokio::time::timeout_at(deadline, self.attempt(call, payload, slot));
        let result = answering.await.unwrap_or_else(|_| Err(too_late(&name)));
        if let (Err(error), Some((metrics, name))) = (&result, counted) {
            let (method, code) = match protocol {
                Protocol::Rest => ("rest", error.code.http().as_u16()),
                Protocol::Grpc => ("grpc", u16::from(error.code.grpc())),
            };
            metrics.inferred(&name, method, code, started.elapsed());
        }
        result
    }

    async fn attempt(
        &self,
        call: Call,
        payload: Payload,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<Answer>, Error> {
        let enter =
            || async { self.shelf.enter(&call.internal).await.map_err(|r| refused(r, &call.internal)) };
        let mut hold = enter().await?;
        let (first_body, again) = match payload {
            Payload::Whole(bytes) => (Outgoing::Whole(bytes.clone()), Some(bytes)),
            Payload::Partial { first, rest } => (Outgoing::streamed(first, rest, self.limits.max_body), None),
        };
        let mut begun = self.send(&call, first_body).await?;
        // A server that was restarted does not know its models: it gets them back, and the request once more.
        if let Some(bytes) = again
            && may_be_missing(call.protocol, begun.code)
            && self.shelf.missing(&call.internal).await
        {
            drop(hold);
            hold = enter().await?;
            begun = self.send(&call, Outgoing::Whole(bytes)).await?;
        }
        let Begun { mut parts, body, first, code } = begun;
        headers::to_client(&mut parts.headers);
        let count = call.infer.then(|| Count {
            metrics: self.metrics.clone(),
            internal: call.internal.clone(),
            method: if call.protocol == Protocol::Rest { "rest" } else { "grpc" },
            started: call.started,
            code,
        });
        let relayed = Relayed {
            first,
            body,
            guard: Guard { _hold: hold, _slot: slot, count },
            deadline: Box::pin(tokio::time::sleep_until(call.deadline)),
        };
        Ok(Response::from_parts(parts, Answer::Server(Box::new(relayed))))
    }

    async fn send(&self, call: &Call, body: Outgoing) -> Result<Begun, Error> {
        let (client, authority, version) = match call.protocol {
            Protocol::Rest => (&self.http, &self.http_at, Version::HTTP_11),
            Protocol::Grpc => (&self.grpc, &self.grpc_at, Version::HTTP_2),
        };
        let bad = |_| Error::invalid("the path is not valid");
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(authority.clone());
        let mut request = Request::new(body);
        *request.uri_mut() = uri.path_and_query(call.path.as_str()).build().map_err(bad)?;
        *request.method_mut() = call.method.clone();
        *request.version_mut() = version;
        *request.headers_mut() = call.headers.clone();
        request.headers_mut().remove(header::CONTENT_LENGTH);
        if let Outgoing::Whole(bytes) = request.body()
            && call.protocol == Protocol::Rest
            && (!bytes.is_empty() || call.method == Method::POST)
        {
            let length = HeaderValue::from(bytes.len());
            request.headers_mut().insert(header::CONTENT_LENGTH, length);
        }
        let response = client.request(request).await.map_err(|error| self.unreachable(&error, call))?;
        let (parts, mut body) = response.into_parts();
        if call.protocol == Protocol::Rest {
            let code = parts.status.as_u16();
            return Ok(Begun { parts, body, first: None, code });
        }
        // The status comes with the headers when there is no message, else behind it.
        if let Some(code) = headers::grpc_status(&parts.headers) {
            return Ok(Begun { parts, body, first: None, code });
        }
        let first = body.frame().await.transpose().map_err(|_| self.broke_off(call))?;
        let code = first.as_ref().and_then(|f| f.trailers_ref()).and_then(headers::grpc_status);
        Ok(Begun { parts, body, first, code: code.unwrap_or(0) })
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error, call: &Call) -> Error {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(next) = cause {
            if let Some(CutOff::TooLarge(_)) = next.downcast_ref() {
                return Error::new(Code::PayloadTooLarge, next.to_string());
            }
            cause = next.source();
        }
        self.shelf.doubt();
        if error.is_connect() {
            return Error::unavailable("the inference server cannot be reached", 1);
        }
        self.broke_off(call)
    }

    fn broke_off(&self, call: &Call) -> Error {
        self.shelf.doubt();
        let model = &call.internal;
        Error::unavailable(format!("the inference server went away while it answered for model {model}"), 1)
    }
}

/// Whether an answer can mean that the server does not know the model: servers say that in different ways.
fn may_be_missing(protocol: Protocol, code: u16) -> bool {
    match protocol {
        Protocol::Rest => StatusCode::from_u16(code).is_ok_and(|status| {
            matches!(
                status,
                StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::SERVICE_UNAVAILABLE
            )
        }),
        // Not found, unavailable.
        Protocol::Grpc => matches!(code, 5 | 14),
    }
}
