//! `storageUri` forms, parsed without network or disk access.

mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use url::Url;

pub(crate) use parse::percent_decode;

/// Where a model's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uri {
    /// A file or directory on this machine.
    Local(PathBuf),
    /// One file behind HTTP or HTTPS.
    Http(HttpUri),
    /// An object or a folder in an object store.
    Bucket(BucketUri),
    /// A model repository of the Hugging Face hub, or a part of one.
    Hf(HfUri),
}

/// One file behind HTTP; its query may be a signature, so neither `Debug` nor `Display` prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUri {
    pub(crate) url: Url,
    pub(crate) sha256: Option<[u8; 32]>,
}

impl HttpUri {
    /// The host, without a port.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }
}

/// An object or a folder in an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketUri {
    /// `s3`, `gs`, `az`, or the name of a remote that a storage secret defines.
    pub(crate) remote: String,
    /// The storage account, when the URI names it (`abfss://container@account…`).
    pub(crate) account: Option<String>,
    pub(crate) bucket: String,
    /// Without leading or trailing slash; empty for the whole bucket.
    pub(crate) path: String,
}

/// A model repository of the Hugging Face hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfUri {
    /// `organisation/model`.
    pub(crate) repo: String,
    pub(crate) revision: Option<String>,
    /// Without leading or trailing slash; empty for the whole repository.
    pub(crate) path: String,
}

/// A `storageUri` that cannot be used, and what to write instead. Never repeats a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum UriError {
    #[error("storageUri is empty; write a path or one of: {KNOWN}")]
    Empty,
    #[error("storageUri has {0} characters; at most 4096 are accepted")]
    TooLong(usize),
    #[error("storageUri has {what} at character {position}; remove it")]
    BadCharacter { what: &'static str, position: usize },
    #[error("unknown scheme `{scheme}`; {hint}")]
    UnknownScheme { scheme: String, hint: String },
    #[error("`{scheme}` needs {missing}; write {example}")]
    Missing { scheme: String, missing: &'static str, example: &'static str },
    #[error("{part} `{value}` is not valid: {why}")]
    BadPart { part: &'static str, value: String, why: &'static str },
    #[error(
        "storageUri contains credentials before `@`; they would be shown in status and logs: \
         put them in a storage secret (secretName) or in the environment"
    )]
    Credentials,
    #[error("not a valid URL: {0}")]
    BadUrl(String),
    #[error("the part after `#` must be sha256= and 64 hexadecimal digits, the checksum of the file")]
    BadFragment,
}

pub(crate) const KNOWN: &str = "file://, http://, https://, s3://, gs://, az:// (also abfs://, abfss://, azure://), hf://, or remote:bucket/path";

impl Uri {
    /// Reads a `storageUri`; needs neither network nor disk.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        parse::parse(text)
    }

    /// The same source with a relative local path made absolute against `base`.
    #[must_use]
    pub fn resolve(self, base: &Path) -> Self {
        match self {
            Self::Local(path) if path.is_relative() => Self::Local(base.join(path)),
            other => other,
        }
    }

    /// The remote that a storage secret must define under this name, if the URI uses one.
    pub fn named_remote(&self) -> Option<&str> {
        match self {
            Self::Bucket(bucket) if !bucket.is_well_known() => Some(&bucket.remote),
            _ => None,
        }
    }

    /// The path on this machine, for a local source.
    pub fn local_path(&self) -> Option<&Path> {
        match self {
            Self::Local(path) => Some(path),
            _ => None,
        }
    }

    /// Everything that identifies the source, secrets included: for cache keys, never for output.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Http(http) => format!("{}#{:?}", http.url, http.sha256),
            other => other.to_string(),
        }
    }
}

impl BucketUri {
    pub(crate) fn is_well_known(&self) -> bool {
        matches!(self.remote.as_str(), "s3" | "gs" | "az")
    }
}

impl HfUri {
    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl std::str::FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::parse(text)
    }
}

/// A URL without user information, and with a query hidden: what messages show.
pub(crate) fn redact(url: &Url) -> String {
    let mut shown = url.clone();
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    if shown.query().is_some_and(|query| !query.is_empty()) {
        shown.set_query(Some("redacted"));
    }
    shown.into()
}

impl fmt::Display for HttpUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.url))?;
        match &self.sha256 {
            Some(sha256) => write!(f, "#sha256={}", crate::digest::hex(sha256)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for HttpUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpUri({self})")
    }
}

impl fmt::Display for BucketUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.account {
            Some(account) => write!(f, "abfss://{}@{account}.dfs.core.windows.net", self.bucket)?,
            None if self.is_well_known() => write!(f, "{}://{}", self.remote, self.bucket)?,
            None => write!(f, "{}:{}", self.remote, self.bucket)?,
        }
        if self.path.is_empty() { Ok(()) } else { write!(f, "/{}", self.path) }
    }
}

impl fmt::Display for HfUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{}", revision.replace('/', "%2F"))?;
        }
        if self.path.is_empty() { Ok(()) } else { write!(f, "/{}", self.path) }
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "{}", path.display()),
            Self::Http(http) => http.fmt(f),
            Self::Bucket(bucket) => bucket.fmt(f),
            Self::Hf(hf) => hf.fmt(f),
        }
    }
}
