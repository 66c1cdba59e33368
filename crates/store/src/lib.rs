//! The durable store: one directory, one file in it, crash-safe.
//!
//! A [`Store`] keeps small records in named tables. [`Store::commit`] returns only when the batch is on disk; after
//! `kill -9` at any moment the store holds every batch that was committed and nothing of one that was not.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// The layout of the records. A newer program migrates an older layout; an older program refuses a newer one.
const FORMAT: u64 = 1;
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const FILE: &str = "state.redb";
const LOCK: &str = "lock";

/// What kind of record it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Models, by name.
    Models,
    /// Servers, by name.
    Servers,
}

impl Table {
    const fn definition(self) -> TableDefinition<'static, &'static str, &'static [u8]> {
        match self {
            Self::Models => TableDefinition::new("models"),
            Self::Servers => TableDefinition::new("servers"),
        }
    }
}

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub table: Table,
    /// The record's key.
    pub key: String,
    /// The new value; `None` removes the record.
    pub value: Option<Vec<u8>>,
}

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
    #[error("state in {} has format {found}, this gantry knows formats up to {FORMAT}: use a newer gantry", dir.display())]
    TooNew {
        /// The directory.
        dir: PathBuf,
        /// The format that was found.
        found: u64,
    },
    /// The file is damaged, or the disk failed.
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

/// An open store. Only one process at a time has it.
#[derive(Debug)]
pub struct Store {
    database: Database,
    file: PathBuf,
    epoch: u64,
    // Held for as long as the store is open; the operating system lets go of it if the process dies.
    _lock: File,
}

impl Store {
    /// Opens the store in a directory, which is made if it is not there.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let unusable = |source| StoreError::Directory { dir: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(unusable)?;
        let lock = take_lock(dir)?;
        let file = dir.join(FILE);
        let failed = |doing| {
            let file = file.clone();
            move |source: redb::Error| StoreError::File { file, doing, source: Box::new(source) }
        };
        let database = Database::create(&file).map_err(|e| failed("read")(e.into()))?;
        let epoch = start_epoch(&database).map_err(failed("written"))?;
        match epoch {
            Ok(epoch) => Ok(Self { database, file, epoch, _lock: lock }),
            Err(found) => Err(StoreError::TooNew { dir: dir.to_owned(), found }),
        }
    }

    /// How many times the store has been opened: grows with each start, so that the past can be told from the
    /// present.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Every record of a table, by key.
    pub fn read(&self, table: Table) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.read_all(table).map_err(|e| self.failed("read", e))
    }

    fn read_all(&self, table: Table) -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
        let read = self.database.begin_read()?;
        let table = match read.open_table(table.definition()) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut records = Vec::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            records.push((key.value().to_owned(), value.value().to_vec()));
        }
        Ok(records)
    }

    /// Makes all changes durable, or none of them.
    pub fn commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.write(changes).map_err(|e| self.failed("written", e))
    }

    fn write(&self, changes: &[Change]) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        for change in changes {
            let mut table = write.open_table(change.table.definition())?;
            match &change.value {
                Some(value) => table.insert(change.key.as_str(), value.as_slice())?,
                None => table.remove(change.key.as_str())?,
            };
        }
        write.commit()?;
        Ok(())
    }

    fn failed(&self, doing: &'static str, source: redb::Error) -> StoreError {
        StoreError::File { file: self.file.clone(), doing, source: Box::new(source) }
    }
}

fn take_lock(dir: &Path) -> Result<File, StoreError> {
    let unusable = |source| StoreError::Directory { dir: dir.to_owned(), source };
    let path = dir.join(LOCK);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(unusable)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = lock.read_to_string(&mut text);
            return Err(StoreError::InUse { dir: dir.to_owned(), holder: text.trim().parse().ok() });
        }
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
    }
    lock.set_len(0)
        .and_then(|()| lock.seek(SeekFrom::Start(0)))
        .and_then(|_| write!(lock, "{}", std::process::id()))
        .map_err(unusable)?;
    Ok(lock)
}

/// Counts the start; the inner error is a format that is too new.
fn start_epoch(database: &Database) -> Result<Result<u64, u64>, redb::Error> {
    let write = database.begin_write()?;
    let epoch = {
        let mut meta = write.open_table(META)?;
        let found = meta.get("format")?.map(|v| v.value());
        if let Some(found) = found.filter(|f| *f > FORMAT) {
            return Ok(Err(found));
        }
        meta.insert("format", FORMAT)?;
        let epoch = meta.get("epoch")?.map_or(0, |v| v.value()) + 1;
        meta.insert("epoch", epoch)?;
        epoch
    };
    write.commit()?;
    Ok(Ok(epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &[u8]) -> Change {
        Change { table: Table::Models, key: key.into(), value: Some(value.into()) }
    }

    #[test]
    fn what_was_committed_is_there_after_a_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.epoch(), 1);
        store.commit(&[put("a", b"1"), put("b", b"2")]).unwrap();
        store.commit(&[Change { table: Table::Models, key: "a".into(), value: None }]).unwrap();
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.epoch(), 2);
        assert_eq!(store.read(Table::Models).unwrap(), [("b".to_owned(), b"2".to_vec())]);
        assert!(store.read(Table::Servers).unwrap().is_empty());
    }

    #[test]
    fn a_second_process_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Store::open(dir.path()).unwrap();
        let error = Store::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("in use by another gantry (pid {})", std::process::id())), "{error}");
    }

    #[test]
    fn a_damaged_file_is_named_and_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), b"this is not a state file, it is something else").unwrap();
        let error = Store::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("state.redb cannot be read"), "{error}");
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        {
            let store = Store::open(dir.path()).unwrap();
            let write = store.database.begin_write().unwrap();
            write.open_table(META).unwrap().insert("format", FORMAT + 1).unwrap();
            write.commit().unwrap();
        }
        assert!(
            matches!(Store::open(dir.path()), Err(StoreError::TooNew { found, .. }) if found == FORMAT + 1)
        );
    }
}
