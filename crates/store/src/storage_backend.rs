//! Storage of the database file.

use std::fmt::Debug;
use std::io::Error;
use std::path::PathBuf;

use redb::{Builder, Database, StorageBackend};

/// Opens the database's storage: a file, or a test double. Reopened after each failure.
pub trait Storage: Debug + Send + Sync + 'static {
    type Backend: StorageBackend;

    /// Fails with [`std::io::ErrorKind::ResourceBusy`] when it is already open.
    fn open(&self) -> Result<Self::Backend, Error>;

    /// Path for error messages.
    fn name(&self) -> PathBuf;

    /// Copies the file before a migration. Called while it is closed.
    fn back_up_old_format(&self, _format: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// Object-safe form of [`Storage`].
pub(crate) trait DynStorage: Debug + Send + Sync {
    fn database(&self, builder: &Builder) -> Result<Database, redb::Error>;
    fn name(&self) -> PathBuf;
    fn back_up_old_format(&self, format: u64) -> Result<(), Error>;
}

impl<M: Storage> DynStorage for M {
    fn database(&self, builder: &Builder) -> Result<Database, redb::Error> {
        let backend = self.open()?;
        discard_incomplete_file(&backend)?;
        Ok(builder.create_with_backend(backend)?)
    }

    fn name(&self) -> PathBuf {
        Storage::name(self)
    }

    fn back_up_old_format(&self, format: u64) -> Result<(), Error> {
        Storage::back_up_old_format(self, format)
    }
}

/// Magic number of redb; written after the rest of a new file is on disk.
const MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";

/// Offset of the first data page.
const FIRST_PAGE: u64 = 4096;

/// Truncates a file whose creation was interrupted by a crash: redb rejects a file without its magic number. Nothing was
/// ever committed to such a file, so it is empty beyond its header.
fn discard_incomplete_file(backend: &impl StorageBackend) -> Result<(), Error> {
    let length = backend.len()?;
    let mut begins = [0; MAGIC.len()];
    let read = begins.len().min(usize::try_from(length).unwrap_or(usize::MAX));
    backend.read(0, begins.get_mut(..read).unwrap_or_default())?;
    let written = begins.iter().zip(MAGIC).take_while(|(found, right)| found == right).count();
    let something_else = begins.iter().skip(written).any(|byte| *byte != 0);
    // The length is set before the first byte is written: a shorter file with a magic number was truncated.
    let cut = written > 0 && length <= FIRST_PAGE;
    if length == 0 || written == MAGIC.len() || something_else || cut {
        return Ok(());
    }
    let mut page = [0; FIRST_PAGE as usize];
    for at in (FIRST_PAGE..length).step_by(page.len()) {
        let rest = usize::try_from(length - at).unwrap_or(usize::MAX).min(page.len());
        let page = page.get_mut(..rest).unwrap_or_default();
        backend.read(at, page)?;
        if page.iter().any(|byte| *byte != 0) {
            return Ok(());
        }
    }
    backend.set_len(0)
}
