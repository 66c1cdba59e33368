//! Fetch errors, classified by what the caller should do next.

use std::fmt;
use std::time::Duration;

/// Class of a failed fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// May succeed later without any change: the network, an overloaded server.
    Transient,
    /// Will fail again until the source, the URI or the configuration changes.
    Permanent,
    /// Denied by our policy or by the permissions of the source.
    Denied,
    /// Exceeds a configured limit.
    TooLarge,
}

/// A failed fetch: what failed, where, and what to do. Never contains a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchError {
    kind: ErrorKind,
    what: String,
    place: Option<String>,
    status: Option<u16>,
    remedy: Option<String>,
    retry_after: Option<Duration>,
}

impl FetchError {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), place: None, status: None, remedy: None, retry_after: None }
    }

    pub(crate) fn transient(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Transient, what)
    }

    pub(crate) fn permanent(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Permanent, what)
    }

    pub(crate) fn denied(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Denied, what)
    }

    pub(crate) fn too_large(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::TooLarge, what)
    }

    /// A failed file operation; a full disk may be emptied, the rest will not change by itself.
    pub(crate) fn io(what: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::StorageFull | Io::QuotaExceeded | Io::Interrupted => ErrorKind::Transient,
            Io::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Permanent,
        };
        let mut built = Self::new(kind, format!("{what}: {error}")).at(path.display().to_string());
        if error.kind() == Io::StorageFull {
            built = built.remedy("free disk space or lower the cache limit");
        }
        built
    }

    /// Where it failed; the first (innermost) place is kept.
    pub(crate) fn at(mut self, place: impl Into<String>) -> Self {
        self.place.get_or_insert_with(|| place.into());
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy.get_or_insert_with(|| remedy.into());
        self
    }

    pub(crate) fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    pub(crate) fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }

    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// The class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The HTTP status, when a server answered.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// The server's `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    pub(crate) fn is_transient(&self) -> bool {
        self.kind == ErrorKind::Transient
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match (&self.place, self.status) {
            (Some(place), Some(status)) => write!(f, " ({place}, HTTP {status})")?,
            (Some(place), None) => write!(f, " ({place})")?,
            (None, Some(status)) => write!(f, " (HTTP {status})")?,
            (None, None) => {}
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FetchError {}

impl From<crate::uri::UriError> for FetchError {
    fn from(error: crate::uri::UriError) -> Self {
        Self::permanent(error.to_string())
    }
}
