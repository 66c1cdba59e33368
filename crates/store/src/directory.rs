//! The state directory: database file and lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;

use crate::{Storage, StoreError};

const FILE: &str = "state.redb";
const LOCK: &str = "lock";

/// A locked state directory.
#[derive(Debug)]
pub(crate) struct Directory {
    dir: PathBuf,
    // Released by the operating system if the process dies.
    _lock: File,
}

impl Directory {
    /// Creates the directory if needed, and locks it.
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
        // The PID is informational: on a full disk the lock alone suffices.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.seek(SeekFrom::Start(0)))
            .and_then(|_| write!(lock, "{}", std::process::id()));
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    pub(crate) fn file_of(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Makes a new or renamed file durable.
    fn sync(&self) -> Result<(), Error> {
        File::open(&self.dir)?.sync_all()
    }
}

impl Storage for Directory {
    type Backend = FileBackend;

    fn open(&self) -> Result<FileBackend, Error> {
        let path = Storage::name(self);
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

    fn back_up_old_format(&self, format: u64) -> Result<(), Error> {
        let name = Storage::name(self);
        let kept = self.dir.join(format!("{FILE}.format-{format}"));
        let unfinished = kept.with_extension("unfinished");
        std::fs::copy(name, &unfinished)?;
        File::open(&unfinished)?.sync_all()?;
        std::fs::rename(unfinished, kept)?;
        self.sync()
    }
}
