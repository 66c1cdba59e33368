//! Corrupt files.

use std::collections::BTreeMap;

use gantry_store::faulty_disk::Disk;
use gantry_store::{Store, StoreError, Table};
use redb::{Database, TableDefinition};

use crate::{batch, models, put};

#[test]
fn foreign_file_is_rejected_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state.redb"), b"this is not a state file, it is something else").unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("state.redb is damaged: "), "{error}");
    assert!(error.to_string().contains("gantry state restore"), "{error}");
}

#[test]
fn record_with_wrong_checksum_is_named() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path()).unwrap().commit(&[put("good", "1"), put("wrong", "2")]).unwrap();
    {
        // Through redb, so that its page checksums match.
        let database = Database::open(dir.path().join("state.redb")).unwrap();
        let write = database.begin_write().unwrap();
        let models = TableDefinition::<&str, &[u8]>::new("models");
        write.open_table(models).unwrap().insert("wrong", &b"\0\0\0\x003"[..]).unwrap();
        write.commit().unwrap();
    }
    let error = Store::open(dir.path()).unwrap().read(Table::Models).unwrap_err().to_string();
    assert!(error.contains("record `wrong` of table `models` does not match its checksum"), "{error}");
}

/// About this many non-zero offsets of a file.
fn places(file: &[u8], about: usize) -> impl Iterator<Item = usize> {
    let used: Vec<usize> =
        file.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
    let step = (used.len() / about).max(1);
    used.into_iter().step_by(step)
}

/// Opening must fail, or return exactly what was written.
fn assert_rejected_or_intact(disk: &Disk, expected: &[BTreeMap<String, Vec<u8>>], what: &str) -> bool {
    let result = disk.open().and_then(|store| store.read(Table::Models));
    match result {
        Ok(found) => {
            let found = found.into_iter().collect();
            assert!(expected.contains(&found), "{what}: read as something that was never written");
            false
        }
        Err(error) => {
            assert!(error.to_string().contains("state.redb"), "{what}: {error}");
            true
        }
    }
}

#[test]
fn bit_flip_in_closed_file_is_rejected_or_harmless() {
    let disk = Disk::new();
    let store = disk.open().unwrap();
    for n in 0..3 {
        store.commit(&batch(n)).unwrap();
    }
    let expected = models(&store);
    drop(store);
    let file = disk.bytes();
    let (mut refused, mut tried) = (0, 0);
    // Flags, header, data.
    let flags = (0..8).map(|bit| (9, bit));
    let header = places(&file[..320], 40).chain(places(&file, 160));
    for (place, bit) in flags.chain(header.map(|place| (place, (place % 8) as u8))) {
        let disk = Disk::with(file.clone());
        disk.flip_bit(place, bit);
        tried += 1;
        let what = format!("byte {place}, bit {bit}");
        refused += usize::from(assert_rejected_or_intact(&disk, std::slice::from_ref(&expected), &what));
    }
    assert!(refused * 4 > tried, "{refused} of {tried}");
}

/// An interrupted batch and a bit flip in the last batch look the same, so the previous batch may be used; nothing older.
#[test]
fn bit_flip_after_crash_loses_at_most_last_batch() {
    let disk = Disk::new();
    let store = disk.open().unwrap();
    let mut states = Vec::new();
    for n in 0..3 {
        store.commit(&batch(n)).unwrap();
        states.push(models(&store));
    }
    disk.kill();
    let file = disk.bytes();
    let flags = (0..8).map(|bit| (9, bit));
    let header = places(&file[..320], 40).chain(places(&file, 80));
    let mut refused = 0;
    for (place, bit) in flags.chain(header.map(|place| (place, (place % 8) as u8))) {
        let disk = Disk::with(file.clone());
        disk.flip_bit(place, bit);
        let what = format!("byte {place}, bit {bit}");
        refused += usize::from(assert_rejected_or_intact(&disk, &states[1..], &what));
    }
    assert!(refused > 0);
}

#[test]
fn truncated_file_is_rejected_or_intact() {
    let disk = Disk::new();
    let store = disk.open().unwrap();
    store.commit(&batch(1)).unwrap();
    let expected = models(&store);
    drop(store);
    let file = disk.bytes();
    for length in (1..file.len()).step_by(4096).chain((1..400).step_by(7)) {
        let disk = Disk::with(file.clone());
        disk.truncate(length);
        assert_rejected_or_intact(&disk, std::slice::from_ref(&expected), &format!("cut at {length}"));
    }
}
