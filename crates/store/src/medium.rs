//! Where the bytes of a store lie.

use std::fmt::Debug;
use std::io::Error;
use std::path::PathBuf;

use redb::{Builder, Database, StorageBackend};

/// Where the bytes of a store lie: a file, or something that a test made. It is opened again after each failure.
pub trait Medium: Debug + Send + Sync + 'static {
    /// The bytes, as the database reads and writes them.
    type Backend: StorageBackend;

    /// Opens the bytes. What another holds is refused with [`std::io::ErrorKind::ResourceBusy`].
    fn open(&self) -> Result<Self::Backend, Error>;

    /// How messages call it.
    fn name(&self) -> PathBuf;

    /// Keeps a copy of an older format before it is migrated. It is not open while this is called.
    fn keep_aside(&self, _format: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// A medium whose backend's type is forgotten.
pub(crate) trait AnyMedium: Debug + Send + Sync {
    fn database(&self, builder: &Builder) -> Result<Database, redb::Error>;
    fn name(&self) -> PathBuf;
    fn keep_aside(&self, format: u64) -> Result<(), Error>;
}

impl<M: Medium> AnyMedium for M {
    fn database(&self, builder: &Builder) -> Result<Database, redb::Error> {
        let backend = self.open()?;
        discard_unfinished(&backend)?;
        Ok(builder.create_with_backend(backend)?)
    }

    fn name(&self) -> PathBuf {
        Medium::name(self)
    }

    fn keep_aside(&self, format: u64) -> Result<(), Error> {
        Medium::keep_aside(self, format)
    }
}

/// How a database file begins; written only once the rest of a new file is on disk.
const MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";

/// Where the records begin.
const FIRST_PAGE: u64 = 4096;

/// Empties a file that was being made when the machine went down: the database takes one without its first bytes for
/// something else, and refuses it. Nothing was ever written to such a file, so nothing lies beyond its header.
fn discard_unfinished(backend: &impl StorageBackend) -> Result<(), Error> {
    let length = backend.len()?;
    let mut begins = [0; MAGIC.len()];
    let read = begins.len().min(usize::try_from(length).unwrap_or(usize::MAX));
    backend.read(0, begins.get_mut(..read).unwrap_or_default())?;
    let written = begins.iter().zip(MAGIC).take_while(|(found, right)| found == right).count();
    let something_else = begins.iter().skip(written).any(|byte| *byte != 0);
    // The file has its length before its first byte: a shorter one that begins well was cut.
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
