//! Supervised processes on disk, for adoption by the next run.

use super::{launch_spec::Allocation, process_identity::ProcessIdentity};
use crate::applied_sources::write_json;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const FILE: &str = "servers.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) server: String,
    pub(crate) replica: u32,
    pub(crate) process: ProcessIdentity,
    #[serde(rename = "place")]
    pub(crate) allocation: Allocation,
    pub(crate) fingerprint: u64,
}

#[derive(Debug)]
pub(crate) struct ProcessRegistry {
    file: PathBuf,
    written: Vec<Entry>,
}

impl ProcessRegistry {
    /// Reads the entries of the previous run; an unreadable file counts as empty.
    pub(crate) fn open(state_dir: &Path) -> (Self, Vec<Entry>) {
        let file = state_dir.join(FILE);
        let written: Vec<Entry> = match std::fs::read(&file) {
            Err(_) => Vec::new(),
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, file = %file.display(), "invalid process registry; processes of the previous run may still be running");
                Vec::new()
            }),
        };
        (Self { file, written: written.clone() }, written)
    }

    pub(crate) fn write(&mut self, entries: Vec<Entry>) {
        if entries == self.written {
            return;
        }
        match write_json(&self.file, &entries) {
            Ok(()) => self.written = entries,
            Err(error) => {
                tracing::warn!(%error, file = %self.file.display(), "failed to write the process registry");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_format_is_stable() {
        let text = r#"[{"server":"ml","replica":1,"process":{"pid":7,"started":9,"boot":"b"},
            "place":{"http_port":1,"grpc_port":2,"metrics_port":3,"models_dir":"/m"},"fingerprint":5}]"#;
        let entries: Vec<Entry> = serde_json::from_str(text).unwrap();
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&entries).unwrap(), value);
    }
}
