//! Routes: the replicas that receive a model's traffic.

use super::{
    model::{Model, ReplicaState, Version},
    server::ReplicaId,
};
use std::sync::Arc;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Oldest first.
    pub versions: Vec<RouteVersion>,
    /// Scaled to zero: gateways queue requests and report them as demand.
    pub scaled_to_zero: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteVersion {
    pub version: u32,
    /// Share of traffic: the number of replicas.
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
    /// Older versions share traffic by number of replicas until the latest version takes all. A deleted model has no
    /// route.
    pub fn of(model: &Model) -> Self {
        if model.deleted {
            return Self::default();
        }
        let latest_number = model.latest().map(|v| v.number);
        let latest_serves = model.latest().is_some_and(Self::takes_all);
        let versions = model
            .versions
            .iter()
            .filter(|v| !latest_serves || Some(v.number) == latest_number)
            .filter_map(|v| {
                let mut replicas: Vec<ReplicaId> = v.routed().collect();
                if !v.leaving.is_empty() {
                    // Canonical order: moving between servers alone is no route change.
                    replicas.sort_unstable();
                }
                let weight = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
                (weight > 0).then_some(RouteVersion { version: v.number, weight, replicas })
            })
            .collect();
        Self { versions, scaled_to_zero: model.latest().is_some_and(Version::scaled_to_zero) }
    }
}
