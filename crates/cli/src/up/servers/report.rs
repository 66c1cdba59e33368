//! How supervised replicas are, for `gantry status` and `gantry explain`.

use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};

/// One replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplicaReport {
    pub(crate) server: String,
    pub(crate) replica: u32,
    /// `ready`, `starting`, `stopping`, `crashed` or `stopped`.
    pub(crate) state: String,
    pub(crate) command: String,
    pub(crate) pid: Option<u32>,
    pub(crate) http_port: u16,
    pub(crate) grpc_port: u16,
    /// How often it ended by itself in a row.
    pub(crate) failures: u32,
    /// How it ended last, such as `ended with exit code 1`.
    pub(crate) last_end: String,
    /// When it is started again, as milliseconds since 1970.
    pub(crate) again_at_ms: Option<u64>,
    /// What it said last.
    pub(crate) last_lines: Vec<String>,
}

/// All replicas, for whoever asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report(Arc<Mutex<Vec<ReplicaReport>>>);

impl Report {
    pub(crate) fn set(&self, replicas: Vec<ReplicaReport>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = replicas;
    }

    pub(crate) fn get(&self) -> Vec<ReplicaReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
