//! Request bodies: reading with a limit, and forwarding upstream.

use crate::BoxError;
use bytes::{Bytes, BytesMut};
use gantry_oip::{Code, Error, grpc::NameScanner};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::sync::mpsc;

/// Capacity of the buffer for a body of more than one frame.
const INITIAL_CAPACITY: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than the {0} bytes allowed")]
    TooLarge(usize),
    #[error("request deadline exceeded")]
    DeadlineExceeded,
    #[error("model name and version must be the first fields of a large message, once each")]
    RepeatedName,
}

pub fn too_large(limit: usize) -> Error {
    Error::new(Code::PayloadTooLarge, BodyError::TooLarge(limit).to_string())
}

/// The limit that a client's body exceeded, if that caused an upstream error.
pub fn exceeded_limit(error: &(dyn std::error::Error + 'static)) -> Option<usize> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(BodyError::TooLarge(limit)) = error.downcast_ref() {
            return Some(*limit);
        }
        next = error.source();
    }
    None
}

/// A request body, fully buffered or not.
pub enum Payload {
    Whole(Bytes),
    Partial {
        first: Bytes,
        rest: Incoming,
    },
    /// Frames of a stream of messages.
    Messages(mpsc::Receiver<Bytes>),
}

impl Payload {
    /// Buffers a body until it ends or has `enough` bytes.
    pub async fn read(mut body: Incoming, enough: usize, limit: usize) -> Result<Self, Error> {
        let (bytes, ended) = read_more(&mut body, Bytes::new(), enough, limit, UNCHARGED).await?;
        Ok(if ended { Self::Whole(bytes) } else { Self::Partial { first: bytes, rest: body } })
    }

    pub async fn into_bytes(self, limit: usize) -> Result<Bytes, Error> {
        match self {
            Self::Whole(bytes) => Ok(bytes),
            Self::Partial { first, mut rest } => {
                Ok(read_more(&mut rest, first, usize::MAX, limit, UNCHARGED).await?.0)
            }
            Self::Messages(_) => Err(Error::new(Code::Unimplemented, "the server does not support streams")),
        }
    }
}

/// The whole body; a single frame is not copied.
pub async fn read_all(body: &mut Incoming, limit: usize) -> Result<Bytes, Error> {
    Ok(read_more(body, Bytes::new(), usize::MAX, limit, UNCHARGED).await?.0)
}

const UNCHARGED: fn(usize) -> Result<(), Error> = |_| Ok(());

/// Reads on after `first` until there are `enough` bytes or the body ends; returns whether it has ended. `charge` is
/// called with the size of the buffer before it grows.
pub async fn read_more(
    body: &mut Incoming,
    first: Bytes,
    enough: usize,
    limit: usize,
    mut charge: impl FnMut(usize) -> Result<(), Error>,
) -> Result<(Bytes, bool), Error> {
    let mut single = first;
    let mut joined: Option<BytesMut> = None;
    let ended = loop {
        let have = joined.as_ref().map_or(single.len(), BytesMut::len);
        if body.is_end_stream() {
            break true;
        }
        if have >= enough {
            break false;
        }
        let Some(frame) = body.frame().await else {
            break true;
        };
        let frame = frame.map_err(|e| Error::invalid(format!("failed to read the body: {e}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let total = have + data.len();
        if total > limit {
            return Err(too_large(limit));
        }
        if single.is_empty() && joined.is_none() {
            charge(total)?;
            single = data;
            continue;
        }
        let all = joined.get_or_insert_default();
        if all.capacity() < total {
            let capacity = all.capacity().saturating_mul(2).max(INITIAL_CAPACITY).min(limit).max(total);
            charge(capacity)?;
            all.reserve(capacity - all.len());
        }
        if all.is_empty() {
            all.extend_from_slice(&std::mem::take(&mut single));
        }
        all.extend_from_slice(&data);
    };
    Ok((joined.map_or(single, BytesMut::freeze), ended))
}

/// Shared with the sender: over HTTP/2 an error of the body does not reach it.
pub type SharedScanner = Arc<Mutex<NameScanner>>;

/// A request body on its way upstream.
pub enum UpstreamBody {
    /// Fully buffered, so it can be retried.
    Whole(Bytes),
    /// The buffered prefix, then the remaining frames as they arrive from the client.
    Streamed {
        first: Bytes,
        rest: Incoming,
        left: usize,
        limit: usize,
        scanner: Option<SharedScanner>,
    },
    Messages(mpsc::Receiver<Bytes>),
}

impl UpstreamBody {
    pub fn new(payload: Payload, limit: usize) -> Self {
        match payload {
            Payload::Whole(bytes) => Self::Whole(bytes),
            Payload::Partial { first, rest } => {
                Self::Streamed { left: limit.saturating_sub(first.len()), first, rest, limit, scanner: None }
            }
            Payload::Messages(messages) => Self::Messages(messages),
        }
    }

    /// Ends with an error if the remaining frames do not pass `scanner`.
    #[must_use]
    pub fn scanned_by(mut self, by: Option<SharedScanner>) -> Self {
        if let Self::Streamed { scanner, .. } = &mut self {
            *scanner = by;
        }
        self
    }
}

impl From<UpstreamBody> for Payload {
    fn from(body: UpstreamBody) -> Self {
        match body {
            UpstreamBody::Whole(bytes) => Self::Whole(bytes),
            UpstreamBody::Streamed { first, rest, .. } => Self::Partial { first, rest },
            UpstreamBody::Messages(messages) => Self::Messages(messages),
        }
    }
}

impl Body for UpstreamBody {
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
            Self::Messages(messages) => messages.poll_recv(cx).map(|m| m.map(|m| Ok(Frame::data(m)))),
            Self::Streamed { rest, left, limit, scanner, .. } => {
                let Some(frame) = ready!(Pin::new(rest).poll_frame(cx)?) else {
                    return Poll::Ready(None);
                };
                if let (Some(scanner), Some(data)) = (scanner, frame.data_ref())
                    && !scanner.lock().unwrap_or_else(PoisonError::into_inner).scan(data)
                {
                    return Poll::Ready(Some(Err(BodyError::RepeatedName.into())));
                }
                let length = frame.data_ref().map_or(0, Bytes::len);
                Poll::Ready(Some(match left.checked_sub(length) {
                    None => Err(BodyError::TooLarge(*limit).into()),
                    Some(rest) => {
                        *left = rest;
                        Ok(frame)
                    }
                }))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Streamed { first, rest, .. } => first.is_empty() && rest.is_end_stream(),
            Self::Messages(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Messages(_) => SizeHint::default(),
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
