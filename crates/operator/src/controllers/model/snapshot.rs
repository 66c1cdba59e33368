//! Input of a model's plan.

use crate::{
    caches::Caches,
    cluster::{Custom, Key, Model},
    plan::Known,
    schedulers::{LastRequest, ModelView},
};
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<Model>>>,
    /// The model as its scheduler has it.
    pub scheduler: Known<ModelView>,
    pub has_scheduler: bool,
    /// Time since the scheduler became unreachable.
    pub unreachable_for: Option<Duration>,
    /// The last request to the scheduler for this object, and its age.
    pub last_request: Option<(LastRequest, Duration)>,
}

impl Snapshot {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        Self {
            key: key.clone(),
            object: caches.of::<Model>().get(key),
            scheduler: caches.schedulers.get(key),
            has_scheduler: caches.schedulers.has_scheduler(&key.namespace),
            unreachable_for: caches.schedulers.unreachable_for(&key.namespace),
            last_request: caches.schedulers.last_request::<Model>(key),
        }
    }
}
