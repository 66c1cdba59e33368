//! Everything that a decision about a model is made from.

use crate::{
    cluster::{Custom, CustomKind as _, Key, Model},
    plan::Known,
    schedulers::{Asked, ModelView},
    world::World,
};
use std::{sync::Arc, time::Duration};

/// A model as it is asked for, and as its scheduler has it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Which model.
    pub key: Key,
    /// The object; `None` when it is gone.
    pub object: Option<Arc<Custom<Model>>>,
    /// The scheduler's word.
    pub scheduler: Known<ModelView>,
    /// Whether the namespace has a scheduler at all.
    pub has_scheduler: bool,
    /// How long the scheduler has been silent.
    pub silence: Option<Duration>,
    /// What was asked of the scheduler last, and how long ago.
    pub asked: Option<(Asked, Duration)>,
}

pub(super) fn observe(world: &World, key: &Key) -> Snapshot {
    Snapshot {
        key: key.clone(),
        object: world.models.get(key),
        scheduler: world.schedulers.known_model(key),
        has_scheduler: world.schedulers.has_scheduler(&key.namespace),
        silence: world.schedulers.silence(&key.namespace),
        asked: world.schedulers.last_asked(Model::KIND, key),
    }
}
