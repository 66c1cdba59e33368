//! Protocol errors and their HTTP and gRPC codes.

use http::StatusCode;

/// Determines the HTTP status and the gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    InvalidArgument,
    NotFound,
    MethodNotAllowed,
    /// The request has no valid credential.
    Unauthenticated,
    PermissionDenied,
    FailedPrecondition,
    Unavailable,
    ResourceExhausted,
    PayloadTooLarge,
    DeadlineExceeded,
    Cancelled,
    Unimplemented,
    Internal,
    /// A step of a pipeline failed by its model: HTTP 400 and gRPC UNKNOWN, as in Seldon.
    StepFailed,
    /// A step of the pipeline is not ready: HTTP 424, as in Seldon.
    NotReady,
}

impl Code {
    pub const fn http(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::StepFailed => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Cancelled => StatusCode::REQUEST_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotReady => StatusCode::FAILED_DEPENDENCY,
        }
    }

    pub const fn grpc(self) -> u8 {
        match self {
            Self::Cancelled => 1,
            Self::StepFailed => 2,
            Self::InvalidArgument => 3,
            Self::DeadlineExceeded => 4,
            Self::NotFound => 5,
            Self::PermissionDenied => 7,
            Self::ResourceExhausted | Self::PayloadTooLarge => 8,
            Self::FailedPrecondition => 9,
            Self::MethodNotAllowed | Self::Unimplemented => 12,
            Self::Internal => 13,
            Self::Unavailable | Self::NotReady => 14,
            Self::Unauthenticated => 16,
        }
    }

    /// Numbers without a variant map to [`Code::Internal`].
    pub const fn from_grpc(status: u8) -> Self {
        match status {
            1 => Self::Cancelled,
            3 | 11 => Self::InvalidArgument,
            4 => Self::DeadlineExceeded,
            5 => Self::NotFound,
            7 => Self::PermissionDenied,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            12 => Self::Unimplemented,
            14 => Self::Unavailable,
            16 => Self::Unauthenticated,
            _ => Self::Internal,
        }
    }
}

/// An error for a client: what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: Code,
    pub message: String,
    /// Seconds until a retry, if useful.
    pub retry_after: Option<u32>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    pub fn unavailable(message: impl Into<String>, retry_after: u32) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(Code::Unavailable, message) }
    }

    /// Prefixes the message with a location.
    #[must_use]
    pub fn at(mut self, context: impl std::fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_map_to_http_and_grpc() {
        let table = [
            (Code::InvalidArgument, 400, 3),
            (Code::NotFound, 404, 5),
            (Code::MethodNotAllowed, 405, 12),
            (Code::Unauthenticated, 401, 16),
            (Code::PermissionDenied, 403, 7),
            (Code::FailedPrecondition, 412, 9),
            (Code::Unavailable, 503, 14),
            (Code::ResourceExhausted, 429, 8),
            (Code::PayloadTooLarge, 413, 8),
            (Code::DeadlineExceeded, 504, 4),
            (Code::Cancelled, 408, 1),
            (Code::Unimplemented, 501, 12),
            (Code::Internal, 500, 13),
            (Code::StepFailed, 400, 2),
            (Code::NotReady, 424, 14),
        ];
        for (code, http, grpc) in table {
            assert_eq!((code.http().as_u16(), code.grpc()), (http, grpc), "{code:?}");
            let is_local = matches!(
                code,
                Code::PayloadTooLarge | Code::MethodNotAllowed | Code::StepFailed | Code::NotReady
            );
            if !is_local {
                assert_eq!(Code::from_grpc(grpc), code);
            }
        }
    }
}
