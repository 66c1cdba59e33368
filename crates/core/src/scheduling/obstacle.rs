//! What stands in the way of placing a version: the one that is nearest to success.

use super::{
    index::Index,
    model::Version,
    placement::{admits, free, needed, offers},
    reason::Reason,
    server::{Replica, ReplicaId, Server},
};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No server has joined.
    NoServer,
    /// Only servers have joined that take no models but those that name them; this is one.
    NotShared(Arc<str>),
    /// A replica that could take it does not answer.
    Silent(ReplicaId),
    /// A replica that could take it is being drained.
    Draining(ReplicaId),
    /// The server that it names has not joined.
    NoSuchServer(Arc<str>),
    /// Every server that could take it is going away.
    Leaving(Arc<str>),
    /// No server offers these capabilities; the nearest one offers those.
    Lacks {
        /// What no server offers, or no server offers together.
        missing: Vec<String>,
        /// The server that offers most of what is needed.
        nearest: Arc<str>,
        /// What that server offers.
        offers: Vec<String>,
    },
    /// No replica has the memory.
    NoRoom {
        /// What a replica needs.
        needs: u64,
        /// The most that is free.
        free: u64,
        /// Where that is.
        on: ReplicaId,
    },
    /// Fewer replicas can take it than are wanted.
    TooFew {
        /// Wanted.
        wanted: u32,
        /// Possible.
        possible: u32,
        /// On the best server.
        server: Arc<str>,
        /// What keeps the server's other replicas from taking it; `None` when it has no others.
        because: Option<Box<Obstacle>>,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServer => f.write_str("no server has joined yet"),
            Self::NotShared(name) => {
                write!(f, "server {name} takes only models that name it, and no other server has joined")
            }
            Self::Silent(id) => write!(f, "{id} does not answer"),
            Self::Draining(id) => write!(f, "{id} is being drained"),
            Self::NoSuchServer(name) => write!(f, "server {name}, which the model names, has not joined"),
            Self::Leaving(name) => write!(f, "server {name} is going away"),
            Self::Lacks { missing, nearest, offers } => {
                write!(
                    f,
                    "no server offers {}; {nearest} offers {}",
                    missing.join(" and "),
                    if offers.is_empty() { "nothing".to_owned() } else { offers.join(", ") }
                )
            }
            Self::NoRoom { needs, free, on } => {
                write!(f, "needs {}, most free is {} on {on}", Bytes(*needs), Bytes(*free))
            }
            Self::TooFew { wanted, possible, server, because } => {
                write!(f, "{wanted} replicas are wanted, server {server} can take {possible}")?;
                because.as_ref().map_or(Ok(()), |because| write!(f, ": {because}"))
            }
        }
    }
}

/// An amount of memory for people to read.
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

impl Obstacle {
    /// The obstacle as a word.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NoServer => Reason::NoServer,
            Self::NotShared(_) => Reason::NotShared,
            Self::Silent(_) => Reason::Silent,
            Self::Draining(_) => Reason::Draining,
            Self::NoSuchServer(_) => Reason::UnknownServer,
            Self::Leaving(_) => Reason::ServerLeaving,
            Self::Lacks { .. } => Reason::NoCapability,
            Self::NoRoom { .. } => Reason::NoMemory,
            Self::TooFew { .. } => Reason::TooFewReplicas,
        }
    }

    /// How near to success it is: the nearest one is the one worth telling.
    fn nearness(&self) -> (u8, u64) {
        match self {
            Self::NoServer => (0, 0),
            Self::NoSuchServer(_) => (1, 0),
            Self::NotShared(_) => (2, 0),
            Self::Leaving(_) => (3, 0),
            Self::Lacks { missing, .. } => (4, u64::MAX - missing.len() as u64),
            Self::Draining(_) => (5, 0),
            Self::Silent(_) => (6, 0),
            Self::NoRoom { free, .. } => (7, *free),
            Self::TooFew { .. } => (8, 0),
        }
    }
}

/// Why a version cannot be placed as wanted. `partly` is the server that can take some of it, and how much.
pub(super) fn obstacle(
    version: &Version,
    servers: &BTreeMap<Arc<str>, Server>,
    index: &Index,
    partly: Option<(&Arc<str>, u32)>,
) -> Obstacle {
    let needs = &version.definition.needs;
    let mut nearest: Option<Obstacle> = None;
    let mut hinder = |found: Obstacle| {
        if nearest.as_ref().is_none_or(|known| found.nearness() > known.nearness()) {
            nearest = Some(found);
        }
    };
    for (name, server) in servers.iter().filter(|(name, _)| partly.is_none_or(|(only, _)| *name == only)) {
        if server.replicas.is_empty() || needs.server.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        if !admits(needs, name, server) {
            hinder(Obstacle::NotShared(name.clone()));
        } else if server.is_leaving() {
            hinder(Obstacle::Leaving(name.clone()));
        } else {
            for (&number, replica) in &server.replicas {
                if let Some(found) = hindrance(version, index, name, number, replica) {
                    hinder(found);
                }
            }
        }
    }
    if let Some((server, possible)) = partly {
        let because = nearest.map(Box::new);
        return Obstacle::TooFew { wanted: version.wanted(), possible, server: server.clone(), because };
    }
    nearest.unwrap_or_else(|| match &needs.server {
        Some(only) => Obstacle::NoSuchServer(only.clone()),
        None => Obstacle::NoServer,
    })
}

/// What keeps one replica from taking a version.
fn hindrance(
    version: &Version,
    index: &Index,
    name: &Arc<str>,
    number: u32,
    replica: &Replica,
) -> Option<Obstacle> {
    if version.status(name, number).is_some_and(|s| s.state.is_wanted()) {
        return None;
    }
    let lacks: Vec<String> =
        needed(&version.definition.needs).filter(|r| !offers(replica, r)).map(str::to_owned).collect();
    let id = ReplicaId { server: name.clone(), index: number };
    if !lacks.is_empty() {
        let offers = replica.capabilities.clone();
        return Some(Obstacle::Lacks { missing: lacks, nearest: name.clone(), offers });
    }
    if replica.silent_since.is_some() {
        return Some(Obstacle::Silent(id));
    }
    if replica.draining {
        return Some(Obstacle::Draining(id));
    }
    let room = free(index, name, number, replica);
    let demand = version.demand();
    (room < demand).then_some(Obstacle::NoRoom { needs: demand, free: room, on: id })
}
