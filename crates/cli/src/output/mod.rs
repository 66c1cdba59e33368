//! What is printed: data on stdout, everything else on stderr.

mod format;
mod jsonpath;
mod style;
mod table;
mod time;

pub(crate) use format::{Format, document, documents};
pub(crate) use jsonpath::JsonPath;
pub(crate) use style::{Style, Tone, is_terminal};
pub(crate) use table::Table;
pub(crate) use time::{ago, bytes, stamp};

use crate::failure::Failure;
use std::io::{ErrorKind, Write as _};

/// What stands where nothing is known.
pub(crate) const NOTHING: &str = "–";

/// Prints data, as it is.
pub(crate) fn emit(data: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(data.as_ref()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        // The reader has seen enough, as in `gantry get | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::failed(format!("cannot write to stdout: {error}"))),
    }
}

/// Prints one line of data.
pub(crate) fn emit_line(line: &str) -> Result<(), Failure> {
    emit(format!("{line}\n"))
}

/// Tells the person something that is no data.
pub(crate) fn say(message: &str) {
    // Nobody can be told that telling failed.
    let _ = writeln!(std::io::stderr().lock(), "{message}");
}
