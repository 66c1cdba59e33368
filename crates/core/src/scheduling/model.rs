//! Models, their versions, and the states they pass through.

use super::{Millis, index::Shape, manager::Manager, obstacle::Obstacle, server::ReplicaId};
use crate::mutant;
use std::{collections::BTreeMap, mem, sync::Arc};

/// What a version of a model needs from a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Capabilities that the server must all have.
    pub requirements: Vec<String>,
    /// Memory that a replica of the model takes.
    pub memory: u64,
    /// The only server that may take it.
    pub server: Option<Arc<str>>,
    /// Explainers need a server that offers `alibi-explain`.
    pub explainer: bool,
}

/// How many replicas are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Wanted.
    pub replicas: u32,
    /// Fewest; with some, a model may be placed on fewer replicas than wanted.
    pub min: u32,
    /// Most; 0 for no bound.
    pub max: u32,
}

/// A model as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The model's name.
    pub name: Arc<str>,
    /// What makes a new version when it changes, encoded. Decisions never read it.
    pub spec: Arc<[u8]>,
    /// The whole definition, encoded. Decisions never read it.
    pub whole: Arc<[u8]>,
    /// What a replica needs.
    pub needs: Needs,
    /// How many replicas are wanted.
    pub scaling: Scaling,
    /// The object's generation in Kubernetes, when it comes from there.
    pub generation: Option<i64>,
}

/// Where one replica of a version is on its way. The numbers are the contract's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaState {
    /// To be loaded; the agent may not have the order, because its connection ended. It gets it again.
    LoadRequested = 1,
    /// The agent has the order to load.
    Loading = 2,
    /// Loaded, and in the route; some gateway does not have the route yet.
    Loaded = 3,
    /// Loading failed; the reason says why.
    LoadFailed = 4,
    /// To be unloaded; the agent may not have the order, because its connection ended. It gets it again.
    UnloadRequested = 5,
    /// The agent has the order to unload.
    Unloading = 6,
    /// Unloading failed; the reason says why.
    UnloadFailed = 8,
    /// Serving.
    Available = 9,
    /// Loaded and in the route when the agent was last heard of.
    LoadedUnavailable = 10,
    /// Out of the route; some gateway still has requests on it.
    UnloadEnvoyRequested = 11,
    /// In the route until enough others serve: its server replica is about to go.
    Draining = 12,
}

impl ReplicaState {
    /// Whether the route names such a replica.
    pub const fn is_routed(self) -> bool {
        matches!(self, Self::Loaded | Self::Available | Self::LoadedUnavailable | Self::Draining)
    }

    /// Whether it counts towards the replicas that are wanted.
    pub const fn is_wanted(self) -> bool {
        matches!(
            self,
            Self::LoadRequested | Self::Loading | Self::Loaded | Self::Available | Self::LoadedUnavailable
        )
    }
}

/// What a replica waits for, when the next route change is to tell.
pub(super) const NEXT_CHANGE: u64 = u64::MAX;

/// One replica of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Where it is.
    pub state: ReplicaState,
    /// Why, when there is something to say.
    pub reason: String,
    /// Since when.
    pub since: Millis,
    /// The route change that it waits for; 0 when it waits for none.
    pub(super) awaits: u64,
    /// Memory that is set aside for it: from the order to load until the agent's reports account for it.
    pub(super) promised: u64,
    /// Whether its last failure was for want of memory.
    pub(super) no_memory: bool,
}

/// A version of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The number, from 1.
    pub number: u32,
    /// What was asked.
    pub definition: Arc<Definition>,
    /// How many replicas its demand calls for, when that is not what was asked.
    pub scaled: Option<u32>,
    /// Whether its demand decides how many replicas there are.
    pub autoscaled: bool,
    /// The server that it is placed on.
    pub server: Option<Arc<str>>,
    /// Its replicas, by the index of the server's replica.
    pub replicas: BTreeMap<u32, ReplicaStatus>,
    /// Its replicas on servers that it is leaving: they serve until enough others do.
    pub leaving: BTreeMap<ReplicaId, ReplicaStatus>,
    /// Why it could not be placed, or not entirely.
    pub unplaced: Option<Arc<Obstacle>>,
    /// Memory that a replica takes times what its runtime said about workers; 1 until it is known.
    pub multiplier: u64,
    /// Whether it was ever in the route, and no newer one has taken its place. Only such a version keeps traffic when a
    /// newer one is asked for.
    pub served: bool,
    /// Whether it was ever in the route, in this life or the last: some gateway may route to it still.
    pub(super) was_routed: bool,
    /// How often in a row it could not be loaded.
    pub attempts: u32,
    /// Where and why it could not be loaded the last time, until it could.
    pub last_failure: Option<String>,
    /// When its state last changed.
    pub since: Millis,
    /// When a load that failed is tried again, in time that passed.
    pub(super) retry_at: Option<Millis>,
    /// Where it could not be loaded last: other replicas are tried first.
    pub(super) avoid: Vec<u32>,
}

/// A model: its versions, oldest first. The last one is what was asked for last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The versions that still matter, oldest first; never empty.
    pub versions: Vec<Version>,
    /// Whether it is to go, or gone.
    pub deleted: bool,
    /// Who manages it; nobody when only gateways asked for it, or when it is deleted.
    pub manager: Option<Manager>,
    /// The last change of its route.
    pub route_sequence: u64,
    /// What gateways were last told beside the replicas.
    pub(super) told: Told,
    /// What was last seen of its demand.
    pub(super) demand: Option<Box<Demand>>,
    /// Under what it waits for room, and for how much.
    pub(super) waits: Option<(Arc<Shape>, u64)>,
    /// When to look at it again, in time that passed.
    pub(super) due: Option<Millis>,
    /// When a deleted model is forgotten, in time that passed.
    pub(super) forget_at: Option<Millis>,
}

