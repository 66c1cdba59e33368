//! What pipelines and experiments depend on: an index from models and pipelines to their dependants.

use super::{
    Millis,
    command::Effects,
    experiment::{Experiment, Resource},
    model::{Model, ReplicaState, Version},
    owner::Kind,
    pipeline::Pipeline,
    state::State,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A model or pipeline that does not serve, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    pub name: Arc<str>,
    pub reason: String,
}

/// Whether gateways have a replica for its requests, or scale it up for them.
pub(super) fn serves(model: &Model) -> bool {
    !model.deleted
        && (model.versions.iter().any(|v| v.any(ReplicaState::is_routed))
            || model.latest().is_some_and(Version::scaled_to_zero))
}

pub(super) fn unready_model(models: &BTreeMap<Arc<str>, Model>, name: &Arc<str>) -> Option<Unready> {
    let model = models.get(name).filter(|m| !m.deleted);
    if model.is_some_and(serves) {
        return None;
    }
    let reason = match model.and_then(|m| m.latest().map(|v| m.version_status(v).reason)) {
        None => format!("model {name} does not exist"),
        Some(why) if why.is_empty() => format!("model {name} is not available"),
        Some(why) => format!("model {name} is not available: {why}"),
    };
    Some(Unready { name: name.clone(), reason })
}

pub(super) fn unready_pipeline(pipelines: &BTreeMap<Arc<str>, Pipeline>, name: &Arc<str>) -> Option<Unready> {
    let reason = match pipelines.get(name).filter(|p| !p.deleted) {
        None => format!("pipeline {name} does not exist"),
        Some(pipeline) => format!("pipeline {name} is not ready: {}", pipeline.obstacle()?),
    };
    Some(Unready { name: name.clone(), reason })
}

/// Extra entries of `awaiting` are harmless: an object may be woken in vain, but never missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dependants {
    /// Pipelines by the models of their steps.
    pipelines: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Experiments by their candidates and mirrors.
    experiments: BTreeMap<(Resource, Arc<str>), BTreeSet<Arc<str>>>,
    /// Experiments by the name that they take over.
    baselines: BTreeMap<(Resource, Arc<str>), Arc<str>>,
    /// Pipelines and experiments that wait for a route change to be applied, by sequence.
    pub(super) awaiting: BTreeMap<u64, (Kind, Arc<str>)>,
}

impl Dependants {
    pub(super) fn rebuild(
        pipelines: &BTreeMap<Arc<str>, Pipeline>,
        experiments: &BTreeMap<Arc<str>, Experiment>,
    ) -> Self {
        let mut dependants = Self::default();
        for (name, pipeline) in pipelines {
            dependants.pipeline_changed(name, None, Some(pipeline));
            let of_weights = pipeline.rollout.as_ref().and_then(|rollout| rollout.awaits());
            for sequence in of_weights.into_iter().chain(Some(pipeline.awaits).filter(|awaits| *awaits != 0))
            {
                dependants.await_routes(sequence, Kind::Pipeline, name);
            }
        }
        for (name, experiment) in experiments {
            dependants.experiment_changed(name, None, Some(experiment));
            if experiment.awaits != 0 {
                dependants.await_routes(experiment.awaits, Kind::Experiment, name);
            }
        }
        dependants
    }

    pub(super) fn await_routes(&mut self, sequence: u64, kind: Kind, name: &Arc<str>) {
        self.awaiting.insert(sequence, (kind, name.clone()));
    }

    /// The experiment that takes over a name.
    pub(super) fn baseline(&self, resource: Resource, name: &Arc<str>) -> Option<&Arc<str>> {
        self.baselines.get(&(resource, name.clone()))
    }

