//! Load per model and replica processes, from the admin endpoint.

use super::{Address, Connection, HttpError};
use gantry_standalone::servers::ReplicaReport;
use http::StatusCode;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct LoadStats {
    pub(crate) name: String,
    /// Since process start.
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Recent requests per second.
    pub(crate) rate: Option<f64>,
}

#[derive(Deserialize)]
struct Top {
    #[serde(default)]
    models: Vec<LoadStats>,
}

/// Load by model name.
pub(crate) async fn fetch_load_stats(
    connection: &mut Connection,
) -> Result<BTreeMap<String, LoadStats>, HttpError> {
    let response = connection.get("/top").await?;
    if response.status() != StatusCode::OK {
        return Err(HttpError::Failed(format!("/top returned HTTP {}", response.status().as_u16())));
    }
    let top: Top = serde_json::from_slice(response.body())
        .map_err(|e| HttpError::Failed(format!("invalid response of /top: {e}")))?;
    Ok(top.models.into_iter().map(|m| (m.name.clone(), m)).collect())
}

#[derive(Deserialize)]
struct Servers {
    #[serde(default)]
    replicas: Vec<ReplicaReport>,
}

/// Replica processes supervised by `gantry up`; empty if the admin endpoint is unreachable.
pub(crate) async fn fetch_replica_processes(connection: &mut Connection) -> Vec<ReplicaReport> {
    let Ok(response) = connection.get("/servers").await else { return Vec::new() };
    serde_json::from_slice::<Servers>(response.body()).map(|s| s.replicas).unwrap_or_default()
}

pub(crate) fn admin_connection(address: &Address, deadline: std::time::Duration) -> Connection {
    Connection::new(address.clone(), deadline)
}
