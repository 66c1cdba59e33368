//! Check, backup and restore of a state file.
//!
//! The file is copied to memory and opened there, so this works while a process is writing it. A copy taken during a
//! write may be inconsistent, but every page has a checksum in its parent: a copy that verifies is a committed state, and
//! any other is taken again.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableError};

use crate::catch_panic::catch_panic;
use crate::directory::Directory;
use crate::format::{FORMAT, Meta};
use crate::{Storage, StoreError, Table, record};

/// Copies attempted while the file is being written.
const SNAPSHOT_ATTEMPTS: usize = 20;

/// Added to the epoch by a restore: epochs of the restored state must be higher than any of the lost state, whose number
/// is unknown.
const RESTORE_EPOCH_OFFSET: u64 = 1_000_000;

#[derive(Debug)]
pub struct Report {
    pub file: PathBuf,
    pub format: u64,
    /// Number of starts.
    pub epoch: u64,
    pub commits: u64,
    /// Identifies the state across starts; 0 in a file of an older version.
    pub state_id: u64,
    pub records: Vec<(Table, usize)>,
    /// A batch was interrupted by a crash. It was not acknowledged; the next start drops it.
    pub cut_off: bool,
    /// Corrupt records.
    pub problems: Vec<String>,
}

#[derive(Debug)]
pub struct Restored {
    pub report: Report,
    /// The replaced file.
    pub replaced: Option<PathBuf>,
}

pub fn file_of(dir: &Path) -> PathBuf {
    Directory::file_of(dir)
}

/// Verifies every record of a state file, which may be in use.
///
/// An unreadable file is an error; corrupt records are in the report.
pub fn check(file: &Path) -> Result<Report, StoreError> {
    Ok(snapshot(file)?.report)
}

/// Copies the state file, which may be in use, to a new file. Fails if it is corrupt.
pub fn backup(file: &Path, to: &Path) -> Result<Report, StoreError> {
    if to.symlink_metadata().is_ok() {
        return Err(StoreError::Exists { file: to.to_owned() });
    }
    let snapshot = snapshot(file)?.whole()?;
    let unfinished = beside(to, &format!("unfinished-{}", std::process::id()));
    let written = snapshot.write(&unfinished, snapshot.report.epoch).and_then(|()| {
        // Unlike a rename, a link never overwrites.
        std::fs::hard_link(&unfinished, to).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => StoreError::Exists { file: to.to_owned() },
            _ => StoreError::of(to, "written", error.into()),
        })
    });
    let _ = std::fs::remove_file(&unfinished);
    written?;
    sync_parent(to)?;
    Ok(snapshot.report)
}

/// Replaces the state in a directory, which must not be in use, with a backup.
///
/// A state with records is replaced only with `force`, and kept under another name.
pub fn restore(dir: &Path, from: &Path, force: bool) -> Result<Restored, StoreError> {
    let snapshot = snapshot(from)?.whole()?;
    let taken = Directory::take(dir)?;
    let file = Storage::name(&taken);
    let present = match self::snapshot(&file) {
        Ok(present) => Some(present.report),
        Err(StoreError::Missing { .. }) => None,
        Err(_) if force => None,
        Err(error) => return Err(error),
    };
    let holds: usize = present.iter().flat_map(|present| &present.records).map(|(_, count)| count).sum();
    if holds > 0 && !force {
        return Err(StoreError::NotEmpty { dir: dir.to_owned(), records: holds });
    }
    let epoch = present.map_or(0, |present| present.epoch).max(snapshot.report.epoch) + RESTORE_EPOCH_OFFSET;
    let unfinished = beside(&file, "unfinished");
    let _ = std::fs::remove_file(&unfinished);
    snapshot.write(&unfinished, epoch)?;
    let failed = |error: std::io::Error| StoreError::of(&file, "written", error.into());
    let replaced = keep(&file).map_err(failed)?;
    std::fs::rename(&unfinished, &file).map_err(failed)?;
    sync_parent(&file)?;
    let report = Report { file, epoch, format: FORMAT, ..snapshot.report };
    Ok(Restored { report, replaced })
}

/// A consistent copy of a state file.
#[derive(Debug)]
struct Snapshot {
    report: Report,
    /// Without checksums.
    records: Vec<(Table, String, Vec<u8>)>,
}

impl Snapshot {
    /// Fails if any record is corrupt.
    fn whole(self) -> Result<Self, StoreError> {
        match self.report.problems.first() {
            None => Ok(self),
            Some(problem) => Err(StoreError::Damaged { file: self.report.file, what: problem.clone() }),
        }
    }

