//! The other side of every command: the scheduler over gRPC, the gateway and the admin endpoint over HTTP.

mod address;
mod control;
mod figures;
mod http;
mod scheduler;
mod tls;

pub(crate) use address::Address;
pub(crate) use figures::{Figures, admin, figures, supervised};
pub(crate) use http::{Connection, Problem as HttpProblem, error_text};
pub(crate) use scheduler::{Scheduler, changing, collect, managed, refusal};
pub(crate) use tls::{TlsArgs, agree, control_plane_tls, lasting_scheduler};

use crate::failure::Failure;
use std::future::Future;

/// Runs a future to its end. Only verbs that talk to somebody pay for a runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start: {e}")))?
        .block_on(future)
}
