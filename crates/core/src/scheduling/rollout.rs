//! Models with a rollout policy: which versions stay loaded, and their shares of the traffic.
//!
//! Every decision is made by [`crate::rollout::step`]. A revision is a spec: versions with the same spec belong to one
//! revision, so that a spec that failed is not rolled out again under another version number.

use super::{
    Millis,
    command::{Effects, Rejection},
    model::{Digest, Model, ReplicaState, Version},
    model_context::ModelContext,
    state::State,
};
use crate::rollout::{
    Command as RolloutCommand, CommandRejection, Durability, Event, Evidence, Input, ObservationId, Phase,
    Readiness, Request, Revision, Rollout, RolloutPolicy, Stats, Weights, Window, step,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// A policy, and the models that it selects.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRecord {
    pub name: Arc<str>,
    pub models: BTreeSet<Arc<str>>,
    pub policy: Arc<RolloutPolicy>,
    /// As it was put, encoded by the caller.
    pub content: Arc<[u8]>,
}

/// The rollouts of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRollout {
    /// Name of the policy.
    pub policy: Arc<str>,
    pub rules: Arc<RolloutPolicy>,
    pub state: Rollout,
    /// `None` before the first revision is ready.
    pub weights: Option<Weights>,
    /// The generation of the weights that gateways were last sent, and the sequence number of that route.
    pub(super) published: (u64, u64),
    /// Requests by revision since the pair of revisions is the same, for display.
    pub(super) observed: BTreeMap<Revision, Stats>,
    /// The generation that every gateway has applied.
    pub(super) applied: u64,
    /// When time alone can cause a transition, in logical time.
    pub(super) due: Option<Millis>,
}

/// The durable record of a model's rollouts.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutRecord {
    pub policy: Arc<str>,
    pub state: Rollout,
}

/// Statistics of a model's versions under the same weights.
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

impl Version {
    pub fn revision(&self) -> Revision {
        revision(self.definition.spec)
    }
}

fn revision(spec: Digest) -> Revision {
    format!("{:010x}", spec.0 & 0xff_ffff_ffff).into()
}

impl ModelRollout {
    /// The first state under a policy: a version that serves is the stable one.
    fn start(policy: Arc<str>, rules: Arc<RolloutPolicy>, model: &Model) -> Option<Self> {
        let serving = model.versions.iter().rev().find(|v| v.serves_enough() && v.served);
        let serving = serving.or_else(|| model.versions.iter().find(|v| v.any(ReplicaState::is_routed)));
        let state = match serving {
            Some(version) => Rollout::running(version.revision()),
            None => Rollout::new(model.latest()?.revision()),
        };
        Some(Self::restore(policy, rules, state))
    }

