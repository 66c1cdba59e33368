//! A body that is copied for the logger while it is forwarded.

use super::logger::{Capture, Dropped};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

pub(super) struct Captured<B> {
    body: B,
    capture: Option<Capture>,
}

impl<B: Body<Data = Bytes>> Captured<B> {
    pub(super) fn new(body: B, capture: Option<Capture>) -> Self {
        let mut captured = Self { body, capture };
        captured.finish_at_end();
        captured
    }

    /// The last frame may be the last poll.
    fn finish_at_end(&mut self) {
        if self.body.is_end_stream()
            && let Some(capture) = self.capture.take()
        {
            capture.finish();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Captured<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            None => {
                if let Some(capture) = self.capture.take() {
                    capture.finish();
                }
            }
            Some(Ok(frame)) => {
                if let (Some(capture), Some(data)) = (&mut self.capture, frame.data_ref())
                    && !capture.push(data)
                    && let Some(capture) = self.capture.take()
                {
                    capture.discard(Dropped::NoMemory);
                }
                self.finish_at_end();
            }
            // Dropped, and counted as incomplete.
            Some(Err(_)) => self.capture = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
