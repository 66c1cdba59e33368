//! Errors of opening, reading and writing the store.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::FORMAT;

/// Errors of opening, reading and writing the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "state directory {} is in use by another gantry{}: stop that one, or choose another directory with --state-dir",
        dir.display(),
        holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse { dir: PathBuf, holder: Option<u32> },
    #[error("state directory {} cannot be used: {source}", dir.display())]
    Directory { dir: PathBuf, source: std::io::Error },
    #[error("state file {} has format {found}, this version reads formats up to {FORMAT}: use a newer gantry", file.display())]
    TooNew { file: PathBuf, found: u64 },
    /// Nothing of the batch is kept; the next one is attempted again.
    #[error("state file {} cannot be written, the disk is full: free space and retry", file.display())]
    Full { file: PathBuf },
    /// Nothing of a corrupt file is used.
    #[error(
        "state file {} is damaged: {what}; check the disk, then run `gantry state restore` with a backup",
        file.display()
    )]
    Damaged { file: PathBuf, what: String },
    #[error("no state file {}", file.display())]
    Missing { file: PathBuf },
    /// A backup never overwrites a file.
    #[error("{} already exists: choose another name for the backup", file.display())]
    Exists { file: PathBuf },
    /// A restore would replace records.
    #[error(
        "the state in {} has {records} record{}: --force replaces it and keeps a copy",
        dir.display(),
        if *records == 1 { "" } else { "s" }
    )]
    NotEmpty { dir: PathBuf, records: usize },
    /// The file changed during every attempt to copy it.
    #[error(
        "state file {} changes too often to copy: retry, or stop the process that writes it",
        file.display()
    )]
    Busy { file: PathBuf },
    /// etcd answered, and stored nothing of the batch; the next one is attempted again.
    #[error("etcd at {endpoints} did not store it: {reason}")]
    Refused { endpoints: String, reason: String, full: bool },
    /// Another process may lead from now on. With `unknown`, the batch may be stored or not: the next leader reads which.
    #[error("this scheduler no longer leads: {reason}")]
    Lost { reason: String, unknown: bool },
    /// The state in etcd cannot be used.
    #[error("state in etcd at {endpoints} under {prefix} cannot be used: {reason}")]
    Unusable { endpoints: String, prefix: String, reason: String },
    #[error("state file {} cannot be {doing}: {source}", file.display())]
    File { file: PathBuf, doing: &'static str, source: Box<redb::Error> },
}

impl StoreError {
    /// There is no space for the change.
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Refused { full: true, .. })
    }

    /// This process must not decide any more, see [`Store::check`](crate::Store::check).
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Classifies database errors.
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
                Self::Damaged { file, what: "not a state file".into() }
            }
            // Truncated.
            redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Self::Damaged { file, what: "truncated file".into() }
            }
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::UpgradeRequired(_) => Self::Damaged { file, what: source.to_string() },
            source => Self::File { file, doing, source: Box::new(source) },
        }
    }
}

/// Disk, quota or process limit.
fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