    fn restore(policy: Arc<str>, rules: Arc<RolloutPolicy>, state: Rollout) -> Self {
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

    /// Requests of a revision since the last transition.
    pub fn observed(&self, revision: &str) -> Option<&Stats> {
        self.observed.get(revision)
    }

    fn pair(&self) -> (Option<Revision>, Option<Revision>) {
        let stable = self.state.phase.stable().map(|stable| stable.revision.clone());
        (stable, self.state.phase.other().cloned())
    }

    /// The versions to keep loaded: the newest of each retained revision, and older ones of it until the newest serves.
    pub(super) fn wanted(&self, versions: &[Version]) -> BTreeSet<u32> {
        let mut wanted = BTreeSet::new();
        for retained in self.state.retained() {
            let of_revision = versions.iter().filter(|v| v.revision() == retained);
            let Some(newest) = of_revision.clone().next_back() else { continue };
            wanted.insert(newest.number);
            if !newest.serves_enough() {
                wanted.extend(of_revision.filter(|v| v.served).map(|v| v.number));
            }
        }
        wanted
    }

    /// Whether the definition of a version is kept, also without replicas: the previous revision may return.
    pub(super) fn names(&self, version: &Version) -> bool {
        let revision = version.revision();
        let previous = self.state.phase.stable().and_then(|stable| stable.previous.as_ref());
        previous == Some(&revision) || self.state.retained().contains(&revision)
    }

    /// Percentage of the traffic of a revision; `None` if all versions with replicas share it.
    pub fn percent(&self, revision: &str) -> Option<u32> {
        let traffic = self.weights.as_ref()?.traffic();
        let of = traffic.backends.iter().find(|(backend, _)| **backend == *revision);
        Some(of.map_or(0, |(_, weight)| *weight))
    }

    /// Relative weights by version. Versions of one revision share its percentage by their routed replicas. `None` before the
    /// first revision is ready.
    pub(super) fn version_weights(&self, versions: &[Version]) -> Option<BTreeMap<u32, u32>> {
        self.weights.as_ref()?;
        let routed = |version: &Version| u64::from(version.count(ReplicaState::is_routed));
        let mut replicas: BTreeMap<Revision, u64> = BTreeMap::new();
        for version in versions {
            *replicas.entry(version.revision()).or_default() += routed(version);
        }
        let weight = |version: &Version| {
            let revision = version.revision();
            let percent = u64::from(self.percent(&revision)?);
            let all = replicas.get(&revision).copied().unwrap_or(0).max(1);
            let share = percent.saturating_mul(10_000).saturating_mul(routed(version)) / all;
            Some((version.number, u32::try_from(share).unwrap_or(u32::MAX)))
        };
        Some(versions.iter().filter_map(weight).collect())
    }

    /// Why the desired version does not have all traffic: a rollback, or a rollout in progress.
    pub fn obstacle(&self, latest: &Version) -> Option<Obstacle<'_>> {
        let revision = latest.revision();
        if let Some(failed) = self.state.failure(&revision) {
            return Some(Obstacle::RolledBack(&failed.finding.message));
        }
        match &self.state.phase {
            Phase::Progressing { candidate, .. } if candidate.revision == revision => {
                Some(Obstacle::Progressing { percent: self.percent(&revision).unwrap_or(0) })
            }
            Phase::Deploying { .. } | Phase::Progressing { .. } => None,
            phase => {
                let serves = phase.stable().is_some_and(|stable| stable.revision == revision);
                (!serves).then_some(Obstacle::Waiting)
            }
        }
    }
}

/// Why a model's desired version does not serve alone. Without statistics: they change with every report.
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

impl State {
    /// By name.
    pub const fn rollout_policies(&self) -> &BTreeMap<Arc<str>, PolicyRecord> {
        &self.rollout_policies
    }

    pub(super) fn policy_for(&self, model: &str) -> Option<(Arc<str>, Arc<RolloutPolicy>)> {
        let policy = self.rollout_policies.values().find(|policy| policy.models.contains(model))?;
        Some((policy.name.clone(), policy.policy.clone()))
    }

    /// Creates or updates a policy. Of several policies for a model, the first by name applies.
    pub(super) fn put_rollout_policy(&mut self, record: PolicyRecord, now: Millis, effects: &mut Effects) {
        let before = self.rollout_policies.get(&record.name);
        if before.is_some_and(|before| before.content == record.content) {
            return;
        }
        let mut models = record.models.clone();
        models.extend(before.iter().flat_map(|before| before.models.iter().cloned()));
        self.save_rollout_policy(&record.name);
        effects.store_rollout_policies.insert(record.name.clone());
        self.rollout_policies.insert(record.name.clone(), record);
        self.assign_policies(&models, now, effects);
    }

    pub(super) fn delete_rollout_policy(&mut self, name: Arc<str>, now: Millis, effects: &mut Effects) {
        self.save_rollout_policy(&name);
        if let Some(policy) = self.rollout_policies.remove(&name) {
            effects.store_rollout_policies.insert(name);
            self.assign_policies(&policy.models, now, effects);
        }
    }

