//! A validation error with its position in a manifest.

use std::fmt;

/// What is wrong with a manifest, where, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, as the user named it.
    pub file: String,
    /// The line, from 1; 0 when it is not known.
    pub line: u32,
    /// The field, such as `spec.storageUri`; empty for the whole document.
    pub path: String,
    /// The error and its remedy.
    pub message: String,
}

impl Diagnostic {
    /// Without a file: the parser fills it in.
    pub(crate) fn new(line: u32, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { file: String::new(), line, path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        f.write_str(": ")?;
        if !self.path.is_empty() {
            write!(f, "{} ", self.path)?;
        }
        f.write_str(&self.message)
    }
}
