//! rten in a subprocess with resource limits.
//!
//! rten bounds neither the memory nor the time of a run: a model of a few hundred bytes can allocate all memory or
//! loop for ever, and take every other model down. So each model gets a worker process with `RLIMIT_DATA`, which is
//! killed when a run exceeds its time or does not end after it was cancelled. Requests in flight fail; a thread
//! restarts the worker, with a backoff if it keeps exiting, and requests fail at once until it runs.
//!
//! ```text
//! client (callers, request ids)      ── requests ───▶ worker: rten
//!    one reader thread, by id        ◀── responses ──
//! ```
//!
//! Both are the same binary, so the protocol (`frame`) has no versions.

mod client;
mod frame;
mod worker;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) use client::{RunLimits, SubprocessModel};
pub use worker::serve;

/// The command line of a worker process, which must call [`serve`] and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "plain fields")]
pub struct WorkerCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// Runs that a worker executes at a time.
fn worker_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) struct ModelFiles {
    pub model: Vec<u8>,
    /// External weights, by the names in the model.
    pub files: HashMap<String, Vec<u8>>,
}
