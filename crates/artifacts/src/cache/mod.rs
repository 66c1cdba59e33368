//! The content-addressed cache of artifacts.
//!
//! ```text
//! entries/<digest>/files/…      the artifact, read-only
//! entries/<digest>/entry.json   its files, sizes and digests
//! entries/<digest>/used         its time is the last use
//! index/<key>.json              which digest a source had when it was last fetched
//! tmp/<session>/lock            locked while the process lives
//! tmp/<session>/leases/<digest> an entry that the process uses
//! tmp/<session>/…               its work in progress
//! tmp/gate                      locked while leases are taken and entries removed
//! ```
//! An entry appears by one rename and disappears by one, so a crash leaves nothing half-done but `tmp`. Leases are
//! names, not open files: a process may use more artifacts than it may open files.

mod evict;
mod lease;
mod scratch;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::digest::{hex, sha256};
use crate::error::FetchError;
use crate::file_tree::{Record, digest};

pub use lease::Lease;
pub(crate) use scratch::Scratch;
use scratch::{Session, remove};

/// Contents of `entry.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    source: String,
    bytes: u64,
    files: Vec<Record>,
}

/// Index record of a source.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SourceRecord {
    pub(crate) source: String,
    pub(crate) digest: String,
    /// The state of the source at that time: a hash of its listing, or of sizes and times.
    pub(crate) fingerprint: Option<String>,
    /// For one file over HTTP.
    pub(crate) etag: Option<String>,
    pub(crate) version: Option<u32>,
}

/// An entry that is leased and complete.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) path: PathBuf,
    pub(crate) digest: String,
    pub(crate) bytes: u64,
    pub(crate) lease: Arc<Lease>,
}

/// The cache directory.
pub(crate) struct Cache {
    root: PathBuf,
    limit: u64,
    session: Arc<Session>,
    /// Bytes of all entries as far as this process knows; counted when first needed.
    total: Mutex<Option<u64>>,
}

impl Cache {
    /// Opens the cache, creating it if need be, and removes leftovers of dead processes in `tmp`.
    pub(crate) fn open(root: &Path, limit: u64) -> Result<Self, FetchError> {
        for part in ["entries", "index", "tmp"] {
            let path = root.join(part);
            fs::create_dir_all(&path)
                .map_err(|error| FetchError::io("cannot create the artifact cache", &path, &error))?;
        }
        let session = Session::start(&root.join("tmp"))?;
        Ok(Self { root: root.to_owned(), limit, session: Arc::new(session), total: Mutex::new(None) })
    }

    /// A directory for work in progress, on the same file system, removed when dropped.
    pub(crate) fn scratch(&self) -> Result<Scratch, FetchError> {
        self.session.scratch()
    }

    fn entry(&self, digest: &str) -> PathBuf {
        self.root.join("entries").join(digest)
    }

    /// Leases the entry with this digest, if it is here and complete.
    pub(crate) fn lease(&self, digest: &str) -> Option<Placed> {
        let is_digest = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
        let dir = is_digest.then(|| self.entry(digest))?;
        let gate = self.session.gate().ok()?;
        let manifest = read_manifest(&dir)?;
        if !is_complete(&dir, &manifest) {
            tracing::warn!(target: "gantry::artifacts", digest, "a cached artifact was changed or is incomplete; it is discarded");
            let discarded = self.discard(digest, &gate);
            drop(gate);
            if let Some(path) = discarded {
                remove(&path);
            }
            return None;
        }
        let lease = self.session.lease(digest, &gate).ok()?;
        touch(&dir);
        Some(Placed {
            path: dir.join("files"),
            digest: digest.to_owned(),
            bytes: manifest.bytes,
            lease: Arc::new(lease),
        })
    }