    pub(super) fn pipeline_changed(
        &mut self,
        name: &Arc<str>,
        before: Option<&Pipeline>,
        after: Option<&Pipeline>,
    ) {
        let same = |a: &Pipeline, b: &Pipeline| {
            let (of_a, of_b) = (a.versions.iter(), b.versions.iter());
            a.deleted == b.deleted && of_a.map(|v| &v.definition).eq(of_b.map(|v| &v.definition))
        };
        if before.zip(after).is_some_and(|(before, after)| same(before, after)) {
            return;
        }
        for step in before.into_iter().flat_map(models_of) {
            remove(&mut self.pipelines, step, name);
        }
        for step in after.into_iter().flat_map(models_of) {
            self.pipelines.entry(step.clone()).or_default().insert(name.clone());
        }
    }

    pub(super) fn experiment_changed(
        &mut self,
        name: &Arc<str>,
        before: Option<&Experiment>,
        after: Option<&Experiment>,
    ) {
        // A stopped experiment has no entries, and its baseline may belong to another one.
        let running =
            |experiment: Option<&Experiment>| experiment.filter(|e| !e.deleted).map(|e| e.definition.clone());
        let (before, after) = (running(before), running(after));
        if let Some(definition) = before {
            for resource in definition.resources() {
                remove(&mut self.experiments, &(definition.resource, resource.clone()), name);
            }
            for default in definition.default.iter().cloned() {
                self.baselines.remove(&(definition.resource, default));
            }
        }
        if let Some(definition) = after {
            for resource in definition.resources().cloned() {
                self.experiments.entry((definition.resource, resource)).or_default().insert(name.clone());
            }
            for default in definition.default.iter().cloned() {
                self.baselines.insert((definition.resource, default), name.clone());
            }
        }
    }
}

/// The models that a pipeline needs.
fn models_of(pipeline: &Pipeline) -> impl Iterator<Item = &Arc<str>> {
    let versions = pipeline.versions.iter().filter(|_| !pipeline.deleted);
    versions.flat_map(|v| &v.definition.steps)
}

fn remove<K: Ord>(index: &mut BTreeMap<K, BTreeSet<Arc<str>>>, key: &K, name: &Arc<str>) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

impl State {
    /// Updates what depends on the models and pipelines whose routes the command changed.
    pub(super) fn update_dependants(&mut self, now: Millis, effects: &mut Effects) {
        if self.pipelines.is_empty() && self.experiments.is_empty() {
            return;
        }
        let models = effects.routes.clone();
        self.update_dependants_of(&models, now, effects);
    }

    /// Updates what depends on these models.
    pub(super) fn update_dependants_of(
        &mut self,
        models: &BTreeSet<Arc<str>>,
        now: Millis,
        effects: &mut Effects,
    ) {
        let of_models = |model| self.dependants.pipelines.get(model).into_iter().flatten().cloned();
        let pipelines: BTreeSet<Arc<str>> = models.iter().flat_map(of_models).collect();
        for name in &pipelines {
            self.with_pipeline(name, now, effects, |_| ());
        }
        let models = models.iter().map(|name| (Resource::Model, name.clone()));
        let pipelines = effects.pipeline_routes.iter().map(|name| (Resource::Pipeline, name.clone()));
        let of = |key| self.dependants.experiments.get(&key).into_iter().flatten().cloned();
        let experiments: BTreeSet<Arc<str>> = models.chain(pipelines).flat_map(of).collect();
        for name in &experiments {
            self.with_experiment(name, now, effects, |_| ());
        }
    }

    /// Every gateway has applied routes up to `applied`.
    pub(super) fn acknowledge_dependants(&mut self, applied: u64, now: Millis, effects: &mut Effects) {
        let later = self.dependants.awaiting.split_off(&applied.saturating_add(1));
        let due = std::mem::replace(&mut self.dependants.awaiting, later);
        for (kind, name) in due.into_values() {
            if kind == Kind::Pipeline {
                self.with_pipeline(&name, now, effects, |pipeline| {
                    pipeline.acknowledge(applied);
                    if let Some(rollout) = &mut pipeline.rollout {
                        rollout.acknowledge(applied);
                    }
                });
            } else {
                self.with_experiment(&name, now, effects, |experiment| experiment.acknowledge(applied));
            }
        }
    }
}
