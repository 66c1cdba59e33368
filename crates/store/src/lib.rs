//! The durable store: one directory, one file in it, crash-safe.
//!
//! A [`Store`] keeps small records in named tables. [`Store::commit`] returns only when the batch is on disk; after
//! `kill -9`, or a power failure, at any moment the store holds every batch that was committed and nothing of one that was
//! not. A batch that was refused (no room, a failing device) is not there either, and the store works again when the
//! cause is gone.
//!
//! Every record carries a checksum of its own, and the whole file is verified when it is opened: what is damaged is named
//! and refused, never read in part.
//!
//! Operators check, copy and put back the file: see [`upkeep`]. A test gives the store a [`Medium`] that fails: see
//! `faulty_disk` (feature `faults`).

mod directory;
mod error;
#[cfg(feature = "faults")]
pub mod faulty_disk;
mod format;
mod guard;
mod medium;
mod record;
mod store;
pub mod upkeep;

pub use error::StoreError;
pub use format::FORMAT;
pub use medium::Medium;
pub use store::Store;

/// What kind of record it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Models, by name.
    Models,
    /// Servers, by name.
    Servers,
    /// Gateways that may route by what they were told, by name.
    Gateways,
}

impl Table {
    /// Every table.
    pub const ALL: [Self; 3] = [Self::Models, Self::Servers, Self::Gateways];

    /// The name of the table in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Servers => "servers",
            Self::Gateways => "gateways",
        }
    }

    const fn definition(self) -> redb::TableDefinition<'static, &'static str, &'static [u8]> {
        redb::TableDefinition::new(self.name())
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
