//! Models, their versions and replica states.

use super::{
    Millis, index::EquivalenceClass, owner::Owner, rollout::ObjectRollout, server::ReplicaId,
    unschedulable::Unschedulable,
};
use std::{collections::BTreeMap, mem, sync::Arc};

/// Placement constraints of a model version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Capabilities, all of which the server must offer.
    pub requirements: Vec<String>,
    /// Memory per replica, in bytes.
    pub memory: u64,
    /// Pins the version to one server.
    pub server: Option<Arc<str>>,
    /// Explainers need a server that offers `alibi-explain`.
    pub explainer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    pub replicas: u32,
    /// When positive, fewer replicas than desired may be placed.
    pub min: u32,
    /// 0: unbounded.
    pub max: u32,
}

/// Content digest, computed by the caller and compared only for equality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(pub u128);

/// The desired state of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub name: Arc<str>,
    /// Digest of the model spec; a change creates a new version.
    pub spec: Digest,
    /// Digest of the whole definition, which the caller keeps.
    pub content: Digest,
    pub needs: Needs,
    pub scaling: Scaling,
    /// `metadata.generation`, for objects of the operator.
    pub generation: Option<i64>,
    /// A precondition of the command, not desired state: the generation that the sender replaces, 0 for none. A late
    /// request does not undo a newer one. Without it any generation is replaced.
    pub replaces: Option<i64>,
}

/// State of one model replica. The numbers are those of the Seldon gRPC API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaState {
    /// Load pending: the agent is disconnected and receives the order when it reconnects.
    LoadRequested = 1,
    /// The load order was sent to the agent.
    Loading = 2,
    /// Loaded and in the route; not yet acknowledged by every gateway.
    Loaded = 3,
    LoadFailed = 4,
    /// Unload pending: the agent is disconnected and receives the order when it reconnects.
    UnloadRequested = 5,
    /// The unload order was sent to the agent.
    Unloading = 6,
    UnloadFailed = 8,
    Available = 9,
    /// Loaded and in the route, but the agent is disconnected.
    LoadedUnavailable = 10,
    /// Removed from the route; a gateway may still have requests in flight on it.
    UnloadEnvoyRequested = 11,
    /// In the route until enough others serve, because its server replica is terminating.
    Draining = 12,
}

impl ReplicaState {
    /// Whether gateways route to a replica in this state.
    pub const fn is_routed(self) -> bool {
        matches!(self, Self::Loaded | Self::Available | Self::LoadedUnavailable | Self::Draining)
    }

    /// Whether it counts towards the desired number of replicas.
    pub const fn counts_as_desired(self) -> bool {
        matches!(
            self,
            Self::LoadRequested | Self::Loading | Self::Loaded | Self::Available | Self::LoadedUnavailable
        )
    }
}

/// `awaits` of a replica until its route change is numbered by `publish_route`.
pub(super) const NEXT_CHANGE: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    pub state: ReplicaState,
    pub reason: String,
    pub since: Millis,
    /// The route sequence whose acknowledgement it waits for; 0: none.
    pub(super) awaits: u64,
    /// Reserved memory: from the load order until the agent's reports account for it.
    pub(super) reserved: u64,
    /// Whether its last failure was lack of memory.
    pub(super) no_memory: bool,
    /// Whether its last failure is permanent: it is retried only when the model is applied or the replica joins again.
    pub(super) rejected: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub number: u32,
    pub definition: Arc<Definition>,
    /// Replicas set by autoscaling, when different from the definition.
    pub scaled: Option<u32>,
    /// Whether autoscaling applies.
    pub autoscaled: bool,
    pub server: Option<Arc<str>>,
    /// By index of the server replica.
    pub replicas: BTreeMap<u32, ReplicaStatus>,
    /// Replicas on servers that the version is leaving; they serve until enough others do.
    pub leaving: BTreeMap<ReplicaId, ReplicaStatus>,
    /// Why not all replicas are placed.
    pub unplaced: Option<Arc<Unschedulable>>,
    /// Factor on the memory per replica, reported by the runtime; 1 until known.
    pub multiplier: u64,
    /// Whether it was in the route and is not superseded. Only such a version keeps traffic during a rollout.
    pub served: bool,
    /// Whether it was in the route since, or before, the last restart: a gateway may still route to it.
    pub(super) ever_routed: bool,
    /// Consecutive failed loads.
    pub attempts: u32,
    /// Replica and reason of the last failed load; cleared by a successful one.
    pub last_failure: Option<String>,
    pub since: Millis,
    /// When a failed load is retried, in logical time.
    pub(super) retry_at: Option<Millis>,
    /// Replicas that failed last; others are preferred.
    pub(super) avoid: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Oldest first, never empty; the last one is the desired state.
    pub versions: Vec<Version>,
    pub deleted: bool,
    /// Deleted by a gateway's repository call: a later call may load it again.
    pub unloaded: bool,
    /// `None` when only gateways requested it, and after deletion by its owner.
    pub owner: Option<Owner>,
    /// With a rollout policy.
    pub rollout: Option<Box<ObjectRollout>>,
    /// Sequence number of its last route change.
    pub route_sequence: u64,
    pub(super) published: PublishedRoute,
    pub(super) demand: Option<Box<Demand>>,
    /// Its entry in `Index::waiting`.
    pub(super) waits: Option<(Arc<EquivalenceClass>, u64)>,
    /// Its entry in `Index::timers`.
    pub(super) due: Option<Millis>,
    /// When the tombstone of a deleted model expires, in logical time.
    pub(super) forget_at: Option<Millis>,
}

