//! Read model: immutable per-object snapshots, republished after each commit.
//!
//! The engine owns the state and publishes one snapshot per object. Readers keep a snapshot as long as they
//! like; the engine waits for them only during a lookup by name.

use crate::{convert, definitions::Definitions, metrics::Metrics, status};
use gantry_core::scheduling::{
    Effects, Experiment, Model, Pipeline, PolicyRecord, ReplicaId, RolloutKind, Service, State, Version,
    VersionStatus,
};
use gantry_proto::{gantry as own, scheduler as pb};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

type Snapshots<T> = RwLock<BTreeMap<Arc<str>, Arc<T>>>;

#[derive(Debug)]
pub(crate) struct ModelSnapshot {
    pub(crate) model: Model,
    /// Encoded definitions, one for each version.
    pub(crate) definitions: Vec<Arc<[u8]>>,
    pub(crate) summary: Option<VersionStatus>,
    /// `None` when gateways must not know the model.
    pub(crate) route: Option<own::Route>,
}

#[derive(Debug)]
pub(crate) struct ServerSnapshot {
    pub(crate) status: pb::ServerStatusResponse,
    /// Replicas requested by autoscaling.
    pub(crate) requested: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct PipelineSnapshot {
    pub(crate) pipeline: Pipeline,
    /// Encoded definitions, one for each version.
    pub(crate) definitions: Vec<Arc<[u8]>>,
}

#[derive(Debug)]
pub(crate) struct ExperimentSnapshot {
    pub(crate) experiment: Experiment,
    /// Encoded.
    pub(crate) definition: Arc<[u8]>,
}

#[derive(Debug)]
pub(crate) struct ServiceSnapshot {
    pub(crate) service: Service,
    /// Why it is not admitted, if it is not.
    pub(crate) obstacle: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct ReadModel {
    models: Snapshots<ModelSnapshot>,
    servers: Snapshots<ServerSnapshot>,
    pipelines: Snapshots<PipelineSnapshot>,
    experiments: Snapshots<ExperimentSnapshot>,
    services: Snapshots<ServiceSnapshot>,
    policies: Snapshots<PolicyRecord>,
    sequence: AtomicU64,
}

fn read<T>(parts: &Snapshots<T>) -> RwLockReadGuard<'_, BTreeMap<Arc<str>, Arc<T>>> {
    // Poisoning is harmless: every change is a single insertion.
    parts.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(parts: &Snapshots<T>) -> RwLockWriteGuard<'_, BTreeMap<Arc<str>, Arc<T>>> {
    parts.write().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces or removes a snapshot, and returns the previous one.
fn replace<T>(parts: &Snapshots<T>, name: &Arc<str>, part: Option<Arc<T>>) -> Option<Arc<T>> {
    let mut parts = write(parts);
    match part {
        Some(part) => parts.insert(name.clone(), part),
        None => parts.remove(name),
    }
}

impl ReadModel {
    pub(crate) fn model(&self, name: &str) -> Option<Arc<ModelSnapshot>> {
        read(&self.models).get(name).cloned()
    }

    pub(crate) fn server(&self, name: &str) -> Option<Arc<ServerSnapshot>> {
        read(&self.servers).get(name).cloned()
    }

    pub(crate) fn pipeline(&self, name: &str) -> Option<Arc<PipelineSnapshot>> {
        read(&self.pipelines).get(name).cloned()
    }

    pub(crate) fn experiment(&self, name: &str) -> Option<Arc<ExperimentSnapshot>> {
        read(&self.experiments).get(name).cloned()
    }

    pub(crate) fn service(&self, name: &str) -> Option<Arc<ServiceSnapshot>> {
        read(&self.services).get(name).cloned()
    }

    pub(crate) fn policy(&self, name: &str) -> Option<Arc<PolicyRecord>> {
        read(&self.policies).get(name).cloned()
    }

    pub(crate) fn policies(&self) -> Vec<Arc<str>> {
        read(&self.policies).keys().cloned().collect()
    }

