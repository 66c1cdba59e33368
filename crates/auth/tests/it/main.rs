//! Integration tests: configurations in files, signed tokens, a server of key sets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod configurations;
mod issuer;
mod key_sets;
mod keys;
mod tokens;

use gantry_auth::{Auth, Clock, Denied, Principal};
use http::{HeaderMap, HeaderValue};
use std::{path::PathBuf, sync::Arc};

/// Seconds since 1970 at which the tests start.
pub(crate) const NOW: u64 = 1_800_000_000;

/// A directory with a configuration.
pub(crate) struct Files {
    pub(crate) directory: tempfile::TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn open(&self, config: &str) -> (Arc<Auth>, Clock) {
        let clock = Clock::manual(NOW);
        let path = self.write("auth.yaml", config);
        (Auth::open(&path, clock.clone()).unwrap(), clock)
    }
}

/// The outcome for a request with these headers.
pub(crate) fn request(auth: &Auth, list: &[(&'static str, &str)]) -> Result<Arc<Principal>, Denied> {
    let mut headers = HeaderMap::new();
    for (name, value) in list {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    let credential = gantry_auth::take(&mut headers)?;
    auth.authenticate(credential.as_ref())
}

pub(crate) fn bearer(auth: &Auth, token: &str) -> Result<Arc<Principal>, Denied> {
    request(auth, &[("authorization", &format!("Bearer {token}"))])
}

pub(crate) fn metric(auth: &Auth, line: &str) -> Option<u64> {
    let mut registry = prometheus_client::registry::Registry::default();
    auth.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok())
}
