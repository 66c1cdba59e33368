//! Check, backup and restore.

use std::sync::atomic::{AtomicBool, Ordering};

use gantry_store::faulty_disk::Disk;
use gantry_store::maintenance::{backup, check, file_of, restore};
use gantry_store::{FORMAT, Store, StoreError, Table};
use redb::{Database, TableDefinition};

use crate::{batch, models, put};

#[test]
fn check_counts_records_without_writing() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_of(dir.path());
    assert!(matches!(check(&file), Err(StoreError::Missing { .. })));
    let store = Store::open(dir.path()).unwrap();
    store.commit(&[put("a", "1"), put("b", "2")]).unwrap();
    let before = std::fs::read(&file).unwrap();
    let report = check(&file).unwrap();
    assert_eq!((report.format, report.epoch, report.commits), (FORMAT, 1, 1));
    assert_eq!(report.records, Table::ALL.map(|table| (table, if table == Table::Models { 2 } else { 0 })));
    assert!(!report.cut_off && report.problems.is_empty());
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn check_names_every_corrupt_record() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path()).unwrap().commit(&[put("a", "1"), put("b", "2"), put("c", "3")]).unwrap();
    let file = file_of(dir.path());
    {
        let database = Database::open(&file).unwrap();
        let write = database.begin_write().unwrap();
        let mut table = write.open_table(TableDefinition::<&str, &[u8]>::new("models")).unwrap();
        table.insert("a", &b"no"[..]).unwrap();
        table.insert("c", &b"a wrong checksum"[..]).unwrap();
        drop(table);
        write.commit().unwrap();
    }
    let problems = check(&file).unwrap().problems;
    assert_eq!(
        problems,
        ["a", "c"].map(|key| format!("record `{key}` of table `models` does not match its checksum"))
    );
    let copy = dir.path().join("copy");
    assert!(matches!(backup(&file, &copy), Err(StoreError::Damaged { .. })));
    assert!(!copy.exists());
}

#[test]
fn check_reports_interrupted_batch() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new();
    let store = disk.open().unwrap();
    store.commit(&[put("a", "1")]).unwrap();
    let before = disk.bytes();
    store.commit(&[put("a", "2")]).unwrap();
    disk.kill();
    // A page of the second batch is lost; the header is not.
    let mut file = disk.bytes();
    let changed = |at: &usize| file[*at..at + 4096] != before[*at..at + 4096];
    let page = (4096..file.len()).step_by(4096).find(changed).unwrap();
    file[page..page + 4096].copy_from_slice(&before[page..page + 4096]);
    std::fs::write(file_of(dir.path()), file).unwrap();
    let report = check(&file_of(dir.path())).unwrap();
    assert!(report.cut_off && report.problems.is_empty() && report.commits == 1, "{report:?}");
    assert_eq!(models(&Store::open(dir.path()).unwrap())["a"], b"1");
}

#[test]
fn backup_never_overwrites_a_file() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path()).unwrap().commit(&batch(1)).unwrap();
    let copy = dir.path().join("copy");
    std::fs::write(&copy, "mine").unwrap();
    let error = backup(&file_of(dir.path()), &copy).unwrap_err();
    assert!(matches!(error, StoreError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"mine");
}

#[test]
fn backup_during_writes_is_consistent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    // Every batch writes one value to all keys, so a partial batch is visible.
    let write = |n: u64| {
        let changes: Vec<_> = (0..40).map(|i| put(&format!("m{i}"), vec![n as u8; 700])).collect();
        store.commit(&changes).unwrap();
    };
    write(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1;
            while !done.load(Ordering::Relaxed) {
                write(n);
                n += 1;
            }
        });
        let mut taken = 0;
        for n in 0..6 {
            let copy = tempfile::tempdir().unwrap();
            let before = check(&file_of(dir.path())).map_or(0, |report| report.commits);
            match backup(&file_of(dir.path()), &file_of(copy.path())) {
                Ok(report) => {
                    taken += 1;
                    assert!(report.commits >= before, "{n}: earlier commits are included");
                    let found = models(&Store::open(copy.path()).unwrap());
                    assert_eq!(found.len(), 40);
                    assert!(found.values().all(|value| *value == found["m0"]), "{n}: half a batch");
                }
                Err(error) => assert!(matches!(error, StoreError::Busy { .. }), "{n}: {error}"),
            }
            assert_eq!(
                std::fs::read_dir(copy.path())
                    .unwrap()
                    .filter(|f| { f.as_ref().unwrap().file_name().to_string_lossy().contains("unfinished") })
                    .count(),
                0
            );
        }
        done.store(true, Ordering::Relaxed);
        assert!(taken > 0, "a busy store can be copied");
    });
}

#[test]
fn restore_needs_force_and_keeps_replaced_file() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let store = Store::open(&old).unwrap();
    let state_id = store.state_id();
    store.commit(&[put("a", "old")]).unwrap();
    drop(store);
    let copy = dir.path().join("copy.redb");
    backup(&file_of(&old), &copy).unwrap();
    // Into an empty directory.
    assert!(restore(&new, &copy, false).unwrap().replaced.is_none());
    let store = Store::open(&new).unwrap();
    assert_eq!(models(&store)["a"], b"old");
    assert_eq!(store.state_id(), state_id);
    assert!(store.epoch() > 1_000_000, "later than anything the lost state was: {}", store.epoch());
    assert!(matches!(restore(&new, &copy, true), Err(StoreError::InUse { .. })));
    store.commit(&[put("a", "new"), put("b", "new")]).unwrap();
    let epoch = store.epoch();
    drop(store);
    // Over existing records.
    let error = restore(&new, &copy, false).unwrap_err();
    assert!(error.to_string().contains("has 2 records: --force replaces it and keeps a copy"), "{error}");
    for expected in ["new", "old"] {
        let replaced = restore(&new, &copy, true).unwrap().replaced.unwrap();
        let kept = tempfile::tempdir().unwrap();
        std::fs::copy(&replaced, file_of(kept.path())).unwrap();
        assert_eq!(
            models(&Store::open(kept.path()).unwrap())["a"],
            expected.as_bytes(),
            "{}",
            replaced.display()
        );
    }
    let store = Store::open(&new).unwrap();
    assert_eq!(models(&store)["a"], b"old");
    assert!(store.epoch() > epoch);
}

#[test]
fn restore_rejects_corrupt_backup() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path()).unwrap().commit(&[put("a", "1")]).unwrap();
    let copy = dir.path().join("copy.redb");
    backup(&file_of(dir.path()), &copy).unwrap();
    std::fs::write(file_of(dir.path()), "damaged").unwrap();
    assert!(matches!(restore(dir.path(), &copy, false), Err(StoreError::Damaged { .. })));
    let replaced = restore(dir.path(), &copy, true).unwrap().replaced.unwrap();
    assert_eq!(std::fs::read(replaced).unwrap(), b"damaged");
    assert_eq!(models(&Store::open(dir.path()).unwrap()).len(), 1);
    std::fs::write(&copy, "damaged").unwrap();
    assert!(matches!(restore(dir.path(), &copy, true), Err(StoreError::Damaged { .. })));
    assert_eq!(models(&Store::open(dir.path()).unwrap()).len(), 1);
}
