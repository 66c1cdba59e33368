//! The state directory: the file, and the lock that says whose it is.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;

use crate::{Medium, StoreError};

const FILE: &str = "state.redb";
const LOCK: &str = "lock";

/// A directory that this process has to itself.
#[derive(Debug)]
pub(crate) struct Directory {
    dir: PathBuf,
    // Held for as long as the store is open; the operating system lets go of it if the process dies.
    _lock: File,
}

impl Directory {
    /// Makes the directory if it is not there, and takes it.
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        let unusable = |source| StoreError::Directory { dir: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(unusable)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join(LOCK))
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
        // The number only helps people: on a full disk the lock itself is what counts.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.seek(SeekFrom::Start(0)))
            .and_then(|_| write!(lock, "{}", std::process::id()));
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// The state file of a directory.
    pub(crate) fn file_of(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Makes a new or renamed file in the directory outlast a power failure.
    fn sync(&self) -> Result<(), Error> {
        File::open(&self.dir)?.sync_all()
    }
}

impl Medium for Directory {
    type Backend = FileBackend;

    fn open(&self) -> Result<FileBackend, Error> {
        let path = Medium::name(self);
        let is_new = !path.try_exists()?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        if is_new {
            self.sync()?;
        }
        FileBackend::new(file).map_err(Error::other)
    }

    fn name(&self) -> PathBuf {
        Self::file_of(&self.dir)
    }

    fn keep_aside(&self, format: u64) -> Result<(), Error> {
        let name = Medium::name(self);
        let kept = self.dir.join(format!("{FILE}.format-{format}"));
        let unfinished = kept.with_extension("unfinished");
        std::fs::copy(name, &unfinished)?;
        File::open(&unfinished)?.sync_all()?;
        std::fs::rename(unfinished, kept)?;
        self.sync()
    }
}