    fn save_rollout_policy(&mut self, name: &Arc<str>) {
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_rollout_policy(name, self.rollout_policies.get(name));
        }
    }

    pub(super) fn assign_policies(
        &mut self,
        models: &BTreeSet<Arc<str>>,
        now: Millis,
        effects: &mut Effects,
    ) {
        for name in models {
            let policy = self.policy_for(name);
            self.with(name, now, effects, |ctx, model| {
                ctx.assign_policy(model, policy);
                ctx.reconcile(model, false);
            });
        }
    }

    pub(super) fn steer_rollout(
        &mut self,
        name: &Arc<str>,
        steer: Steer,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let Some(model) = self.models.get(name).filter(|model| !model.deleted) else {
            return Err(Rejection::UnknownModel(name.clone()));
        };
        if model.rollout.is_none() {
            return Err(Rejection::NoRolloutPolicy(name.clone()));
        }
        let result = self.with(name, now, effects, |ctx, model| {
            let before = model.rollout.clone();
            let result = ctx.step_rollout(model, None, Some(steer));
            if result.is_err() {
                // A rejected command changes nothing.
                model.rollout = before;
            } else {
                ctx.reconcile(model, false);
            }
            result
        });
        match result {
            Some(Err(reason)) => Err(Rejection::RolloutCommand { model: name.clone(), reason }),
            _ => Ok(()),
        }
    }

    pub(super) fn traffic_observed(
        &mut self,
        name: &str,
        traffic: &Traffic,
        now: Millis,
        effects: &mut Effects,
    ) {
        if self.models.get(name).is_none_or(|model| model.rollout.is_none()) {
            return;
        }
        self.with(name, now, effects, |ctx, model| {
            record(model, traffic);
            let evidence = evidence(model, traffic);
            let _ = ctx.step_rollout(model, evidence.as_ref(), None);
            ctx.reconcile(model, false);
        });
    }

    pub(super) fn restored_rollout(&self, record: RolloutRecord) -> Option<Box<ModelRollout>> {
        let policy = self.rollout_policies.get(&record.policy)?;
        let (name, rules) = (policy.name.clone(), policy.policy.clone());
        Some(Box::new(ModelRollout::restore(name, rules, record.state)))
    }
}

fn record(model: &mut Model, traffic: &Traffic) {
    let Model { versions, rollout: Some(rollout), .. } = model else { return };
    for (number, stats) in &traffic.versions {
        if let Some(version) = versions.iter().find(|version| version.number == *number) {
            rollout.observed.entry(version.revision()).or_default().merge(stats);
        }
    }
}

/// Statistics of versions as those of revisions.
fn evidence(model: &Model, traffic: &Traffic) -> Option<Evidence> {
    let phase = &model.rollout.as_ref()?.state.phase;
    let stable_revision = phase.stable().map(|stable| &stable.revision);
    let (mut stable, mut candidate) = (Stats::default(), Stats::default());
    for (number, stats) in &traffic.versions {
        let version = model.versions.iter().find(|v| v.number == *number);
        match version.map(Version::revision) {
            Some(revision) if Some(&revision) == stable_revision => stable.merge(stats),
            Some(revision) if Some(&revision) == phase.other() => candidate.merge(stats),
            _ => {}
        }
    }
    let Traffic { id, generation, .. } = *traffic;
    Some(Evidence::Window(Box::new(Window { id, generation, stable, candidate })))
}

/// Unknown leaves the readiness as it was: a lost replica of several, or a disconnected agent, does not move the traffic to
/// the other revision.
fn readiness(versions: &[&Version]) -> Readiness {
    if versions.iter().any(|v| v.serves_enough()) {
        Readiness::Ready
    } else if versions.iter().any(|v| v.any(ReplicaState::is_routed)) {
        Readiness::Unknown
    } else {
        Readiness::NotReady
    }
}

