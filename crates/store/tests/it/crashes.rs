//! Crashes at any write.

use std::collections::BTreeMap;

use gantry_store::faulty_disk::{Disk, Fault};

use crate::{apply, batch, models};

/// After a crash: everything acknowledged, and the batch in flight completely or not at all.
fn check(
    found: &BTreeMap<String, Vec<u8>>,
    acknowledged: &BTreeMap<String, Vec<u8>>,
    under_way: u64,
    what: &str,
) {
    let mut with = acknowledged.clone();
    apply(&mut with, &batch(under_way));
    assert!(found == acknowledged || *found == with, "{what}: half a batch, or an acknowledged one is lost");
}

#[test]
fn acknowledged_batches_survive_crash_at_any_write() {
    // Counts the writes of a run; a crash is then injected before each.
    let disk = Disk::new();
    let store = disk.open().unwrap();
    let opened = disk.writes();
    for n in 0..4 {
        store.commit(&batch(n)).unwrap();
    }
    let total = disk.writes() - opened;
    assert!(total > 20, "{total}");
    drop(store);
    for stop in 0..=total {
        for seed in [stop, stop + 1000] {
            let what = format!("write {stop}, seed {seed}");
            let disk = Disk::new();
            let store = disk.open().unwrap();
            let mut acknowledged = BTreeMap::new();
            disk.fail_writes_after(stop, Fault::Broken);
            let mut under_way = 0;
            while under_way < 4 && store.commit(&batch(under_way)).is_ok() {
                apply(&mut acknowledged, &batch(under_way));
                under_way += 1;
            }
            disk.crash(seed);
            drop(store);
            let store = disk.open().unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = models(&store);
            check(&found, &acknowledged, under_way, &what);
            // The store remains usable.
            store.commit(&batch(9)).unwrap();
            let mut now = found;
            apply(&mut now, &batch(9));
            assert_eq!(models(&store), now, "{what}");
        }
    }
}

#[test]
fn interrupted_first_open_is_repeated() {
    let disk = Disk::new();
    drop(disk.open().unwrap());
    for stop in 0..=disk.writes() {
        for seed in 0..6 {
            let disk = Disk::new();
            disk.fail_writes_after(stop, Fault::Broken);
            let begun = disk.open().is_ok();
            disk.crash(seed);
            let store = disk.open().unwrap_or_else(|error| panic!("write {stop}, seed {seed}: {error}"));
            assert!(!begun || store.epoch() == 2, "a start that was counted stays counted");
            store.commit(&batch(1)).unwrap();
        }
    }
}

#[test]
fn process_kill_loses_nothing() {
    let disk = Disk::new();
    let mut expected = BTreeMap::new();
    for n in 0..20 {
        let store = disk.open().unwrap();
        assert_eq!(models(&store), expected, "{n}");
        assert_eq!(store.epoch(), n + 1);
        store.commit(&batch(n)).unwrap();
        apply(&mut expected, &batch(n));
        disk.kill();
    }
}

#[test]
fn repeated_crashes_keep_acknowledged_batches() {
    for seed in 0..10 {
        let disk = Disk::new();
        let mut expected = BTreeMap::new();
        for n in 0..12 {
            let store = disk.open().unwrap_or_else(|error| panic!("seed {seed}, start {n}: {error}"));
            let found = models(&store);
            check(&found, &expected, 100 + n, &format!("seed {seed}, start {n}"));
            expected = found;
            store.commit(&batch(n)).unwrap();
            apply(&mut expected, &batch(n));
            // The next batch is interrupted before its sync.
            disk.fail_syncs(Fault::Broken);
            assert!(store.commit(&batch(101 + n)).is_err());
            disk.crash(seed * 1000 + n);
        }
    }
}

#[test]
fn crash_is_deterministic_per_seed() {
    // The ID of a state is random.
    let first = Disk::new();
    drop(first.open().unwrap());
    let run = |seed| {
        let disk = Disk::with(first.bytes());
        let store = disk.open().unwrap();
        store.commit(&batch(1)).unwrap();
        disk.fail_syncs(Fault::Broken);
        store.commit(&batch(2)).unwrap_err();
        disk.crash(seed);
        disk.bytes()
    };
    assert!((0..6).all(|seed| run(seed) == run(seed)));
    assert!((1..6).any(|seed| run(seed) != run(0)));
}
