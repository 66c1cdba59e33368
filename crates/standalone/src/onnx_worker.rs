//! The hidden subcommand `gantry __onnx-worker`: the subprocess with resource limits that evaluates one ONNX model.
//! `gantry up` and `gantry runtime` start it for each model that the built-in evaluator does not support.

use gantry_runtime::WorkerCommand;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Not a clap command: help, completions and manual pages omit it.
const SUBCOMMAND: &str = "__onnx-worker";
/// Used by a parent of an earlier version, whose `/proc/self/exe` may lead to this program.
const OLD_SUBCOMMAND: &str = "__network";

/// The command line that starts this program as a worker.
pub fn command() -> Option<WorkerCommand> {
    // The file may have been replaced since the start; the link leads to the running program.
    let link = Path::new("/proc/self/exe");
    let program: PathBuf = if link.exists() { link.to_path_buf() } else { std::env::current_exe().ok()? };
    Some(WorkerCommand { program, arguments: vec![SUBCOMMAND.into()] })
}

/// Whether this process was started as a worker.
pub fn is_requested(arguments: impl IntoIterator<Item = OsString>) -> bool {
    arguments.into_iter().nth(1).is_some_and(|argument| argument == SUBCOMMAND || argument == OLD_SUBCOMMAND)
}

/// Serves the parent process until it exits.
pub fn main() -> ExitCode {
    match gantry_runtime::serve_worker() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
