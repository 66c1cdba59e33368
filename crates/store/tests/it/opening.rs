//! Opening, reopening and sharing a directory.

use gantry_store::faulty_disk::Disk;
use gantry_store::{Store, StoreError, Table};

use crate::{models, put, remove};

#[test]
fn committed_records_survive_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.epoch(), 1);
    store.commit(&[put("a", "1"), put("b", "2")]).unwrap();
    store.commit(&[remove("a")]).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.epoch(), 2);
    assert_eq!(store.read(Table::Models).unwrap(), [("b".to_owned(), b"2".to_vec())]);
    assert!(store.read(Table::Servers).unwrap().is_empty());
}

#[test]
fn state_id_is_kept_by_restarts_and_new_after_loss() {
    let disk = Disk::new();
    let first = disk.open().unwrap().state_id();
    disk.kill();
    assert_eq!(disk.open().unwrap().state_id(), first);
    disk.crash(1);
    assert_eq!(disk.open().unwrap().state_id(), first);
    disk.wipe();
    let store = disk.open().unwrap();
    assert_eq!(store.epoch(), 1, "nothing of the lost state is known");
    assert!(store.state_id() != first && store.state_id() != 0);
}

#[test]
fn second_open_reports_holder_pid() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Store::open(dir.path()).unwrap();
    let error = Store::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("in use by another gantry (pid {})", std::process::id())), "{error}");
}

#[test]
fn disk_allows_one_handle() {
    let disk = Disk::new();
    let first = disk.open().unwrap();
    assert!(matches!(disk.open(), Err(StoreError::InUse { .. })));
    drop(first);
    let second = disk.open().unwrap();
    // A killed process releases its handle and cannot write.
    disk.kill();
    let third = disk.open().unwrap();
    assert!(second.commit(&[put("a", "from the dead")]).is_err());
    assert_eq!(models(&third).len(), 0);
    assert_eq!(third.epoch(), 3);
}
