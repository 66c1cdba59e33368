//! Interface of an in-process inference server.
//!
//! The same contract as over a socket: the request path is a REST path (`/v2/models/…`) or
//! `/inference.GRPCInferenceService/<Method>` with one framed message as body; gRPC responses carry the status in the
//! trailers. The header [`INTERNAL_MODEL`], if present, takes precedence over the model name in path or message.

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

/// The routed model, as `<model>_<version>`.
pub const INTERNAL_MODEL: &str = "seldon-internal-model";

/// Dropping the future cancels the request.
pub trait InferenceServer: Send + Sync {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>>;
}

/// A buffered response body with optional trailers.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Reply {
    pub const fn new(data: Bytes) -> Self {
        Self { data, trailers: None }
    }

    #[must_use]
    pub fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }

    /// Bytes not sent yet.
    pub const fn data(&self) -> &Bytes {
        &self.data
    }

    pub const fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

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

pub fn json(status: StatusCode, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub fn inferred(encoded: rest::Encoded) -> Response<Reply> {
    let mut response = Response::new(Reply::default());
    encoded.set_headers(response.headers_mut());
    *response.body_mut() = Reply::new(encoded.body);
    response
}

pub fn rest_error(error: &Error) -> Response<Reply> {
    let mut response = json(error.code.http(), rest::error_body(&error.message));
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub fn grpc_reply(message: &impl Message) -> Response<Reply> {
    grpc_frame(grpc::encode_frame(message))
}

pub fn grpc_frame(frame: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::new(frame).with_trailers(grpc::status_trailers(None)));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

/// Trailers-only response.
pub fn grpc_error(error: &Error) -> Response<Reply> {
    let mut response = Response::new(Reply::default());
    *response.headers_mut() = grpc::status_trailers(Some(error));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
