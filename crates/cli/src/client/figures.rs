//! Load per model, from the admin endpoint.

use super::{Address, Connection, http::Problem};
use crate::up::servers::ReplicaReport;
use http::StatusCode;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The load of one model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    /// The model.
    pub(crate) name: String,
    /// Requests since the start.
    pub(crate) requests: u64,
    /// Those that failed.
    pub(crate) errors: u64,
    /// Half of the requests took at most so long.
    pub(crate) p50_ms: Option<f64>,
    /// All but one in a hundred took at most so long.
    pub(crate) p99_ms: Option<f64>,
    /// Requests a second, lately.
    pub(crate) rate: Option<f64>,
}

#[derive(Deserialize)]
struct Top {
    #[serde(default)]
    models: Vec<Figures>,
}

/// The load of each model, by name.
pub(crate) async fn figures(connection: &mut Connection) -> Result<BTreeMap<String, Figures>, Problem> {
    let answer = connection.get("/top").await?;
    if answer.status() != StatusCode::OK {
        return Err(Problem::Broken(format!("it answered {} to /top", answer.status().as_u16())));
    }
    let top: Top = serde_json::from_slice(answer.body())
        .map_err(|e| Problem::Broken(format!("its answer to /top cannot be read: {e}")))?;
    Ok(top.models.into_iter().map(|m| (m.name.clone(), m)).collect())
}

#[derive(Deserialize)]
struct Servers {
    #[serde(default)]
    replicas: Vec<ReplicaReport>,
}

/// The processes of servers that the serving process runs; none when it cannot be asked.
pub(crate) async fn supervised(connection: &mut Connection) -> Vec<ReplicaReport> {
    let Ok(answer) = connection.get("/servers").await else { return Vec::new() };
    serde_json::from_slice::<Servers>(answer.body()).map(|s| s.replicas).unwrap_or_default()
}

/// A connection to the admin endpoint.
pub(crate) fn admin(address: &Address, deadline: std::time::Duration) -> Connection {
    Connection::new(address.clone(), deadline)
}
