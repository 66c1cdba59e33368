//! The error of a command: a message for the user and an exit code for the shell.

use std::fmt;

/// Exit codes, documented in `docs/cli.md`; scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Any failure without a code of its own.
    Failed = 1,
    /// Invalid command line, file or request data; nothing was changed.
    Usage = 2,
    NotFound = 3,
    /// The scheduler or the gateway is unreachable or not ready.
    Unavailable = 4,
    Timeout = 5,
    /// The request is rejected in the current state.
    Refused = 6,
}

#[derive(Debug)]
pub struct CommandError {
    pub exit: Exit,
    /// The problem and its remedy. Empty if it was printed already.
    pub message: String,
}

impl CommandError {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unavailable, message)
    }

    /// An error whose message was printed already.
    pub const fn silent(exit: Exit) -> Self {
        Self { exit, message: String::new() }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CommandError {}
