//! Request and response bodies.

use crate::{metrics::Metrics, model_cache::InFlightGuard};
use bytes::Bytes;
use gantry_oip::server::Reply;
use gantry_transport::{BoxError, Protocol, body::BodyError, headers};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
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
    pub(super) protocol: Protocol,
    pub(super) started: Instant,
    /// HTTP status, or gRPC status once known.
    pub(super) code: u16,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(count) = self.count.take() {
            count.metrics.record_inference(
                &count.internal,
                count.protocol,
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
