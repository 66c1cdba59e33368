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

/// Prints an object; without a newline of its own, a value would stick to the prompt.
pub(crate) fn emit_document(text: &str) -> Result<(), Failure> {
    if text.is_empty() || text.ends_with('\n') { emit(text) } else { emit_line(text) }
}

/// Tells the person something that is no data.
pub(crate) fn say(message: &str) {
    // Nobody can be told that telling failed.
    let _ = writeln!(std::io::stderr().lock(), "{}", harmless(message));
}

/// A text without control characters: reasons come from other machines, and a terminal obeys what it is sent.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_given_orders() {
        assert_eq!(harmless("a\nb\u{1b}[2Jc\r\u{9b}"), "a\nb\u{fffd}[2Jc\u{fffd}\u{fffd}");
    }
}