impl ModelContext<'_> {
    pub(super) fn assign_policy(
        &mut self,
        model: &mut Model,
        policy: Option<(Arc<str>, Arc<RolloutPolicy>)>,
    ) {
        match (policy, &mut model.rollout) {
            (Some((policy, rules)), Some(rollout)) => (rollout.policy, rollout.rules) = (policy, rules),
            (Some((policy, rules)), None) if !model.deleted => {
                model.rollout = ModelRollout::start(policy, rules, model).map(Box::new);
            }
            (_, None) => return,
            (None, rollout) => *rollout = None,
        }
        self.dirty = true;
        self.effects.store_models.insert(self.name.clone());
        self.effects.models.insert(self.name.clone());
        self.effects.rollouts.insert(self.name.clone());
    }

    /// Advances the rollout of a model. Effects are published after the state was stored, so that a crash repeats a step and
    /// never skips it.
    pub(super) fn step_rollout(
        &mut self,
        model: &mut Model,
        evidence: Option<&Evidence>,
        steer: Option<Steer>,
    ) -> Result<(), CommandRejection> {
        if model.deleted {
            if model.rollout.take().is_some() {
                self.effects.store_models.insert(self.name.clone());
                self.effects.rollouts.insert(self.name.clone());
            }
            return Ok(());
        }
        let Model { versions, rollout: Some(rollout), .. } = model else { return Ok(()) };
        let Some(desired) = versions.last().map(Version::revision) else { return Ok(()) };
        let mut revisions: BTreeMap<Revision, Vec<&Version>> = BTreeMap::new();
        for version in versions.iter() {
            revisions.entry(version.revision()).or_default().push(version);
        }
        let readiness: Vec<(Revision, Readiness)> =
            revisions.into_iter().map(|(revision, versions)| (revision, readiness(&versions))).collect();
        let request = steer.map(|steer| Request {
            id: rollout.state.handled.saturating_add(1),
            command: match steer {
                Steer::Pause => RolloutCommand::Pause,
                Steer::Resume => RolloutCommand::Resume,
                Steer::Abort => RolloutCommand::Abort,
                Steer::Promote => RolloutCommand::Promote,
                Steer::PromoteFull => RolloutCommand::PromoteFull,
                Steer::Retry => RolloutCommand::Retry { revision: desired.clone() },
                Steer::Undo => RolloutCommand::Undo,
            },
        });
        let input = Input {
            desired: &desired,
            readiness: &readiness,
            evidence,
            request: request.as_ref(),
            applied: rollout.applied,
        };
        let decision = step(&rollout.rules, &rollout.state, &input, self.now);
        match decision.durability() {
            Durability::Required => {
                self.effects.store_models.insert(self.name.clone());
                self.effects.models.insert(self.name.clone());
                self.effects.rollouts.insert(self.name.clone());
            }
            Durability::Deferrable => {
                self.effects.rollouts.insert(self.name.clone());
            }
            Durability::Unchanged => {}
        }
        let stored = decision.stored();
        let before = rollout.pair();
        (rollout.state, rollout.weights) = (stored.state, stored.weights);
        if rollout.pair() != before {
            rollout.observed.clear();
        }
        rollout.due = stored.requeue_after.map(|after| self.monotonic_now.saturating_add(after));
        let mut result = Ok(());
        for event in stored.events {
            if let Event::CommandRejected { rejection, .. } = event {
                result = Err(rejection);
            } else {
                self.effects.rollout_events.push((self.name.clone(), event));
            }
        }
        result
    }

    /// The route was published with the current weights.
    pub(super) fn weights_published(&mut self, model: &mut Model) {
        let Some(rollout) = &mut model.rollout else { return };
        let generation = rollout.state.generation;
        if rollout.published.0 != generation {
            rollout.published = (generation, *self.sequence);
            self.index.awaiting_routes.insert(*self.sequence, self.name.clone());
        }
    }

    /// Every gateway has applied routes up to `applied`. Returns whether the rollout has to be advanced.
    pub(super) fn weights_acknowledged(model: &mut Model, applied: u64) -> bool {
        let Some(rollout) = &mut model.rollout else { return false };
        let (generation, sequence) = rollout.published;
        if sequence > applied || rollout.applied == generation {
            return false;
        }
        rollout.applied = generation;
        true
    }
}
