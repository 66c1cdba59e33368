//! Who may send a model traffic: the route that gateways follow.

use super::{
    model::{Model, ReplicaState, Version},
    server::ReplicaId,
};

/// The versions of a model that take traffic; none when there is nothing to route to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The versions, oldest first.
    pub versions: Vec<RouteVersion>,
    /// No replica is wanted until somebody asks for the model: a request waits and is reported as demand.
    pub sleeps: bool,
}

/// A version that takes traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteVersion {
    /// The version.
    pub version: u32,
    /// Its share, in replicas.
    pub weight: u32,
    /// The replicas that serve it.
    pub replicas: Vec<ReplicaId>,
}

impl Route {
    /// Whether the latest version is in the route as often as it is wanted: older ones take no traffic any more. What is
    /// silent does not count: as long as an older version is there, it helps.
    pub(super) fn takes_all(latest: &Version) -> bool {
        let routed = latest.count(|s| s.is_routed() && s != ReplicaState::LoadedUnavailable);
        routed > 0 && routed >= latest.wanted()
    }

    /// The route of a model as it stands.
    ///
    /// Older versions keep traffic until the latest serves enough; until then traffic is shared by the number of
    /// replicas. A deleted model has no route.
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
                    // The same replicas are the same route, whichever server is being left.
                    replicas.sort_unstable();
                }
                let weight = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
                (weight > 0).then_some(RouteVersion { version: v.number, weight, replicas })
            })
            .collect();
        Self { versions, sleeps: model.latest().is_some_and(Version::sleeps) }
    }
}
