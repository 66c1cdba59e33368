//! Errors of API calls, by how they are handled.

use std::time::Duration;
use thiserror::Error;

#[derive(Clone, Debug, Error, PartialEq)]
pub enum ApiError {
    #[error("conflict: object was modified")]
    Conflict,
    /// The object or its namespace does not exist.
    #[error("not found")]
    NotFound,
    #[error("throttled by the API server for {} s", .0.as_secs())]
    Throttled(Duration),
    /// A retry would be rejected as well.
    #[error("{0}")]
    Rejected(String),
    #[error("an object of this name exists and is not ours")]
    NotOwned(super::ownership::Ownership),
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// A retry may succeed.
    #[error("{0}")]
    Transient(String),
    #[error("not the leader")]
    NotLeading,
}

impl ApiError {
    /// Label in metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::NotFound => "missing",
            Self::Throttled(_) => "throttled",
            Self::Rejected(_) => "refused",
            Self::NotOwned(_) => "taken",
            Self::Forbidden(_) => "forbidden",
            Self::Transient(_) => "passing",
            Self::NotLeading => "not_leading",
        }
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let message = status.message.clone();
                match status.code {
                    404 => Self::NotFound,
                    409 => Self::Conflict,
                    // The namespace is being deleted.
                    403 if message.contains("because it is being terminated") => Self::NotFound,
                    401 | 403 => Self::Forbidden(message),
                    429 => {
                        let seconds = status.details.as_ref().map_or(1, |d| d.retry_after_seconds);
                        Self::Throttled(Duration::from_secs(u64::from(seconds.clamp(1, 60))))
                    }
                    // A patch with another object's UID.
                    422 if message.contains("metadata.uid") => Self::Conflict,
                    400 | 405 | 406 | 413 | 415 | 422 => Self::Rejected(message),
                    // Server-side apply of an unknown field, or of a wrong type.
                    500 if message.contains("failed to create typed patch object") => Self::Rejected(message),
                    code => Self::Transient(format!("the API server returned {code}: {message}")),
                }
            }
            other => Self::Transient(format!("the API server is unreachable: {}", deepest(&other))),
        }
    }
}

fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
