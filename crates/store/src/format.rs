//! What the file says about itself, and how an older one becomes a present one.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use crate::{Table, record};

/// The layout of the records. A newer program migrates an older layout; an older program refuses a newer one.
///
/// 1 was the value alone; 2 has a checksum before it, and counts the commits.
pub const FORMAT: u64 = 2;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// What the file says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The layout of the records; 0 in an empty file.
    pub(crate) format: u64,
    /// How many times the store was opened.
    pub(crate) epoch: u64,
    /// How many batches were committed.
    pub(crate) commits: u64,
}

impl Meta {
    pub(crate) fn read(database: &Database) -> Result<Self, redb::Error> {
        let table = match database.begin_read()?.open_table(META) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(Self::default()),
            Err(error) => return Err(error.into()),
        };
        let number = |key| Ok::<_, redb::Error>(table.get(key)?.map_or(0, |value| value.value()));
        Ok(Self { format: number("format")?, epoch: number("epoch")?, commits: number("commits")? })
    }

    /// Writes what differs from `before`.
    pub(crate) fn write(self, before: Self, write: &WriteTransaction) -> Result<(), redb::Error> {
        let mut table = write.open_table(META)?;
        for (key, new, old) in [
            ("format", self.format, before.format),
            ("epoch", self.epoch, before.epoch),
            ("commits", self.commits, before.commits),
        ] {
            if new != old {
                table.insert(key, new)?;
            }
        }
        Ok(())
    }
}

/// Gives every record of the first format its checksum. All or nothing: it is part of the one transaction.
pub(crate) fn migrate_from_1(write: &WriteTransaction) -> Result<(), redb::Error> {
    for table in Table::ALL {
        let mut records = write.open_table(table.definition())?;
        let mut sealed = Vec::new();
        for entry in records.iter()? {
            let (key, value) = entry?;
            sealed.push((key.value().to_owned(), record::seal(table, key.value(), value.value())));
        }
        for (key, value) in sealed {
            records.insert(key.as_str(), value.as_slice())?;
        }
    }
    Ok(())
}
