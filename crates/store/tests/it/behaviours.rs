//! What both implementations of the store have in common.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_store::etcd::{
    Candidate, Leadership, Location, Settings, fake::FakeEtcd, test_cluster::TestCluster,
};
use gantry_store::{Change, Store, Table};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{apply, batch, models, put, remove};

/// A state that can be opened again and again.
enum Fixture {
    Embedded(TempDir),
    Etcd { location: Location, runtime: Box<Runtime>, _cluster: Option<Box<(TestCluster, TempDir)>> },
}

/// An open store, and what it needs to live.
struct Opened {
    store: Store,
    leads: Option<(Candidate, Leadership)>,
}

impl Fixture {
    /// Every implementation that is there.
    fn all(test: &str) -> Vec<(&'static str, Self)> {
        let mut fixtures = vec![("embedded", Self::Embedded(tempfile::tempdir().unwrap()))];
        let runtime =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let location = |endpoints| Location { endpoints, prefix: "/test".into() };
        let simulated = runtime();
        let address = simulated.block_on(FakeEtcd::default().serve()).unwrap();
        let etcd = Self::Etcd {
            location: location(vec![address.to_string()]),
            runtime: Box::new(simulated),
            _cluster: None,
        };
        fixtures.push(("simulated etcd", etcd));
        if let Some(program) = TestCluster::program(test) {
            let directory = tempfile::tempdir().unwrap();
            let cluster = TestCluster::start(&program, directory.path(), 1, &[]).unwrap();
            let location = location(cluster.endpoints());
            let cluster = Some(Box::new((cluster, directory)));
            fixtures.push(("etcd", Self::Etcd { location, runtime: Box::new(runtime()), _cluster: cluster }));
        }
        fixtures
    }

    fn open(&self) -> Opened {
        match self {
            Self::Embedded(directory) => {
                Opened { store: Store::open(directory.path()).unwrap(), leads: None }
            }
            Self::Etcd { location, runtime, .. } => {
                let (location, lease) = (location.clone(), Duration::from_secs(2));
                let settings =
                    Settings { location, tls: None, credentials: None, name: "test".into(), lease };
                let candidate = Candidate::start(settings).unwrap();
                let (store, leadership) = runtime.block_on(candidate.campaign()).unwrap();
                Opened { store, leads: Some((candidate, leadership)) }
            }
        }
    }

    fn close(&self, Opened { store, leads }: Opened) {
        drop(store);
        if let (Self::Etcd { runtime, .. }, Some((_candidate, leadership))) = (self, leads) {
            runtime.block_on(leadership.resign());
        }
    }
}

#[test]
fn both_implementations_keep_the_contract() {
    for (name, fixture) in Fixture::all("both_implementations_keep_the_contract") {
        let opened = fixture.open();
        let (epoch, state_id) = (opened.store.epoch(), opened.store.state_id());
        assert!(epoch > 0 && state_id != 0, "{name}");
        for table in Table::ALL {
            assert!(opened.store.read(table).unwrap().is_empty(), "{name}: a new state is empty");
        }
        opened.store.commit(&[]).unwrap();

        // Batches are applied in order, within a batch the last change of a key counts.
        let mut expected = BTreeMap::new();
        for n in 0..10 {
            opened.store.commit(&batch(n)).unwrap();
            apply(&mut expected, &batch(n));
            assert_eq!(models(&opened.store), expected, "{name}");
        }
        let twice = [put("twice", "1"), remove("twice"), put("twice", "2"), put("gone", "1"), remove("gone")];
        opened.store.commit(&twice).unwrap();
        apply(&mut expected, &twice);
        assert_eq!(models(&opened.store), expected, "{name}");
        opened.store.commit(&[remove("never was")]).unwrap();

        // Any key and any value.
        let odd = [put("", ""), put("a/b", vec![0, 255]), put("Grüße \u{10ffff}", vec![7; 100_000])];
        opened.store.commit(&odd).unwrap();
        apply(&mut expected, &odd);

        // Tables are separate.
        let same = |table| Change { table, key: "same".into(), value: Some(table.name().into()) };
        opened.store.commit(&Table::ALL.map(same)).unwrap();
        apply(&mut expected, &[same(Table::Models)]);

        // More than one transaction of etcd takes.
        let many: Vec<Change> = (0..500).map(|n| put(&format!("many-{n}"), vec![n as u8; 500])).collect();
        opened.store.commit(&many).unwrap();
        apply(&mut expected, &many);
        assert_eq!(models(&opened.store), expected, "{name}");
        opened.store.check().unwrap();
        fixture.close(opened);

        let opened = fixture.open();
        assert!(opened.store.epoch() > epoch, "{name}");
        assert_eq!(opened.store.state_id(), state_id, "{name}");
        assert_eq!(models(&opened.store), expected, "{name}: after it was opened again");
        let keys: Vec<_> =
            opened.store.read(Table::Models).unwrap().into_iter().map(|(key, _)| key).collect();
        assert!(keys.is_sorted(), "{name}");
        for table in Table::ALL.into_iter().filter(|table| *table != Table::Models) {
            let records = opened.store.read(table).unwrap();
            assert_eq!(records, [("same".to_owned(), table.name().as_bytes().to_vec())], "{name}");
        }
        let all: Vec<Change> = expected.keys().map(|key| remove(key)).collect();
        opened.store.commit(&all).unwrap();
        assert!(models(&opened.store).is_empty(), "{name}");
        fixture.close(opened);
    }
}
