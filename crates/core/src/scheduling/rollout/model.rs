//! Versions of a model: which stay loaded, and their weights.

use super::{ObjectRollout, Observation, RolloutTarget, Steer, Times, Traffic, revision};
use crate::{
    rollout::{CommandRejection, Evidence, Readiness, Revision, Rollout, RolloutPolicy},
    scheduling::{
        model::{Model, ReplicaState, Version},
        model_context::ModelContext,
        route::Mirror,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

impl Version {
    pub fn revision(&self) -> Revision {
        revision(self.definition.spec)
    }
}

impl ObjectRollout {
    /// The versions to keep loaded: the newest of each retained revision, and older ones of it until the newest serves.
    pub(in crate::scheduling) fn wanted(&self, versions: &[Version]) -> BTreeSet<u32> {
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

    /// Whether the definition of a version is kept, also without replicas.
    pub(in crate::scheduling) fn names(&self, version: &Version) -> bool {
        self.keeps(&version.revision())
    }

    /// Relative weights by version. Versions of one revision share its percentage by their routed replicas. `None` before the
    /// first revision is ready.
    pub(in crate::scheduling) fn version_weights(&self, versions: &[Version]) -> Option<BTreeMap<u32, u32>> {
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
}

impl ObjectRollout {
    /// The version that gets copies of requests: the newest of the mirrored revision with a replica.
    pub(in crate::scheduling) fn mirror(&self, versions: &[Version]) -> Option<Mirror> {
        let (revision, percent) = self.weights.as_ref()?.traffic().mirror?;
        let is_routed = |v: &&Version| v.any(ReplicaState::is_routed) && v.revision() == revision;
        let version = versions.iter().rev().find(is_routed)?.number;
        Some(Mirror { version, percent, tolerance: self.rules.answer_tolerance })
    }
}

impl Model {
    /// The first state under a policy: a version that serves is the stable one.
    fn first_rollout(&self) -> Option<Rollout> {
        let serving = self.versions.iter().rev().find(|v| v.serves_enough() && v.served);
        let serving = serving.or_else(|| self.versions.iter().find(|v| v.any(ReplicaState::is_routed)));
        Some(match serving {
            Some(version) => Rollout::running(version.revision()),
            None => Rollout::new(self.latest()?.revision()),
        })
    }

    /// Counts statistics, and returns the evidence in them.
    pub(super) fn observe(&mut self, traffic: &Traffic) -> Option<Evidence> {
        let Self { versions, rollout: Some(rollout), .. } = self else { return None };
        Some(rollout.observe(traffic, |number| {
            versions.iter().find(|version| version.number == number).map(Version::revision)
        }))
    }
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
    pub(in crate::scheduling) fn assign_policy(
        &mut self,
        model: &mut Model,
        policy: Option<(Arc<str>, Arc<RolloutPolicy>)>,
    ) {
        let first = model.first_rollout().filter(|_| !model.deleted);
        let target = RolloutTarget::model(self.name.clone());
        self.dirty |= super::policies::assign(&mut model.rollout, policy, first, &target, self.effects);
    }

    /// Advances the rollout of a model.
    pub(in crate::scheduling) fn step_rollout(
        &mut self,
        model: &mut Model,
        evidence: Option<&Evidence>,
        steer: Option<Steer>,
    ) -> Result<(), CommandRejection> {
        let Model { versions, rollout, deleted, .. } = model;
        let (Some(of_model), Some(latest)) = (&mut *rollout, versions.last()) else { return Ok(()) };
        let target = RolloutTarget::model(self.name.clone());
        if *deleted {
            *rollout = None;
            self.effects.store_models.insert(self.name.clone());
            self.effects.rollouts.insert(target);
            return Ok(());
        }
        let mut revisions: BTreeMap<Revision, Vec<&Version>> = BTreeMap::new();
        for version in versions.iter() {
            revisions.entry(version.revision()).or_default().push(version);
        }
        let readiness = revisions.into_iter().map(|(revision, of)| (revision, readiness(&of))).collect();
        let observation = Observation { readiness, evidence, steer };
        let times = Times { now: self.now, monotonic_now: self.monotonic_now };
        of_model.step(&target, &latest.revision(), observation, times, self.effects)
    }

    /// The route was published with the current weights.
    pub(in crate::scheduling) fn weights_published(&mut self, model: &mut Model) {
        let sequence = *self.sequence;
        if model.rollout.as_mut().is_some_and(|rollout| rollout.publish(sequence)) {
            self.index.awaiting_routes.insert(sequence, self.name.clone());
        }
    }
}
