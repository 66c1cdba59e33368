//! Who is to look when something changes.

use crate::{
    cluster::{
        Change, Child, ChildKind, Custom, CustomKind as _, Key, SeldonConfig, SeldonRuntime, Server,
        ServerConfig,
    },
    queue::Queue,
    schedulers::News,
    world::World,
};
use gantry_core::mutant;
use std::sync::Arc;

/// One queue for each controller.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub(crate) models: Arc<Queue>,
    pub(crate) servers: Arc<Queue>,
    pub(crate) server_configs: Arc<Queue>,
    pub(crate) runtimes: Arc<Queue>,
    pub(crate) configs: Arc<Queue>,
    pub(crate) pipelines: Arc<Queue>,
    pub(crate) experiments: Arc<Queue>,
}

impl Queues {
    pub(crate) fn new(seed: u64) -> Self {
        let queue = |n: u64| Arc::new(Queue::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n)));
        Self {
            models: queue(1),
            servers: queue(2),
            server_configs: queue(3),
            runtimes: queue(4),
            configs: queue(5),
            pipelines: queue(6),
            experiments: queue(7),
        }
    }

    /// Everything is looked at again.
    pub(crate) fn all(&self, world: &World) {
        world.configs.all().iter().for_each(|o| self.configs.add(o.key()));
        world.server_configs.all().iter().for_each(|o| self.server_configs.add(o.key()));
        world.runtimes.all().iter().for_each(|o| self.runtimes.add(o.key()));
        world.servers.all().iter().for_each(|o| self.servers.add(o.key()));
        world.models.all().iter().for_each(|o| self.models.add(o.key()));
        world.pipelines.all().iter().for_each(|o| self.pipelines.add(o.key()));
        world.experiments.all().iter().for_each(|o| self.experiments.add(o.key()));
    }

    /// Everything of a namespace that its scheduler has a part in.
    pub(crate) fn namespace(&self, world: &World, namespace: &str) {
        world.runtimes.in_namespace(namespace).iter().for_each(|o| self.runtimes.add(o.key()));
        world.servers.in_namespace(namespace).iter().for_each(|o| self.servers.add(o.key()));
        world.models.in_namespace(namespace).iter().for_each(|o| self.models.add(o.key()));
        for name in world.schedulers.servers_of(namespace) {
            self.servers.add(Key::new(namespace, name));
        }
        for name in world.schedulers.models_of(namespace) {
            self.models.add(Key::new(namespace, name));
        }
    }

    /// A scheduler said something.
    pub(crate) fn news(&self, world: &World, namespace: &str, news: News) {
        match news {
            News::Model(name) => self.models.add(Key::new(namespace, name)),
            News::Server(name) => self.servers.add(Key::new(namespace, name)),
            News::Everything => self.namespace(world, namespace),
        }
    }

    /// A server changed. A runtime that is deleted waits for the last one to go.
    pub(crate) fn server(&self, world: &World, change: &Change<Custom<Server>>) {
        self.servers.add(change.key.clone());
        if change.after.as_ref().is_none_or(|server| server.is_deleted()) {
            world
                .runtimes
                .in_namespace(&change.key.namespace)
                .iter()
                .for_each(|o| self.runtimes.add(o.key()));
        }
    }

    /// A runtime changed. Another one in the namespace may have its turn.
    pub(crate) fn runtime(&self, world: &World, change: &Change<Custom<SeldonRuntime>>) {
        self.runtimes.add(change.key.clone());
        if change.after.as_ref().is_none_or(|runtime| runtime.is_deleted()) {
            world
                .runtimes
                .in_namespace(&change.key.namespace)
                .iter()
                .for_each(|o| self.runtimes.add(o.key()));
        }
    }

    /// What a kind of server is made of changed: so may the servers of that kind.
    pub(crate) fn server_config(&self, world: &World, change: &Change<Custom<ServerConfig>>) {
        self.server_configs.add(change.key.clone());
        for server in world.servers.all() {
            if server.spec.as_ref().is_ok_and(|s| s.server_config == change.key.name)
                && !mutant::is("does_not_tell_of_configurations")
            {
                self.servers.add(server.key());
            }
        }
    }

    /// What runtimes are made of changed.
    pub(crate) fn config(&self, world: &World, change: &Change<Custom<SeldonConfig>>) {
        self.configs.add(change.key.clone());
        for runtime in world.runtimes.all() {
            if runtime.spec.as_ref().is_ok_and(|s| s.seldon_config == change.key.name) {
                self.runtimes.add(runtime.key());
            }
        }
    }

    /// An object of ours changed: its owner looks.
    pub(crate) fn child(&self, world: &World, kind: ChildKind, change: &Change<Child>) {
        if kind == ChildKind::ConfigMap {
            // Servers may read it, whoever it belongs to.
            let namespace = &change.key.namespace;
            world.servers.in_namespace(namespace).iter().for_each(|o| self.servers.add(o.key()));
        }
        if mutant::is("does_not_tell_owners") {
            return;
        }
        for child in change.before.iter().chain(&change.after) {
            let owners = child.metadata.owner_references.iter().flatten();
            for owner in owners.filter(|o| o.controller == Some(true)) {
                let key = Key::new(change.key.namespace.clone(), owner.name.clone());
                match owner.kind.as_str() {
                    Server::KIND => self.servers.add(key),
                    SeldonRuntime::KIND => self.runtimes.add(key),
                    _ => {}
                }
            }
        }
    }

    /// An autoscaler changed: whatever it scales, or no longer does, is looked at.
    pub(crate) fn autoscaler(&self, world: &World, change: &Change<Child>) {
        let namespace = &change.key.namespace;
        world.servers.in_namespace(namespace).iter().for_each(|o| self.servers.add(o.key()));
        world.runtimes.in_namespace(namespace).iter().for_each(|o| self.runtimes.add(o.key()));
    }
}
