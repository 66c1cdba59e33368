//! The bodies that pass through a gateway.

use crate::serve::Finish;
use bytes::Bytes;
use gantry_oip::server::Reply;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio::time::Sleep;

/// Any error of a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a body was cut off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CutOff {
    /// It is larger than allowed.
    #[error("the body is larger than the {0} bytes allowed")]
    TooLarge(usize),
    /// It took too long.
    #[error("the time for the request ran out")]
    TooLate,
}

/// The body of a response to a client.
pub(crate) enum ResponseBody {
    /// All of it is here.
    Whole(Reply),
    /// It comes from a replica as the client takes it.
    Streamed(Box<Streamed>),
    /// It comes from one of the services that tonic makes.
    Tonic(tonic::body::Body),
    /// It is made message by message.
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

/// A response on its way from a replica; the request counts as in flight until it ends.
pub(crate) struct Streamed {
    pub(crate) body: Incoming,
    /// Done with, when the body ends or is dropped.
    pub(crate) finish: Option<Finish>,
    /// What to do with the connection when the body has ended well.
    pub(crate) reuse: Option<Box<dyn FnOnce() + Send>>,
    pub(crate) deadline: Instant,
    pub(crate) timer: Option<Pin<Box<Sleep>>>,
}

impl Streamed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref()
                    && let Some(finish) = &mut self.finish
                {
                    finish.trailers(trailers);
                }
                if self.body.is_end_stream() {
                    self.ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(finish) = &mut self.finish {
                    finish.failed();
                }
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                self.ended();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let deadline = self.deadline;
                let timer =
                    self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Some(Err(CutOff::TooLate.into())))
            }
        }
    }

    fn ended(&mut self) {
        if let Some(reuse) = self.reuse.take() {
            reuse();
        }
        if let Some(finish) = self.finish.take() {
            finish.done();
        }
    }
}

/// The body of a request to a replica.
pub(crate) enum RequestBody {
    /// All of it is here, so it can be sent again.
    Whole(Bytes),
    /// What was read already, then the rest as the client sends it.
    Streamed {
        first: Bytes,
        rest: Incoming,
        /// Bytes that may still come.
        left: usize,
        limit: usize,
    },
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Whole(bytes) | Self::Streamed { first: bytes, .. } if !bytes.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            Self::Whole(_) => Poll::Ready(None),
            Self::Streamed { rest, left, limit, .. } => {
                let frame = ready!(Pin::new(rest).poll_frame(cx));
                Poll::Ready(match frame {
                    None => None,
                    Some(Err(error)) => Some(Err(error.into())),
                    Some(Ok(frame)) => {
                        let length = frame.data_ref().map_or(0, Bytes::len);
                        match left.checked_sub(length) {
                            None => Some(Err(CutOff::TooLarge(*limit).into())),
                            Some(rest) => {
                                *left = rest;
                                Some(Ok(frame))
                            }
                        }
                    }
                })
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
            Self::Streamed { first, rest, .. } => {
                let first = first.len() as u64;
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower().saturating_add(first));
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper.saturating_add(first));
                }
                hint
            }
        }
    }
}
