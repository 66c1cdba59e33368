//! Migration of older formats.

use std::collections::BTreeMap;

use gantry_store::faulty_disk::{Disk, Fault};
use gantry_store::{FORMAT, Store, StoreError};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::{models, put};

/// Written by `gantry up examples/quickstart` with format 1, then killed.
const FORMAT_1: &[u8] = include_bytes!("fixtures/format-1.redb");

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const MODELS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("models");

/// Reads a file of format 1 without the store.
fn raw(file: &[u8]) -> (u64, BTreeMap<String, Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raw");
    std::fs::write(&path, file).unwrap();
    let database = Database::open(path).unwrap();
    let read = database.begin_read().unwrap();
    let format = read.open_table(META).unwrap().get("format").unwrap().unwrap().value();
    let records = read.open_table(MODELS).unwrap();
    let records = records.iter().unwrap().map(|entry| {
        let (key, value) = entry.unwrap();
        (key.value().to_owned(), value.value().to_vec())
    });
    (format, records.collect())
}

#[test]
fn format_1_is_migrated_and_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state.redb"), FORMAT_1).unwrap();
    let (_, expected) = raw(FORMAT_1);
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["demand", "fraud", "iris"]);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(models(&store), expected);
    assert_eq!(store.epoch(), 2, "the starts go on counting");
    let id = store.state_id();
    assert_ne!(id, 0, "a state of an older version gets an ID");
    store.commit(&[put("new", "1")]).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!((models(&store).len(), store.epoch()), (4, 3), "it is migrated once");
    assert_eq!(store.state_id(), id);
    let kept = std::fs::read(dir.path().join("state.redb.format-1")).unwrap();
    assert_eq!(raw(&kept), (1, expected));
}

#[test]
fn failed_migration_leaves_old_state() {
    let (_, expected) = raw(FORMAT_1);
    let mut failures = 0;
    for fault in [Fault::Full, Fault::Broken] {
        for good in 0.. {
            let disk = Disk::with(FORMAT_1.to_vec());
            disk.fail_writes_after(good, fault);
            let result = disk.open();
            disk.heal();
            let Err(error) = result else { break };
            failures += 1;
            assert_eq!(matches!(error, StoreError::Full { .. }), fault == Fault::Full, "{error}");
            disk.crash(good);
            let now = raw(&disk.bytes());
            assert_eq!(now, (1, expected.clone()), "{fault:?} after {good} writes");
            assert_eq!(models(&disk.open().unwrap()), expected, "and the next start migrates it");
        }
    }
    assert!(failures > 10, "{failures}");
}

#[test]
fn migration_stops_when_backup_fails() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state.redb"), FORMAT_1).unwrap();
    // The backup's name is taken.
    std::fs::create_dir_all(dir.path().join("state.redb.format-1/occupied")).unwrap();
    Store::open(dir.path()).unwrap_err();
    assert_eq!(raw(&std::fs::read(dir.path().join("state.redb")).unwrap()), raw(FORMAT_1));
}

#[test]
fn newer_format_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    {
        let database = Database::open(dir.path().join("state.redb")).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(META).unwrap().insert("format", FORMAT + 1).unwrap();
        write.commit().unwrap();
    }
    let error = Store::open(dir.path()).unwrap_err();
    assert!(matches!(&error, StoreError::TooNew { found, .. } if *found == FORMAT + 1), "{error}");
    assert!(error.to_string().contains("use a newer gantry"), "{error}");
}
