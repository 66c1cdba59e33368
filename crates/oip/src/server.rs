//! The contract of an inference server that runs in the same process.
//!
//! It is the contract of a server behind a socket, without the socket: a request is an HTTP request whose path is
//! one of the protocol's REST paths (`/v2/models/…`) or `/inference.GRPCInferenceService/<Method>` with one framed
//! message as its body; the response has the protocol's body, and for gRPC the status in the trailers.
//! When the header [`INTERNAL_MODEL`] is present, it names the model as `<model>_<version>`; otherwise the path or
//! the message does.

use crate::{Error, grpc, rest};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use prost::Message;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// The header that names the model and version a request was routed to.
pub const INTERNAL_MODEL: &str = "seldon-internal-model";

/// An inference server in this process. Dropping the future cancels the request.
pub trait InferenceServer: Send + Sync {
    /// Answers one request.
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>>;
}

/// The body of a response: bytes, then trailers where there are some.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Reply {
    /// A body of these bytes.
    pub const fn new(data: Bytes) -> Self {
        Self { data, trailers: None }
    }

    /// The same body, with trailers.
    #[must_use]
    pub fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }

    /// The bytes that are not yet sent.
    pub const fn data(&self) -> &Bytes {
        &self.data
    }

    /// The trailers, if any.
    pub const fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    /// Takes the body apart.
    pub fn into_parts(self) -> (Bytes, Option<HeaderMap>) {
        (self.data, self.trailers)
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        Poll::Ready(self.trailers.take().map(|t| Ok(Frame::trailers(t))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.len() as u64)
    }
}

/// A REST response of this JSON.
pub fn json(status: StatusCode, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A REST response of an encoded inference response.
pub fn inferred(encoded: rest::Encoded) -> Response<Reply> {
    let mut response = Response::new(Reply::default());
    encoded.set_headers(response.headers_mut());
    *response.body_mut() = Reply::new(encoded.body);
    response
}

/// The REST response to an error.
pub fn rest_error(error: &Error) -> Response<Reply> {
    let mut response = json(error.code.http(), rest::error_body(&error.message));
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The gRPC response of one message.
pub fn grpc_reply(message: &impl Message) -> Response<Reply> {
    grpc_frame(grpc::encode_frame(message))
}

/// The gRPC response of one message that is framed already.
pub fn grpc_frame(frame: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::new(frame).with_trailers(grpc::status_trailers(None)));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

/// The gRPC response to an error: trailers only, which gRPC sends as headers.
pub fn grpc_error(error: &Error) -> Response<Reply> {
    let mut response = Response::new(Reply::default());
    *response.headers_mut() = grpc::status_trailers(Some(error));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
