//! Calls of the model server in the same pod.

use super::capture::Captured;
use crate::upstream::{HttpClient, clients};
use bytes::Bytes;
use gantry_oip::{Code, Error};
use gantry_transport::{
    BoxError, Protocol,
    body::{BodyError, Payload, UpstreamBody, exceeded_limit, too_large},
    headers::{REQUEST_ID, remove_hop_by_hop},
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    uri::{Authority, Scheme},
};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep},
};

pub(super) type RequestBody = Captured<UpstreamBody>;

pub(super) struct ComponentClient {
    http: HttpClient<RequestBody>,
    grpc: HttpClient<RequestBody>,
    at: Authority,
    /// Bytes of a request, and of the response to a batch.
    max_body: usize,
}

/// A request on its way to the model server.
pub(super) struct Call {
    pub(super) protocol: Protocol,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) deadline: Instant,
}

impl ComponentClient {
    pub(super) fn new(at: &str, max_body: usize) -> Result<Self, String> {
        let at = at.parse().map_err(|_| format!("\"{}\" is not an address", at.escape_debug()))?;
        let (http, grpc) = clients();
        Ok(Self { http, grpc, at, max_body })
    }

    pub(super) const fn max_body(&self) -> usize {
        self.max_body
    }

    /// The response up to its headers.
    pub(super) async fn send(&self, call: Call, body: RequestBody) -> Result<Response<Incoming>, Error> {
        let Call { protocol, method, path, headers, deadline } = call;
        let (client, version) = match protocol {
            Protocol::Rest => (&self.http, Version::HTTP_11),
            Protocol::Grpc => (&self.grpc, Version::HTTP_2),
        };
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.at.clone());
        let mut request = Request::new(body);
        *request.uri_mut() = uri.path_and_query(path).build().map_err(|_| Error::invalid("invalid path"))?;
        *request.method_mut() = method;
        *request.version_mut() = version;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        remove_hop_by_hop(headers);
        for name in [header::EXPECT, header::CONTENT_LENGTH] {
            headers.remove(name);
        }
        if protocol == Protocol::Grpc {
            headers.remove(header::HOST);
        }
        let mut response = match tokio::time::timeout_at(deadline, client.request(request)).await {
            Err(_) => return Err(self.deadline_exceeded()),
            Ok(Err(error)) => return Err(self.failed(&error)),
            Ok(Ok(response)) => response,
        };
        remove_hop_by_hop(response.headers_mut());
        Ok(response)
    }

    /// Sends a batch.
    pub(super) async fn predict(
        &self,
        path: &str,
        body: Bytes,
        id: HeaderValue,
        deadline: Instant,
    ) -> Result<(StatusCode, Bytes), Error> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(REQUEST_ID, id);
        let (method, path) = (Method::POST, path.to_owned());
        let call = Call { protocol: Protocol::Rest, method, path, headers, deadline };
        let body = Captured::new(UpstreamBody::new(Payload::Whole(body), self.max_body), None);
        let (parts, body) = self.send(call, body).await?.into_parts();
        let reading = Payload::Partial { first: Bytes::new(), rest: body };
        match tokio::time::timeout_at(deadline, reading.into_bytes(self.max_body)).await {
            Err(_) => Err(self.deadline_exceeded()),
            Ok(Err(error)) => {
                Err(Error::unavailable(format!("the response of {}: {}", self.at, error.message), 1))
            }
            Ok(Ok(bytes)) => Ok((parts.status, bytes)),
        }
    }

    pub(super) fn deadline_exceeded(&self) -> Error {
        Error::new(Code::DeadlineExceeded, format!("the model server at {} did not respond in time", self.at))
    }

    fn failed(&self, error: &hyper_util::client::legacy::Error) -> Error {
        if let Some(limit) = exceeded_limit(error) {
            return too_large(limit);
        }
        let what = if error.is_connect() { "is unreachable" } else { "closed the connection" };
        Error::unavailable(format!("the model server at {} {what}", self.at), 1)
    }
}

/// The response of the model server, until its deadline.
pub(super) struct StreamedBody {
    body: Captured<Incoming>,
    deadline: Pin<Box<Sleep>>,
    _slot: OwnedSemaphorePermit,
}

impl StreamedBody {
    pub(super) fn new(body: Captured<Incoming>, deadline: Instant, slot: OwnedSemaphorePermit) -> Self {
        Self { body, deadline: Box::pin(tokio::time::sleep_until(deadline)), _slot: slot }
    }
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(BodyError::DeadlineExceeded.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
