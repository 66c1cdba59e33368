//! Which processes are ours, on disk, so that the next start finds them.

use super::{identity::Identity, recipe::Place};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const FILE: &str = "servers.json";

/// A process that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) server: String,
    pub(crate) replica: u32,
    pub(crate) process: Identity,
    pub(crate) place: Place,
    pub(crate) fingerprint: u64,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: PathBuf,
    written: Vec<Entry>,
}

impl Ledger {
    /// The entries of the last run. Without a readable file nothing is ours.
    pub(crate) fn open(state_dir: &Path) -> (Self, Vec<Entry>) {
        let file = state_dir.join(FILE);
        let written: Vec<Entry> = match std::fs::read(&file) {
            Err(_) => Vec::new(),
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %file.display(), "servers of the last run are not known: look for them");
                Vec::new()
            }),
        };
        (Self { file, written: written.clone() }, written)
    }

    /// Notes what runs now.
    pub(crate) fn write(&mut self, entries: Vec<Entry>) {
        if entries == self.written {
            return;
        }
        let written = serde_json::to_vec_pretty(&entries).map_err(std::io::Error::other).and_then(|bytes| {
            let draft = self.file.with_extension("new");
            std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, &self.file))
        });
        match written {
            Ok(()) => self.written = entries,
            Err(error) => tracing::warn!(%error, "the processes of servers could not be noted"),
        }
    }
}
