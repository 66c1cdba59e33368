//! What can go wrong with a request, and how HTTP and gRPC say it.

use http::StatusCode;

/// The kind of an error; it decides the HTTP status and the gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request is wrong in itself.
    InvalidArgument,
    /// There is no such model, version or path.
    NotFound,
    /// The path exists, the HTTP method does not fit it.
    MethodNotAllowed,
    /// The request cannot be served in the state things are in.
    FailedPrecondition,
    /// The model exists but nothing can serve it now.
    Unavailable,
    /// Too many requests at once.
    ResourceExhausted,
    /// The body is larger than allowed.
    PayloadTooLarge,
    /// The time for the request ran out.
    DeadlineExceeded,
    /// The client went away.
    Cancelled,
    /// This server does not do that.
    Unimplemented,
    /// The fault is ours or the model's.
    Internal,
}

impl Code {
    /// The HTTP status of this kind of error.
    pub const fn http(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Cancelled => StatusCode::REQUEST_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The number of the gRPC status of this kind of error.
    pub const fn grpc(self) -> u8 {
        match self {
            Self::Cancelled => 1,
            Self::InvalidArgument => 3,
            Self::DeadlineExceeded => 4,
            Self::NotFound => 5,
            Self::ResourceExhausted | Self::PayloadTooLarge => 8,
            Self::FailedPrecondition => 9,
            Self::MethodNotAllowed | Self::Unimplemented => 12,
            Self::Internal => 13,
            Self::Unavailable => 14,
        }
    }

    /// The kind of error that a gRPC status number stands for; numbers without a kind of their own are
    /// [`Code::Internal`].
    pub const fn from_grpc(status: u8) -> Self {
        match status {
            1 => Self::Cancelled,
            3 | 11 => Self::InvalidArgument,
            4 => Self::DeadlineExceeded,
            5 => Self::NotFound,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            12 => Self::Unimplemented,
            14 => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

/// An error that a client is told: its kind, and words that say what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind.
    pub code: Code,
    /// The words.
    pub message: String,
    /// When to try again, in seconds, where that makes sense.
    pub retry_after: Option<u32>,
}

impl Error {
    /// An error of this kind with these words.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after: None }
    }

    /// The request is wrong in itself.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// The fault is ours or the model's.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// Nothing can serve this now; try again after so many seconds.
    pub fn unavailable(message: impl Into<String>, retry_after: u32) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(Code::Unavailable, message) }
    }

    /// The same error, with a place in front of its words.
    #[must_use]
    pub fn at(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_two_numbers() {
        let table = [
            (Code::InvalidArgument, 400, 3),
            (Code::NotFound, 404, 5),
            (Code::MethodNotAllowed, 405, 12),
            (Code::FailedPrecondition, 412, 9),
            (Code::Unavailable, 503, 14),
            (Code::ResourceExhausted, 429, 8),
            (Code::PayloadTooLarge, 413, 8),
            (Code::DeadlineExceeded, 504, 4),
            (Code::Cancelled, 408, 1),
            (Code::Unimplemented, 501, 12),
            (Code::Internal, 500, 13),
        ];
        for (code, http, grpc) in table {
            assert_eq!((code.http().as_u16(), code.grpc()), (http, grpc), "{code:?}");
            if !matches!(code, Code::PayloadTooLarge | Code::MethodNotAllowed) {
                assert_eq!(Code::from_grpc(grpc), code);
            }
        }
    }
}