    /// All pipelines, as of one moment.
    pub(crate) fn pipeline_snapshots(&self) -> Vec<(Arc<str>, Arc<PipelineSnapshot>)> {
        read(&self.pipelines).iter().map(|(name, view)| (name.clone(), view.clone())).collect()
    }

    /// All experiments, as of one moment.
    pub(crate) fn experiment_snapshots(&self) -> Vec<Arc<ExperimentSnapshot>> {
        read(&self.experiments).values().cloned().collect()
    }

    pub(crate) fn pipelines(&self) -> Vec<Arc<str>> {
        read(&self.pipelines).keys().cloned().collect()
    }

    pub(crate) fn experiments(&self) -> Vec<Arc<str>> {
        read(&self.experiments).keys().cloned().collect()
    }

    pub(crate) fn services(&self) -> Vec<Arc<str>> {
        read(&self.services).keys().cloned().collect()
    }

    pub(crate) fn models(&self) -> Vec<Arc<str>> {
        read(&self.models).keys().cloned().collect()
    }

    pub(crate) fn servers(&self) -> Vec<Arc<str>> {
        read(&self.servers).keys().cloned().collect()
    }

    /// Sequence number of the last published route change.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }
}

/// Updates the read model and the metrics derived from it.
pub(crate) struct Publisher {
    read_model: Arc<ReadModel>,
    metrics: Arc<Metrics>,
    /// Routed model replicas by server replica.
    loaded: BTreeMap<ReplicaId, usize>,
}

impl Publisher {
    pub(crate) fn new(read_model: Arc<ReadModel>, metrics: Arc<Metrics>) -> Self {
        Self { read_model, metrics, loaded: BTreeMap::new() }
    }

    pub(crate) fn publish_all(&mut self, state: &State, definitions: &Definitions) {
        let everything = Effects {
            models: state.models().keys().cloned().collect(),
            servers: state.servers().keys().cloned().collect(),
            pipelines: state.pipelines().keys().cloned().collect(),
            experiments: state.experiments().keys().cloned().collect(),
            services: state.services().keys().cloned().collect(),
            store_rollout_policies: state.rollout_policies().keys().cloned().collect(),
            ..Effects::default()
        };
        self.publish(state, definitions, &everything);
    }

    /// Publishes changed objects.
    pub(crate) fn publish(&mut self, state: &State, definitions: &Definitions, effects: &Effects) {
        let names: BTreeSet<&Arc<str>> = effects
            .models
            .iter()
            .chain(&effects.routes)
            .chain(with_rollout(effects, RolloutKind::Model))
            .collect();
        let parts: Vec<_> =
            names.into_iter().map(|name| (name, model_snapshot(name, state, definitions))).collect();
        for (name, part) in parts {
            let before = replace(&self.read_model.models, name, part.clone());
            self.count(before.as_deref(), part.as_deref());
        }
        self.publish_pipelines(state, definitions, effects);
        self.publish_experiments(state, definitions, effects);
        self.publish_services(state, effects);
        for name in &effects.store_rollout_policies {
            let part = state.rollout_policies().get(name).cloned().map(Arc::new);
            replace(&self.read_model.policies, name, part);
        }
        self.read_model.sequence.store(state.sequence(), Ordering::Release);
        for name in effects.servers.iter().chain(effects.scale_servers.keys()) {
            let part = state.servers().get(name).map(|server| {
                let loaded = |index| {
                    let id = ReplicaId { server: name.clone(), index };
                    self.loaded.get(&id).copied().unwrap_or(0)
                };
                Arc::new(ServerSnapshot {
                    status: status::server(name, server, loaded),
                    requested: server.requested_replicas,
                })
            });
            let before = replace(&self.read_model.servers, name, part.clone());
            self.metrics
                .server_changed(before.as_deref().map(|s| &s.status), part.as_deref().map(|s| &s.status));
        }
    }

