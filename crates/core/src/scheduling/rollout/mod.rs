//! Models, pipelines and services with a rollout policy: which versions are kept, and their shares of the traffic.
//!
//! Every decision is made by [`crate::rollout::step`]. A revision is a spec: versions with the same spec belong to one
//! revision, so that a spec that failed is not rolled out again under another version number.
//!
//! `policies` assigns policies to objects, `model`, `pipeline` and `service` apply the weights to their versions.

mod model;
mod pipeline;
mod policies;
mod service;

pub(super) use pipeline::PipelineInput;
pub use policies::PolicyRecord;
pub use service::{DeliveredVersion, Delivery};

use super::{Millis, command::Effects, model::Digest};
use crate::rollout::{
    Command as RolloutCommand, CommandRejection, Durability, Event, Evidence, Input, ObservationId, Phase,
    Readiness, Request, Revision, Rollout, RolloutPolicy, Stats, Weights, Window, step,
};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A kind of objects whose versions are rolled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RolloutKind {
    Model,
    Pipeline,
    /// Of pods that the scheduler does not place: an InferenceService.
    Service,
}

impl RolloutKind {
    /// The kind in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "Model",
            Self::Pipeline => "Pipeline",
            Self::Service => "InferenceService",
        }
    }
}

/// An object whose versions are rolled out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RolloutTarget {
    pub kind: RolloutKind,
    pub name: Arc<str>,
}

impl RolloutTarget {
    pub fn model(name: impl Into<Arc<str>>) -> Self {
        Self { kind: RolloutKind::Model, name: name.into() }
    }

    pub fn pipeline(name: impl Into<Arc<str>>) -> Self {
        Self { kind: RolloutKind::Pipeline, name: name.into() }
    }

    /// By `namespace/name`.
    pub fn service(name: impl Into<Arc<str>>) -> Self {
        Self { kind: RolloutKind::Service, name: name.into() }
    }
}

impl fmt::Display for RolloutTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RolloutKind::Model => "model",
            RolloutKind::Pipeline => "pipeline",
            RolloutKind::Service => "InferenceService",
        };
        write!(f, "{kind} {}", self.name)
    }
}

/// The rollouts of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectRollout {
    /// Name of the policy.
    pub policy: Arc<str>,
    pub rules: Arc<RolloutPolicy>,
    pub state: Rollout,
    /// `None` before the first revision is ready.
    pub weights: Option<Weights>,
    /// The generation of the weights that gateways were last sent, and the sequence number of that route.
    published: (u64, u64),
    /// Requests by revision since the pair of revisions is the same, for display.
    observed: BTreeMap<Revision, Stats>,
    /// The generation that every gateway has applied.
    applied: u64,
    /// When time alone can cause a transition, in logical time.
    pub(super) due: Option<Millis>,
}

/// The durable record of an object's rollouts.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutRecord {
    pub policy: Arc<str>,
    pub state: Rollout,
}

/// Statistics of an object's versions under the same weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    pub id: ObservationId,
    /// The generation of the weights in effect.
    pub generation: u64,
    pub versions: Vec<(u32, Stats)>,
}

/// A command of a person. Retry allows the desired revision again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    Pause,
    Resume,
    Abort,
    Promote,
    PromoteFull,
    Retry,
    Undo,
}

/// The revision of a spec.
fn revision(spec: Digest) -> Revision {
    format!("{:010x}", spec.0 & 0xff_ffff_ffff).into()
}

/// What a step of the engine observes, beside the policy.
#[derive(Default)]
struct Observation<'a> {
    readiness: Vec<(Revision, Readiness)>,
    evidence: Option<&'a Evidence>,
    steer: Option<Steer>,
}

/// Wall clock and logical time.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) now: Millis,
    pub(super) monotonic_now: Millis,
}

impl ObjectRollout {
    pub(super) fn new(policy: Arc<str>, rules: Arc<RolloutPolicy>, state: Rollout) -> Self {
        let stored = state.restored();
        let (state, weights) = (stored.state, stored.weights);
        Self {
            policy,
            rules,
            state,
            weights,
            published: (0, 0),
            observed: BTreeMap::new(),
            applied: 0,
            due: None,
        }
    }

    pub(super) fn record(&self) -> RolloutRecord {
        RolloutRecord { policy: self.policy.clone(), state: self.state.clone() }
    }

    /// Requests of a revision since the last transition.
    pub fn observed(&self, revision: &str) -> Option<&Stats> {
        self.observed.get(revision)
    }

    fn pair(&self) -> (Option<Revision>, Option<Revision>) {
        let stable = self.state.phase.stable().map(|stable| stable.revision.clone());
        (stable, self.state.phase.other().cloned())
    }

    /// Whether the definition of a revision is kept, also while it does not serve: the previous one may return.
    fn keeps(&self, revision: &Revision) -> bool {
        let previous = self.state.phase.stable().and_then(|stable| stable.previous.as_ref());
        previous == Some(revision) || self.state.retained().contains(revision)
    }

    /// Percentage of the traffic of a revision; `None` if all versions that are ready share it.
    pub fn percent(&self, revision: &str) -> Option<u32> {
        let traffic = self.weights.as_ref()?.traffic();
        let of = traffic.backends.iter().find(|(backend, _)| **backend == *revision);
        Some(of.map_or(0, |(_, weight)| *weight))
    }

