//! LRU eviction; leased entries are never evicted.

use std::fs;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::SystemTime;

use super::lease::Gate;
use super::{Cache, read_manifest};

struct Candidate {
    digest: String,
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// After `added` bytes were placed: moves entries aside until the cache is within its limit, or only entries in
    /// use are left. The caller removes them once the gate is open again, since that may take long.
    pub(super) fn evict(&self, added: u64, gate: &Gate) -> Vec<PathBuf> {
        let mut known = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        // The entries are read only at the first placement and when the limit is reached: there may be thousands.
        if let Some(total) =
            known.map(|total| total.saturating_add(added)).filter(|total| *total <= self.limit)
        {
            *known = Some(total);
            return Vec::new();
        }
        let mut candidates = self.candidates();
        candidates.sort_by_key(|candidate| candidate.used);
        let mut total: u64 = candidates.iter().map(|candidate| candidate.bytes).fold(0, u64::saturating_add);
        let mut evicted = Vec::new();
        for candidate in candidates {
            if total <= self.limit {
                break;
            }
            if let Some(aside) = self.discard(&candidate.digest, gate) {
                tracing::info!(target: "gantry::artifacts", digest = candidate.digest, bytes = candidate.bytes, "evicted from the artifact cache");
                total = total.saturating_sub(candidate.bytes);
                evicted.push(aside);
            }
        }
        if total > self.limit {
            tracing::warn!(target: "gantry::artifacts", total, limit = self.limit, "the artifacts in use exceed the limit of the cache");
        }
        *known = Some(total);
        self.sweep_index();
        evicted
    }

    /// Moves an entry aside atomically, unless it is in use.
    pub(super) fn discard(&self, digest: &str, gate: &Gate) -> Option<PathBuf> {
        if self.session.is_leased(digest, gate) {
            return None;
        }
        let aside = self.session.file();
        fs::rename(self.entry(digest), &aside).is_ok().then_some(aside)
    }

    fn candidates(&self) -> Vec<Candidate> {
        let Ok(entries) = fs::read_dir(self.root.join("entries")) else { return Vec::new() };
        let dirs = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        dirs.filter_map(|dir: PathBuf| {
            let used = fs::metadata(dir.join("used"))
                .and_then(|found| found.modified())
                .unwrap_or(SystemTime::UNIX_EPOCH);
            let digest = dir.file_name()?.to_str()?.to_owned();
            // An unreadable entry is evicted first.
            let bytes = read_manifest(&dir).map_or(0, |manifest| manifest.bytes);
            Some(Candidate { digest, bytes, used })
        })
        .collect()
    }
}
