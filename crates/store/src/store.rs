//! The store that the scheduler uses, whichever implementation is behind it.

use std::fmt::Debug;
use std::path::Path;

use crate::directory::Directory;
use crate::embedded::Embedded;
use crate::{Change, Storage, StoreError, Table};

/// An implementation of [`Store`].
pub(crate) trait Backend: Debug + Send + Sync {
    fn epoch(&self) -> u64;
    fn state_id(&self) -> u64;
    fn read(&self, table: Table) -> Result<Vec<(String, Vec<u8>)>, StoreError>;
    fn commit(&self, changes: &[Change]) -> Result<(), StoreError>;
    fn check(&self) -> Result<(), StoreError>;
}

/// An open store, with one writer.
#[derive(Debug)]
pub struct Store(Box<dyn Backend>);

impl Store {
    /// Opens the embedded store in a directory, created if needed. Exclusive to one process.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(Directory::take(dir)?)
    }

    /// Opens the embedded store on other storage.
    ///
    /// Verifies the whole file, migrates an older format and increments the epoch. A new state, or one without an ID, gets
    /// one.
    pub fn open_with(storage: impl Storage) -> Result<Self, StoreError> {
        Ok(Self(Box::new(Embedded::open_with(storage)?)))
    }

    pub(crate) fn new(backend: impl Backend + 'static) -> Self {
        Self(Box::new(backend))
    }

    /// Grows with each open; distinguishes messages of earlier starts.
    pub fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// Random number of this state, the same for all starts with it; distinguishes it from one that was lost. Never 0.
    pub fn state_id(&self) -> u64 {
        self.0.state_id()
    }

    /// All records of a table, by key. Fails if any is corrupt.
    pub fn read(&self, table: Table) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.0.read(table)
    }

    /// Commits all changes, or none of them.
    ///
    /// After an error none of them is stored, with two exceptions: the process dies before the disk recovers, then the next
    /// start finds either the whole batch or nothing of it; or the error [ends the leadership](StoreError::is_lost), then
    /// the next leader finds either.
    pub fn commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        self.0.commit(changes)
    }

    /// Whether this process may still decide. A replicated store fails with [`StoreError::Lost`] from the moment at which
    /// another process may lead.
    pub fn check(&self) -> Result<(), StoreError> {
        self.0.check()
    }
}