    fn publish_pipelines(&self, state: &State, definitions: &Definitions, effects: &Effects) {
        let changed = effects.pipelines.iter().chain(&effects.pipeline_routes);
        let names: BTreeSet<_> = changed.chain(with_rollout(effects, RolloutKind::Pipeline)).collect();
        for name in names {
            let part = state.pipelines().get(name).map(|pipeline| {
                let versions = pipeline.versions.iter();
                let encoded = versions.map(|v| definitions.pipeline(name, v.definition.content));
                let definitions = encoded.map(|bytes| bytes.cloned().unwrap_or_default()).collect();
                Arc::new(PipelineSnapshot { pipeline: pipeline.clone(), definitions })
            });
            let before = replace(&self.read_model.pipelines, name, part.clone());
            let shown = |part: Option<Arc<PipelineSnapshot>>| part.map(|part| part.pipeline.clone());
            let (before, after) = (shown(before), shown(part));
            self.metrics.pipeline_changed(before.as_ref(), after.as_ref());
            let [before, after] = [&before, &after].map(|p| p.as_ref()?.rollout.as_deref());
            self.metrics.rollouts.changed(RolloutKind::Pipeline, before, after);
        }
    }

    fn publish_experiments(&self, state: &State, definitions: &Definitions, effects: &Effects) {
        for name in effects.experiments.union(&effects.experiment_routes) {
            let part = state.experiments().get(name).map(|experiment| {
                let definition = definitions.experiment(name, experiment.definition.content).cloned();
                let definition = definition.unwrap_or_default();
                Arc::new(ExperimentSnapshot { experiment: experiment.clone(), definition })
            });
            let before = replace(&self.read_model.experiments, name, part.clone());
            let shown = |part: Option<Arc<ExperimentSnapshot>>| part.map(|part| part.experiment.clone());
            self.metrics.experiment_changed(shown(before).as_ref(), shown(part).as_ref());
        }
    }

    fn publish_services(&self, state: &State, effects: &Effects) {
        let with_rollout = with_rollout(effects, RolloutKind::Service);
        for name in effects.services.iter().chain(with_rollout).collect::<BTreeSet<_>>() {
            let part = state.services().get(name).map(|service| {
                Arc::new(ServiceSnapshot { service: service.clone(), obstacle: state.service_obstacle() })
            });
            let before = replace(&self.read_model.services, name, part.clone());
            let [before, after] = [&before, &part].map(|p| p.as_ref()?.service.rollout.as_deref());
            self.metrics.rollouts.changed(RolloutKind::Service, before, after);
        }
    }

    fn count(&mut self, before: Option<&ModelSnapshot>, after: Option<&ModelSnapshot>) {
        for id in before.into_iter().flat_map(routed) {
            if let Some(count) = self.loaded.get_mut(&id) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.loaded.remove(&id);
                }
            }
        }
        for id in after.into_iter().flat_map(routed) {
            *self.loaded.entry(id).or_default() += 1;
        }
        let state = |view: &ModelSnapshot| view.summary.as_ref().map(|s| s.state);
        self.metrics.model_changed(before.and_then(state), after.and_then(state));
        let [before, after] = [before, after].map(|view| view.and_then(|v| v.model.rollout.as_deref()));
        self.metrics.rollouts.changed(RolloutKind::Model, before, after);
    }
}

/// Objects of a kind whose rollout changed.
fn with_rollout(effects: &Effects, kind: RolloutKind) -> impl Iterator<Item = &Arc<str>> {
    effects.rollouts.iter().filter(move |target| target.kind == kind).map(|target| &target.name)
}

fn model_snapshot(name: &Arc<str>, state: &State, definitions: &Definitions) -> Option<Arc<ModelSnapshot>> {
    let model = state.models().get(name)?;
    let summary = model.latest().map(|v| model.version_status(v));
    let latest = model.latest().and_then(|v| definitions.model(&v.definition));
    let namespace = latest.map(|bytes| convert::service_namespace(bytes)).unwrap_or_default();
    let route = status::route(name, model, summary.as_ref(), state, namespace);
    let of_version = |v: &Version| definitions.model(&v.definition).cloned().unwrap_or_default();
    let definitions = model.versions.iter().map(of_version).collect();
    Some(Arc::new(ModelSnapshot { model: model.clone(), definitions, summary, route }))
}

fn routed(view: &ModelSnapshot) -> impl Iterator<Item = ReplicaId> + '_ {
    view.model.versions.iter().flat_map(Version::routed)
}