    /// Why the desired revision does not have all traffic: a rollback, or a rollout in progress.
    pub fn obstacle(&self, desired: &Revision) -> Option<Obstacle<'_>> {
        if let Some(failed) = self.state.failure(desired) {
            return Some(Obstacle::RolledBack(&failed.finding.message));
        }
        match &self.state.phase {
            Phase::Progressing { candidate, .. } if candidate.revision == *desired => {
                Some(Obstacle::Progressing { percent: self.percent(desired).unwrap_or(0) })
            }
            Phase::Deploying { .. } | Phase::Progressing { .. } => None,
            phase => {
                let serves = phase.stable().is_some_and(|stable| stable.revision == *desired);
                (!serves).then_some(Obstacle::Waiting)
            }
        }
    }

    /// Counts statistics of versions for display, and returns them as those of revisions.
    fn observe(&mut self, traffic: &Traffic, revision: impl Fn(u32) -> Option<Revision>) -> Evidence {
        let pair = self.pair();
        let (mut stable, mut candidate) = (Stats::default(), Stats::default());
        for (number, stats) in &traffic.versions {
            let Some(revision) = revision(*number) else { continue };
            if pair.0.as_ref() == Some(&revision) {
                stable.merge(stats);
            } else if pair.1.as_ref() == Some(&revision) {
                candidate.merge(stats);
            }
            self.observed.entry(revision).or_default().merge(stats);
        }
        let Traffic { id, generation, .. } = *traffic;
        Evidence::Window(Box::new(Window { id, generation, stable, candidate }))
    }

    /// Advances the rollout. Effects are published after the state was stored, so that a crash repeats a step and never skips
    /// it. A rejected command changes nothing.
    fn step(
        &mut self,
        target: &RolloutTarget,
        desired: &Revision,
        observation: Observation<'_>,
        times: Times,
        effects: &mut Effects,
    ) -> Result<(), CommandRejection> {
        let Observation { readiness, evidence, steer } = observation;
        let request = steer.map(|steer| self.request(steer, desired));
        let input = Input {
            desired,
            readiness: &readiness,
            evidence,
            request: request.as_ref(),
            applied: self.applied,
        };
        let decision = step(&self.rules, &self.state, &input, times.now);
        let durability = decision.durability();
        let stored = decision.stored();
        let rejected = stored.events.iter().find_map(|event| match event {
            Event::CommandRejected { rejection, .. } => Some(*rejection),
            _ => None,
        });
        if let Some(rejection) = rejected {
            return Err(rejection);
        }
        if durability == Durability::Required {
            effects.store_rollout(target);
        }
        if durability != Durability::Unchanged {
            effects.rollouts.insert(target.clone());
        }
        let before = self.pair();
        (self.state, self.weights) = (stored.state, stored.weights);
        if self.pair() != before {
            self.observed.clear();
        }
        self.due = stored.requeue_after.map(|after| times.monotonic_now.saturating_add(after));
        effects.rollout_events.extend(stored.events.into_iter().map(|event| (target.clone(), event)));
        Ok(())
    }

    fn request(&self, steer: Steer, desired: &Revision) -> Request {
        Request {
            id: self.state.handled.saturating_add(1),
            command: match steer {
                Steer::Pause => RolloutCommand::Pause,
                Steer::Resume => RolloutCommand::Resume,
                Steer::Abort => RolloutCommand::Abort,
                Steer::Promote => RolloutCommand::Promote,
                Steer::PromoteFull => RolloutCommand::PromoteFull,
                Steer::Retry => RolloutCommand::Retry { revision: desired.clone() },
                Steer::Undo => RolloutCommand::Undo,
            },
        }
    }

    /// A route was published with the current weights. Returns whether the acknowledgement of `sequence` is awaited.
    pub(super) const fn publish(&mut self, sequence: u64) -> bool {
        let generation = self.state.generation;
        let is_new = self.published.0 != generation;
        if is_new {
            self.published = (generation, sequence);
        }
        is_new
    }

    /// The sequence number whose acknowledgement is awaited.
    pub(super) fn awaits(&self) -> Option<u64> {
        let (generation, sequence) = self.published;
        (self.applied != generation).then_some(sequence)
    }

    /// Every gateway has applied routes up to `applied`. Returns whether the rollout has to be advanced.
    pub(super) fn acknowledge(&mut self, applied: u64) -> bool {
        let is_applied = self.awaits().is_some_and(|sequence| sequence <= applied);
        if is_applied {
            self.applied = self.published.0;
        }
        is_applied
    }
}

/// Why an object's desired version does not serve alone. Without statistics: they change with every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle<'a> {
    Progressing {
        percent: u32,
    },
    /// A rollout starts when the running rollback has ended.
    Waiting,
    RolledBack(&'a str),
}

impl fmt::Display for Obstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Progressing { percent } => write!(f, "rolled out to {percent} % of the requests"),
            Self::Waiting => write!(f, "waits for the end of a rollback"),
            Self::RolledBack(why) => write!(f, "rolled back: {why}"),
        }
    }
}
