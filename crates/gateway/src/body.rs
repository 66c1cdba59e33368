//! Response bodies.

use crate::serve::RequestGuard;
use bytes::Bytes;
use gantry_oip::server::Reply;
use gantry_transport::{BoxError, body::BodyError};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::time::{Instant, Sleep};

pub(crate) enum ResponseBody {
    Whole(Reply),
    /// Streamed from a replica.
    Streamed(Box<Streamed>),
    Tonic(tonic::body::Body),
    /// `ModelStreamInfer`: one frame per response.
    Messages(tokio::sync::mpsc::Receiver<Frame<Bytes>>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Whole(reply) => Pin::new(reply).poll_frame(cx).map_err(|never| match never {}),
            Self::Streamed(streamed) => streamed.poll(cx),
            Self::Tonic(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Messages(messages) => messages.poll_recv(cx).map(|m| m.map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(reply) => reply.is_end_stream(),
            Self::Streamed(streamed) => streamed.body.is_end_stream(),
            Self::Tonic(body) => body.is_end_stream(),
            Self::Messages(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(reply) => reply.size_hint(),
            Self::Streamed(streamed) => streamed.body.size_hint(),
            Self::Tonic(body) => body.size_hint(),
            Self::Messages(_) => SizeHint::default(),
        }
    }
}

/// A streamed upstream response. The request stays in flight until the body ends or is dropped.
pub(crate) struct Streamed {
    pub(crate) body: Incoming,
    pub(crate) guard: Option<RequestGuard>,
    /// Returns the connection to the pool; called only after a complete body.
    pub(crate) reuse: Option<Box<dyn FnOnce() + Send>>,
    pub(crate) deadline: Instant,
    pub(crate) timer: Option<Pin<Box<Sleep>>>,
}

impl Streamed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref()
                    && let Some(guard) = &mut self.guard
                {
                    guard.on_trailers(trailers);
                }
                if self.body.is_end_stream() {
                    self.ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(guard) = &mut self.guard {
                    guard.on_failure();
                }
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                self.ended();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let deadline = self.deadline;
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Some(Err(BodyError::DeadlineExceeded.into())))
            }
        }
    }

    fn ended(&mut self) {
        if let Some(reuse) = self.reuse.take() {
            reuse();
        }
        if let Some(guard) = self.guard.take() {
            guard.done();
        }
    }
}
