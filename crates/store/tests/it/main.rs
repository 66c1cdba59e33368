//! The store with failing disks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod behaviours;
mod corruption;
mod crashes;
mod etcd;
mod maintenance;
mod migration;
mod opening;
mod write_failures;

use std::collections::BTreeMap;

use gantry_store::{Change, Store, Table};

fn put(key: &str, value: impl Into<Vec<u8>>) -> Change {
    Change { table: Table::Models, key: key.into(), value: Some(value.into()) }
}

fn remove(key: &str) -> Change {
    Change { table: Table::Models, key: key.into(), value: None }
}

fn models(store: &Store) -> BTreeMap<String, Vec<u8>> {
    store.read(Table::Models).unwrap().into_iter().collect()
}

fn apply(map: &mut BTreeMap<String, Vec<u8>>, changes: &[Change]) {
    for change in changes {
        match &change.value {
            Some(value) => map.insert(change.key.clone(), value.clone()),
            None => map.remove(&change.key),
        };
    }
}

/// The `n`th batch: a few records of different sizes, some new, some changed, one removed.
fn batch(n: u64) -> Vec<Change> {
    let mut changes: Vec<Change> = (0..8)
        .map(|i| {
            let key = (n * 7 + i * i) % 60;
            put(&format!("model-{key}"), vec![n as u8; (n * 131 + i * 977) as usize % 3000])
        })
        .collect();
    changes.push(remove(&format!("model-{}", (n * 13) % 60)));
    changes
}
