//! Progress of a connection: detects clients that send no request or read no response.
//!
//! The counters need no clock and no timer per request: one task per connection compares them at an interval.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct Activity {
    started: AtomicUsize,
    /// Requests without a complete response.
    active: AtomicUsize,
    interval: AtomicUsize,
    /// Responses that wait for the client, by the parity of the interval in which the wait began.
    unread: [AtomicUsize; 2],
}

/// A request in progress, until dropped.
pub(crate) struct ActiveRequest(Arc<Activity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

impl Activity {
    pub(crate) fn begin(activity: &Arc<Self>) -> ActiveRequest {
        activity.started.fetch_add(1, Relaxed);
        activity.active.fetch_add(1, Relaxed);
        ActiveRequest(Arc::clone(activity))
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Relaxed) > 0
    }

    /// Resolves when the connection had no request for `idle`, or when a response waits for the client for one to two
    /// times `unread`.
    pub(crate) async fn stalled(&self, idle: Duration, unread: Duration) {
        let interval = unread.min(idle);
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            tokio::time::sleep(interval).await;
            let started = self.started.load(Relaxed);
            if started != seen || self.is_active() {
                (seen, since) = (started, Instant::now());
            } else if since.elapsed() >= idle {
                return;
            }
            let next = self.interval.load(Relaxed).wrapping_add(1);
            if self.unread_in(next).load(Relaxed) > 0 {
                return;
            }
            self.interval.store(next, Relaxed);
        }
    }

    const fn unread_in(&self, interval: usize) -> &AtomicUsize {
        let [even, odd] = &self.unread;
        if interval.is_multiple_of(2) { even } else { odd }
    }
}

/// A response body that records whether it waits for the client.
pub(crate) struct TrackedBody<B> {
    body: B,
    request: ActiveRequest,
    /// The interval in which the wait for the client began; `None` while the body waits for its source.
    waiting: Option<usize>,
}

impl<B> TrackedBody<B> {
    pub(crate) fn new(body: B, request: ActiveRequest) -> Self {
        let mut tracked = Self { body, request, waiting: None };
        tracked.set_waiting(true);
        tracked
    }

    fn set_waiting(&mut self, waiting: bool) {
        let activity = &self.request.0;
        let now = waiting.then(|| activity.interval.load(Relaxed));
        if now == self.waiting {
            return;
        }
        if let Some(interval) = now {
            activity.unread_in(interval).fetch_add(1, Relaxed);
        }
        if let Some(interval) = std::mem::replace(&mut self.waiting, now) {
            activity.unread_in(interval).fetch_sub(1, Relaxed);
        }
    }
}

impl<B> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        self.set_waiting(false);
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        // The next poll comes when the client has read this frame.
        self.set_waiting(matches!(polled, Poll::Ready(Some(Ok(_)))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_oip::server::Reply;

    const IDLE: Duration = Duration::from_mins(1);
    const UNREAD: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn connection_without_requests_stalls_after_the_idle_time() {
        let (activity, start) = (Arc::new(Activity::default()), Instant::now());
        activity.stalled(IDLE, UNREAD).await;
        assert_eq!(start.elapsed(), IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_a_request_in_progress_does_not_stall() {
        let activity = Arc::new(Activity::default());
        let request = Activity::begin(&activity);
        assert!(tokio::time::timeout(IDLE * 10, activity.stalled(IDLE, UNREAD)).await.is_err());
        drop(request);
        assert!(tokio::time::timeout(IDLE * 3, activity.stalled(IDLE, UNREAD)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn unread_response_stalls_the_connection() {
        let (activity, start) = (Arc::new(Activity::default()), Instant::now());
        let _unread = TrackedBody::new(Reply::new("answer".into()), Activity::begin(&activity));
        activity.stalled(IDLE, UNREAD).await;
        assert!((UNREAD..=UNREAD * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_waits_for_its_source_does_not_stall() {
        use http_body_util::BodyExt as _;
        let activity = Arc::new(Activity::default());
        let mut body = TrackedBody::new(Silent, Activity::begin(&activity));
        tokio::select! {
            _ = body.frame() => panic!("the source has no frame"),
            () = activity.stalled(IDLE, UNREAD) => panic!("stalled"),
            () = tokio::time::sleep(IDLE * 2) => {}
        }
    }

    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }
}
