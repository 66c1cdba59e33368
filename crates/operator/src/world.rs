//! Everything that is known here: what the API server said, and what the schedulers said.

use crate::{
    cluster::{
        Cache, Child, ChildKind, Custom, Experiment, Model, Pipeline, SeldonConfig, SeldonRuntime, Server,
        ServerConfig,
    },
    memory::Memory,
    schedulers::Book,
    settings::Settings,
};
use std::{collections::BTreeMap, sync::Arc};

/// Caches, kept by watches; controllers decide from nothing else.
#[derive(Debug)]
pub struct World {
    /// What the operator was told to do.
    pub settings: Settings,
    /// Models.
    pub models: Arc<Cache<Custom<Model>>>,
    /// Servers.
    pub servers: Arc<Cache<Custom<Server>>>,
    /// What servers are made of.
    pub server_configs: Arc<Cache<Custom<ServerConfig>>>,
    /// Runtimes.
    pub runtimes: Arc<Cache<Custom<SeldonRuntime>>>,
    /// What runtimes are made of.
    pub configs: Arc<Cache<Custom<SeldonConfig>>>,
    /// Pipelines.
    pub pipelines: Arc<Cache<Custom<Pipeline>>>,
    /// Experiments.
    pub experiments: Arc<Cache<Custom<Experiment>>>,
    /// Autoscalers, ours or not: what they scale is theirs.
    pub autoscalers: Arc<Cache<Child>>,
    children: BTreeMap<ChildKind, Arc<Cache<Child>>>,
    none: Cache<Child>,
    /// What the schedulers said.
    pub schedulers: Arc<Book>,
    /// What was done lately.
    pub memory: Memory,
}

impl World {
    /// A world of which nothing is known yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            models: Arc::default(),
            servers: Arc::default(),
            server_configs: Arc::default(),
            runtimes: Arc::default(),
            configs: Arc::default(),
            pipelines: Arc::default(),
            experiments: Arc::default(),
            autoscalers: Arc::default(),
            children: ChildKind::ALL.map(|kind| (kind, Arc::default())).into_iter().collect(),
            none: Cache::default(),
            schedulers: Arc::default(),
            memory: Memory::default(),
        }
    }

    /// Our objects of one of Kubernetes' kinds.
    pub fn children(&self, kind: ChildKind) -> &Cache<Child> {
        self.children.get(&kind).map_or(&self.none, Arc::as_ref)
    }

    /// The same, to be kept by a watch.
    pub(crate) fn children_cache(&self, kind: ChildKind) -> Arc<Cache<Child>> {
        self.children.get(&kind).cloned().unwrap_or_default()
    }
}
