//! What can go wrong with a call to the API server, by what is to be done about it.

use std::time::Duration;
use thiserror::Error;

/// A call that did not do what it was to do.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ApiError {
    /// Somebody else changed the object in between: look again.
    #[error("somebody else changed it in between")]
    Conflict,
    /// The object, or what it is to be put into, is not there (any more).
    #[error("it is not there")]
    NotFound,
    /// The API server has too much to do.
    #[error("the API server asks to come back in {} s", .0.as_secs())]
    Throttled(Duration),
    /// The API server will not have it, also when asked again.
    #[error("{0}")]
    Rejected(String),
    /// Something else has the name that it is to have.
    #[error("its name is taken")]
    NotOwned(super::ownership::Ownership),
    /// The operator may not do it.
    #[error("the operator has not the right to: {0}")]
    Forbidden(String),
    /// It may work later.
    #[error("{0}")]
    Transient(String),
    /// Another operator leads: nothing may be written.
    #[error("another operator leads")]
    NotLeading,
}

impl ApiError {
    /// A word for metrics.
    pub const fn word(&self) -> &'static str {
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
                    // What is in a namespace that goes away is not worth another try, and not the object's fault.
                    403 if message.contains("because it is being terminated") => Self::NotFound,
                    401 | 403 => Self::Forbidden(message),
                    429 => {
                        let seconds = status.details.as_ref().map_or(1, |d| d.retry_after_seconds);
                        Self::Throttled(Duration::from_secs(u64::from(seconds.clamp(1, 60))))
                    }
                    // 422 also is what a patch gets that names another object's uid.
                    422 if message.contains("metadata.uid") => Self::Conflict,
                    400 | 405 | 406 | 413 | 415 | 422 => Self::Rejected(message),
                    // So server-side apply answers to a field that there is not, or that is of another type.
                    500 if message.contains("failed to create typed patch object") => Self::Rejected(message),
                    code => Self::Transient(format!("the API server answers {code}: {message}")),
                }
            }
            other => Self::Transient(format!("the API server cannot be reached: {}", deepest(&other))),
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
