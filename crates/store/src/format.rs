//! File metadata and format migration.

use std::hash::{BuildHasher as _, RandomState};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use crate::{Table, record};

/// Format of the records. Older formats are migrated, newer ones rejected.
///
/// 1: value only. 2: checksum before the value; commits are counted.
pub const FORMAT: u64 = 2;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// 0 in an empty file.
    pub(crate) format: u64,
    /// Number of opens.
    pub(crate) epoch: u64,
    pub(crate) commits: u64,
    /// Identifies the state across starts; 0 in an empty file and in one of an older version.
    pub(crate) state_id: u64,
}

impl Meta {
    pub(crate) fn read(database: &Database) -> Result<Self, redb::Error> {
        let table = match database.begin_read()?.open_table(META) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(Self::default()),
            Err(error) => return Err(error.into()),
        };
        let number = |key| Ok::<_, redb::Error>(table.get(key)?.map_or(0, |value| value.value()));
        Ok(Self {
            format: number("format")?,
            epoch: number("epoch")?,
            commits: number("commits")?,
            state_id: number("state_id")?,
        })
    }

    pub(crate) fn write(self, before: Self, write: &WriteTransaction) -> Result<(), redb::Error> {
        let mut table = write.open_table(META)?;
        for (key, new, old) in [
            ("format", self.format, before.format),
            ("epoch", self.epoch, before.epoch),
            ("commits", self.commits, before.commits),
            ("state_id", self.state_id, before.state_id),
        ] {
            if new != old {
                table.insert(key, new)?;
            }
        }
        Ok(())
    }
}

/// A random number other than 0. Hash maps draw their keys from the operating system.
pub(crate) fn new_state_id() -> u64 {
    RandomState::new().hash_one(0_u64).max(1)
}

/// Adds checksums to records of format 1, within one transaction.
pub(crate) fn migrate_from_1(write: &WriteTransaction) -> Result<(), redb::Error> {
    for table in Table::ALL {
        let mut records = write.open_table(table.definition())?;
        let mut sealed = Vec::new();
        for entry in records.iter()? {
            let (key, value) = entry?;
            sealed.push((key.value().to_owned(), record::encode(table, key.value(), value.value())));
        }
        for (key, value) in sealed {
            records.insert(key.as_str(), value.as_slice())?;
        }
    }
    Ok(())
}
