//! Interface of an in-process inference server.
//!
//! The same contract as over a socket: the request path is a REST path (`/v2/models/…`) or
//! `/inference.GRPCInferenceService/<Method>` with one framed message as body; gRPC responses carry the status in the
//! trailers. The header [`INTERNAL_MODEL`], if present, takes precedence over the model name in path or message.

use crate::{Error, InferRequest, InferResponse, Limits, grpc, rest};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body::{Body, Frame, SizeHint};
use prost::Message;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// The routed model, as `<model>_<version>`.
pub const INTERNAL_MODEL: &str = "seldon-internal-model";

/// Larger bodies are written in parts, so that a slow client holds the body until its last part.
const MAX_FRAME: usize = 256 << 10;
/// Response header of a proxy: no model has processed the request, so another replica may. [`NO_MODEL`] or
/// [`NO_SERVER`].
pub const UNPROCESSED: &str = "gantry-unprocessed";
/// The replica does not have the model.
pub const NO_MODEL: &str = "no-model";
/// The replica's inference server is unreachable.
pub const NO_SERVER: &str = "no-server";

/// Dropping the future cancels the request.
pub trait InferenceServer: Send + Sync {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>>;

    /// Inference on values: the model is `request.model_name`, the headers carry the request ID and the trace. A server
    /// overrides it to pass tensors as they are; by default they are encoded for [`call`](Self::call).
    fn infer(
        &self,
        request: InferRequest,
        headers: HeaderMap,
    ) -> BoxFuture<'_, Result<InferResponse, Error>> {
        Box::pin(async move {
            let response = self.call(infer_call(request, headers)?).await;
            let (head, reply) = response.into_parts();
            let trailers = reply.trailers.as_ref();
            grpc::decode_infer_answer(&head.headers, trailers, &reply.data, &Limits::default())
        })
    }
}

/// A request for [`InferenceServer::call`].
fn infer_call(request: InferRequest, headers: HeaderMap) -> Result<Request<Bytes>, Error> {
    let model = HeaderValue::from_str(&request.model_name);
    let model = model.map_err(|_| Error::invalid("the model name is not a header value"))?;
    let message = grpc::encode_request(InferRequest { raw_contents: true, ..request });
    let mut call = Request::new(grpc::encode_frame(&message));
    *call.method_mut() = Method::POST;
    *call.uri_mut() = Uri::from_static(grpc::MODEL_INFER);
    *call.headers_mut() = headers;
    call.headers_mut().insert(INTERNAL_MODEL, model);
    call.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    Ok(call)
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

    /// Replaces the data, for example by the same bytes with an owner.
    pub fn map_data(&mut self, replace: impl FnOnce(Bytes) -> Bytes) {
        self.data = replace(std::mem::take(&mut self.data));
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
            let length = self.data.len().min(MAX_FRAME);
            return Poll::Ready(Some(Ok(Frame::data(self.data.split_to(length)))));
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
