//! Rejected applies and status write times, in memory. Safe to lose: costs one extra attempt.

use crate::{
    cluster::{CustomKind, Desired, Key, KindId, ResourceKind},
    workload::{ApplyFailure, FailureCause},
};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// At most one entry per desired object, and one status write time per custom resource.
#[derive(Debug, Default)]
pub struct RecentFailures {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    failures: BTreeMap<Owner, Failures>,
    status_writes: BTreeMap<Owner, Instant>,
}

type Owner = (KindId, Key);
type Failures = BTreeMap<(ResourceKind, Key), (ApplyFailure, Instant)>;

fn owner<K: CustomKind>(key: &Key) -> Owner {
    (KindId::of::<K>(), key.clone())
}

impl RecentFailures {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a rejected apply; `live_uid` is the UID of the cached object of that name.
    pub fn record<K: CustomKind>(&self, key: &Key, desired: &Desired, live_uid: &str, cause: FailureCause) {
        let failure = ApplyFailure {
            kind: desired.kind,
            key: desired.key.clone(),
            digest: desired.digest(),
            live_uid: live_uid.to_owned(),
            cause,
            age: Duration::ZERO,
        };
        let mut entries = self.lock();
        let failures = entries.failures.entry(owner::<K>(key)).or_default();
        failures.insert((desired.kind, desired.key.clone()), (failure, Instant::now()));
    }

    /// Forgets the rejection of an object that is applied now.
    pub fn clear<K: CustomKind>(&self, key: &Key, desired: &Desired) {
        let mut entries = self.lock();
        let owner = owner::<K>(key);
        if let Some(failures) = entries.failures.get_mut(&owner) {
            failures.remove(&(desired.kind, desired.key.clone()));
            if failures.is_empty() {
                entries.failures.remove(&owner);
            }
        }
    }

    /// Rejected applies of an owner.
    pub fn of<K: CustomKind>(&self, key: &Key) -> Vec<ApplyFailure> {
        let entries = self.lock();
        let failures = entries.failures.get(&owner::<K>(key)).into_iter().flatten();
        failures.map(|(_, (failure, at))| ApplyFailure { age: at.elapsed(), ..failure.clone() }).collect()
    }

    pub fn status_written<K: CustomKind>(&self, key: &Key) {
        self.lock().status_writes.insert(owner::<K>(key), Instant::now());
    }

    /// Time since the last status write.
    pub fn status_age<K: CustomKind>(&self, key: &Key) -> Option<Duration> {
        self.lock().status_writes.get(&owner::<K>(key)).map(Instant::elapsed)
    }

    /// Forgets a deleted owner.
    pub fn forget<K: CustomKind>(&self, key: &Key) {
        let owner = owner::<K>(key);
        let mut entries = self.lock();
        entries.failures.remove(&owner);
        entries.status_writes.remove(&owner);
    }
}
