//! Clients: the scheduler over gRPC, the gateway and the admin endpoint over HTTP.

mod control;
mod gateway_metrics;
mod load_stats;
mod policies;
mod rollouts;
mod scheduler;
mod tls;

pub(crate) use gantry_standalone::{
    address::{Address, Addresses},
    http_client::{Connection, HttpError, error_text},
    scheduler_client::{collect, ownership_refusal, with_manager},
};
pub(crate) use gateway_metrics::{CandidateStats, fetch_gateway_stats};
pub(crate) use load_stats::{LoadStats, admin_connection, fetch_load_stats, fetch_replica_processes};
pub(crate) use rollouts::RolledOut;
pub(crate) use scheduler::{Scheduler, as_cli};
pub(crate) use tls::{TlsArgs, control_plane_tls, reloading_scheduler, resolve_scheduler};

use crate::error::CommandError;
use std::future::Future;

/// Runs a future on a runtime that only commands with network calls create.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| CommandError::failed(format!("cannot start: {e}")))?
        .block_on(future)
}
