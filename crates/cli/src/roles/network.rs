//! The process that one network runs in, where the system bounds what it takes. Nobody types this: `gantry up` and
//! `gantry runtime` start it, one for each network that the built-in evaluator cannot run.

use gantry_runtime::Apart;
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The one argument; not a command, so that help, completions and manual pages do not know it.
const ARGUMENT: &str = "__network";

/// How this program starts itself for a network.
pub(crate) fn apart() -> Option<Apart> {
    // The file may have been replaced by a newer one since; the link leads to what runs now.
    let itself = Path::new("/proc/self/exe");
    let program: PathBuf =
        if itself.exists() { itself.to_path_buf() } else { std::env::current_exe().ok()? };
    Some(Apart { program, arguments: vec![ARGUMENT.into()] })
}

/// Whether this process was started for a network.
pub(crate) fn is_called(arguments: impl IntoIterator<Item = OsString>) -> bool {
    arguments.into_iter().nth(1).as_deref() == Some(OsStr::new(ARGUMENT))
}

/// Serves the parent until it is gone.
pub(crate) fn main() -> ExitCode {
    match gantry_runtime::serve_apart() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::output::say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}
