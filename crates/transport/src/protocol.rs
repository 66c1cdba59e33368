//! REST or gRPC, and request deadlines.

use gantry_oip::{
    Error,
    server::{self, Reply},
};
use http::{HeaderMap, Response, header};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Rest,
    Grpc,
}

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Rest, Self::Grpc];

    /// By content type.
    pub fn of(headers: &HeaderMap) -> Self {
        let is_grpc = |t: &http::HeaderValue| {
            let rest = t.as_bytes().strip_prefix(b"application/grpc");
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
        };
        if headers.get(header::CONTENT_TYPE).is_some_and(is_grpc) { Self::Grpc } else { Self::Rest }
    }

    /// The `method_type` label of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Grpc => "grpc",
        }
    }

    /// The status code of a success.
    pub const fn ok(self) -> u16 {
        match self {
            Self::Rest => 200,
            Self::Grpc => 0,
        }
    }

    pub fn code(self, error: &Error) -> u16 {
        match self {
            Self::Rest => error.code.http().as_u16(),
            Self::Grpc => u16::from(error.code.grpc()),
        }
    }

    pub fn error(self, error: &Error) -> Response<Reply> {
        match self {
            Self::Rest => server::rest_error(error),
            Self::Grpc => server::grpc_error(error),
        }
    }
}

/// `started + timeout`; an overflow means a day.
pub fn deadline(started: Instant, timeout: Duration) -> Instant {
    started.checked_add(timeout).unwrap_or_else(|| started + Duration::from_hours(24))
}
