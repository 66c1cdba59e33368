//! A configuration with keys, each with other rights.

use gantry_auth::{Auth, Clock, generate};
use std::{path::PathBuf, sync::Arc};

pub(crate) struct Keys {
    pub(crate) auth: Arc<Auth>,
    pub(crate) clock: Clock,
    pub(crate) path: PathBuf,
    /// Names and keys.
    entries: Vec<(String, String)>,
    _directory: tempfile::TempDir,
}

impl Keys {
    /// Names and what follows `allow:`.
    pub(crate) fn new(entries: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("auth.yaml");
        let mut text = "keys:\n".to_owned();
        let mut keys = Vec::new();
        for (name, allow) in entries {
            let generated = generate().unwrap();
            text += &format!("- name: {name}\n  sha256: {}\n  allow: {allow}\n", generated.sha256);
            keys.push(((*name).to_owned(), generated.key));
        }
        std::fs::write(&path, text).unwrap();
        let clock = Clock::manual(1_800_000_000);
        let auth = Auth::open(&path, clock.clone()).unwrap();
        Self { auth, clock, path, entries: keys, _directory: directory }
    }

    pub(crate) fn key(&self, name: &str) -> &str {
        self.entries.iter().find(|(n, _)| n == name).map_or("gantry_unknown", |(_, key)| key)
    }

    pub(crate) fn config(&self) -> gantry_gateway::Config {
        gantry_gateway::Config { auth: Some(Arc::clone(&self.auth)), ..super::config() }
    }
}
