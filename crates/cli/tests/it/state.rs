//! `gantry state`: check, backup, restore.

use crate::harness::{RunResult, gantry};
use gantry_store::{Change, Store, Table, maintenance::file_of};
use std::path::Path;

/// Runs `gantry state` and replaces the directory in its output.
fn state(dir: &Path, args: &[&str]) -> RunResult {
    let dir = dir.to_str().unwrap();
    let mut ran = gantry(&[&["state"], args, &["--state-dir", dir]].concat());
    ran.stdout = ran.stdout.replace(dir, "DIR");
    ran.stderr = ran.stderr.replace(dir, "DIR");
    ran
}

fn put(dir: &Path, keys: &[&str]) -> Store {
    let store = Store::open(dir).unwrap();
    let change = |key: &&str| Change { table: Table::Models, key: (*key).into(), value: Some(b"1".to_vec()) };
    store.commit(&keys.iter().map(change).collect::<Vec<_>>()).unwrap();
    store
}

#[test]
fn state_check_backup_and_restore() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let missing = state(dir, &["check"]);
    assert_eq!((missing.code, missing.stderr.trim()), (3, "no state file DIR/state.redb"));

    let store = put(dir, &["iris", "fraud"]);
    let ok = "2 models, 0 servers, 0 pipelines, 0 experiments, 0 services, 0 policies, 0 gateways (format 2, start 1, batch 1)";
    // While the store is open.
    let checked = state(dir, &["check"]);
    assert_eq!((checked.code, checked.stderr.trim()), (0, &*format!("ok: {ok}")));
    let copy = dir.join("monday.redb");
    let copy = copy.to_str().unwrap();
    let copied = state(dir, &["backup", copy]);
    assert_eq!((copied.code, copied.stderr.trim()), (0, &*format!("DIR/monday.redb written: {ok}")));
    let again = state(dir, &["backup", copy]);
    assert_eq!(again.code, 6);
    assert!(
        again.stderr.contains("DIR/monday.redb already exists: choose another name for the backup"),
        "{again:?}"
    );
    let in_use = state(dir, &["restore", copy, "--force"]);
    assert_eq!(in_use.code, 6);
    assert!(
        in_use.stderr.contains(&format!("in use by another gantry (pid {})", std::process::id())),
        "{in_use:?}"
    );
    drop(store);

    drop(put(dir, &["demand"]));
    let refused = state(dir, &["restore", copy]);
    assert_eq!(refused.code, 6);
    assert!(refused.stderr.contains("the state in DIR has 3 records: --force replaces it"), "{refused:?}");
    let restored = state(dir, &["restore", copy, "--force"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert_eq!(
        restored.stderr,
        "DIR/state.redb restored: 2 models, 0 servers, 0 pipelines, 0 experiments, 0 services, 0 policies, 0 gateways (format 2, start 1000002, batch 1)\n\
         previous database kept as DIR/state.redb.replaced-1\n"
    );
    assert_eq!(Store::open(dir).unwrap().read(Table::Models).unwrap().len(), 2);
    assert_eq!(state(dir, &["check", copy]).code, 0, "a backup can be checked too");
}

#[test]
fn damaged_state_exits_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    drop(put(dir, &["iris"]));
    let copy = dir.join("copy.redb");
    let copy = copy.to_str().unwrap();
    assert_eq!(state(dir, &["backup", copy]).code, 0);
    let mut bytes = std::fs::read(file_of(dir)).unwrap();
    let offset = bytes.windows(4).position(|four| four == b"iris").unwrap();
    bytes[offset] ^= 1;
    std::fs::write(file_of(dir), bytes).unwrap();
    let checked = state(dir, &["check"]);
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.stdout.starts_with("DIR/state.redb: "), "{checked:?}");
    assert!(checked.stderr.contains("replace it with `gantry state restore`"), "{checked:?}");
    assert_eq!(state(dir, &["backup", &format!("{copy}2")]).code, 1, "damage is not copied");
    let refused = state(dir, &["restore", copy]);
    assert_eq!(refused.code, 6);
    assert!(refused.stderr.contains("use --force to replace it"), "{refused:?}");
    assert_eq!(state(dir, &["restore", copy, "--force"]).code, 0);
    assert_eq!(state(dir, &["check"]).code, 0);
}
