//! Request bodies: reading with a limit, and forwarding upstream.

use crate::BoxError;
use bytes::{Bytes, BytesMut};
use gantry_oip::{Code, Error};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Capacity of the buffer for a body of more than one frame.
const INITIAL_CAPACITY: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than the {0} bytes allowed")]
    TooLarge(usize),
    #[error("request deadline exceeded")]
    DeadlineExceeded,
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
    Partial { first: Bytes, rest: Incoming },
}

impl Payload {
    /// Buffers a body until it ends or has `enough` bytes.
    pub async fn read(mut body: Incoming, enough: usize, limit: usize) -> Result<Self, Error> {
        let (bytes, ended) = read_more(&mut body, Bytes::new(), enough, limit).await?;
        Ok(if ended { Self::Whole(bytes) } else { Self::Partial { first: bytes, rest: body } })
    }

    pub async fn into_bytes(self, limit: usize) -> Result<Bytes, Error> {
        match self {
            Self::Whole(bytes) => Ok(bytes),
            Self::Partial { first, mut rest } => Ok(read_more(&mut rest, first, usize::MAX, limit).await?.0),
        }
    }
}

/// The whole body; a single frame is not copied.
pub async fn read_all(body: &mut Incoming, limit: usize) -> Result<Bytes, Error> {
    Ok(read_more(body, Bytes::new(), usize::MAX, limit).await?.0)
}

/// Reads on after `first` until there are `enough` bytes or the body ends; returns whether it has ended.
pub async fn read_more(
    body: &mut Incoming,
    first: Bytes,
    enough: usize,
    limit: usize,
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
        if have + data.len() > limit {
            return Err(too_large(limit));
        }
        match &mut joined {
            None if single.is_empty() => single = data,
            None => {
                let mut all = BytesMut::with_capacity((have + data.len()).max(INITIAL_CAPACITY));
                all.extend_from_slice(&single);
                all.extend_from_slice(&data);
                joined = Some(all);
            }
            Some(all) => all.extend_from_slice(&data),
        }
    };
    Ok((joined.map_or(single, BytesMut::freeze), ended))
}

/// A request body on its way upstream.
pub enum UpstreamBody {
    /// Fully buffered, so it can be retried.
    Whole(Bytes),
    /// The buffered prefix, then the remaining frames as they arrive from the client.
    Streamed { first: Bytes, rest: Incoming, left: usize, limit: usize },
}

impl UpstreamBody {
    pub fn new(payload: Payload, limit: usize) -> Self {
        match payload {
            Payload::Whole(bytes) => Self::Whole(bytes),
            Payload::Partial { first, rest } => {
                Self::Streamed { left: limit.saturating_sub(first.len()), first, rest, limit }
            }
        }
    }
}

impl From<UpstreamBody> for Payload {
    fn from(body: UpstreamBody) -> Self {
        match body {
            UpstreamBody::Whole(bytes) => Self::Whole(bytes),
            UpstreamBody::Streamed { first, rest, .. } => Self::Partial { first, rest },
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
            Self::Streamed { rest, left, limit, .. } => {
                let Some(frame) = ready!(Pin::new(rest).poll_frame(cx)?) else {
                    return Poll::Ready(None);
                };
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