    /// Writes the records to a new file in the current format, and syncs it.
    fn write(&self, to: &Path, epoch: u64) -> Result<(), StoreError> {
        let write = || {
            let database = Database::create(to)?;
            let write = database.begin_write()?;
            for table in Table::ALL {
                let mut records = write.open_table(table.definition())?;
                for (_, key, value) in self.records.iter().filter(|(of, ..)| *of == table) {
                    records.insert(key.as_str(), record::encode(table, key, value).as_slice())?;
                }
            }
            let Report { commits, state_id, .. } = self.report;
            let meta = Meta { format: FORMAT, epoch, commits, state_id };
            meta.write(Meta::default(), &write)?;
            write.commit()?;
            drop(database);
            File::open(to)?.sync_all()?;
            Ok(())
        };
        catch_panic(write).map_err(|error| StoreError::of(to, "written", error))
    }
}

/// Takes a consistent copy, also while the file is being written.
fn snapshot(file: &Path) -> Result<Snapshot, StoreError> {
    let read = || {
        std::fs::read(file).map_err(|error| match error.kind() {
            ErrorKind::NotFound => StoreError::Missing { file: file.to_owned() },
            _ => StoreError::of(file, "read", error.into()),
        })
    };
    let mut bytes = read()?;
    for _ in 0..SNAPSHOT_ATTEMPTS {
        let found = open(file, &bytes);
        if matches!(&found, Ok(snapshot) if !snapshot.report.cut_off && snapshot.report.problems.is_empty()) {
            return found;
        }
        // Retry only if the file is being written.
        let again = read()?;
        if again == bytes {
            return found;
        }
        bytes = again;
    }
    Err(StoreError::Busy { file: file.to_owned() })
}

/// Opens a copy in memory, verifies it and reads all records.
fn open(file: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    let cut_off = Arc::new(AtomicBool::new(false));
    let mut records = Vec::new();
    let mut problems = Vec::new();
    let mut open = || {
        let backend = InMemoryBackend::new();
        backend.set_len(bytes.len() as u64)?;
        backend.write(0, bytes)?;
        let mut builder = Database::builder();
        let repaired_flag = Arc::clone(&cut_off);
        // Progress in this range means that the newest root is invalid and the previous one is used.
        builder.set_repair_callback(move |repair| {
            if repair.progress() > 0.0 && repair.progress() < 0.5 {
                repaired_flag.store(true, Ordering::Relaxed);
            }
        });
        let mut database = builder.create_with_backend(backend)?;
        database.check_integrity()?;
        let meta = Meta::read(&database)?;
        if meta.format > FORMAT {
            return Ok(meta);
        }
        let read = database.begin_read()?;
        for table in Table::ALL {
            let entries = match read.open_table(table.definition()) {
                Ok(entries) => entries,
                Err(TableError::TableDoesNotExist(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            for entry in entries.iter()? {
                let (key, value) = entry?;
                let (key, value) = (key.value(), value.value());
                let value = if meta.format == 1 { Some(value) } else { record::decode(table, key, value) };
                match value {
                    Some(value) => records.push((table, key.to_owned(), value.to_vec())),
                    None => problems.push(record::mismatch(table, key)),
                }
            }
        }
        Ok(meta)
    };
    let meta = catch_panic(&mut open).map_err(|error| StoreError::of(file, "read", error))?;
    if meta.format > FORMAT {
        return Err(StoreError::TooNew { file: file.to_owned(), found: meta.format });
    }
    let count = |table| (table, records.iter().filter(|(of, ..)| *of == table).count());
    let report = Report {
        file: file.to_owned(),
        format: meta.format,
        epoch: meta.epoch,
        commits: meta.commits,
        state_id: meta.state_id,
        records: Table::ALL.into_iter().map(count).collect(),
        cut_off: cut_off.load(Ordering::Relaxed),
        problems,
    };
    Ok(Snapshot { report, records })
}

/// Links a file to a free name.
fn keep(file: &Path) -> Result<Option<PathBuf>, std::io::Error> {
    for number in 1.. {
        let kept = beside(file, &format!("replaced-{number}"));
        match std::fs::hard_link(file, &kept) {
            Ok(()) => return Ok(Some(kept)),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Makes a new name durable.
fn sync_parent(file: &Path) -> Result<(), StoreError> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(|error| StoreError::of(file, "written", error.into()))
}
