//! Response bodies.

use crate::{
    routes::Attribution,
    serve::{Admitted, RequestGuard},
    upstream::ReleaseConnection,
};
use bytes::Bytes;
use gantry_oip::server::Reply;
use gantry_transport::{BoxError, body::BodyError, memory::ConnectionMemory};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};
use tokio::{task::AbortHandle, time::Instant};

pub(crate) enum ResponseBody {
    Whole(Reply),
    /// Streamed from a replica.
    Streamed(Streamed),
    Tonic(tonic::body::Body),
    /// `ModelStreamInfer`: one frame per response.
    Messages(tokio::sync::mpsc::Receiver<Frame<Bytes>>),
}

impl ResponseBody {
    /// What a streamed response counts for: its reader counts the messages, instead of the stream as a whole.
    pub(crate) fn take_attribution(&self) -> Option<Attribution> {
        if let Self::Streamed(streamed) = self { streamed.take_attribution() } else { None }
    }
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
            Self::Streamed(streamed) => streamed.lock().ended,
            Self::Tonic(body) => body.is_end_stream(),
            Self::Messages(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(reply) => reply.size_hint(),
            Self::Streamed(streamed) => streamed.size_hint(),
            Self::Tonic(body) => body.size_hint(),
            Self::Messages(_) => SizeHint::default(),
        }
    }
}

/// A response on its way to the client: admitted and charged until it is written or dropped.
pub(crate) struct ClientBody {
    body: ResponseBody,
    admitted: Option<Admitted>,
    /// Charged for the frames of a streamed body.
    memory: Option<Arc<ConnectionMemory>>,
}

impl ClientBody {
    pub(crate) fn new(
        mut body: ResponseBody,
        mut admitted: Option<Admitted>,
        memory: &Arc<ConnectionMemory>,
    ) -> Self {
        let mut charged = None;
        match &mut body {
            ResponseBody::Whole(reply) => reply.map_data(|data| memory.charge(data)),
            ResponseBody::Streamed(streamed) => {
                streamed.hold(admitted.take());
                charged = Some(Arc::clone(memory));
            }
            ResponseBody::Tonic(_) | ResponseBody::Messages(_) => {}
        }
        Self { body, admitted, memory: charged }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(memory) = &self.memory {
            return polled.map_ok(|frame| frame.map_data(|data| memory.charge(data)));
        }
        if self.body.is_end_stream() {
            self.admitted = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A streamed upstream response. The request stays in flight until the body ends or is dropped, at most until its
/// deadline: a timer of its own drops the upstream body, because a client that does not read prevents polls.
pub(crate) struct Streamed {
    state: Arc<Mutex<State>>,
    timer: AbortHandle,
}

struct State {
    upstream: Option<Upstream>,
    ended: bool,
    /// Woken at the deadline.
    waker: Option<Waker>,
    admitted: Option<Admitted>,
}

struct Upstream {
    body: Incoming,
    guard: RequestGuard,
    /// Returns the connection to the pool; called only after a complete body.
    reuse: ReleaseConnection,
}

impl Streamed {
    pub(crate) fn new(
        body: Incoming,
        guard: RequestGuard,
        reuse: ReleaseConnection,
        deadline: Instant,
    ) -> Self {
        let upstream = Some(Upstream { body, guard, reuse });
        let state = Arc::new(Mutex::new(State { upstream, ended: false, waker: None, admitted: None }));
        let expiring = Arc::clone(&state);
        let timer = tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            lock(&expiring).expire();
        });
        Self { state, timer: timer.abort_handle() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Leaves the statistics of the model's rollout to the caller.
    fn take_attribution(&self) -> Option<Attribution> {
        self.lock().upstream.as_mut().and_then(|upstream| upstream.guard.take_attribution())
    }

    /// Counts the request as admitted until the body ends.
    fn hold(&self, admitted: Option<Admitted>) {
        let mut state = self.lock();
        if state.upstream.is_some() {
            state.admitted = admitted;
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = self.lock();
        let ended = state.ended;
        let Some(upstream) = &mut state.upstream else {
            return Poll::Ready((!ended).then(|| Err(BodyError::DeadlineExceeded.into())));
        };
        match Pin::new(&mut upstream.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    upstream.guard.on_trailers(trailers);
                } else if let Some(data) = frame.data_ref() {
                    upstream.guard.on_data(data);
                }
                if upstream.body.is_end_stream() {
                    state.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                upstream.guard.on_failure();
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                state.end();
                Poll::Ready(None)
            }
            Poll::Pending => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.lock();
        let hint = state.upstream.as_ref().map(|upstream| upstream.body.size_hint());
        hint.unwrap_or_else(|| if state.ended { SizeHint::with_exact(0) } else { SizeHint::default() })
    }
}

impl State {
    fn end(&mut self) {
        self.ended = true;
        self.admitted = None;
        if let Some(upstream) = self.upstream.take() {
            (upstream.reuse)();
            upstream.guard.done();
        }
    }

    fn expire(&mut self) {
        self.admitted = None;
        if let Some(mut upstream) = self.upstream.take() {
            upstream.guard.on_timeout(false);
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.timer.abort();
        // The aborted task releases its reference later.
        let mut state = self.lock();
        state.upstream = None;
        state.admitted = None;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
