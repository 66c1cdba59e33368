//! Models, their versions, and the states they pass through.

use super::{Millis, manager::Manager, reason::Reason, server::ReplicaId};
use std::{collections::BTreeMap, sync::Arc};

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

/// One replica of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Where it is.
    pub state: ReplicaState,
    /// Why, when there is something to say.
    pub reason: String,
    /// Since when.
    pub since: Millis,
    /// The route change that this state waits for, in `Loaded` and `UnloadEnvoyRequested`.
    pub(super) awaits: u64,
    /// Memory that is set aside for it: from the order to load until the agent's reports account for it.
    pub(super) promised: u64,
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
    /// The server that it is placed on.
    pub server: Option<Arc<str>>,
    /// Its replicas, by the index of the server's replica.
    pub replicas: BTreeMap<u32, ReplicaStatus>,
    /// Its replicas on servers that it is leaving: they serve until enough others do.
    pub leaving: BTreeMap<ReplicaId, ReplicaStatus>,
    /// Why it could not be placed, or not entirely.
    pub unplaced: Option<String>,
    /// Memory that a replica takes times what its runtime said about workers; 1 until it is known.
    pub multiplier: u64,
    /// Whether it ever served. Only such a version keeps traffic when a newer one is asked for.
    pub served: bool,
    /// When its state last changed.
    pub since: Millis,
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
    /// Why nothing can be routed to, as gateways were last told.
    pub(super) told: Option<String>,
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

/// A version's state, why, and in how many replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The state.
    pub state: ModelState,
    /// Why, when there is something to say.
    pub reason: String,
    /// Why, as a word; `None` when nothing is wrong.
    pub code: Option<Reason>,
    /// Replicas that serve.
    pub available: u32,
    /// Replicas that are wanted and do not serve.
    pub unavailable: u32,
}

impl Version {
    pub(super) fn new(number: u32, definition: Arc<Definition>, now: Millis) -> Self {
        Self {
            number,
            definition,
            scaled: None,
            server: None,
            replicas: BTreeMap::new(),
            leaving: BTreeMap::new(),
            unplaced: None,
            multiplier: 1,
            served: false,
            since: now,
        }
    }

    /// Memory that one replica takes.
    pub fn demand(&self) -> u64 {
        self.definition.needs.memory.saturating_mul(self.multiplier)
    }

    /// How many replicas are in a state.
    pub fn count(&self, of: impl Fn(ReplicaState) -> bool) -> u32 {
        u32::try_from(self.replicas.values().filter(|r| of(r.state)).count()).unwrap_or(u32::MAX)
    }

    /// The replicas that the route names.
    pub fn routed(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.server.iter().flat_map(|server| {
            self.replicas
                .iter()
                .filter(|(_, r)| r.state.is_routed())
                .map(move |(&index, _)| ReplicaId { server: server.clone(), index })
        })
    }

    /// Whether as many replicas serve as the version may ask for.
    pub(super) fn serves_enough(&self) -> bool {
        let available = self.count(|s| s == ReplicaState::Available);
        let Scaling { replicas, min, .. } = self.definition.scaling;
        available >= replicas || (min > 0 && available >= min)
    }
}

impl Model {
    /// What was asked for last.
    pub fn latest(&self) -> Option<&Version> {
        self.versions.last()
    }

    /// The state of one of the versions.
    pub fn summary(&self, version: &Version) -> Summary {
        let available = version.count(|s| s == ReplicaState::Available);
        let is_latest = self.versions.last().is_some_and(|v| v.number == version.number);
        let Scaling { replicas, min, .. } = version.definition.scaling;
        let summary = |state, reason: String| Summary {
            state,
            reason,
            code: None,
            available,
            unavailable: replicas.saturating_sub(available),
        };
        let reason_of = |wanted: ReplicaState| {
            version.replicas.iter().find(|(_, r)| r.state == wanted).map(|(index, r)| match &version.server {
                Some(server) => format!("{server}-{index}: {}", r.reason),
                None => r.reason.clone(),
            })
        };
        if self.deleted || !is_latest {
            let gone = Summary { unavailable: 0, ..summary(ModelState::Terminated, String::new()) };
            if let Some(reason) = reason_of(ReplicaState::UnloadFailed) {
                return Summary { state: ModelState::TerminateFailed, reason, ..gone };
            }
            if !version.replicas.is_empty() {
                return Summary { state: ModelState::Terminating, ..gone };
            }
            return gone;
        }
        if let Some(reason) = reason_of(ReplicaState::LoadFailed) {
            return summary(ModelState::Failed, reason);
        }
        if replicas == 0 && min == 0 && available == 0 {
            return summary(ModelState::ScaledDown, "no replica is wanted".into());
        }
        let older_serves = self
            .versions
            .iter()
            .any(|v| v.number != version.number && v.count(|s| s == ReplicaState::Available) > 0);
        if version.serves_enough() || (available > 0 && older_serves) {
            return summary(ModelState::Available, version.unplaced.clone().unwrap_or_default());
        }
        match &version.unplaced {
            Some(why) if version.count(ReplicaState::is_wanted) == 0 => {
                summary(ModelState::ScheduleFailed, why.clone())
            }
            why => summary(ModelState::Progressing, why.clone().unwrap_or_default()),
        }
    }
}
