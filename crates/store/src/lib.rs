//! Durable, crash-safe store: one file in a state directory, or etcd.
//!
//! A [`Store`] keeps small records in named tables. [`Store::commit`] returns when the batch is on disk. After `kill -9`
//! or a power failure the store contains every committed batch and nothing of any other. A failed batch (disk full, I/O
//! error) leaves no trace, and the store recovers when the cause is gone.
//!
//! Every record has a checksum, and the whole file is verified when opened: corruption is reported, never read partially.
//!
//! With [`etcd`] several processes share the records: one of them leads and writes, the others stand by.
//!
//! [`maintenance`] checks, backs up and restores the file. Tests inject a failing [`Storage`]: `faulty_disk` (feature
//! `faults`).

#![allow(missing_docs, reason = "internal: names carry the meaning, comments only what names cannot")]

mod catch_panic;
mod directory;
mod embedded;
mod error;
pub mod etcd;
#[cfg(feature = "faults")]
pub mod faulty_disk;
mod format;
pub mod maintenance;
mod record;
mod storage_backend;
mod store;

pub use error::StoreError;
pub use format::FORMAT;
pub use storage_backend::Storage;
pub use store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    Models,
    Servers,
    Pipelines,
    Experiments,
    Services,
    /// Rollout policies.
    Policies,
    /// Gateways that may still use published routes.
    Gateways,
}

impl Table {
    pub const ALL: [Self; 7] = [
        Self::Models,
        Self::Servers,
        Self::Pipelines,
        Self::Experiments,
        Self::Services,
        Self::Policies,
        Self::Gateways,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Servers => "servers",
            Self::Pipelines => "pipelines",
            Self::Experiments => "experiments",
            Self::Services => "services",
            Self::Policies => "policies",
            Self::Gateways => "gateways",
        }
    }

    const fn definition(self) -> redb::TableDefinition<'static, &'static str, &'static [u8]> {
        redb::TableDefinition::new(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub table: Table,
    pub key: String,
    /// `None` removes the record.
    pub value: Option<Vec<u8>>,
}
