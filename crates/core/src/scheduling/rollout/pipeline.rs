//! Versions of a pipeline: which stay defined, and their shares of the requests.

use super::{ObjectRollout, Observation, RolloutTarget, Steer, Times, Traffic, revision};
use crate::{
    rollout::{CommandRejection, ObservedTensor, Readiness, Revision, Rollout, RolloutPolicy, Weights},
    scheduling::{
        command::Effects,
        pipeline::{Pipeline, PipelineVersion},
    },
};
use std::{collections::BTreeMap, sync::Arc};

/// A change of a rollout beside that of the pipeline itself.
#[derive(Default)]
pub(in crate::scheduling) struct PipelineInput<'a> {
    pub(in crate::scheduling) traffic: Option<&'a Traffic>,
    pub(in crate::scheduling) steer: Option<Steer>,
}

impl PipelineVersion {
    pub fn revision(&self) -> Revision {
        revision(self.definition.spec)
    }

    fn readiness(&self) -> Readiness {
        let is_ready = self.unready.is_none() && self.failure.is_none();
        if is_ready { Readiness::Ready } else { Readiness::NotReady }
    }
}

impl ObjectRollout {
    /// The version that gateways execute of each revision with traffic, the stable one first.
    fn split<'a>(&self, versions: &'a [PipelineVersion]) -> Vec<(&'a PipelineVersion, u32)> {
        let traffic = self.weights.as_ref().map(Weights::traffic);
        let of = |(revision, percent): (Revision, u32)| {
            let mut newest_first = versions.iter().rev();
            Some((newest_first.find(|v| v.was_ready && v.revision() == revision)?, percent))
        };
        traffic.into_iter().flat_map(|traffic| traffic.backends).filter_map(of).collect()
    }
}

impl Pipeline {
    /// The versions that gateways execute, with the percentages of the requests: the stable version first, then one that is
    /// rolled out.
    pub fn split(&self) -> Vec<(&PipelineVersion, u32)> {
        if self.deleted {
            return Vec::new();
        }
        let by_rollout = self.rollout.as_ref().map(|rollout| rollout.split(&self.versions));
        by_rollout.filter(|split| !split.is_empty()).unwrap_or_else(|| {
            let newest = self.versions.iter().rev().find(|v| v.was_ready);
            newest.map(|version| (version, 100)).into_iter().collect()
        })
    }

    /// Changes with the weights of a rollout; 0 without a rollout policy.
    pub fn rollout_generation(&self) -> u64 {
        self.rollout.as_ref().map_or(0, |rollout| rollout.state.generation)
    }

    /// The tensor whose values gateways report.
    pub fn observed_tensor(&self) -> Option<&ObservedTensor> {
        self.rollout.as_ref().and_then(|rollout| rollout.rules.observed.as_ref())
    }

    /// Whether the definition of a version is kept by a rollout.
    pub(in crate::scheduling) fn is_kept(&self, version: &PipelineVersion) -> bool {
        self.rollout.as_ref().is_some_and(|rollout| rollout.keeps(&version.revision()))
    }

    /// The newest version of each revision that a rollout keeps, preferably one that was ready.
    pub(in crate::scheduling) fn kept_versions(&self) -> Vec<u32> {
        let mut of_revision: BTreeMap<Revision, (bool, u32)> = BTreeMap::new();
        for version in self.versions.iter().filter(|v| self.is_kept(v)) {
            let newest = of_revision.entry(version.revision()).or_default();
            *newest = (version.was_ready, version.number).max(*newest);
        }
        of_revision.into_values().map(|(_, number)| number).collect()
    }

    pub(in crate::scheduling) fn assign_policy(
        &mut self,
        policy: Option<(Arc<str>, Arc<RolloutPolicy>)>,
        target: &RolloutTarget,
        effects: &mut Effects,
    ) {
        let first = match (self.routed(), self.latest()) {
            (Some(serving), _) => Some(Rollout::running(serving.revision())),
            (None, latest) => latest.map(|latest| Rollout::new(latest.revision())),
        };
        let first = first.filter(|_| !self.deleted);
        super::policies::assign(&mut self.rollout, policy, first, target, effects);
    }

    /// Advances the rollout of a pipeline.
    pub(in crate::scheduling) fn step_rollout(
        &mut self,
        target: &RolloutTarget,
        input: &PipelineInput<'_>,
        times: Times,
        effects: &mut Effects,
    ) -> Result<(), CommandRejection> {
        let Self { versions, rollout, deleted, .. } = self;
        let (Some(of_pipeline), Some(latest)) = (&mut *rollout, versions.last()) else { return Ok(()) };
        if *deleted {
            *rollout = None;
            effects.store_rollout(target);
            effects.rollouts.insert(target.clone());
            return Ok(());
        }
        let of_version = |number| versions.iter().find(|v| v.number == number).map(PipelineVersion::revision);
        let evidence = input.traffic.map(|traffic| of_pipeline.observe(traffic, of_version));
        let mut readiness: BTreeMap<Revision, Readiness> = BTreeMap::new();
        for version in versions.iter() {
            let of_revision = readiness.entry(version.revision()).or_insert(Readiness::NotReady);
            if version.readiness() == Readiness::Ready {
                *of_revision = Readiness::Ready;
            }
        }
        let readiness = readiness.into_iter().collect();
        let observation = Observation { readiness, evidence: evidence.as_ref(), steer: input.steer };
        of_pipeline.step(target, &latest.revision(), observation, times, effects)
    }
}
