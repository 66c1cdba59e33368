//! Everything that a decision about a Server is made from.

use crate::{
    cluster::{ChildKind, Custom, CustomKind as _, Key, Server, ServerConfig},
    plan::Known,
    schedulers::{Asked, ServerView},
    workload::{Family, Refused, autoscalers, digest_of_live},
    world::World,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A Server as it is asked for, what there is of it, and its scheduler's word.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Which Server.
    pub key: Key,
    /// The object; `None` when it is gone.
    pub object: Option<Arc<Custom<Server>>>,
    /// The `ServerConfig` that it names.
    pub config: Option<Arc<Custom<ServerConfig>>>,
    /// Where that is looked up.
    pub config_namespace: String,
    /// The image of containers that name none.
    pub image: String,
    /// Whether Servers are Deployments.
    pub use_deployments: bool,
    /// What belongs to the Server.
    pub family: Family,
    /// What the `ConfigMaps` of the namespace's runtime hold, by name.
    pub config_maps: BTreeMap<String, String>,
    /// The autoscaler of its workload.
    pub autoscaler: Option<String>,
    /// The scheduler's word.
    pub scheduler: Known<ServerView>,
    /// How long the scheduler has been silent; `None` when it is heard, or when there is none.
    pub silence: Option<Duration>,
    /// What was asked of the scheduler last, and how long ago.
    pub asked: Option<(Asked, Duration)>,
    /// What the API server would not take.
    pub refusals: Vec<Refused>,
    /// How long ago a status was written.
    pub told: Option<Duration>,
}

impl Snapshot {
    /// The kind of object that holds a Server's pods.
    pub const fn workload(&self) -> ChildKind {
        if self.use_deployments { ChildKind::Deployment } else { ChildKind::StatefulSet }
    }
}

pub(super) fn observe(world: &World, key: &Key) -> Snapshot {
    let settings = &world.settings;
    let object = world.servers.get(key);
    let named = object.as_ref().and_then(|o| o.spec.as_ref().ok()).map(|spec| spec.server_config.clone());
    let config = named.and_then(|name| world.server_configs.get(&Key::new(settings.namespace.clone(), name)));
    let workload = if settings.use_deployments { ChildKind::Deployment } else { ChildKind::StatefulSet };
    let config_maps = world.children(ChildKind::ConfigMap).in_namespace(&key.namespace);
    Snapshot {
        key: key.clone(),
        family: Family::of(world, &key.namespace, object.as_ref().map_or("", |o| o.uid())),
        object,
        config,
        config_namespace: settings.namespace.clone(),
        image: settings.image.clone(),
        use_deployments: settings.use_deployments,
        config_maps: config_maps
            .iter()
            .filter_map(|map| Some((map.metadata.name.clone()?, digest_of_live(map))))
            .collect(),
        autoscaler: autoscalers(&world.autoscalers, &key.namespace)
            .remove(&(workload.name().to_owned(), key.name.clone())),
        scheduler: world.schedulers.known_server(key),
        silence: world.schedulers.silence(&key.namespace),
        asked: world.schedulers.last_asked(Server::KIND, key),
        refusals: world.memory.refusals::<Server>(key),
        told: world.memory.told_ago::<Server>(key),
    }
}
