//! The threads of a program that runs until it is told to stop.

use crate::failure::Failure;
use std::time::Duration;

/// Lives to its end. Whatever then still waits for a peer that is gone is not worth waiting for.
pub(crate) fn live(life: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    // Requests have threads of their own; these are for the rest.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("gantry")
        .enable_all()
        .build()
        .map_err(|e| Failure::unavailable(format!("no threads can be started: {e}")))?;
    let outcome = runtime.block_on(life);
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}
