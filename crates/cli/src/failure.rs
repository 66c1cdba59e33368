//! How a command fails: words for the person, a code for the shell.

use std::fmt;

/// Exit codes. They are documented in `docs/cli.md`; scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Something failed for a reason that has no code of its own.
    Failed = 1,
    /// The command line, a file or a request's data is wrong; nothing was done.
    Usage = 2,
    /// There is no such object.
    NotFound = 3,
    /// The scheduler or the gateway cannot be reached, or is not ready.
    Unavailable = 4,
    /// The time ran out.
    Timeout = 5,
    /// What was asked is refused in the state things are in.
    Refused = 6,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// For the shell.
    pub(crate) exit: Exit,
    /// For the person: what is wrong, and what to do. Empty when everything has been said already.
    pub(crate) message: String,
}

impl Failure {
    /// A failure with a code.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// Something failed for a reason that has no code of its own.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// The command line or a file is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Something cannot be reached.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unavailable, message)
    }

    /// A failure whose words have been printed already.
    pub(crate) const fn said(exit: Exit) -> Self {
        Self { exit, message: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
