//! Input of a plan.

use super::Scheduled;
use crate::{
    caches::Caches,
    cluster::{Custom, Key},
    plan::Known,
    schedulers::LastRequest,
};
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct Snapshot<K: Scheduled> {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<K>>>,
    /// The object as its scheduler has it.
    pub scheduler: Known<K::View>,
    pub has_scheduler: bool,
    /// Time since the scheduler became unreachable.
    pub unreachable_for: Option<Duration>,
    /// The last request to the scheduler for this object, and its age.
    pub last_request: Option<(LastRequest, Duration)>,
    /// Time since the last status write, for kinds that pace them.
    pub status_age: Option<Duration>,
    pub facts: K::Facts,
}

impl<K: Scheduled> Snapshot<K> {
    pub(in crate::controllers) fn take(caches: &Caches, key: &Key) -> Self {
        Self {
            key: key.clone(),
            object: caches.of::<K>().get(key),
            scheduler: caches.schedulers.get(key),
            has_scheduler: caches.schedulers.has_scheduler(&key.namespace),
            unreachable_for: caches.schedulers.unreachable_for(&key.namespace),
            last_request: caches.schedulers.last_request::<K>(key),
            status_age: caches.recent_failures.status_age::<K>(key),
            facts: K::facts(caches, key),
        }
    }
}
