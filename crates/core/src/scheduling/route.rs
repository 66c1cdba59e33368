//! Routes: the replicas that receive a model's traffic.

use super::{
    model::{Model, ReplicaState, Version},
    server::ReplicaId,
};
use crate::rollout::ObservedTensor;
use std::sync::Arc;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Oldest first.
    pub versions: Vec<RouteVersion>,
    /// Scaled to zero: gateways queue requests and report them as demand.
    pub scaled_to_zero: bool,
    /// Changes with the weights of a rollout; 0 without a rollout policy.
    pub rollout_generation: u64,
    /// The tensor whose values gateways report.
    pub observed: Option<ObservedTensor>,
    /// A version that gets copies of requests to the others.
    pub mirror: Option<Mirror>,
}

/// Copies of requests to a version that is rolled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub version: u32,
    /// Of the requests to other versions.
    pub percent: u32,
    /// Relative difference in millionths up to which numbers are equal; `None` compares no answers.
    pub tolerance: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteVersion {
    pub version: u32,
    /// Relative share of the traffic: the number of replicas, or what a rollout decided.
    pub weight: u32,
    pub replicas: Vec<ReplicaId>,
}

/// A version that a route no longer leads to on one replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removal {
    pub model: Arc<str>,
    pub version: u32,
    pub replica: ReplicaId,
}

impl Route {
    /// Whether all desired replicas of the latest version are routed, so that older versions take no more traffic.
    /// Disconnected replicas do not count.
    pub(super) fn takes_all(latest: &Version) -> bool {
        let routed = latest.count(|s| s.is_routed() && s != ReplicaState::LoadedUnavailable);
        routed > 0 && routed >= latest.desired_replicas()
    }

    /// The current route of a model.
    ///
    /// Older versions share traffic by number of replicas until the latest version takes all; with a rollout policy, versions
    /// have the weights of their revisions. A deleted model has no route.
    pub fn of(model: &Model) -> Self {
        if model.deleted {
            return Self::default();
        }
        let mut versions: Vec<RouteVersion> = model.versions.iter().filter_map(RouteVersion::of).collect();
        let rollout = model.rollout.as_deref();
        let mirror = rollout.and_then(|rollout| rollout.mirror(&model.versions));
        if let Some(weights) = rollout.and_then(|rollout| rollout.version_weights(&model.versions)) {
            for version in &mut versions {
                version.weight = weights.get(&version.version).copied().unwrap_or(0);
            }
            let mirror = mirror.map(|mirror| mirror.version);
            versions.retain(|version| version.weight > 0 || Some(version.version) == mirror);
        } else if let Some(latest) = model.latest().filter(|latest| Self::takes_all(latest)) {
            versions.retain(|version| version.version == latest.number);
        }
        Self {
            versions,
            scaled_to_zero: model.latest().is_some_and(Version::scaled_to_zero),
            rollout_generation: rollout.map_or(0, |rollout| rollout.state.generation),
            observed: rollout.and_then(|rollout| rollout.rules.observed.clone()),
            mirror,
        }
    }
}

impl RouteVersion {
    /// `None` without routed replicas.
    fn of(version: &Version) -> Option<Self> {
        let mut replicas: Vec<ReplicaId> = version.routed().collect();
        if !version.leaving.is_empty() {
            // Canonical order: moving between servers alone is no route change.
            replicas.sort_unstable();
        }
        let weight = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
        (weight > 0).then_some(Self { version: version.number, weight, replicas })
    }
}
