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
        Ok(builder.create_with_backend(self.open()?)?)
    }

    fn name(&self) -> PathBuf {
        Medium::name(self)
    }

    fn keep_aside(&self, format: u64) -> Result<(), Error> {
        Medium::keep_aside(self, format)
    }
}
