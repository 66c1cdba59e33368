//! The tokio runtime of a long-running role.

use crate::error::CommandError;
use std::time::Duration;
use tokio::runtime::Builder;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the future on two worker threads: requests are served by threads of the gateway and of the runtime.
pub fn block_on(future: impl Future<Output = Result<(), CommandError>>) -> Result<(), CommandError> {
    run(Builder::new_multi_thread().worker_threads(2), future)
}

/// Runs the future on as many worker threads as there are cores.
pub fn block_on_all_cores(
    future: impl Future<Output = Result<(), CommandError>>,
) -> Result<(), CommandError> {
    run(&mut Builder::new_multi_thread(), future)
}

/// Runs the future to completion, then shuts the runtime down, abandoning blocked tasks after a second.
fn run(
    builder: &mut Builder,
    future: impl Future<Output = Result<(), CommandError>>,
) -> Result<(), CommandError> {
    let runtime = builder
        .thread_name("gantry")
        .enable_all()
        .build()
        .map_err(|e| CommandError::unavailable(format!("failed to start the tokio runtime: {e}")))?;
    let outcome = runtime.block_on(future);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    outcome
}
