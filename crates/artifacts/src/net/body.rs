//! A response body with idle and stall timeouts.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::Timeouts;
use super::client::{Idle, Pool};
use crate::error::FetchError;

/// Reads a body chunk by chunk under the idle and stall limits; gives its connection back at the end.
pub(crate) struct Body {
    incoming: Incoming,
    timeouts: Timeouts,
    window_start: Instant,
    window_bytes: u64,
    connection: Option<(Arc<Pool>, Idle)>,
}

impl Body {
    pub(super) fn new(incoming: Incoming, timeouts: Timeouts, connection: Option<(Arc<Pool>, Idle)>) -> Self {
        Self { incoming, timeouts, window_start: Instant::now(), window_bytes: 0, connection }
    }

    /// The next chunk; `None` at the end of a complete body.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let frame =
                tokio::time::timeout(self.timeouts.idle, self.incoming.frame()).await.map_err(|_| {
                    FetchError::transient(format!("the server sent nothing for {:?}", self.timeouts.idle))
                })?;
            match frame {
                None => {
                    if let Some((pool, idle)) = self.connection.take() {
                        pool.put_idle(idle);
                    }
                    return Ok(None);
                }
                Some(Err(error)) => {
                    return Err(FetchError::transient(format!("the connection broke: {}", chain(&error))));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.check_rate(data.len() as u64)?;
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn check_rate(&mut self, bytes: u64) -> Result<(), FetchError> {
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        if self.window_start.elapsed() >= self.timeouts.idle {
            if self.window_bytes < self.timeouts.min_bytes_per_idle {
                return Err(FetchError::transient(format!(
                    "the download has stalled: {} bytes in {:?}",
                    self.window_bytes, self.timeouts.idle
                )));
            }
            self.window_start = Instant::now();
            self.window_bytes = 0;
        }
        Ok(())
    }

    /// The whole body, refused beyond `limit` bytes.
    pub(crate) async fn collect(mut self, limit: usize) -> Result<Vec<u8>, FetchError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if all.len() + chunk.len() > limit {
                return Err(FetchError::too_large(format!("the answer is larger than {limit} bytes")));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

/// An error and its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