/// What gateways are told beside the replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Why nothing can be routed to.
    pub(super) reason: Option<String>,
    pub(super) sleeps: bool,
    /// Whether older versions take no traffic.
    pub(super) only_latest: bool,
}

/// What was last seen of the demand for a model. All times are of time that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) in_flight_milli: u64,
    pub(super) seen: Millis,
    /// When somebody last asked for the model.
    pub(super) active: Millis,
    /// Since when fewer replicas would do.
    pub(super) low_since: Option<Millis>,
    /// When the scale last changed.
    pub(super) changed: Option<Millis>,
}

/// The state of a version as a whole. The numbers are the contract's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelState {
    /// On its way.
    Progressing = 1,
    /// Serving.
    Available = 2,
    /// A replica could not load it.
    Failed = 3,
    /// Going.
    Terminating = 4,
    /// Gone.
    Terminated = 5,
    /// A replica could not unload it.
    TerminateFailed = 6,
    /// No server can take it.
    ScheduleFailed = 7,
    /// No replica is wanted.
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
            was_routed: false,
            attempts: 0,
            last_failure: None,
            since: now,
            retry_at: None,
            avoid: Vec::new(),
        }
    }

    /// Memory that one replica takes.
    pub fn demand(&self) -> u64 {
        self.definition.needs.memory.saturating_mul(self.multiplier)
    }

    /// How many replicas are wanted now.
    pub fn wanted(&self) -> u32 {
        self.scaled.unwrap_or(self.definition.scaling.replicas)
    }

    /// How many replicas are enough when there cannot be as many as wanted; 0 when there have to be.
    ///
    /// What demand calls for beyond what was asked is taken as far as it can be had.
    pub fn floor(&self) -> u32 {
        let asked = self.definition.scaling;
        match self.scaled {
            Some(scaled) if scaled > asked.replicas && asked.min == 0 => asked.replicas.max(1),
            _ => asked.min,
        }
    }

    /// Whether no replica is wanted until somebody asks for the model.
    pub fn sleeps(&self) -> bool {
        self.autoscaled && self.wanted() == 0
    }

    /// All its replicas, those on servers that it is leaving too.
    pub fn statuses(&self) -> impl Iterator<Item = &ReplicaStatus> {
        self.replicas.values().chain(self.leaving.values())
    }

    /// All its replicas and where they are.
    pub fn places(&self) -> impl Iterator<Item = (&Arc<str>, u32, &ReplicaStatus)> {
        let here = self
            .server
            .iter()
            .flat_map(|server| self.replicas.iter().map(move |(&index, status)| (server, index, status)));
        here.chain(self.leaving.iter().map(|(id, status)| (&id.server, id.index, status)))
    }

    /// Whether it has nothing anywhere.
    pub fn is_nowhere(&self) -> bool {
        self.replicas.is_empty() && self.leaving.is_empty()
    }

    /// How many replicas are in a state.
    pub fn count(&self, of: impl Fn(ReplicaState) -> bool) -> u32 {
        u32::try_from(self.statuses().filter(|r| of(r.state)).count()).unwrap_or(u32::MAX)
    }

    /// Whether any replica is in a state.
    pub fn any(&self, of: impl Fn(ReplicaState) -> bool) -> bool {
        self.statuses().any(|r| of(r.state))
    }

    /// The replicas that the route names.
    pub fn routed(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.places()
            .filter(|(_, _, r)| {
                r.state.is_routed()
                    || (mutant::is("routes_what_is_loading") && r.state == ReplicaState::Loading)
            })
            .map(|(server, index, _)| ReplicaId { server: server.clone(), index })
    }

    /// Whether as many replicas serve as the version may ask for.
    pub fn serves_enough(&self) -> bool {
        let available = self.count(|s| s == ReplicaState::Available);
        let floor = self.floor();
        available >= self.wanted() || (floor > 0 && available >= floor)
    }

    /// What is known of it on a replica.
    pub(super) fn status(&self, server: &str, index: u32) -> Option<&ReplicaStatus> {
        let here = (self.server.as_deref() == Some(server)).then(|| self.replicas.get(&index)).flatten();
        // Versions leave a server seldom, and few at a time: no need to build a key.
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

    /// Makes room for another server as the version's place.
    pub(super) fn leave_server(&mut self) {
        let Some(server) = self.server.take() else { return };
        for (index, status) in mem::take(&mut self.replicas) {
            self.leaving.insert(ReplicaId { server: server.clone(), index }, status);
        }
    }

    /// What is known of it on a replica of a server that it is leaving.
    pub(super) fn leaving_mut(&mut self, server: &str, index: u32) -> Option<&mut ReplicaStatus> {
        self.leaving.iter_mut().find(|(id, _)| &*id.server == server && id.index == index).map(|(_, s)| s)
    }
}

impl Model {
    pub(super) fn new(versions: Vec<Version>, manager: Option<Manager>) -> Self {
        Self {
            versions,
            deleted: false,
            manager,
            route_sequence: 0,
            told: Told::default(),
            demand: None,
            waits: None,
            due: None,
            forget_at: None,
        }
    }

    /// What was asked for last.
    pub fn latest(&self) -> Option<&Version> {
        self.versions.last()
    }
}
