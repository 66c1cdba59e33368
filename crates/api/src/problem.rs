//! One thing that is wrong with a manifest, and where.

use std::fmt;

/// One thing that is wrong, where it stands, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as the user named it.
    pub file: String,
    /// The line, from 1; 0 when it is not known.
    pub line: u32,
    /// The field, such as `spec.storageUri`; empty when the problem is the document itself.
    pub path: String,
    /// What is wrong and the remedy.
    pub message: String,
}

impl fmt::Display for Problem {
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
