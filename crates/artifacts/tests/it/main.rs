//! The fetcher against stores that misbehave, on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::type_complexity,
    clippy::format_push_string,
    reason = "a test fails by panicking, and its tables are clearer in place"
)]

mod archives;
mod cache;
mod clouds;
mod crash;
mod faults;
mod local;
mod network;
mod secrets;
mod server;
mod tls;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gantry_artifacts::{
    Config, FetchError, Fetched, Fetcher, ProgressSink, Request, RetryPolicy, Timeouts, Uri,
};
use tempfile::TempDir;

/// A fetcher with a cache of its own and short waits.
struct Harness {
    dir: TempDir,
    fetcher: Fetcher,
}

impl Harness {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fetcher = Fetcher::new(config(dir.path(), change)).unwrap();
        Self { dir, fetcher }
    }

    async fn fetch(&self, uri: &str) -> Result<Fetched, FetchError> {
        self.request(&Request::new(Uri::parse(uri).unwrap())).await
    }

    async fn version(&self, uri: &str, version: u32) -> Result<Fetched, FetchError> {
        let mut request = Request::new(Uri::parse(uri).unwrap());
        request.artifact_version = Some(version);
        self.request(&request).await
    }

    async fn request(&self, request: &Request) -> Result<Fetched, FetchError> {
        self.fetcher.fetch(request, &gantry_artifacts::Silent).await
    }

    /// Nothing may be left of a finished or failed fetch.
    fn assert_no_leftovers(&self) {
        let found = self.leftovers();
        assert!(found.is_empty(), "left behind: {found:?}");
    }

    fn leftovers(&self) -> Vec<std::path::PathBuf> {
        let mut found = Vec::new();
        for session in std::fs::read_dir(self.dir.path().join("cache/tmp")).unwrap().flatten() {
            if session.path().is_dir() {
                let inside = std::fs::read_dir(session.path()).unwrap().flatten();
                found.extend(
                    inside
                        .map(|entry| entry.path())
                        .filter(|path| !["lock", "leases"].iter().any(|name| path.ends_with(name))),
                );
            }
        }
        found
    }
}

fn config(dir: &std::path::Path, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::new(dir.join("cache"));
    config.allow_loopback = true;
    config.timeouts =
        Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(5), min_bytes_per_idle: 0 };
    config.retry = RetryPolicy { retries: 3, base: Duration::from_millis(1), max: Duration::from_millis(5) };
    config.env = Arc::new(|_| None);
    config.extra_roots_pem = None;
    change(&mut config);
    config
}

fn env(pairs: &[(&str, &str)]) -> Arc<dyn Fn(&str) -> Option<String> + Send + Sync> {
    let pairs: Vec<(String, String)> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Arc::new(move |name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
}

/// Every file below a fetched artifact, with its content.
fn files(fetched: &Fetched) -> Vec<(String, Vec<u8>)> {
    fn walk(root: &std::path::Path, dir: &std::path::Path, out: &mut Vec<(String, Vec<u8>)>) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(root, &path, out);
            } else {
                let rel = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                out.push((rel, std::fs::read(&path).unwrap()));
            }
        }
    }
    let mut out = Vec::new();
    walk(&fetched.path, &fetched.path, &mut out);
    out.sort();
    out
}

fn names(fetched: &Fetched) -> Vec<String> {
    files(fetched).into_iter().map(|(name, _)| name).collect()
}

/// Records all progress reports.
#[derive(Default)]
struct Recorder {
    bytes: Mutex<Vec<(u64, Option<u64>)>>,
    notes: Mutex<Vec<String>>,
}

impl ProgressSink for Recorder {
    fn bytes(&self, done: u64, total: Option<u64>) {
        self.bytes.lock().unwrap().push((done, total));
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }
}

/// Lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        write!(out, "{byte:02x}").unwrap();
        out
    })
}

fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// Bytes that repeat nowhere, so that a misplaced part shows.
fn content(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}
