//! What operators do with a state file: check it, copy it, put a copy back.
//!
//! None of this changes the file that is looked at: it is read into memory and opened there. That also works while a
//! gantry is writing it. A copy of a file that is being written may be a mixture, but every page has a checksum in the page
//! above it, so a copy that verifies is exactly what was committed at some moment; one that does not is taken again.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableError};

use crate::directory::Directory;
use crate::format::{FORMAT, Meta};
use crate::guard::guarded;
use crate::{Medium, StoreError, Table, record};

/// How often a file that is being written is copied again before giving up.
const TRIES: usize = 20;

/// Added to the count of starts by a restore. Those who remember a start of the lost state must find every start of the
/// restored one later, and how many starts were lost with it cannot be known.
const LATER: u64 = 1_000_000;

/// What is in a state file.
#[derive(Debug)]
pub struct Report {
    /// The file.
    pub file: PathBuf,
    /// The layout of its records.
    pub format: u64,
    /// How often a gantry started with it.
    pub epoch: u64,
    /// How many batches were committed.
    pub commits: u64,
    /// How many records each table has.
    pub records: Vec<(Table, usize)>,
    /// A batch was cut off by a crash. It was not acknowledged; the next start drops it.
    pub cut_off: bool,
    /// What is damaged, one sentence each.
    pub problems: Vec<String>,
}

/// What a restore did.
#[derive(Debug)]
pub struct Restored {
    /// What is there now.
    pub report: Report,
    /// Where the replaced file is, if there was one.
    pub replaced: Option<PathBuf>,
}

/// The state file of a directory.
pub fn file_of(dir: &Path) -> PathBuf {
    Directory::file_of(dir)
}

/// Looks at every record of a state file, which may be in use, and changes nothing.
///
/// A file that cannot be read at all is an error; damaged records are in the report.
pub fn check(file: &Path) -> Result<Report, StoreError> {
    Ok(snapshot(file)?.report)
}

/// Copies the state file, which may be in use, to a new file. A damaged one is refused.
pub fn backup(file: &Path, to: &Path) -> Result<Report, StoreError> {
    if to.symlink_metadata().is_ok() {
        return Err(StoreError::Exists { file: to.to_owned() });
    }
    let snapshot = snapshot(file)?.whole()?;
    let unfinished = beside(to, &format!("unfinished-{}", std::process::id()));
    let written = snapshot.write(&unfinished, snapshot.report.epoch).and_then(|()| {
        // A link, unlike a rename, never takes the place of another file.
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

/// Puts a backup in the place of the state in a directory, which nobody may be using.
///
/// A state that holds something is refused unless `force` says that it may go; it is kept aside then.
pub fn restore(dir: &Path, from: &Path, force: bool) -> Result<Restored, StoreError> {
    let snapshot = snapshot(from)?.whole()?;
    let taken = Directory::take(dir)?;
    let file = Medium::name(&taken);
    let present = match self::snapshot(&file) {
        Ok(present) => Some(present.report),
        Err(StoreError::Missing { .. }) => None,
        // Whatever it is, it is not nothing.
        Err(_) if force => None,
        Err(error) => return Err(error),
    };
    let holds: usize = present.iter().flat_map(|present| &present.records).map(|(_, count)| count).sum();
    if holds > 0 && !force {
        return Err(StoreError::NotEmpty { dir: dir.to_owned(), records: holds });
    }
    let epoch = present.map_or(0, |present| present.epoch).max(snapshot.report.epoch) + LATER;
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

/// Everything in a state file at one moment.
#[derive(Debug)]
struct Snapshot {
    report: Report,
    /// By table and key, without checksums.
    records: Vec<(Table, String, Vec<u8>)>,
}

impl Snapshot {
    /// The snapshot, unless something in it is damaged.
    fn whole(self) -> Result<Self, StoreError> {
        match self.report.problems.first() {
            None => Ok(self),
            Some(problem) => Err(StoreError::Damaged { file: self.report.file, what: problem.clone() }),
        }
    }

    /// Writes a new file with the same records, in the present format, and waits until it is on disk.
    fn write(&self, to: &Path, epoch: u64) -> Result<(), StoreError> {
        let write = || {
            let database = Database::create(to)?;
            let write = database.begin_write()?;
            for table in Table::ALL {
                let mut records = write.open_table(table.definition())?;
                for (_, key, value) in self.records.iter().filter(|(of, ..)| *of == table) {
                    records.insert(key.as_str(), record::seal(table, key, value).as_slice())?;
                }
            }
            let meta = Meta { format: FORMAT, epoch, commits: self.report.commits };
            meta.write(Meta::default(), &write)?;
            write.commit()?;
            drop(database);
            File::open(to)?.sync_all()?;
            Ok(())
        };
        guarded(write).map_err(|error| StoreError::of(to, "written", error))
    }
}

/// Reads a file as it is at one moment, also while it is being written.
fn snapshot(file: &Path) -> Result<Snapshot, StoreError> {
    let read = || {
        std::fs::read(file).map_err(|error| match error.kind() {
            ErrorKind::NotFound => StoreError::Missing { file: file.to_owned() },
            _ => StoreError::of(file, "read", error.into()),
        })
    };
    let mut bytes = read()?;
    for _ in 0..TRIES {
        let found = open(file, &bytes);
        if matches!(&found, Ok(snapshot) if !snapshot.report.cut_off && snapshot.report.problems.is_empty()) {
            return found;
        }
        // Either it is being written, or that is how it is.
        let again = read()?;
        if again == bytes {
            return found;
        }
        bytes = again;
    }
    Err(StoreError::Busy { file: file.to_owned() })
}

/// Opens a copy in memory, and verifies and reads everything.
fn open(file: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    let cut_off = Arc::new(AtomicBool::new(false));
    let mut records = Vec::new();
    let mut problems = Vec::new();
    let mut open = || {
        let backend = InMemoryBackend::new();
        backend.set_len(bytes.len() as u64)?;
        backend.write(0, bytes)?;
        let mut builder = Database::builder();
        let told = Arc::clone(&cut_off);
        // The database tells here that the newest root does not verify and that it takes the one before it.
        builder.set_repair_callback(move |repair| {
            if repair.progress() > 0.0 && repair.progress() < 0.5 {
                told.store(true, Ordering::Relaxed);
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
                let value = if meta.format == 1 { Some(value) } else { record::open(table, key, value) };
                match value {
                    Some(value) => records.push((table, key.to_owned(), value.to_vec())),
                    None => problems.push(record::mismatch(table, key)),
                }
            }
        }
        Ok(meta)
    };
    let meta = guarded(&mut open).map_err(|error| StoreError::of(file, "read", error))?;
    if meta.format > FORMAT {
        return Err(StoreError::TooNew { file: file.to_owned(), found: meta.format });
    }
    let count = |table| (table, records.iter().filter(|(of, ..)| *of == table).count());
    let report = Report {
        file: file.to_owned(),
        format: meta.format,
        epoch: meta.epoch,
        commits: meta.commits,
        records: Table::ALL.into_iter().map(count).collect(),
        cut_off: cut_off.load(Ordering::Relaxed),
        problems,
    };
    Ok(Snapshot { report, records })
}

/// Keeps a file under a name that is free, beside itself.
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

/// `FILE.ENDING`.
fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Makes a new name outlast a power failure.
fn sync_parent(file: &Path) -> Result<(), StoreError> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(|error| StoreError::of(file, "written", error.into()))
}
