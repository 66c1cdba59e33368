//! Full disk and I/O errors.

use gantry_store::faulty_disk::{Disk, Fault};
use gantry_store::{Store, StoreError};

use crate::{batch, models, put};

#[test]
fn full_disk_rejects_batch_and_recovers() {
    let disk = Disk::new();
    let store = disk.open().unwrap();
    store.commit(&batch(1)).unwrap();
    let before = models(&store);
    disk.limit(disk.bytes().len());
    let large = put("large", vec![7; 4 << 20]);
    for _ in 0..3 {
        let error = store.commit(std::slice::from_ref(&large)).unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        assert!(
            error.to_string().contains("state.redb cannot be written, the disk is full: free space"),
            "{error}"
        );
        assert_eq!(models(&store), before, "a failed batch is absent, and reads work");
    }
    // Small writes still succeed.
    store.commit(&[put("small", "1")]).unwrap();
    disk.heal();
    store.commit(&[large]).unwrap();
    disk.crash(1);
    assert_eq!(models(&disk.open().unwrap()).len(), before.len() + 2);
}

#[test]
fn failed_batch_is_absent_whichever_write_failed() {
    for fault in [Fault::Full, Fault::Broken] {
        for good in 0.. {
            let disk = Disk::new();
            let store = disk.open().unwrap();
            store.commit(&batch(1)).unwrap();
            let before = models(&store);
            disk.fail_writes_after(good, fault);
            let result = store.commit(&batch(2));
            disk.heal();
            let Err(error) = result else {
                assert!(good > 3, "it fails at least a few times");
                break;
            };
            assert_eq!(matches!(error, StoreError::Full { .. }), fault == Fault::Full, "{error}");
            assert_eq!(models(&store), before, "{fault:?} after {good} writes");
            store.commit(&batch(3)).unwrap();
        }
    }
}

#[test]
fn batch_with_failed_sync_is_rolled_back() {
    let disk = Disk::new();
    let store = disk.open().unwrap();
    store.commit(&batch(1)).unwrap();
    let before = models(&store);
    disk.fail_syncs(Fault::Broken);
    let error = store.commit(&batch(2)).unwrap_err();
    assert!(matches!(error, StoreError::File { doing: "written", .. }), "{error}");
    assert!(store.commit(&batch(3)).is_err(), "the device is still broken");
    let counted = commits(&disk);
    disk.heal();
    // The batch is in the file, and is reverted at the next use.
    store.commit(&[put("after", "1")]).unwrap();
    assert!(commits(&disk) > counted, "the count never decreases");
    let mut expected = before;
    expected.insert("after".into(), b"1".to_vec());
    assert_eq!(models(&store), expected);
    drop(store);
    disk.crash(3);
    assert_eq!(models(&disk.open().unwrap()), expected);
}

fn commits(disk: &Disk) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let file = gantry_store::maintenance::file_of(dir.path());
    std::fs::write(&file, disk.bytes()).unwrap();
    gantry_store::maintenance::check(&file).unwrap().commits
}

/// Runs in a process with a file size limit: see the test below.
#[test]
#[ignore = "child process of `file_size_limit_is_reported_as_full`"]
fn child_with_file_size_limit() {
    let Ok(dir) = std::env::var("GANTRY_TEST_DIR") else { return };
    let store = Store::open(dir.as_ref()).unwrap();
    let mut written = 0;
    let error = loop {
        match store.commit(&[put(&format!("m{written}"), vec![1; 100_000])]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "there is a limit");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(models(&store).len(), written, "reads work");
    store.commit(&[crate::remove("m0"), crate::remove("m1")]).unwrap();
    assert_eq!(models(&store).len(), written - 2, "deleting records frees space");
    println!("kept {}", written - 2);
}

#[cfg(unix)]
#[test]
fn file_size_limit_is_reported_as_full() {
    let dir = tempfile::tempdir().unwrap();
    // The limit is in units of 512 or 1024 bytes, depending on the shell. SIGXFSZ is ignored, so that the write fails.
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$0\" --exact write_failures::child_with_file_size_limit --ignored --nocapture";
    let child = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("GANTRY_TEST_DIR", dir.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&child.stderr));
    let kept: usize =
        stdout.split("kept ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(models(&store).len(), kept);
    store.commit(&[put("large", vec![0; 4 << 20])]).unwrap();
}
