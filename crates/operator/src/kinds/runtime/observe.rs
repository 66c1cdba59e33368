//! Everything that a decision about a runtime is made from.

use crate::{
    cluster::{Custom, Key, SeldonConfig, SeldonRuntime},
    workload::{Family, Refused, autoscalers},
    world::World,
};
use std::{collections::BTreeMap, sync::Arc};

/// A runtime as it is asked for, and what there is of it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Which runtime.
    pub key: Key,
    /// The object; `None` when it is gone.
    pub object: Option<Arc<Custom<SeldonRuntime>>>,
    /// The `SeldonConfig` that it names.
    pub config: Option<Arc<Custom<SeldonConfig>>>,
    /// Where that is looked up.
    pub config_namespace: String,
    /// The image of containers that name none.
    pub image: String,
    /// What belongs to the runtime.
    pub family: Family,
    /// The autoscalers of the namespace, by the kind and the name of what they scale.
    pub autoscalers: BTreeMap<(String, String), String>,
    /// Servers of the namespace that nobody deleted.
    pub servers: Vec<String>,
    /// The runtime that was first in the namespace, if it is not this one.
    pub first: Option<String>,
    /// What the API server would not take.
    pub refusals: Vec<Refused>,
}

pub(super) fn observe(world: &World, key: &Key) -> Snapshot {
    let settings = &world.settings;
    let object = world.runtimes.get(key);
    let named = object.as_ref().and_then(|o| o.spec.as_ref().ok()).map(|spec| spec.seldon_config.clone());
    let config = named.and_then(|name| world.configs.get(&Key::new(settings.namespace.clone(), name)));
    let servers = world.servers.in_namespace(&key.namespace);
    Snapshot {
        key: key.clone(),
        family: Family::of(world, &key.namespace, object.as_ref().map_or("", |o| o.uid())),
        object,
        config,
        config_namespace: settings.namespace.clone(),
        image: settings.image.clone(),
        autoscalers: autoscalers(&world.autoscalers, &key.namespace),
        servers: servers.iter().filter(|s| !s.is_deleted()).map(|s| s.key().name).collect(),
        first: first(&world.runtimes.in_namespace(&key.namespace)).filter(|name| *name != key.name),
        refusals: world.memory.refusals::<SeldonRuntime>(key),
    }
}

/// The oldest runtime of a namespace that stays; of two that are as old, the first by name.
fn first(runtimes: &[Arc<Custom<SeldonRuntime>>]) -> Option<String> {
    let staying = runtimes.iter().filter(|runtime| !runtime.is_deleted());
    let age = |runtime: &&Arc<Custom<SeldonRuntime>>| {
        (runtime.metadata.creation_timestamp.as_ref().map(|time| time.0), runtime.key().name)
    };
    staying.min_by_key(age).map(|runtime| runtime.key().name)
}
