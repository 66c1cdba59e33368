//! An open store.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableError, WriteTransaction};

use crate::directory::Directory;
use crate::format::{FORMAT, Meta, migrate_from_1};
use crate::guard::guarded;
use crate::medium::{AnyMedium, Medium};
use crate::{Change, StoreError, Table, record};

/// What the database may keep in memory. Records are read once, at the start, and the operating system keeps the file's
/// pages anyway.
const CACHE: usize = 8 << 20;

/// An open store. Only one process at a time has it.
#[derive(Debug)]
pub struct Store {
    medium: Box<dyn AnyMedium>,
    file: PathBuf,
    epoch: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` after a failure: the database refuses to go on then, and is opened again at the next use.
    database: Option<Database>,
    /// The number of the last batch that was acknowledged.
    commits: u64,
    /// Takes back the batch that failed last, should it be found in the file after all.
    undo: Vec<Change>,
}

impl Store {
    /// Opens the store in a directory, which is made if it is not there.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(Directory::take(dir)?)
    }

    /// Opens the store on a medium of the caller's choice.
    ///
    /// The whole file is verified, an older format is migrated, and the start is counted.
    pub fn open_with(medium: impl Medium) -> Result<Self, StoreError> {
        let medium: Box<dyn AnyMedium> = Box::new(medium);
        let file = medium.name();
        let (database, meta) = open_present(&*medium, &file)?;
        let inner = Inner { database: Some(database), commits: meta.commits, undo: Vec::new() };
        Ok(Self { medium, file, epoch: meta.epoch, inner: Mutex::new(inner) })
    }

    /// How many times the store has been opened: grows with each start, so that the past can be told from the
    /// present.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Every record of a table, by key. One damaged record, and none is returned.
    pub fn read(&self, table: Table) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut inner = self.lock();
        read(self.database(&mut inner)?, &self.file, table)
    }

    /// Makes all changes durable, or none of them.
    ///
    /// After an error none of them is there. (Unless the process dies before the disk answers again: then nobody can know,
    /// and the next start may find the batch whole, or not at all.)
    pub fn commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut inner = self.lock();
        self.database(&mut inner)?;
        // Only now: taking back an earlier batch counts as one.
        let before = inner.commits;
        let database = self.database(&mut inner)?;
        let mut undo = Vec::with_capacity(changes.len());
        match guarded(|| write(database, changes, before, &mut undo)) {
            Ok(()) => {
                inner.commits = before + 1;
                Ok(())
            }
            Err(error) => {
                inner.database = None;
                // In the order that gives a key which changed twice its first value again.
                undo.reverse();
                inner.undo = undo;
                // If the batch reached the disk in spite of the error, it goes now, or as soon as the disk allows.
                let _ = self.database(&mut inner);
                Err(StoreError::of(&self.file, "written", error))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database, opened again if it failed.
    fn database<'a>(&self, inner: &'a mut Inner) -> Result<&'a Database, StoreError> {
        let database = match inner.database.take() {
            Some(database) => database,
            None => self.reopen(inner)?,
        };
        Ok(inner.database.insert(database))
    }

    fn reopen(&self, inner: &mut Inner) -> Result<Database, StoreError> {
        let database = open_verified(&*self.medium, &self.file)?;
        let failed = |error| StoreError::of(&self.file, "written", error);
        let found = guarded(|| Meta::read(&database)).map_err(failed)?;
        if found.commits < inner.commits || found.epoch != self.epoch {
            let what = format!(
                "it holds {} batches of start {}, and {} of start {} were written",
                found.commits, found.epoch, inner.commits, self.epoch
            );
            return Err(StoreError::Damaged { file: self.file.clone(), what });
        }
        if found.commits > inner.commits {
            guarded(|| write(&database, &inner.undo, found.commits, &mut Vec::new())).map_err(failed)?;
            inner.commits = found.commits + 1;
        }
        inner.undo.clear();
        Ok(database)
    }
}

/// The database, verified, in the present format, with this start counted.
fn open_present(medium: &dyn AnyMedium, file: &Path) -> Result<(Database, Meta), StoreError> {
    let mut database = open_verified(medium, file)?;
    let failed = |error| StoreError::of(file, "written", error);
    let found = guarded(|| Meta::read(&database)).map_err(failed)?;
    if found.format > FORMAT {
        return Err(StoreError::TooNew { file: file.to_owned(), found: found.format });
    }
    if found.format == 1 {
        drop(database);
        medium.keep_aside(found.format).map_err(|error| failed(error.into()))?;
        database = open_verified(medium, file)?;
    }
    let meta = Meta { format: FORMAT, epoch: found.epoch + 1, commits: found.commits };
    let start = || {
        let write = begin(&database)?;
        if found.format == 1 {
            migrate_from_1(&write)?;
        }
        meta.write(found, &write)?;
        write.commit()?;
        Ok(())
    };
    guarded(start).map_err(failed)?;
    Ok((database, meta))
}

/// Opens the database and verifies every page that is in use.
fn open_verified(medium: &dyn AnyMedium, file: &Path) -> Result<Database, StoreError> {
    let open = || {
        let repaired = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&repaired);
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE);
        builder.set_repair_callback(move |_| told.store(true, Ordering::Relaxed));
        let mut database = medium.database(&builder)?;
        // After a crash the database verifies everything by itself.
        if !repaired.load(Ordering::Relaxed) {
            database.check_integrity()?;
        }
        Ok(database)
    };
    guarded(open).map_err(|error| StoreError::of(file, "read", error))
}

fn read(database: &Database, file: &Path, table: Table) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let mut damaged = None;
    let mut values = Vec::new();
    let mut read = || {
        let records = match database.begin_read()?.open_table(table.definition()) {
            Ok(records) => records,
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for entry in records.iter()? {
            let (key, sealed) = entry?;
            match record::open(table, key.value(), sealed.value()) {
                Some(value) => values.push((key.value().to_owned(), value.to_vec())),
                None => damaged = damaged.take().or_else(|| Some(key.value().to_owned())),
            }
        }
        Ok(())
    };
    guarded(&mut read).map_err(|error| StoreError::of(file, "read", error))?;
    match damaged {
        None => Ok(values),
        Some(key) => Err(StoreError::Damaged { file: file.to_owned(), what: record::mismatch(table, &key) }),
    }
}

/// Writes a batch as the one after `before`, and keeps in `undo` what was there.
fn write(
    database: &Database,
    changes: &[Change],
    before: u64,
    undo: &mut Vec<Change>,
) -> Result<(), redb::Error> {
    let write = begin(database)?;
    for table in Table::ALL {
        let mut changes = changes.iter().filter(|change| change.table == table).peekable();
        if changes.peek().is_none() {
            continue;
        }
        let mut records = write.open_table(table.definition())?;
        for Change { key, value, .. } in changes {
            let old = match value {
                Some(value) => records.insert(key.as_str(), record::seal(table, key, value).as_slice())?,
                None => records.remove(key.as_str())?,
            };
            let value = old.and_then(|old| record::open(table, key, old.value()).map(<[u8]>::to_vec));
            undo.push(Change { table, key: key.clone(), value });
        }
    }
    let counted = |commits| Meta { commits, ..Meta::default() };
    counted(before + 1).write(counted(before), &write)?;
    write.commit()?;
    Ok(())
}

/// A transaction that is on disk when it is committed.
///
/// One phase and one sync: the new root carries a checksum of everything below it, so after a crash in the middle the
/// database finds the root before it. Measured on 10,000 records of 600 bytes, 256 of them in a batch (release, two cores
/// shared with others; three rounds, interleaved): 3 ms of processor time a batch, 120 to 190 batches a second, and 5,000
/// a second of one record. A second phase, an allocator table with each commit (“quick repair”) and a cache of 1 GB
/// instead of 8 MB make no difference that rises above the noise there, where a sync takes 73 µs; a second phase is a
/// second sync, though, and on a disk where that takes 5 ms it halves the rate. Without quick repair the file is walked
/// after a crash: 9 to 20 ms for 8 MB, which is what verifying it costs anyway.
///
/// What one phase cannot do: after a crash, a bit that flipped in the very last batch looks like a batch that was cut
/// off, and the one before it is what is found. Anywhere else, and in a file that was closed, a flipped bit is refused.
fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut write = database.begin_write()?;
    write.set_durability(Durability::Immediate)?;
    Ok(write)
}
