//! What each track runs and receives: revisions, replicas and weights.

use super::{
    Track,
    engine::is_canary_routed,
    policy::first_weight,
    snapshot::{LiveDeployment, Snapshot},
};
use gantry_api::{AlgorithmSpec, AlgorithmStatus};
use gantry_core::rollout::{
    Exposure, Phase, Progress, Revision, Rollout,
    replica_ratio::{ReplicaCounts, beside, effective_weight},
};

/// The canary Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CanaryPlacement {
    pub(super) revision: Revision,
    pub(super) replicas: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placement {
    /// The revision of the stable Deployment.
    pub(super) stable: Revision,
    pub(super) canary: Option<CanaryPlacement>,
    /// Percentage of the requests for the canary.
    pub(super) weight: u32,
    /// The canary has been promoted and serves until the stable Deployment has its revision.
    pub(super) is_promoting: bool,
    /// The percentage that the numbers of pods give.
    pub(super) effective_weight: Option<f64>,
}

struct Placer<'a> {
    snapshot: &'a Snapshot,
    spec: &'a AlgorithmSpec,
    status: Option<&'a AlgorithmStatus>,
    state: &'a Rollout,
    /// Whether a gateway splits the requests.
    is_split: bool,
}

pub(super) fn place(
    snapshot: &Snapshot,
    spec: &AlgorithmSpec,
    status: Option<&AlgorithmStatus>,
    state: &Rollout,
    is_split: bool,
) -> Placement {
    let placer = Placer { snapshot, spec, status, state, is_split };
    let placement = placer.placement();
    let canary = placement.canary.as_ref().map_or(0, |canary| canary.replicas);
    let effective = match placement.weight {
        0 => None,
        100 => Some(100.0),
        _ => {
            let counts = ReplicaCounts { canary, stable: placer.stable_replicas() };
            Some((effective_weight(counts) * 10.0).round() / 10.0)
        }
    };
    Placement { effective_weight: effective.filter(|_| !is_split), ..placement }
}

impl Placer<'_> {
    fn placement(&self) -> Placement {
        match &self.state.phase {
            Phase::Deploying { target } => alone(target),
            Phase::Running { stable } => self.running(&stable.revision),
            Phase::Progressing { candidate, .. } if self.spec.steps().is_empty() => {
                alone(&candidate.revision)
            }
            Phase::Progressing { stable, candidate } => {
                let size = match candidate.progress {
                    Progress::Waiting => first_weight(self.spec),
                    Progress::Stage { exposure, .. } => exposure.percent().get(),
                };
                let replicas = self.canary_replicas(size);
                let canary = CanaryPlacement { revision: candidate.revision.clone(), replicas };
                let weight = self.weight(&canary);
                Placement { canary: Some(canary), weight, ..alone(&stable.revision) }
            }
            // The canary is kept until requests cannot reach it.
            Phase::RollingBack { stable, revision, .. } => {
                let canary = self.live_canary().filter(|canary| canary.revision == *revision);
                Placement { canary, ..alone(&stable.revision) }
            }
            Phase::Reverting { to, .. } => alone(to),
        }
    }

    fn running(&self, revision: &Revision) -> Placement {
        let alone = alone(revision);
        let Some(canary) = self.live_canary() else { return alone };
        let stable = self.snapshot.deployment(Track::Stable);
        let is_done =
            stable.is_some_and(|live| live.revision() == Some(&**revision) && live.rollout().is_done());
        if canary.revision == *revision && !is_done {
            let weight = self.status.map_or(0, |status| status.canary_weight);
            let weight = u32::try_from(weight).unwrap_or_default().min(100);
            return Placement { canary: Some(canary), weight, is_promoting: true, ..alone };
        }
        // Deleted once requests cannot reach it.
        let is_promoting = canary.revision == *revision;
        Placement { canary: Some(canary).filter(|_| is_canary_routed(self.snapshot)), is_promoting, ..alone }
    }

    fn live_canary(&self) -> Option<CanaryPlacement> {
        let live = self.snapshot.deployment(Track::Canary)?;
        Some(CanaryPlacement { revision: live.revision()?.into(), replicas: live.replicas() })
    }

    /// The weight that is in effect: a higher one waits for the replicas that it needs, a lower one does not.
    fn weight(&self, canary: &CanaryPlacement) -> u32 {
        let weights = self.state.clone().restored().weights;
        let wanted = weights.and_then(|weights| weights.candidate).map_or(0, |(_, percent)| percent.get());
        let status =
            self.status.filter(|status| status.canary_revision.as_deref() == Some(&*canary.revision));
        let current = status.map_or(0, |status| u32::try_from(status.canary_weight).unwrap_or_default());
        let is_scaled = self.snapshot.deployment(Track::Canary).is_some_and(|live| {
            live.revision() == Some(&*canary.revision)
                && live.replicas() >= canary.replicas
                && live.rollout().is_done()
        });
        if wanted <= current || is_scaled { wanted } else { current }
    }

    /// Pods of the stable Deployment.
    fn stable_replicas(&self) -> u32 {
        let live = self.snapshot.deployment(Track::Stable).map(LiveDeployment::replicas);
        live.unwrap_or_else(|| self.spec.initial_replicas())
    }

    fn canary_replicas(&self, weight: u32) -> u32 {
        let stable = self.stable_replicas();
        if self.is_split {
            let share = (u64::from(stable) * u64::from(weight)).div_ceil(100);
            u32::try_from(share).unwrap_or(stable).max(1)
        } else {
            beside(stable, weight).canary
        }
    }
}

/// All requests go to the stable track.
fn alone(revision: &Revision) -> Placement {
    let stable = revision.clone();
    Placement { stable, canary: None, weight: 0, is_promoting: false, effective_weight: None }
}

/// The stage of a rollout, for messages: the exposure in percent.
pub(super) fn stage_weight(progress: Progress) -> Option<u32> {
    match progress {
        Progress::Stage { exposure: Exposure::Weight(percent), .. } => Some(percent.get()),
        Progress::Stage { .. } | Progress::Waiting => None,
    }
}
