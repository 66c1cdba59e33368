//! Experiments: a traffic split over models or pipelines, active while all of them serve.

use super::{
    Millis,
    command::Effects,
    dependants::{Unready, unready_model, unready_pipeline},
    index::Timer,
    model::{Digest, Model},
    owner::{Kind, Owner},
    pipeline::{Pipeline, UNACKNOWLEDGED},
    state::State,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Bound::Included,
    sync::Arc,
};

/// What the candidates of an experiment are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    #[default]
    Model,
    Pipeline,
}

/// The desired state of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExperimentDefinition {
    pub name: Arc<str>,
    /// Digest of what gateways need.
    pub spec: Digest,
    /// Digest of the whole definition, which the caller keeps.
    pub content: Digest,
    pub resource: Resource,
    /// The candidate whose name the experiment takes over.
    pub default: Option<Arc<str>>,
    /// With their weights.
    pub candidates: Vec<(Arc<str>, u32)>,
    /// With the percentage of requests that it also receives.
    pub mirror: Option<(Arc<str>, u32)>,
    /// `metadata.generation`, for objects of the operator.
    pub generation: Option<i64>,
    /// As of [`super::Definition::replaces`].
    pub replaces: Option<i64>,
}

/// Why a definition is invalid on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidExperiment {
    NoCandidates { experiment: Arc<str> },
    NoWeight { experiment: Arc<str> },
    DefaultNotCandidate { experiment: Arc<str>, default: Arc<str> },
    Duplicate { experiment: Arc<str>, resource: Arc<str> },
}

impl fmt::Display for InvalidExperiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCandidates { experiment } => {
                write!(f, "experiment {experiment} has no candidates or mirror: add at least one candidate")
            }
            Self::NoWeight { experiment } => write!(
                f,
                "all weights of experiment {experiment} are 0, so no candidate gets requests: raise at least one"
            ),
            Self::DefaultNotCandidate { experiment, default } => write!(
                f,
                "default model/pipeline {default} not found in experiment {experiment} candidates: add it to them, or \
                 remove default"
            ),
            Self::Duplicate { experiment, resource } => write!(
                f,
                "each candidate and mirror must be unique but found resource {resource} duplicated in experiment \
                 {experiment}"
            ),
        }
    }
}

impl ExperimentDefinition {
    /// Checks that need no other object, in the order of the reference.
    pub fn validate(&self) -> Result<(), InvalidExperiment> {
        let experiment = self.name.clone();
        if let Some(default) = &self.default
            && !self.candidates.iter().any(|(name, _)| name == default)
        {
            return Err(InvalidExperiment::DefaultNotCandidate { experiment, default: default.clone() });
        }
        if self.candidates.is_empty() && self.mirror.is_none() {
            return Err(InvalidExperiment::NoCandidates { experiment });
        }
        let mut seen = BTreeSet::new();
        if let Some(resource) = self.resources().find(|name| !seen.insert(*name)) {
            return Err(InvalidExperiment::Duplicate { experiment, resource: resource.clone() });
        }
        if !self.candidates.is_empty() && self.candidates.iter().all(|(_, weight)| *weight == 0) {
            return Err(InvalidExperiment::NoWeight { experiment });
        }
        Ok(())
    }

