//! Why a version cannot be placed. Of several reasons the one closest to success is reported.

use super::{
    index::Index,
    model::{ReplicaState, Version},
    placement::{admits, free, needed, offers},
    reason::Reason,
    server::{Replica, ReplicaId, Server},
};
use std::{collections::BTreeMap, fmt, sync::Arc};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unschedulable {
    NoServer,
    /// Every server is dedicated to models that name it; this is one.
    NotShared(Arc<str>),
    /// A suitable replica is disconnected.
    Disconnected(ReplicaId),
    /// A suitable replica is draining.
    Draining(ReplicaId),
    /// A suitable replica still has to unload it.
    Unloading(ReplicaId),
    /// The server named by the model has not joined.
    ServerNotFound(Arc<str>),
    /// Every suitable server is terminating.
    ServerTerminating(Arc<str>),
    /// No server offers all required capabilities.
    MissingCapabilities {
        missing: Vec<String>,
        /// The server that offers most of them.
        nearest: Arc<str>,
        offers: Vec<String>,
    },
    /// No replica has enough free memory.
    InsufficientMemory {
        needs: u64,
        /// The most free memory on any replica.
        free: u64,
        /// That replica.
        on: ReplicaId,
    },
    /// Fewer replicas can be placed than desired.
    InsufficientReplicas {
        desired: u32,
        possible: u32,
        /// The best server.
        server: Arc<str>,
        /// Why the server's other replicas are unsuitable; `None` when there are no others.
        because: Option<Box<Unschedulable>>,
    },
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServer => f.write_str("no server has joined yet"),
            Self::NotShared(name) => {
                write!(f, "server {name} is not shared, and no other server has joined")
            }
            Self::Disconnected(id) => write!(f, "{id} is disconnected"),
            Self::Draining(id) => write!(f, "{id} is draining"),
            Self::Unloading(id) => write!(f, "{id} must unload it before loading it again"),
            Self::ServerNotFound(name) => write!(f, "server {name} in spec.server has not joined"),
            Self::ServerTerminating(name) => write!(f, "server {name} is terminating"),
            Self::MissingCapabilities { missing, nearest, offers } => {
                write!(
                    f,
                    "no server offers {}; {nearest} offers {}",
                    missing.join(" and "),
                    if offers.is_empty() { "nothing".to_owned() } else { offers.join(", ") }
                )
            }
            Self::InsufficientMemory { needs, free, on } => {
                write!(f, "needs {}, most free is {} on {on}", Bytes(*needs), Bytes(*free))
            }
            Self::InsufficientReplicas { desired, possible, server, because } => {
                write!(f, "{desired} replicas desired, server {server} can take {possible}")?;
                because.as_ref().map_or(Ok(()), |because| write!(f, ": {because}"))
            }
        }
    }
}

/// Formats an amount of memory.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} B", self.0),
            1_000..1_000_000 => write!(f, "{:.1} KB", value / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", value / 1e6),
            _ => write!(f, "{:.1} GB", value / 1e9),
        }
    }
}

impl Unschedulable {
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NoServer => Reason::NoServer,
            Self::NotShared(_) => Reason::NotShared,
            Self::Disconnected(_) => Reason::Silent,
            Self::Draining(_) => Reason::Draining,
            Self::Unloading(_) => Reason::Terminating,
            Self::ServerNotFound(_) => Reason::UnknownServer,
            Self::ServerTerminating(_) => Reason::ServerLeaving,
            Self::MissingCapabilities { .. } => Reason::NoCapability,
            Self::InsufficientMemory { .. } => Reason::NoMemory,
            Self::InsufficientReplicas { .. } => Reason::TooFewReplicas,
        }
    }

    /// Rank for choosing the reason closest to success.
    fn nearness(&self) -> (u8, u64) {
        match self {
            Self::NoServer => (0, 0),
            Self::ServerNotFound(_) => (1, 0),
            Self::NotShared(_) => (2, 0),
            Self::ServerTerminating(_) => (3, 0),
            Self::MissingCapabilities { missing, .. } => (4, u64::MAX - missing.len() as u64),
            Self::Draining(_) => (5, 0),
            Self::Disconnected(_) => (6, 0),
            Self::InsufficientMemory { free, .. } => (7, *free),
            Self::Unloading(_) => (8, 0),
            Self::InsufficientReplicas { .. } => (9, 0),
        }
    }
}

/// Why a version cannot be placed completely. `partly` is the server that can take some replicas, and how many.
pub(super) fn diagnose(
    version: &Version,
    servers: &BTreeMap<Arc<str>, Server>,
    index: &Index,
    partly: Option<(&Arc<str>, u32)>,
) -> Unschedulable {
    let needs = &version.definition.needs;
    let mut nearest: Option<Unschedulable> = None;
    let mut consider = |found: Unschedulable| {
        if nearest.as_ref().is_none_or(|known| found.nearness() > known.nearness()) {
            nearest = Some(found);
        }
    };
    for (name, server) in servers.iter().filter(|(name, _)| partly.is_none_or(|(only, _)| *name == only)) {
        if server.replicas.is_empty() || needs.server.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        if !admits(needs, name, server) {
            consider(Unschedulable::NotShared(name.clone()));
        } else if server.is_terminating() {
            consider(Unschedulable::ServerTerminating(name.clone()));
        } else {
            for (&number, replica) in &server.replicas {
                if let Some(found) = replica_blocker(version, index, name, number, replica) {
                    consider(found);
                }
            }
        }
    }
    if let Some((server, possible)) = partly {
        let because = nearest.map(Box::new);
        return Unschedulable::InsufficientReplicas {
            desired: version.desired_replicas(),
            possible,
            server: server.clone(),
            because,
        };
    }
    nearest.unwrap_or_else(|| match &needs.server {
        Some(only) => Unschedulable::ServerNotFound(only.clone()),
        None => Unschedulable::NoServer,
    })
}

/// Why one server replica is unsuitable.
fn replica_blocker(
    version: &Version,
    index: &Index,
    name: &Arc<str>,
    number: u32,
    replica: &Replica,
) -> Option<Unschedulable> {
    if version.status(name, number).is_some_and(|s| s.state.counts_as_desired()) {
        return None;
    }
    let lacks: Vec<String> =
        needed(&version.definition.needs).filter(|r| !offers(replica, r)).map(str::to_owned).collect();
    let id = ReplicaId { server: name.clone(), index: number };
    if !lacks.is_empty() {
        let offers = replica.capabilities.clone();
        return Some(Unschedulable::MissingCapabilities { missing: lacks, nearest: name.clone(), offers });
    }
    if replica.disconnected_since.is_some() {
        return Some(Unschedulable::Disconnected(id));
    }
    if replica.draining {
        return Some(Unschedulable::Draining(id));
    }
    let unloads = |state| {
        use ReplicaState::{UnloadEnvoyRequested, UnloadFailed, UnloadRequested, Unloading};
        matches!(state, UnloadEnvoyRequested | UnloadRequested | Unloading | UnloadFailed)
    };
    if version.status(name, number).is_some_and(|s| unloads(s.state)) {
        return Some(Unschedulable::Unloading(id));
    }
    let free_memory = free(index, name, number, replica);
    let memory = version.memory_required();
    (free_memory < memory).then_some(Unschedulable::InsufficientMemory {
        needs: memory,
        free: free_memory,
        on: id,
    })
}