    /// Makes the files in `scratch` (below `files/`) an entry, or returns the equal one that exists.
    pub(crate) fn place(
        &self,
        scratch: &Scratch,
        source: &str,
        mut files: Vec<Record>,
    ) -> Result<Placed, FetchError> {
        let name = digest(&mut files);
        let bytes = files.iter().map(|record| record.bytes).sum();
        if bytes > self.limit {
            return Err(FetchError::too_large(format!(
                "the artifact has {bytes} bytes, the whole cache may have {}",
                self.limit
            ))
            .remedy("raise the limit of the artifact cache"));
        }
        if let Some(placed) = self.lease(&name) {
            return Ok(placed);
        }
        let staged = scratch.path();
        let failed =
            |error: std::io::Error| FetchError::io("cannot place the artifact in the cache", staged, &error);
        make_read_only(&staged.join("files"), &files).map_err(failed)?;
        let manifest = Manifest { source: source.to_owned(), bytes, files };
        write_synced(
            &staged.join("entry.json"),
            &serde_json::to_vec(&manifest).map_err(|error| failed(error.into()))?,
        )
        .map_err(failed)?;
        File::create(staged.join("used")).map_err(failed)?;
        sync_dirs(&staged.join("files")).map_err(failed)?;
        sync_dir(staged).map_err(failed)?;
        let dir = self.entry(&name);
        let gate = self.session.gate().map_err(failed)?;
        let lease = self.session.lease(&name, &gate).map_err(failed)?;
        match fs::rename(staged, &dir) {
            Ok(()) => {}
            // Another process placed an equal entry first; it is leased now.
            Err(_) if read_manifest(&dir).is_some_and(|manifest| is_complete(&dir, &manifest)) => {}
            Err(error) => return Err(failed(error)),
        }
        touch(&dir);
        sync_dir(&self.root.join("entries")).map_err(failed)?;
        let evicted = self.evict(bytes, &gate);
        drop(gate);
        for path in evicted {
            remove(&path);
        }
        Ok(Placed { path: dir.join("files"), digest: name, bytes, lease: Arc::new(lease) })
    }

    /// The index record of a source.
    pub(crate) fn source_record(&self, key: &str) -> Option<SourceRecord> {
        serde_json::from_slice(&fs::read(self.index_path(key)).ok()?).ok()
    }

    /// Records the digest of a source; a failure only costs a later download.
    pub(crate) fn remember(&self, key: &str, known: &SourceRecord) {
        let remember = || -> std::io::Result<()> {
            let staged = self.session.file();
            write_synced(&staged, &serde_json::to_vec(known)?)?;
            fs::rename(staged, self.index_path(key))
        };
        if let Err(error) = remember() {
            tracing::warn!(target: "gantry::artifacts", %error, "the index of the artifact cache could not be written");
        }
    }

    /// Removes records without an entry: signed URLs are new each time and would accumulate.
    fn sweep_index(&self) {
        for entry in fs::read_dir(self.root.join("index")).into_iter().flatten().flatten() {
            let known: Option<SourceRecord> =
                fs::read(entry.path()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            if !known.is_some_and(|known| self.entry(&known.digest).is_dir()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn index_path(&self, key: &str) -> PathBuf {
        self.root.join("index").join(format!("{}.json", hex(&sha256(key.as_bytes()))))
    }
}

/// Updates the last-use time.
fn touch(dir: &Path) {
    if let Ok(used) = File::options().write(true).open(dir.join("used")) {
        let _ = used.set_modified(SystemTime::now());
    }
}

fn read_manifest(dir: &Path) -> Option<Manifest> {
    serde_json::from_slice(&fs::read(dir.join("entry.json")).ok()?).ok()
}

/// Whether every file is there with its size; contents are read-only and were checked when they were placed.
fn is_complete(dir: &Path, manifest: &Manifest) -> bool {
    let files = dir.join("files");
    manifest.files.iter().all(|record| {
        fs::symlink_metadata(files.join(&record.path))
            .is_ok_and(|found| found.is_file() && found.len() == record.bytes)
    })
}

fn make_read_only(files: &Path, records: &[Record]) -> std::io::Result<()> {
    for record in records {
        let path = files.join(&record.path);
        let mut permissions = fs::metadata(&path)?.permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions)?;
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_dir(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

fn sync_dirs(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_dirs(&entry.path())?;
        }
    }
    sync_dir(path)
}