    /// Candidates, then the mirror.
    pub(super) fn resources(&self) -> impl Iterator<Item = &Arc<str>> {
        self.candidates.iter().chain(&self.mirror).map(|(name, _)| name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experiment {
    pub definition: Arc<ExperimentDefinition>,
    pub deleted: bool,
    /// `None` after deletion.
    pub owner: Option<Owner>,
    /// The first candidate that does not serve.
    pub unready_candidate: Option<Unready>,
    pub unready_mirror: Option<Unready>,
    pub since: Millis,
    /// Sequence number of its last route change.
    pub route_sequence: u64,
    pub(super) published: Option<PublishedExperiment>,
    /// The route sequence whose acknowledgement it waits for; 0: none.
    pub(super) awaits: u64,
    /// Its entry in `Index::timers`.
    pub(super) due: Option<Millis>,
    /// When the tombstone of a stopped experiment expires, in logical time.
    pub(super) forget_at: Option<Millis>,
}

/// What was last published to gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublishedExperiment {
    spec: Digest,
    deleted: bool,
    obstacle: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExperimentStatus {
    /// Whether every gateway splits traffic with it.
    pub active: bool,
    pub candidates_ready: bool,
    pub mirror_ready: bool,
    pub description: String,
}

impl Experiment {
    pub(super) fn new(definition: Arc<ExperimentDefinition>, owner: Option<Owner>, now: Millis) -> Self {
        Self {
            definition,
            deleted: false,
            owner,
            unready_candidate: None,
            unready_mirror: None,
            since: now,
            route_sequence: 0,
            published: None,
            awaits: 0,
            due: None,
            forget_at: None,
        }
    }

    /// Why gateways must not split traffic; `None` when they do.
    pub fn obstacle(&self) -> Option<String> {
        if self.deleted {
            return Some("experiment stopped".to_owned());
        }
        let unready = |role: &str, unready: &Option<Unready>| {
            unready.as_ref().map(|Unready { name, reason }| format!("{role} {name}: {reason}"))
        };
        unready("candidate", &self.unready_candidate).or_else(|| unready("mirror", &self.unready_mirror))
    }

    pub fn status(&self) -> ExperimentStatus {
        let (description, active) = match self.obstacle() {
            Some(obstacle) => (obstacle, false),
            None if self.awaits != 0 => (UNACKNOWLEDGED.to_owned(), false),
            None => ("experiment active".to_owned(), true),
        };
        ExperimentStatus {
            active,
            candidates_ready: self.unready_candidate.is_none(),
            mirror_ready: self.unready_mirror.is_none(),
            description,
        }
    }

    /// Updates readiness from the candidates and the mirror.
    fn refresh(&mut self, models: &BTreeMap<Arc<str>, Model>, pipelines: &BTreeMap<Arc<str>, Pipeline>) {
        if self.deleted {
            return;
        }
        let definition = &self.definition;
        let unready = |(name, _): &(Arc<str>, u32)| match definition.resource {
            Resource::Model => unready_model(models, name),
            Resource::Pipeline => unready_pipeline(pipelines, name),
        };
        let candidate = definition.candidates.iter().find_map(unready);
        let mirror = definition.mirror.as_ref().and_then(unready);
        (self.unready_candidate, self.unready_mirror) = (candidate, mirror);
    }

    /// Publishes the route if it changed, under a new sequence number. Returns whether it did.
    fn publish(&mut self, sequence: &mut u64) -> bool {
        let obstacle = self.obstacle();
        let active = obstacle.is_none();
        let published =
            Some(PublishedExperiment { spec: self.definition.spec, deleted: self.deleted, obstacle });
        if self.published == published {
            return false;
        }
        self.published = published;
        *sequence += 1;
        self.route_sequence = *sequence;
        self.awaits = if active { *sequence } else { 0 };
        true
    }

    /// Every gateway has applied routes up to `applied`.
    pub(super) fn acknowledge(&mut self, applied: u64) {
        if self.awaits <= applied {
            self.awaits = 0;
        }
    }

    /// Whether the durable record is the same.
    fn same_record(&self, other: &Self) -> bool {
        (self.deleted, &self.owner, &self.definition) == (other.deleted, &other.owner, &other.definition)
    }
}

impl State {
    pub const fn experiments(&self) -> &BTreeMap<Arc<str>, Experiment> {
        &self.experiments
    }

    /// Runs `work` on one experiment, then updates its readiness, route, index and effects. Returns whether it is known.
    pub(super) fn with_experiment(
        &mut self,
        name: &str,
        now: Millis,
        effects: &mut Effects,
        work: impl FnOnce(&mut Experiment),
    ) -> bool {
        let found = self.experiments.range_mut::<str, _>((Included(name), Included(name))).next();
        let Some((name, experiment)) = found else { return false };
        let before = experiment.clone();
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_experiment(name, Some(&before));
        }
        work(experiment);
        experiment.refresh(&self.models, &self.pipelines);
        if experiment.publish(&mut self.sequence) {
            effects.experiment_routes.insert(name.clone());
            if experiment.awaits != 0 {
                self.dependants.await_routes(experiment.awaits, Kind::Experiment, name);
            }
        }
        if experiment.deleted {
            let later = self.clock.monotonic_now.saturating_add(self.policy.tombstone_ttl);
            let due = Some(*experiment.forget_at.get_or_insert(later));
            self.index.set_timer(&mut experiment.due, due, &Timer::Experiment(name.clone()));
        }
        self.dependants.experiment_changed(name, Some(&before), Some(experiment));
        if !experiment.same_record(&before) {
            effects.store_experiments.insert(name.clone());
        }
        let status = experiment.status();
        if status != before.status() || !experiment.same_record(&before) {
            experiment.since = now;
            effects.experiments.insert(name.clone());
        }
        true
    }

    /// The tombstone of a stopped experiment expires.
    pub(super) fn forget_experiment(&mut self, name: &Arc<str>, effects: &mut Effects) {
        let Some(mut experiment) = self.experiments.remove(name) else { return };
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_experiment(name, Some(&experiment));
        }
        self.index.set_timer(&mut experiment.due, None, &Timer::Experiment(name.clone()));
        effects.store_experiments.insert(name.clone());
        effects.experiments.insert(name.clone());
    }
}
