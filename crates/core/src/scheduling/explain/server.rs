//! Explains the state of a server.

use super::{Explanation, Fact, State, ago, capabilities, fact, many};
use crate::scheduling::{Millis, Reason, Replica, ReplicaId, Server, placement::free, unschedulable::Bytes};
use std::sync::Arc;

/// `None` for an unknown server.
pub fn server(state: &State, name: &str, now: Millis) -> Option<Explanation> {
    let (name, server) = state.servers().get_key_value(name)?;
    let (reason, headline, next) = answer(state, name, server, now);
    Some(Explanation { headline, reason, facts: facts(state, name, server, now), next })
}

fn answer(state: &State, name: &Arc<str>, server: &Server, now: Millis) -> (Reason, String, String) {
    let joined = server.replicas.len();
    let models = |index: u32| state.index.on(name, index).map_or(0, |assigned| assigned.models.len());
    if server.is_terminating() {
        let left: usize = server.replicas.keys().map(|&index| models(index)).sum();
        let headline = format!("{name} is terminating: {} still on it.", many(left, "model"));
        let next = if left == 0 {
            "wait until its replicas deregister".to_owned()
        } else {
            "start another server with the same capabilities, or delete the models".to_owned()
        };
        return (Reason::ServerLeaving, headline, next);
    }
    let silent = server.replicas.iter().find_map(|(&index, r)| Some((index, r.disconnected_since?)));
    if let Some((index, since)) = silent {
        let headline =
            format!("{name} is not ready: {name}-{index} has been disconnected for {}.", ago(now, since));
        let next = format!("check that the agent of {name}-{index} runs and can reach the scheduler");
        return (Reason::Silent, headline, next);
    }
    let expected = server.expected.map_or(joined, |e| e.replicas as usize);
    if joined == 0 {
        let headline = if expected == 0 {
            format!("{name} is not ready: no replica has joined.")
        } else {
            format!("{name} is not ready: none of {} has joined.", many(expected, "replica"))
        };
        return (Reason::ReplicasMissing, headline, start(name));
    }
    if joined < expected {
        let index = |position: usize| u32::try_from(position).unwrap_or(u32::MAX);
        // Deployment pods have arbitrary indexes: missing ones cannot be named.
        let counted = server.replicas.keys().all(|known| *known < index(expected));
        let missing: Vec<String> = (0..if counted { expected } else { 0 })
            .filter(|position| !server.replicas.contains_key(&index(*position)))
            .take(5)
            .map(|position| format!(", {name}-{position}"))
            .collect();
        let has_not = if missing.is_empty() { "" } else { " has not" };
        let headline = format!(
            "{name} is not ready: {joined} of {expected} replicas have joined{}{has_not}.",
            missing.concat()
        );
        return (Reason::ReplicasMissing, headline, start(name));
    }
    if let Some((&index, _)) = server.replicas.iter().find(|(_, r)| r.draining) {
        let headline = format!("{name}-{index} is draining: {} still on it.", many(models(index), "model"));
        let next = "add a replica if the remaining models cannot move elsewhere".to_owned();
        return (Reason::Draining, headline, if models(index) == 0 { String::new() } else { next });
    }
    let loaded: usize = server
        .replicas
        .keys()
        .map(|&index| state.loaded_on(&ReplicaId { server: name.clone(), index }))
        .sum();
    let headline = format!(
        "{name} is ready: {} with {} loaded.",
        many(joined, "replica"),
        many(loaded, "model replica")
    );
    (Reason::Ready, headline, String::new())
}

fn start(name: &str) -> String {
    format!("start the missing replicas of {name}, or check that their agents can reach the scheduler")
}

fn facts(state: &State, name: &Arc<str>, server: &Server, now: Millis) -> Vec<Fact> {
    let mut expected: Vec<String> = Vec::new();
    if let Some(e) = server.expected {
        let bounds = match (e.min, e.max) {
            (0, 0) => String::new(),
            (min, 0) => format!(", at least {min}"),
            (min, max) => format!(", {min} to {max}"),
        };
        expected.push(format!("{} expected{bounds}", many(e.replicas as usize, "replica")));
    }
    expected.extend(
        server
            .requested_replicas
            .map(|count| format!("{} requested by autoscaling", many(count as usize, "replica"))),
    );
    expected.push(if server.shared { "shared" } else { "not shared" }.to_owned());
    expected.extend(server.owner.as_ref().map(|owner| format!("managed by {owner}")));
    let offers = (!server.replicas.is_empty()).then(|| capabilities(server));
    let replicas = server.replicas.iter().map(|(&index, replica)| line(state, name, index, replica, now));
    [fact("expected", expected), fact("offers", offers), fact("replicas", replicas)]
        .into_iter()
        .flatten()
        .collect()
}

fn line(state: &State, name: &Arc<str>, index: u32, replica: &Replica, now: Millis) -> String {
    let models = state.index.on(name, index).map_or(0, |assigned| assigned.models.len());
    let free_memory = free(&state.index, name, index, replica);
    let condition = match replica.disconnected_since {
        Some(since) => format!("   disconnected for {}", ago(now, since)),
        None if replica.draining => "   draining".to_owned(),
        None => String::new(),
    };
    format!(
        "{name}-{index}   {}   {} of {} free{condition}",
        many(models, "model"),
        Bytes(free_memory),
        Bytes(replica.memory_total)
    )
}