/// What was last published to gateways besides the replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PublishedRoute {
    /// Why the route is empty.
    pub(super) reason: Option<String>,
    pub(super) scaled_to_zero: bool,
    /// Whether older versions take no traffic.
    pub(super) only_latest: bool,
    /// Routed replicas whose agent is disconnected, beside others.
    pub(super) disconnected: usize,
    /// Of the weights; 0 without a rollout policy.
    pub(super) rollout_generation: u64,
}

/// Request load of a model, for autoscaling. All times are logical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) in_flight_milli: u64,
    pub(super) seen: Millis,
    /// Time of the last request.
    pub(super) active: Millis,
    /// Since when fewer replicas would suffice.
    pub(super) low_since: Option<Millis>,
    pub(super) changed: Option<Millis>,
}

/// Aggregated state of a version. The numbers are those of the Seldon gRPC API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelState {
    Progressing = 1,
    Available = 2,
    Failed = 3,
    Terminating = 4,
    Terminated = 5,
    TerminateFailed = 6,
    ScheduleFailed = 7,
    ScaledDown = 8,
}

impl Version {
    pub(super) fn new(number: u32, definition: Arc<Definition>, now: Millis) -> Self {
        Self {
            number,
            definition,
            scaled: None,
            autoscaled: false,
            server: None,
            replicas: BTreeMap::new(),
            leaving: BTreeMap::new(),
            unplaced: None,
            multiplier: 1,
            served: false,
            ever_routed: false,
            attempts: 0,
            last_failure: None,
            since: now,
            retry_at: None,
            avoid: Vec::new(),
        }
    }

    /// Memory per replica, in bytes.
    pub fn memory_required(&self) -> u64 {
        self.definition.needs.memory.saturating_mul(self.multiplier)
    }

    /// Desired number of replicas, autoscaling included.
    pub fn desired_replicas(&self) -> u32 {
        self.scaled.unwrap_or(self.definition.scaling.replicas)
    }

    /// How many replicas suffice when not all desired ones can be placed; 0: all are needed.
    ///
    /// Replicas added by autoscaling are best effort.
    pub fn min_acceptable(&self) -> u32 {
        let scaling = self.definition.scaling;
        match self.scaled {
            Some(scaled) if scaled > scaling.replicas && scaling.min == 0 => scaling.replicas.max(1),
            _ => scaling.min,
        }
    }

    /// Whether autoscaling removed all replicas; the next request brings one back.
    pub fn scaled_to_zero(&self) -> bool {
        self.autoscaled && self.desired_replicas() == 0
    }

    /// All replicas, including those on servers that the version is leaving.
    pub fn statuses(&self) -> impl Iterator<Item = &ReplicaStatus> {
        self.replicas.values().chain(self.leaving.values())
    }

    /// All replicas with their locations.
    pub fn placements(&self) -> impl Iterator<Item = (&Arc<str>, u32, &ReplicaStatus)> {
        let here = self
            .server
            .iter()
            .flat_map(|server| self.replicas.iter().map(move |(&index, status)| (server, index, status)));
        here.chain(self.leaving.iter().map(|(id, status)| (&id.server, id.index, status)))
    }

    pub fn has_no_replicas(&self) -> bool {
        self.replicas.is_empty() && self.leaving.is_empty()
    }

    pub fn count(&self, of: impl Fn(ReplicaState) -> bool) -> u32 {
        u32::try_from(self.statuses().filter(|r| of(r.state)).count()).unwrap_or(u32::MAX)
    }

    pub fn any(&self, of: impl Fn(ReplicaState) -> bool) -> bool {
        self.statuses().any(|r| of(r.state))
    }

    pub fn routed(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.placements()
            .filter(|(_, _, r)| r.state.is_routed())
            .map(|(server, index, _)| ReplicaId { server: server.clone(), index })
    }

    /// Whether enough replicas are available.
    pub fn serves_enough(&self) -> bool {
        let available = self.count(|s| s == ReplicaState::Available);
        let min_acceptable = self.min_acceptable();
        available >= self.desired_replicas() || (min_acceptable > 0 && available >= min_acceptable)
    }

    pub(super) fn status(&self, server: &str, index: u32) -> Option<&ReplicaStatus> {
        let here = (self.server.as_deref() == Some(server)).then(|| self.replicas.get(&index)).flatten();
        // `leaving` is almost always empty: a scan avoids building a key.
        here.or_else(|| {
            self.leaving.iter().find(|(id, _)| &*id.server == server && id.index == index).map(|(_, s)| s)
        })
    }

    pub(super) fn status_mut(&mut self, server: &str, index: u32) -> Option<&mut ReplicaStatus> {
        if self.server.as_deref() == Some(server) && self.replicas.contains_key(&index) {
            return self.replicas.get_mut(&index);
        }
        self.leaving_mut(server, index)
    }

    /// Detaches the version from its server, so that it can be placed on another.
    pub(super) fn leave_server(&mut self) {
        let Some(server) = self.server.take() else { return };
        for (index, status) in mem::take(&mut self.replicas) {
            self.leaving.insert(ReplicaId { server: server.clone(), index }, status);
        }
    }

    pub(super) fn leaving_mut(&mut self, server: &str, index: u32) -> Option<&mut ReplicaStatus> {
        self.leaving.iter_mut().find(|(id, _)| &*id.server == server && id.index == index).map(|(_, s)| s)
    }
}

impl Model {
    pub(super) fn new(versions: Vec<Version>, owner: Option<Owner>) -> Self {
        Self {
            versions,
            deleted: false,
            unloaded: false,
            owner,
            rollout: None,
            route_sequence: 0,
            published: PublishedRoute::default(),
            demand: None,
            waits: None,
            due: None,
            forget_at: None,
        }
    }

    /// The desired version.
    pub fn latest(&self) -> Option<&Version> {
        self.versions.last()
    }
}
