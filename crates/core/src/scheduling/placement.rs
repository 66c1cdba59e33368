//! Selects the server and the server replicas for a version.

use super::{
    index::Index,
    model::{Needs, ReplicaState, Version},
    server::{Replica, Server},
    unschedulable::{Unschedulable, diagnose},
};
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// On these replicas, including current ones. `short` is why there are fewer than desired.
    On {
        server: Arc<str>,
        replicas: Vec<u32>,
        short: Option<Unschedulable>,
    },
    Nowhere(Unschedulable),
}

pub(super) fn offers_all(needs: &Needs, replica: &Replica) -> bool {
    needed(needs).all(|r| offers(replica, r))
}

/// The required capabilities.
pub(super) fn needed(needs: &Needs) -> impl Iterator<Item = &str> {
    needs.requirements.iter().map(|r| r.trim()).chain(needs.explainer.then_some("alibi-explain"))
}

pub(super) fn offers(replica: &Replica, requirement: &str) -> bool {
    replica.capabilities.iter().any(|c| c.trim() == requirement)
}

/// Whether the server accepts the model: named by it, or shared.
pub(super) fn admits(needs: &Needs, name: &str, server: &Server) -> bool {
    match &needs.server {
        Some(only) => **only == *name,
        None => server.shared,
    }
}

/// Memory that is neither used nor reserved.
pub(super) fn free(index: &Index, server: &str, number: u32, replica: &Replica) -> u64 {
    replica.memory_free.saturating_sub(index.reserved(server, number))
}

/// Rank of a server; larger is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score<'a> {
    /// All desired replicas fit.
    enough: bool,
    /// The version is already there.
    stays: bool,
    /// Another version of the model is there: the artifact may be cached.
    holds_it: bool,
    /// Replicas that fit, up to the desired number.
    possible: u32,
    /// The most free memory of one replica.
    free: u64,
    /// Fewest models on one replica.
    least: Reverse<usize>,
    /// Tie-break that does not depend on the join order.
    name: Reverse<&'a str>,
}

/// Rank of a server replica; larger is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    holds: bool,
    /// The last load there did not fail.
    fresh: bool,
    free: u64,
    /// Fewer models first, to spread them.
    models: Reverse<usize>,
    index: Reverse<u32>,
}

/// Places a version.
///
/// `current_server` holds the model now. A version stays as long as that server can take enough of it; it moves only
/// to one that can take all of it, or when the server terminates.
pub(super) fn place(
    version: &Version,
    servers: &BTreeMap<Arc<str>, Server>,
    index: &Index,
    current_server: Option<&str>,
) -> Placement {
    let needs = &version.definition.needs;
    let memory = version.memory_required();
    let desired = version.desired_replicas();
    let min_acceptable = version.min_acceptable();
    let mut best: Option<(Score<'_>, &Arc<str>, Vec<Fit>)> = None;
    for (name, server) in servers {
        if server.replicas.is_empty() || server.is_terminating() || !admits(needs, name, server) {
            continue;
        }
        let mut fits: Vec<Fit> = Vec::with_capacity(server.replicas.len());
        for (&number, replica) in &server.replicas {
            let holds = match version.status(name, number) {
                Some(status) if status.state.counts_as_desired() && !replica.draining => true,
                // It must be unloaded before it can be loaded there again.
                Some(_) => continue,
                None => false,
            };
            let free_memory = free(index, name, number, replica);
            if holds || (replica.takes_models() && free_memory >= memory && offers_all(needs, replica)) {
                fits.push(Fit {
                    holds,
                    fresh: !version.avoid.contains(&number),
                    free: free_memory,
                    models: Reverse(index.on(name, number).map_or(0, |h| h.models.len())),
                    index: Reverse(number),
                });
            }
        }
        let possible = u32::try_from(fits.len()).unwrap_or(u32::MAX).min(desired);
        if possible == 0 {
            continue;
        }
        let stays = version.server.as_ref() == Some(name) && version.any(ReplicaState::counts_as_desired);
        let score = Score {
            enough: possible >= desired || (stays && min_acceptable > 0 && possible >= min_acceptable),
            stays,
            holds_it: current_server == Some(name),
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
        return Placement::Nowhere(diagnose(version, servers, index, None));
    };
    let short =
        (score.possible < desired).then(|| diagnose(version, servers, index, Some((server, score.possible))));
    if let Some(short) = &short
        && (min_acceptable == 0 || score.possible < min_acceptable)
    {
        return Placement::Nowhere(short.clone());
    }
    fits.sort_unstable_by(|a, b| b.cmp(a));
    let replicas = fits.into_iter().take(desired as usize).map(|f| f.index.0).collect();
    Placement::On { server: server.clone(), replicas, short }
}
