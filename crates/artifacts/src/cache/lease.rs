//! Leases on cache entries.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use super::scratch::{Session, is_abandoned};

/// Keeps an artifact in the cache until it is dropped.
pub struct Lease {
    session: Arc<Session>,
    digest: String,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lease").field(&self.digest).finish()
    }
}

/// Cross-process lock, held while leases are taken or entries removed.
pub(super) struct Gate(#[allow(dead_code, reason = "held for its lock")] File);

impl Session {
    /// Blocks until the lock is free; it is held only briefly.
    pub(super) fn gate(&self) -> io::Result<Gate> {
        let file = File::create(self.tmp.join("gate"))?;
        file.lock()?;
        Ok(Gate(file))
    }

    /// Leases an entry.
    pub(super) fn lease(self: &Arc<Self>, digest: &str, _gate: &Gate) -> io::Result<Lease> {
        let mut counts = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(digest.to_owned()).or_insert(0);
        if *count == 0 {
            File::create(self.dir.join("leases").join(digest))?;
        }
        *count += 1;
        Ok(Lease { session: Arc::clone(self), digest: digest.to_owned() })
    }

    /// Whether any live process leases the entry.
    pub(super) fn is_leased(&self, digest: &str, _gate: &Gate) -> bool {
        let sessions = fs::read_dir(&self.tmp).into_iter().flatten().flatten().map(|entry| entry.path());
        sessions.into_iter().any(|session| holds(&session, digest))
    }
}

fn holds(session: &Path, digest: &str) -> bool {
    session.join("leases").join(digest).exists() && !is_abandoned(session)
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut counts = self.session.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = counts.get_mut(&self.digest) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&self.digest);
            let _ = fs::remove_file(self.session.dir.join("leases").join(&self.digest));
        }
    }
}
