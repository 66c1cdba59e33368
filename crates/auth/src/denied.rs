//! Refusals: what is wrong with a request's credential, and the remedy. They contain no part of it.

/// Determines the status, and labels the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No credential.
    Missing,
    /// Not a credential, or an unknown one.
    Invalid,
    Expired,
    /// Known, but without the right.
    Forbidden,
    /// Above the rate.
    Limited,
    /// The keys of the issuer have not arrived.
    Unavailable,
}

impl Reason {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::Expired => "expired",
            Self::Forbidden => "forbidden",
            Self::Limited => "limited",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A request that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Denied {
    pub reason: Reason,
    pub message: String,
    /// Seconds until a retry, if useful.
    pub retry_after: Option<u32>,
}

impl Denied {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_after: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, message)
    }

    pub(crate) fn missing() -> Self {
        Self::new(
            Reason::Missing,
            "this request needs a credential: send the header authorization: Bearer KEY, or x-api-key: KEY",
        )
    }

    /// Of a credential that is neither a key nor a token.
    pub(crate) fn unknown() -> Self {
        Self::invalid("the credential is unknown: check that it is complete and belongs to this gateway")
    }

    /// The value of `WWW-Authenticate`, for 401.
    pub const fn challenge(&self) -> Option<&'static str> {
        match self.reason {
            Reason::Missing => Some("Bearer realm=\"gantry\""),
            Reason::Invalid | Reason::Expired => Some("Bearer realm=\"gantry\", error=\"invalid_token\""),
            Reason::Forbidden | Reason::Limited | Reason::Unavailable => None,
        }
    }
}
