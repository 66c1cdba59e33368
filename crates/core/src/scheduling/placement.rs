//! Which server and which of its replicas take a version, and what stands in the way when none can.

use super::{
    model::{Needs, Version},
    server::{ReplicaId, Server},
};
use std::{cmp::Reverse, collections::BTreeMap, fmt, sync::Arc};

/// Where a version goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// These replicas take it. `short` says why there are not as many as wanted.
    On {
        /// The server.
        server: Arc<str>,
        /// Its replicas, best first.
        replicas: Vec<u32>,
        /// Why there are not as many as wanted.
        short: Option<Obstacle>,
    },
    /// Nothing can take it.
    Nowhere(Obstacle),
}

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No server has joined.
    NoServer,
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
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServer => f.write_str("no server has joined yet"),
            Self::NoSuchServer(name) => write!(f, "server {name}, which the model names, has not joined"),
            Self::Leaving(name) => write!(f, "server {name} is going away"),
            Self::Lacks { missing, nearest, offers } => {
                write!(
                    f,
                    "no server offers {}; {nearest} offers {}",
                    missing.join(" and "),
                    offers.join(", ")
                )
            }
            Self::NoRoom { needs, free, on } => {
                write!(f, "needs {}, most free is {} on {on}", Bytes(*needs), Bytes(*free))
            }
            Self::TooFew { wanted, possible, server } => {
                write!(f, "{wanted} replicas are wanted, server {server} can take {possible}")
            }
        }
    }
}

/// An amount of memory for people to read.
struct Bytes(u64);

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

fn missing(needs: &Needs, capabilities: &[String]) -> Vec<String> {
    let explainer = needs.explainer.then_some("alibi-explain");
    needs
        .requirements
        .iter()
        .map(|r| r.trim())
        .chain(explainer)
        .filter(|r| !capabilities.iter().any(|c| c.trim() == *r))
        .map(str::to_owned)
        .collect()
}

/// How good a server is for a version; larger is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score<'a> {
    /// It can take as many replicas as are wanted.
    enough: bool,
    /// It holds the model already: less is moved.
    holds_it: bool,
    /// How many replicas it can take, up to what is wanted.
    possible: u32,
    /// The most free memory on one of them.
    free: u64,
    /// First by name, so that the order of joining does not matter.
    name: Reverse<&'a str>,
}

/// Decides where a version goes.
///
/// `free` tells the memory of a replica that is neither used nor promised; `home` is the server that holds the
/// model now. A version that has replicas already stays on its server and is only given more of them.
pub fn place(
    version: &Version,
    servers: &BTreeMap<Arc<str>, Server>,
    free: impl Fn(&ReplicaId) -> u64,
    home: Option<&str>,
) -> Placement {
    let needs = &version.definition.needs;
    let demand = version.demand();
    let wanted = version.definition.scaling.replicas;
    let mut best: Option<(Score<'_>, Arc<str>, Vec<u32>)> = None;
    let mut obstacle: Option<Obstacle> = None;
    let mut hinder = |o: Obstacle| {
        // The obstacle that is nearest to success is the one worth telling.
        let rank = |o: &Obstacle| match o {
            Obstacle::NoServer => 0,
            Obstacle::NoSuchServer(_) => 1,
            Obstacle::Leaving(_) => 2,
            Obstacle::Lacks { missing, .. } => 1000usize.saturating_sub(missing.len()).max(3),
            Obstacle::NoRoom { .. } => 2000,
            Obstacle::TooFew { .. } => 3000,
        };
        if obstacle.as_ref().is_none_or(|known| rank(&o) > rank(known)) {
            obstacle = Some(o);
        }
    };
    for (name, server) in servers {
        let stays = version.server.as_ref().filter(|_| !version.replicas.is_empty());
        if stays.is_some_and(|s| s != name) || server.replicas.is_empty() {
            continue;
        }
        match &needs.server {
            Some(only) if only != name => continue,
            None if !server.shared => continue,
            _ => {}
        }
        if server.is_leaving() {
            hinder(Obstacle::Leaving(name.clone()));
            continue;
        }
        let mut fits: Vec<(bool, u64, Reverse<u32>)> = Vec::new();
        for (&index, replica) in &server.replicas {
            let lacks = missing(needs, &replica.capabilities);
            if !lacks.is_empty() {
                hinder(Obstacle::Lacks {
                    missing: lacks,
                    nearest: name.clone(),
                    offers: replica.capabilities.clone(),
                });
                continue;
            }
            let id = ReplicaId { server: name.clone(), index };
            let holds = version.replicas.contains_key(&index);
            let room = free(&id);
            if !holds && room < demand {
                hinder(Obstacle::NoRoom { needs: demand, free: room, on: id });
                continue;
            }
            fits.push((holds, room, Reverse(index)));
        }
        fits.sort_unstable_by(|a, b| b.cmp(a));
        let possible = u32::try_from(fits.len()).unwrap_or(u32::MAX).min(wanted);
        if possible == 0 {
            continue;
        }
        let score = Score {
            enough: possible >= wanted,
            holds_it: home == Some(name),
            possible,
            free: fits.iter().map(|f| f.1).max().unwrap_or(0),
            name: Reverse(name),
        };
        let replicas = fits.into_iter().take(wanted as usize).map(|(_, _, Reverse(i))| i).collect();
        if best.as_ref().is_none_or(|(known, ..)| score > *known) {
            best = Some((score, name.clone(), replicas));
        }
    }
    match best {
        Some((score, server, replicas)) if score.enough => Placement::On { server, replicas, short: None },
        Some((score, server, replicas)) => {
            let short = Obstacle::TooFew { wanted, possible: score.possible, server: server.clone() };
            let floor = version.definition.scaling.min;
            if floor > 0 && score.possible >= floor {
                Placement::On { server, replicas, short: Some(short) }
            } else {
                Placement::Nowhere(short)
            }
        }
        None => Placement::Nowhere(obstacle.unwrap_or_else(|| match &needs.server {
            Some(only) => Obstacle::NoSuchServer(only.clone()),
            None => Obstacle::NoServer,
        })),
    }
}
