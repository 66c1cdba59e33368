//! Which server and which of its replicas take a version.

use super::{
    index::Index,
    model::{Needs, ReplicaState, Version},
    obstacle::{Obstacle, obstacle},
    server::{Replica, Server},
};
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// Where a version goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// These replicas take it, those that hold it already included. `short` says why there are not as many as wanted.
    On { server: Arc<str>, replicas: Vec<u32>, short: Option<Obstacle> },
    /// Nothing can take it.
    Nowhere(Obstacle),
}

/// Whether a replica offers everything that a version needs.
pub(super) fn offers_all(needs: &Needs, replica: &Replica) -> bool {
    needed(needs).all(|r| offers(replica, r))
}

/// The capabilities that a version needs.
pub(super) fn needed(needs: &Needs) -> impl Iterator<Item = &str> {
    needs.requirements.iter().map(|r| r.trim()).chain(needs.explainer.then_some("alibi-explain"))
}

pub(super) fn offers(replica: &Replica, requirement: &str) -> bool {
    replica.capabilities.iter().any(|c| c.trim() == requirement)
}

/// Whether a version may be on a server at all.
pub(super) fn admits(needs: &Needs, name: &str, server: &Server) -> bool {
    match &needs.server {
        Some(only) => **only == *name,
        None => server.shared,
    }
}

/// Memory of a replica that is neither used nor promised.
pub(super) fn free(index: &Index, server: &str, number: u32, replica: &Replica) -> u64 {
    replica.memory_free.saturating_sub(index.promised(server, number))
}

/// How good a server is for a version; larger is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score<'a> {
    /// It can take as many replicas as are wanted.
    enough: bool,
    /// The version is there already.
    stays: bool,
    /// It holds another version of the model: the artifact may be there.
    holds_it: bool,
    /// How many replicas it can take, up to what is wanted.
    possible: u32,
    /// The most free memory on one of them.
    free: u64,
    /// Fewest models on one of them.
    least: Reverse<usize>,
    /// First by name, so that the order of joining does not matter.
    name: Reverse<&'a str>,
}

/// How good a replica is for a version; larger is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    holds: bool,
    /// It did not fail there last time.
    fresh: bool,
    free: u64,
    /// How many models it has: among equals they are spread.
    models: Reverse<usize>,
    index: Reverse<u32>,
}

/// Decides where a version goes.
///
/// `home` is the server that holds the model now. A version stays where it is as long as that server can take enough
/// of it; it moves only to one that can take all of it, or when it has to go.
pub(super) fn place(
    version: &Version,
    servers: &BTreeMap<Arc<str>, Server>,
    index: &Index,
    home: Option<&str>,
) -> Placement {
    let needs = &version.definition.needs;
    let demand = version.demand();
    let wanted = version.wanted();
    let floor = version.floor();
    let mut best: Option<(Score<'_>, &Arc<str>, Vec<Fit>)> = None;
    for (name, server) in servers {
        if server.replicas.is_empty() || server.is_leaving() || !admits(needs, name, server) {
            continue;
        }
        let mut fits: Vec<Fit> = Vec::with_capacity(server.replicas.len());
        for (&number, replica) in &server.replicas {
            let holds = match version.status(name, number) {
                Some(status) if status.state.is_wanted() && !replica.draining => true,
                // It has to be gone from there before it can be loaded there again.
                Some(_) => continue,
                None => false,
            };
            let room = free(index, name, number, replica);
            if holds || (replica.takes_models() && room >= demand && offers_all(needs, replica)) {
                fits.push(Fit {
                    holds,
                    fresh: !version.avoid.contains(&number),
                    free: room,
                    models: Reverse(index.on(name, number).map_or(0, |h| h.models.len())),
                    index: Reverse(number),
                });
            }
        }
        let possible = u32::try_from(fits.len()).unwrap_or(u32::MAX).min(wanted);
        if possible == 0 {
            continue;
        }
        let stays = version.server.as_ref() == Some(name) && version.any(ReplicaState::is_wanted);
        let score = Score {
            enough: possible >= wanted || (stays && floor > 0 && possible >= floor),
            stays,
            holds_it: home == Some(name),
            possible,
            free: fits.iter().map(|f| f.free).max().unwrap_or(0),
            least: fits.iter().map(|f| f.models).max().unwrap_or(Reverse(0)),
            name: Reverse(name),
        };
        if best.as_ref().is_none_or(|(known, ..)| score > *known) {
            best = Some((score, name, fits));
        }
    }
    let Some((score, server, mut fits)) = best else {
        return Placement::Nowhere(obstacle(version, servers, index, None));
    };
    let short =
        (score.possible < wanted).then(|| obstacle(version, servers, index, Some((server, score.possible))));
    if let Some(short) = &short
        && (floor == 0 || score.possible < floor)
    {
        return Placement::Nowhere(short.clone());
    }
    fits.sort_unstable_by(|a, b| b.cmp(a));
    let replicas = fits.into_iter().take(wanted as usize).map(|f| f.index.0).collect();
    Placement::On { server: server.clone(), replicas, short }
}
