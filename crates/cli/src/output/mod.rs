//! Output: data on stdout, messages on stderr.

mod format;
mod jsonpath;
mod style;
mod table;
mod time;

pub(crate) use format::{Format, document, list_document};
pub(crate) use jsonpath::JsonPath;
pub(crate) use style::{Style, Tone, is_terminal};
pub(crate) use table::Table;
pub(crate) use time::{ago, bytes, rfc3339};

use crate::error::CommandError;
use std::{
    fmt,
    io::{ErrorKind, Write as _},
};

/// Printed for a missing value.
pub(crate) const PLACEHOLDER: &str = "–";

/// Writes to stdout. Exits when the reader has closed the pipe, as in `gantry get | head`.
pub(crate) fn emit(data: impl AsRef<[u8]>) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(data.as_ref()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(CommandError::failed(format!("cannot write to stdout: {error}"))),
    }
}

pub(crate) fn emit_line(line: &str) -> Result<(), CommandError> {
    emit(format!("{line}\n"))
}

/// Writes a document with a trailing newline.
pub(crate) fn emit_document(text: &str) -> Result<(), CommandError> {
    if text.is_empty() || text.ends_with('\n') { emit(text) } else { emit_line(text) }
}

/// Writes a message to stderr; write errors are ignored.
pub(crate) fn print_stderr(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", sanitize(message));
}

/// Replaces control characters: text from other machines must not control the terminal.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// `1 replica`, `2 replicas`.
pub(crate) fn count<N: Copy + fmt::Display + PartialEq + From<u8>>(n: N, noun: &str) -> String {
    let plural = if n == N::from(1) { "" } else { "s" };
    format!("{n} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitize_replaces_control_characters() {
        assert_eq!(sanitize("a\nb\u{1b}[2Jc\r\u{9b}"), "a\nb\u{fffd}[2Jc\u{fffd}\u{fffd}");
    }
}
