//! What the operator did lately. Nothing is decided wrongly without it: a new operator only asks once more.

use crate::{
    cluster::{ChildKind, CustomKind, Desired, Key},
    workload::{Obstacle, Refused},
};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Refusals of the API server, and when statuses were written. It holds at most one of each for an object that exists.
#[derive(Debug, Default)]
pub struct Memory {
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    refusals: BTreeMap<Object, Refusals>,
    told: BTreeMap<Object, Instant>,
}

/// An object of ours: its kind, and where it is.
type Object = (&'static str, Key);
/// What was refused of what an object wants, and when.
type Refusals = BTreeMap<(ChildKind, Key), (Refused, Instant)>;

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object that another one wants cannot be made; `there` is the identity of what is known to be in its place.
    pub fn refused<K: CustomKind>(&self, owner: &Key, wanted: &Desired, there: &str, why: Obstacle) {
        let refused = Refused {
            kind: wanted.kind,
            key: wanted.key.clone(),
            digest: wanted.digest(),
            there: there.to_owned(),
            why,
            ago: Duration::ZERO,
        };
        let mut notes = self.lock();
        let of_owner = notes.refusals.entry((K::KIND, owner.clone())).or_default();
        of_owner.insert((wanted.kind, wanted.key.clone()), (refused, Instant::now()));
    }

    /// It could be made.
    pub fn taken<K: CustomKind>(&self, owner: &Key, wanted: &Desired) {
        let mut notes = self.lock();
        let at = (K::KIND, owner.clone());
        if let Some(of_owner) = notes.refusals.get_mut(&at) {
            of_owner.remove(&(wanted.kind, wanted.key.clone()));
            if of_owner.is_empty() {
                notes.refusals.remove(&at);
            }
        }
    }

    /// What could not be made of what an object wants.
    pub fn refusals<K: CustomKind>(&self, owner: &Key) -> Vec<Refused> {
        let notes = self.lock();
        let of_owner = notes.refusals.get(&(K::KIND, owner.clone()));
        let all = of_owner.into_iter().flatten();
        all.map(|(_, (refused, at))| Refused { ago: at.elapsed(), ..refused.clone() }).collect()
    }

    /// An object's status was written.
    pub fn told<K: CustomKind>(&self, object: &Key) {
        self.lock().told.insert((K::KIND, object.clone()), Instant::now());
    }

    /// How long ago that was.
    pub fn told_ago<K: CustomKind>(&self, object: &Key) -> Option<Duration> {
        self.lock().told.get(&(K::KIND, object.clone())).map(Instant::elapsed)
    }

    /// An object is gone.
    pub fn forget<K: CustomKind>(&self, object: &Key) {
        let at = (K::KIND, object.clone());
        let mut notes = self.lock();
        notes.refusals.remove(&at);
        notes.told.remove(&at);
    }
}
