//! Work in progress: one directory per process, removed when the process ends or, if it was killed, at the next start.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::error::FetchError;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The directory of this process in `tmp`.
pub(super) struct Session {
    pub(super) tmp: PathBuf,
    pub(super) dir: PathBuf,
    /// How often each entry is leased.
    pub(super) leases: Mutex<HashMap<String, usize>>,
    /// Marks the directory as in use for other processes.
    _lock: File,
}

impl Session {
    pub(super) fn start(tmp: &Path) -> Result<Self, FetchError> {
        let failed = |error: std::io::Error| FetchError::io("cannot prepare the artifact cache", tmp, &error);
        // The gate is held: no other process starts or cleans, so an unlocked directory has no owner.
        let gate = File::create(tmp.join("gate")).map_err(failed)?;
        gate.lock().map_err(failed)?;
        for entry in fs::read_dir(tmp).map_err(failed)?.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_abandoned(&path) {
                tracing::info!(target: "gantry::artifacts", path = %path.display(), "removing leftovers of an interrupted fetch");
                remove(&path);
            }
        }
        let nanos =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let dir = tmp.join(format!("{}-{nanos:x}-{count}", std::process::id()));
        fs::create_dir_all(dir.join("leases")).map_err(failed)?;
        let lock = File::create(dir.join("lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(Self { tmp: tmp.to_owned(), dir, leases: Mutex::default(), _lock: lock })
    }

    pub(super) fn scratch(&self) -> Result<Scratch, FetchError> {
        let path = self.file();
        fs::create_dir_all(path.join("files"))
            .map_err(|error| FetchError::io("cannot create a directory", &path, &error))?;
        Ok(Scratch { dir: Arc::new(ScratchDir { path }) })
    }

    /// A name in the directory of this process that nothing else uses.
    pub(super) fn file(&self) -> PathBuf {
        self.dir.join(COUNTER.fetch_add(1, Ordering::Relaxed).to_string())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Whether the process that owned the directory is gone.
pub(super) fn is_abandoned(dir: &Path) -> bool {
    match File::open(dir.join("lock")) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// A directory that disappears with its last clone unless it is renamed into place. Work on a blocking thread goes on
/// after its caller is cancelled; it holds a clone, so that it creates nothing in a directory that is being removed.
#[derive(Clone)]
pub(crate) struct Scratch {
    dir: Arc<ScratchDir>,
}

struct ScratchDir {
    path: PathBuf,
}

impl Scratch {
    pub(crate) fn path(&self) -> &Path {
        &self.dir.path
    }

    /// Where the files of the artifact are collected.
    pub(crate) fn files(&self) -> PathBuf {
        self.dir.path.join("files")
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

pub(super) fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(target: "gantry::artifacts", path = %path.display(), %error, "could not remove");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_removed_with_its_last_clone() {
        let root = tempfile::tempdir().unwrap();
        let session = Session::start(root.path()).unwrap();
        let scratch = session.scratch().unwrap();
        let (held_by_work, path) = (scratch.clone(), scratch.path().to_owned());
        drop(scratch);
        File::create(held_by_work.files().join("late")).unwrap();
        drop(held_by_work);
        assert!(!path.exists());
    }
}
