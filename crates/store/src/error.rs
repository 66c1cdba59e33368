//! Why the store could not be opened, read or written.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::FORMAT;

/// Why the store could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error(
        "state directory {} is in use by another gantry{}: stop that one, or choose another directory with --state-dir",
        dir.display(),
        holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The process that has it, when it left its number.
        holder: Option<u32>,
    },
    /// The directory cannot be made or written.
    #[error("state directory {} cannot be used: {source}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Made by a newer program.
    #[error("state file {} has format {found}, this gantry knows formats up to {FORMAT}: use a newer gantry", file.display())]
    TooNew {
        /// The file.
        file: PathBuf,
        /// The format that was found.
        found: u64,
    },
    /// There is no room. Nothing of the batch is kept, and the next one is tried afresh.
    #[error("state file {} cannot be written, the disk is full: make room on it and try again", file.display())]
    Full {
        /// The file.
        file: PathBuf,
    },
    /// What is in the file is not what was written. Nothing of it is used.
    #[error(
        "state file {} is damaged: {what}; look for the cause in the disk, then use `gantry state restore` with a backup",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// There is no such file.
    #[error("there is no state file {}", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
    },
    /// A backup is never written over another file.
    #[error("{} is there already: give a backup a name of its own", file.display())]
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// A restore would replace something.
    #[error(
        "the state in {} holds {records} record{}: --force replaces it and keeps it aside",
        dir.display(),
        if *records == 1 { "" } else { "s" }
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// How many records are there.
        records: usize,
    },
    /// It changed under every attempt to read it as a whole.
    #[error(
        "state file {} is being written all the time: try again when less changes, or stop the gantry that writes it",
        file.display()
    )]
    Busy {
        /// The file.
        file: PathBuf,
    },
    /// The device failed.
    #[error("state file {} cannot be {doing}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// `read` or `written`.
        doing: &'static str,
        /// What is wrong.
        source: Box<redb::Error>,
    },
}

impl StoreError {
    /// Tells the kinds of the database's errors apart.
    pub(crate) fn of(file: &Path, doing: &'static str, source: redb::Error) -> Self {
        let file = file.to_owned();
        match source {
            redb::Error::Io(error) if is_full(error.kind()) => Self::Full { file },
            redb::Error::Io(error) if error.kind() == ErrorKind::ResourceBusy => {
                Self::InUse { dir: file, holder: None }
            }
            redb::Error::DatabaseAlreadyOpen => Self::InUse { dir: file, holder: None },
            redb::Error::Corrupted(what) => Self::Damaged { file, what },
            redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
                Self::Damaged { file, what: "it is not a state file".into() }
            }
            // It ends before what it says it holds.
            redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Self::Damaged { file, what: "it ends too early".into() }
            }
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::UpgradeRequired(_) => Self::Damaged { file, what: source.to_string() },
            source => Self::File { file, doing, source: Box::new(source) },
        }
    }
}

/// A disk, a quota or a limit of the process: no room in each case.
fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
