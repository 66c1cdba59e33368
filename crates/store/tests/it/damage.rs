//! Files that are not what was written.

use std::collections::BTreeMap;

use gantry_store::faulty_disk::Disk;
use gantry_store::{Store, StoreError, Table};
use redb::{Database, TableDefinition};

use crate::{batch, models, put};

#[test]
fn something_else_is_named_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state.redb"), b"this is not a state file, it is something else").unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("state.redb is damaged: "), "{error}");
    assert!(error.to_string().contains("gantry state restore"), "{error}");
}

#[test]
fn a_record_that_does_not_match_its_checksum_is_named() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path()).unwrap().commit(&[put("good", "1"), put("wrong", "2")]).unwrap();
    {
        // Through the database, so that its own checksums are right.
        let database = Database::open(dir.path().join("state.redb")).unwrap();
        let write = database.begin_write().unwrap();
        let models = TableDefinition::<&str, &[u8]>::new("models");
        write.open_table(models).unwrap().insert("wrong", &b"\0\0\0\x003"[..]).unwrap();
        write.commit().unwrap();
    }
    let error = Store::open(dir.path()).unwrap().read(Table::Models).unwrap_err().to_string();
    assert!(error.contains("the record `wrong` of table `models` does not match its checksum"), "{error}");
}

/// Some places of a file that are worth damaging: about so many of those that are not zero.
fn places(file: &[u8], about: usize) -> impl Iterator<Item = usize> {
    let used: Vec<usize> =
        file.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
    let step = (used.len() / about).max(1);
    used.into_iter().step_by(step)
}

/// Opens and reads a damaged disk: an error, or exactly what was written.
fn must_be_refused_or_right(disk: &Disk, expected: &[BTreeMap<String, Vec<u8>>], what: &str) -> bool {
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
fn a_flipped_bit_in_a_closed_file_is_refused_or_harmless() {
    let disk = Disk::new();
    let store = disk.open().unwrap();
    for n in 0..3 {
        store.commit(&batch(n)).unwrap();
    }
    let expected = models(&store);
    drop(store);
    let file = disk.bytes();
    let (mut refused, mut tried) = (0, 0);
    // The flags, the header, and all the rest.
    let flags = (0..8).map(|bit| (9, bit));
    let header = places(&file[..320], 40).chain(places(&file, 160));
    for (place, bit) in flags.chain(header.map(|place| (place, (place % 8) as u8))) {
        let disk = Disk::with(file.clone());
        disk.flip_bit(place, bit);
        tried += 1;
        let what = format!("byte {place}, bit {bit}");
        refused += usize::from(must_be_refused_or_right(&disk, std::slice::from_ref(&expected), &what));
    }
    assert!(refused * 4 > tried, "{refused} of {tried}");
}

/// A batch that a crash cut off and the last batch with a flipped bit look the same, so the one before it may be found;
/// nothing older, and nothing in between.
#[test]
fn a_flipped_bit_after_a_crash_costs_the_last_batch_at_most() {
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
        refused += usize::from(must_be_refused_or_right(&disk, &states[1..], &what));
    }
    assert!(refused > 0);
}

#[test]
fn a_file_that_was_cut_is_refused_or_right() {
    let disk = Disk::new();
    let store = disk.open().unwrap();
    store.commit(&batch(1)).unwrap();
    let expected = models(&store);
    drop(store);
    let file = disk.bytes();
    for length in (1..file.len()).step_by(4096).chain((1..400).step_by(7)) {
        let disk = Disk::with(file.clone());
        disk.truncate(length);
        must_be_refused_or_right(&disk, std::slice::from_ref(&expected), &format!("cut at {length}"));
    }
}
