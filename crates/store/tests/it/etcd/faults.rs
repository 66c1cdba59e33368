//! Writes that fail, arrive late, or whose answer is lost: the outcome is definite, and nothing is stored twice or partly.

use super::{candidate, runtime};
use crate::{apply, batch, models, put};
use gantry_store::etcd::{
    Candidate, Location,
    fake::{FakeEtcd, Fault},
};
use gantry_store::{Change, Store, StoreError};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

struct Setup {
    etcd: FakeEtcd,
    location: Location,
    runtime: Runtime,
}

impl Setup {
    fn start() -> Self {
        let (etcd, runtime) = (FakeEtcd::default(), runtime());
        let address = runtime.block_on(etcd.serve()).unwrap();
        let location = Location { endpoints: vec![address.to_string()], prefix: "/test".into() };
        Self { etcd, location, runtime }
    }

    fn candidate(&self, name: &str) -> Candidate {
        candidate(self.location.clone(), name)
    }
}

/// 300 records: more than one transaction takes.
fn large(n: u8) -> Vec<Change> {
    (0..300).map(|record| put(&format!("large-{record}"), vec![n; 100])).collect()
}

#[test]
fn unknown_outcomes_are_settled() {
    for fault in [Fault::Lost, Fault::AnswerLost, Fault::Late] {
        for second in [Fault::None, Fault::Lost, Fault::AnswerLost, Fault::Late] {
            let what = format!("{fault:?}, then {second:?}");
            let setup = Setup::start();
            let (store, _leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
            let mut expected = BTreeMap::new();
            store.commit(&batch(1)).unwrap();
            apply(&mut expected, &batch(1));
            setup.etcd.fail([fault, second]);
            store.commit(&batch(2)).unwrap_or_else(|error| panic!("{what}: {error}"));
            apply(&mut expected, &batch(2));
            assert_eq!(models(&store), expected, "{what}");
            // A record of the second batch.
            let newer = [put("model-14", "newer")];
            assert!(expected.contains_key("model-14"));
            store.commit(&newer).unwrap();
            apply(&mut expected, &newer);
            // What is still under way arrives now.
            setup.etcd.heal();
            assert_eq!(models(&store), expected, "{what}");
            store.commit(&batch(4)).unwrap();
        }
    }
}

#[test]
fn full_etcd_rejects_batches_and_recovers() {
    let setup = Setup::start();
    let (store, _leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
    let mut expected = BTreeMap::new();
    // etcd stores the batch that exceeds the quota, although it answers that it has no space.
    setup.etcd.fail([Fault::LastInQuota]);
    store.commit(&batch(1)).unwrap();
    apply(&mut expected, &batch(1));
    for _ in 0..3 {
        setup.etcd.fail([Fault::NoSpace]);
        let error = store.commit(&batch(2)).unwrap_err();
        assert!(error.is_full() && error.to_string().contains("etcdctl alarm disarm"), "{error}");
        assert_eq!(models(&store), expected);
    }
    setup.etcd.fail([Fault::Refused]);
    let error = store.commit(&batch(2)).unwrap_err();
    assert!(matches!(error, StoreError::Refused { full: false, .. }), "{error}");
    assert_eq!(models(&store), expected);
    store.commit(&batch(2)).unwrap();
    apply(&mut expected, &batch(2));
    assert_eq!(models(&store), expected);
}

#[test]
fn large_batch_that_is_refused_leaves_nothing() {
    for stage in 0..4 {
        let setup = Setup::start();
        let (store, _leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
        store.commit(&batch(1)).unwrap();
        let before = models(&store);
        setup.etcd.fail(std::iter::repeat_n(Fault::None, stage).chain([Fault::NoSpace]));
        let error = store.commit(&large(1)).unwrap_err();
        assert!(error.is_full(), "{error}");
        assert_eq!(models(&store), before);
        assert!(!setup.etcd.keys().iter().any(|key| key.contains("staged")), "{:?}", setup.etcd.keys());
    }
}

#[test]
fn committed_large_batch_is_completed_before_the_next_write() {
    let setup = Setup::start();
    let (store, _leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
    // Three staged groups, the commit, one copy; then there is no space.
    setup.etcd.fail(std::iter::repeat_n(Fault::None, 5).chain([Fault::NoSpace]));
    store.commit(&large(1)).unwrap();
    assert!(models(&store).len() < 300);
    store.commit(&[put("large-7", "newer")]).unwrap();
    let found = models(&store);
    assert_eq!((found.len(), &found["large-7"][..]), (300, &b"newer"[..]));
    assert!(!setup.etcd.keys().iter().any(|key| key.contains("staged") || key.contains("pending")));
}

/// One leader's write ends anywhere; the next leader finds all of it or nothing.
#[test]
fn batch_is_whole_or_absent_wherever_the_leader_stops() {
    for stop in 0..8 {
        for fault in [Fault::Down, Fault::AnswerLost] {
            let setup = Setup::start();
            let (store, leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
            store.commit(&large(1)).unwrap();
            let before = models(&store);
            let faults = std::iter::repeat_n(Fault::None, stop).chain([fault, Fault::Down]);
            setup.etcd.fail(faults);
            let result = store.commit(&large(2));
            let unknown = matches!(result, Err(StoreError::Lost { unknown: true, .. }));
            assert!(unknown || result.is_ok(), "stopped after {stop}: {result:?}");
            assert_eq!(store.check().is_err(), unknown);
            drop((store, leadership));
            setup.etcd.heal();
            setup.etcd.expire_leases();
            let (store, _leadership) = setup.runtime.block_on(setup.candidate("two").campaign()).unwrap();
            let mut after = before.clone();
            apply(&mut after, &large(2));
            let found = models(&store);
            assert!(found == after || (found == before && unknown), "stopped after {stop} by {fault:?}");
            assert!(!setup.etcd.keys().iter().any(|key| key.contains("staged")), "{:?}", setup.etcd.keys());
        }
    }
}

#[test]
fn unavailable_etcd_ends_leadership_and_a_standby_waits_for_it() {
    let setup = Setup::start();
    let (store, leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
    store.commit(&batch(1)).unwrap();
    let before = models(&store);
    setup.etcd.fail([Fault::Down]);
    let error = store.commit(&batch(2)).unwrap_err();
    assert!(matches!(error, StoreError::Lost { unknown: true, .. }), "{error}");
    let reason = setup.runtime.block_on(leadership.ended());
    assert!(reason.contains("did not confirm a write") || reason.contains("renewed"), "{reason}");
    let next = setup.candidate("two");
    let (found, reason) = setup.runtime.block_on(async {
        let mut reasons = next.reason();
        let unavailable = reasons.wait_for(|reason| reason.to_string().contains("is not available"));
        let reason = tokio::select! {
            reason = unavailable => reason.unwrap().to_string(),
            _ = next.campaign() => panic!("it leads without etcd"),
        };
        setup.etcd.heal();
        setup.etcd.expire_leases();
        let (store, leadership) = next.campaign().await.unwrap();
        (read(store, leadership).await, reason)
    });
    assert!(reason.contains("no leader"), "{reason}");
    assert_eq!(found, before, "the write was lost on its way");
}

async fn read(store: Store, leadership: gantry_store::etcd::Leadership) -> BTreeMap<String, Vec<u8>> {
    let found = tokio::task::spawn_blocking(move || models(&store)).await.unwrap();
    drop(leadership);
    found
}

#[test]
fn records_changed_by_another_program_end_leadership() {
    let setup = Setup::start();
    let one = setup.candidate("one");
    let (store, _leadership) = setup.runtime.block_on(one.campaign()).unwrap();
    store.commit(&batch(1)).unwrap();
    // Its key is gone, as after a deletion by hand.
    setup.etcd.expire_leases();
    let applied = setup.etcd.applied();
    let error = store.commit(&batch(2)).unwrap_err();
    assert!(matches!(error, StoreError::Lost { unknown: false, .. }), "{error}");
    assert_eq!(setup.etcd.applied(), applied, "nothing is written");
    assert!(store.check().is_err());
}

/// The old leader believes that its lease is valid: its clock stood still.
#[test]
fn replaced_leader_writes_nothing_although_its_clock_stopped() {
    let setup = Setup::start();
    let (old, _leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
    old.commit(&batch(1)).unwrap();
    setup.etcd.expire_leases();
    let applied = setup.etcd.applied();
    let error = old.commit(&[put("late", "1")]).unwrap_err();
    assert!(matches!(error, StoreError::Lost { unknown: false, .. }), "{error}");
    assert_eq!(setup.etcd.applied(), applied);
    let (new, _leadership) = setup.runtime.block_on(setup.candidate("two").campaign()).unwrap();
    assert!(!models(&new).contains_key("late"));
}

#[test]
fn suspended_leader_finds_its_lease_lost() {
    let setup = Setup::start();
    let (store, leadership) = setup.runtime.block_on(setup.candidate("one").campaign()).unwrap();
    store.check().unwrap();
    leadership.stop_renewing();
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.check().is_ok() {
        assert!(Instant::now() < deadline, "it leads for longer than its lease lasts");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(store.check().unwrap_err().is_lost());
}

#[test]
fn epoch_grows_with_each_leader() {
    let setup = Setup::start();
    let mut before = 0;
    for n in 0..3 {
        let candidate = setup.candidate(&format!("candidate {n}"));
        let (store, leadership) = setup.runtime.block_on(candidate.campaign()).unwrap();
        assert!(store.epoch() > before, "{} after {before}", store.epoch());
        before = store.epoch();
        drop(store);
        setup.runtime.block_on(leadership.resign());
    }
}
