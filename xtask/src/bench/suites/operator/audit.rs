//! Writes in the API server's audit log.

use crate::{Failure, k8s};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::PathBuf,
};

pub(super) struct Write {
    pub(super) resource: String,
    pub(super) agent: String,
    pub(super) code: u64,
    pub(super) received: f64,
    pub(super) ended: f64,
}

/// The audit log from an offset on.
pub(super) struct Audit {
    path: PathBuf,
    begin: u64,
}

impl Audit {
    pub(super) fn from_now(cluster: &k8s::Cluster) -> Result<Self, Failure> {
        let path = cluster.audit_log();
        let begin = fs::metadata(&path)?.len();
        Ok(Self { path, begin })
    }

    /// Writes of all clients.
    pub(super) fn all(&self) -> Result<Vec<Write>, Failure> {
        let mut file = fs::File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.begin))?;
        let mut writes = Vec::new();
        for line in BufReader::new(file).lines() {
            let Ok(event) = serde_json::from_str::<Value>(&line?) else { continue };
            let text =
                |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            if text("/stage") != "ResponseComplete"
                || ["get", "list", "watch"].contains(&text("/verb").as_str())
            {
                continue;
            }
            let sub = text("/objectRef/subresource");
            let resource = text("/objectRef/resource");
            writes.push(Write {
                resource: if sub.is_empty() { resource } else { format!("{resource}/{sub}") },
                agent: text("/userAgent"),
                code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or(0),
                received: seconds(&text("/requestReceivedTimestamp"))?,
                ended: seconds(&text("/stageTimestamp"))?,
            });
        }
        Ok(writes)
    }

    /// The operator's writes.
    pub(super) fn writes(&self) -> Result<Vec<Write>, Failure> {
        Ok(self.all()?.into_iter().filter(|w| w.agent.starts_with("gantry")).collect())
    }
}

/// Seconds of the day of an RFC 3339 time. A run over midnight must be repeated.
fn seconds(time: &str) -> Result<f64, Failure> {
    let invalid = || format!("{time} is not a time");
    let clock = time.split_once('T').map(|(_, clock)| clock.trim_end_matches('Z')).ok_or_else(invalid)?;
    let parts: Vec<f64> = clock.split(':').filter_map(|p| p.parse().ok()).collect();
    match parts.as_slice() {
        [hours, minutes, seconds] => Ok(hours * 3600.0 + minutes * 60.0 + seconds),
        _ => Err(invalid().into()),
    }
}
