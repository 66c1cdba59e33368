//! Status of supervised replicas, for `gantry status` and `gantry explain`.

use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaReport {
    pub server: String,
    pub replica: u32,
    /// `ready`, `starting`, `stopping`, `crashed` or `stopped`.
    pub state: String,
    pub command: String,
    pub pid: Option<u32>,
    pub http_port: u16,
    pub grpc_port: u16,
    /// Consecutive crashes.
    pub failures: u32,
    /// How the last process ended, such as `ended with exit code 1`.
    pub last_end: String,
    /// Time of the next start, in milliseconds since 1970.
    pub again_at_ms: Option<u64>,
    /// Last lines of its output.
    pub last_lines: Vec<String>,
}

/// The current reports of all replicas.
#[derive(Clone, Debug, Default)]
pub struct Report(Arc<Mutex<Vec<ReplicaReport>>>);

impl Report {
    pub(crate) fn set(&self, replicas: Vec<ReplicaReport>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = replicas;
    }

    pub(crate) fn get(&self) -> Vec<ReplicaReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
