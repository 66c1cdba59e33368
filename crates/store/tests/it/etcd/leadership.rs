//! Who leads, and what is stored.

use super::{Etcd, runtime};
use crate::{apply, batch, models, put};
use gantry_store::{Change, StoreError, Table};
use std::collections::BTreeMap;

#[test]
fn records_and_state_id_pass_from_leader_to_leader() {
    let Some(etcd) = Etcd::start("records_and_state_id_pass_from_leader_to_leader", 1, &[]) else { return };
    let runtime = runtime();
    let (first, second) = (etcd.candidate("first"), etcd.candidate("second"));
    let (store, leadership) = runtime.block_on(first.campaign()).unwrap();
    let mut expected = BTreeMap::new();
    for n in 0..20 {
        store.commit(&batch(n)).unwrap();
        apply(&mut expected, &batch(n));
        assert_eq!(models(&store), expected);
    }
    let (epoch, state_id) = (store.epoch(), store.state_id());
    assert!(state_id != 0);
    drop(store);
    runtime.block_on(leadership.resign());
    let (store, _leadership) = runtime.block_on(second.campaign()).unwrap();
    assert_eq!(models(&store), expected);
    assert!(store.epoch() > epoch);
    assert_eq!(store.state_id(), state_id);
}

#[test]
fn batches_beyond_a_transaction_are_stored_completely() {
    let Some(etcd) = Etcd::start("batches_beyond_a_transaction_are_stored_completely", 1, &[]) else {
        return;
    };
    let runtime = runtime();
    let candidate = etcd.candidate("first");
    let (store, leadership) = runtime.block_on(candidate.campaign()).unwrap();
    let many: Vec<Change> = (0..1000).map(|n| put(&format!("m{n:04}"), vec![n as u8; 3000])).collect();
    store.commit(&many).unwrap();
    // The last change of a key counts, and the empty key is one.
    store.commit(&[put("a", "1"), put("a", "2"), put("", "3")]).unwrap();
    let found = models(&store);
    assert_eq!(found.len(), 1002);
    assert_eq!((&found["a"][..], &found[""][..]), (&b"2"[..], &b"3"[..]));
    let error = store.commit(&[put("b", "1"), put("large", vec![0; 3 << 20])]).unwrap_err();
    assert!(error.to_string().contains("record `large` of table `models` has 3072 KiB"), "{error}");
    assert_eq!(models(&store), found, "nothing of the batch");
    drop(store);
    runtime.block_on(leadership.resign());
    let (store, _leadership) = runtime.block_on(candidate.campaign()).unwrap();
    assert_eq!(models(&store), found);
    assert!(store.read(Table::Servers).unwrap().is_empty());
}

#[test]
fn leader_that_was_replaced_writes_nothing() {
    let Some(etcd) = Etcd::start("leader_that_was_replaced_writes_nothing", 1, &[]) else { return };
    let runtime = runtime();
    let (first, second) = (etcd.candidate("first"), etcd.candidate("second"));
    let (old, leadership) = runtime.block_on(first.campaign()).unwrap();
    old.commit(&batch(1)).unwrap();
    // The lease expires: nothing renews it.
    let ended = runtime.block_on(async {
        leadership.stop_renewing();
        leadership.ended().await
    });
    assert!(ended.contains("not renewed"), "{ended}");
    let (new, _leadership) = runtime.block_on(second.campaign()).unwrap();
    let expected = models(&new);
    let error = old.commit(&batch(2)).unwrap_err();
    assert!(matches!(error, StoreError::Lost { unknown: false, .. }), "{error}");
    assert!(old.check().unwrap_err().is_lost());
    new.commit(&batch(3)).unwrap();
    let mut expected = expected;
    apply(&mut expected, &batch(3));
    assert_eq!(models(&new), expected);
}

/// etcd applies the write that exceeds its quota, and answers that it has no space.
#[test]
fn quota_rejects_changes_and_loses_none() {
    let test = "quota_rejects_changes_and_loses_none";
    let Some(etcd) = Etcd::start(test, 1, &["--quota-backend-bytes", "4000000"]) else { return };
    let runtime = runtime();
    let (store, _leadership) = runtime.block_on(etcd.candidate("first").campaign()).unwrap();
    let mut expected = BTreeMap::new();
    let mut refused = 0;
    for n in 0..40_u8 {
        let change = [put(&format!("m{n}"), vec![n; 300_000])];
        match store.commit(&change) {
            Ok(()) => apply(&mut expected, &change),
            Err(error) => {
                assert!(error.is_full() && error.to_string().contains("etcdctl alarm disarm"), "{error}");
                refused += 1;
            }
        }
        assert_eq!(models(&store), expected, "after {n}");
        if refused == 3 {
            break;
        }
    }
    assert!(refused == 3 && expected.len() > 3, "{refused} refused, {} stored", expected.len());
    store.check().unwrap();
}
