//! Request and response bodies.

use super::headers;
use crate::{metrics::Metrics, model_cache::InFlightGuard};
use bytes::{Bytes, BytesMut};
use gantry_oip::{Code, Error, server::Reply};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    error::Error as StdError,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep},
};

/// Bodies up to this size are buffered, so that they can be retried.
pub(super) const SMALL: usize = 1 << 20;

pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body is larger than the {0} bytes allowed")]
    TooLarge(usize),
    #[error("response deadline exceeded")]
    DeadlineExceeded,
}

pub(super) enum Payload {
    Whole(Bytes),
    Partial { first: Bytes, rest: Incoming },
}

/// Reads until the body ends or has `enough` bytes.
pub(super) async fn read(mut body: Incoming, enough: usize, limit: usize) -> Result<Payload, Error> {
    use http_body_util::BodyExt as _;
    let mut read = BytesMut::new();
    loop {
        if read.len() > limit {
            return Err(Error::new(Code::PayloadTooLarge, BodyError::TooLarge(limit).to_string()));
        }
        match body.frame().await {
            None => return Ok(Payload::Whole(read.freeze())),
            Some(Err(_)) => return Err(Error::invalid("the request body ended early")),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    read.extend_from_slice(&data);
                }
            }
        }
        if body.is_end_stream() && read.len() <= limit {
            return Ok(Payload::Whole(read.freeze()));
        }
        if read.len() >= enough && read.len() <= limit {
            return Ok(Payload::Partial { first: read.freeze(), rest: body });
        }
    }
}

pub(super) enum UpstreamBody {
    Whole(Bytes),
    Streamed { first: Bytes, rest: Incoming, left: usize, limit: usize },
}

impl UpstreamBody {
    pub(super) fn streamed(first: Bytes, rest: Incoming, limit: usize) -> Self {
        Self::Streamed { left: limit.saturating_sub(first.len()), first, rest, limit }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Streamed { first, rest, left, limit } => {
                if !first.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(first)))));
                }
                let Some(frame) = ready!(Pin::new(rest).poll_frame(context)) else {
                    return Poll::Ready(None);
                };
                let frame = frame?;
                let size = frame.data_ref().map_or(0, Bytes::len);
                if size > *left {
                    return Poll::Ready(Some(Err(BodyError::TooLarge(*limit).into())));
                }
                *left -= size;
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Streamed { first, rest, .. } => first.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streamed { first, rest, .. } => match rest.size_hint().exact() {
                Some(exact) => SizeHint::with_exact(exact + first.len() as u64),
                None => SizeHint::default(),
            },
        }
    }
}

/// Held until the response body has ended.
pub(super) struct Guard {
    pub(super) _in_flight: InFlightGuard,
    pub(super) _slot: OwnedSemaphorePermit,
    /// Recorded at the end; `None` for calls other than inference.
    pub(super) count: Option<Count>,
}

pub(super) struct Count {
    pub(super) metrics: Arc<Metrics>,
    pub(super) internal: Arc<str>,
    pub(super) method: &'static str,
    pub(super) started: Instant,
    /// HTTP status, or gRPC status once known.
    pub(super) code: u16,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(count) = self.count.take() {
            count.metrics.record_inference(
                &count.internal,
                count.method,
                count.code,
                count.started.elapsed(),
            );
        }
    }
}

pub(super) enum ResponseBody {
    Own(Reply),
    Server(Box<StreamedResponse>),
}

pub(super) struct StreamedResponse {
    /// Read ahead to find the gRPC status.
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) body: Incoming,
    pub(super) guard: Guard,
    pub(super) deadline: Pin<Box<Sleep>>,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let relayed = match self.get_mut() {
            Self::Own(reply) => {
                return Pin::new(reply).poll_frame(context).map(|f| f.map(|f| f.map_err(|e| match e {})));
            }
            Self::Server(relayed) => &mut **relayed,
        };
        let frame = match relayed.first.take() {
            Some(frame) => Some(Ok(frame)),
            None => match Pin::new(&mut relayed.body).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    ready!(relayed.deadline.as_mut().poll(context));
                    return Poll::Ready(Some(Err(BodyError::DeadlineExceeded.into())));
                }
            },
        };
        if let Some(Ok(frame)) = &frame
            && let Some(status) = frame.trailers_ref().and_then(headers::grpc_status)
            && let Some(count) = &mut relayed.guard.count
        {
            count.code = status;
        }
        Poll::Ready(frame.map(|f| f.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(reply) => reply.is_end_stream(),
            Self::Server(relayed) => relayed.first.is_none() && relayed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(reply) => reply.size_hint(),
            Self::Server(relayed) if relayed.first.is_none() => relayed.body.size_hint(),
            Self::Server(_) => SizeHint::default(),
        }
    }
}
