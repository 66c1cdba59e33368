//! Explains the state of a model.

use super::{
    Answer, CHECK_GATEWAYS, Explanation, Fact, Span, State, ago, capabilities, fact, managed, many,
    strip_period,
};
use crate::scheduling::{
    Millis, Model, ModelState, Reason, ReplicaState, Server, Unschedulable, Version,
    placement::{Placement, admits, free, place},
    unschedulable::{Bytes, diagnose},
};
use std::{collections::BTreeMap, sync::Arc};

/// `None` for an unknown model.
pub fn model(state: &State, name: &str, now: Millis) -> Option<Explanation> {
    let model = state.models().get(name)?;
    let version = model.latest()?;
    let summary = model.version_status(version);
    let case = Case { state, name, model, version, now };
    let (reason, headline, next) = match summary.state {
        ModelState::Terminated => (
            Reason::Deleted,
            format!("{name} was deleted {} ago.", ago(now, version.since)),
            "apply its manifest again to recreate it".to_owned(),
        ),
        ModelState::Terminating => case.terminating(),
        ModelState::TerminateFailed => case.not_unloaded(),
        _ if summary.code == Some(Reason::RolledBack) => case.rolled_back(&summary.reason),
        _ if summary.code == Some(Reason::RollingOut) => case.rolling_out(&summary.reason),
        ModelState::Failed => case.not_loaded(),
        ModelState::ScaledDown => case.scaled_down(),
        ModelState::Available => case.available(summary.available),
        ModelState::ScheduleFailed | ModelState::Progressing => case.not_ready(),
    };
    Some(Explanation { headline, reason, facts: case.facts(), next })
}

struct Case<'a> {
    state: &'a State,
    name: &'a str,
    model: &'a Model,
    version: &'a Version,
    now: Millis,
}

impl Case<'_> {
    /// The first replica in a state: location, reason, since when.
    fn first(&self, state: ReplicaState) -> Option<(String, &str, Millis)> {
        let mut placements = self.model.versions.iter().rev().flat_map(Version::placements);
        let (server, index, status) = placements.find(|(_, _, status)| status.state == state)?;
        Some((format!("{server}-{index}"), status.reason.as_str(), status.since))
    }

    /// "Not ready" with the cause, and the older version that serves meanwhile.
    fn not_ready_because(&self, cause: &str) -> String {
        let older = self
            .model
            .versions
            .iter()
            .rev()
            .find(|v| v.number != self.version.number && v.any(ReplicaState::is_routed));
        let (name, number) = (self.name, self.version.number);
        match older {
            Some(old) => {
                format!("{name} version {number} is not ready: {cause}; version {} serves.", old.number)
            }
            None => format!("{name} is not ready: {cause}."),
        }
    }

    fn terminating(&self) -> Answer {
        let (cause, next) = if let Some((location, _, since)) = self.first(ReplicaState::UnloadEnvoyRequested)
        {
            let for_long = ago(self.now, since);
            (
                format!("a gateway has had requests in flight on {location} for {for_long}"),
                "wait until its last request completes",
            )
        } else if let Some((location, _, since)) = self.first(ReplicaState::UnloadRequested) {
            (
                format!("{location} has been disconnected for {}", ago(self.now, since)),
                "wait until its agent reconnects or its grace period ends",
            )
        } else {
            let (location, _, since) = self.first(ReplicaState::Unloading).unwrap_or_default();
            (
                format!("{location} has been unloading it for {}", ago(self.now, since)),
                "check the agent's log",
            )
        };
        (Reason::Terminating, format!("{} is being unloaded: {cause}.", self.name), next.to_owned())
    }

    fn not_unloaded(&self) -> Answer {
        let (location, why, _) = self.first(ReplicaState::UnloadFailed).unwrap_or_default();
        let headline =
            format!("{} is not unloaded: {location} failed to unload it: {}.", self.name, strip_period(why));
        let next =
            format!("check the log of the model server of {location}; unloading is retried automatically");
        (Reason::UnloadFailed, headline, next)
    }

    fn not_loaded(&self) -> Answer {
        let (location, why, _) = self.first(ReplicaState::LoadFailed).unwrap_or_default();
        let no_memory = self.version.statuses().any(|s| s.state == ReplicaState::LoadFailed && s.no_memory);
        let number = self.version.number;
        if no_memory {
            let cause =
                format!("{location} ran out of memory loading version {number}: {}", strip_period(why));
            let next = "set spec.memory to the model's actual use, or add memory to the server";
            return (Reason::LoadFailedMemory, self.not_ready_because(&cause), next.to_owned());
        }
        let cause = format!("{location} failed to load version {number}: {}", strip_period(why));
        let next = match self.version.retry_at {
            Some(due) => format!(
                "fix the cause and apply the model again; next retry in {}",
                Span(due.saturating_sub(self.state.clock.monotonic_now))
            ),
            None => "fix the cause and apply the model again".to_owned(),
        };
        (Reason::LoadFailed, self.not_ready_because(&cause), next)
    }

    fn rolled_back(&self, why: &str) -> Answer {
        let next = format!("change the model and apply it, or run: gantry rollout retry {}", self.name);
        (Reason::RolledBack, self.not_ready_because(strip_period(why)), next)
    }

    fn rolling_out(&self, why: &str) -> Answer {
        let next = format!("see the evidence: gantry rollout status {}", self.name);
        (Reason::RollingOut, self.not_ready_because(why), next)
    }

    fn scaled_down(&self) -> Answer {
        if self.version.scaled_to_zero() {
            let headline = format!("{} is scaled to zero: it has no requests.", self.name);
            return (Reason::Sleeping, headline, "send a request to scale it up".to_owned());
        }
        let headline = format!("{} is not served: no replica is desired.", self.name);
        (Reason::ScaledDown, headline, "set spec.replicas to 1 or more".to_owned())
    }

    fn available(&self, available: u32) -> Answer {
        let version = self.version;
        let server = version.server.as_deref().unwrap_or_default();
        let desired = version.desired_replicas();
        if available >= desired {
            let replicas = many(available as usize, "replica");
            let headline = format!(
                "{} is ready: version {} serves in {replicas} on {server}.",
                self.name, version.number
            );
            return (Reason::Ready, headline, String::new());
        }
        let Some(unschedulable) = self.unschedulable() else {
            let (reason, cause, next) = self.progress();
            return (
                reason,
                format!("{} is ready with {available} of {desired} replicas: {cause}.", self.name),
                next,
            );
        };
        let headline =
            format!("{} is ready with {available} of {desired} replicas: {unschedulable}.", self.name);
        (unschedulable.reason(), headline, self.remedy(&unschedulable))
    }

    fn not_ready(&self) -> Answer {
        if let Some(unschedulable) = self.unschedulable() {
            return (
                unschedulable.reason(),
                self.not_ready_because(&self.describe(&unschedulable)),
                self.remedy(&unschedulable),
            );
        }
        let (reason, cause, next) = self.progress();
        (reason, self.not_ready_because(&cause), next)
    }

    /// Evaluated again: the recorded reason may be out of date.
    fn unschedulable(&self) -> Option<Unschedulable> {
        self.version.unplaced.as_ref()?;
        let current_server = self.model.versions.iter().rev().find_map(|v| v.server.as_deref());
        match place(self.version, self.state.servers(), &self.state.index, current_server) {
            Placement::Nowhere(unschedulable) => Some(unschedulable),
            Placement::On { short, .. } => short,
        }
    }

    fn describe(&self, unschedulable: &Unschedulable) -> String {
        match unschedulable {
            Unschedulable::Disconnected(id) => {
                let since = self
                    .state
                    .servers()
                    .get(&id.server)
                    .and_then(|s| s.replicas.get(&id.index))
                    .and_then(|r| r.disconnected_since);
                let for_long = ago(self.now, since.unwrap_or(self.now));
                format!("{id}, which could take it, has been disconnected for {for_long}")
            }
            other => other.to_string(),
        }
    }

    /// What a placed version waits for.
    fn progress(&self) -> Answer {
        let number = self.version.number;
        if let Some((location, _, since)) = self.first(ReplicaState::LoadedUnavailable) {
            let for_long = ago(self.now, since);
            let cause = format!("{location}, which holds it, has been disconnected for {for_long}");
            return (Reason::Silent, cause, check_agent(&location));
        }
        if let Some((location, _, since)) = self.first(ReplicaState::LoadRequested) {
            let for_long = ago(self.now, since);
            let cause = format!("{location} has to load it and has been disconnected for {for_long}");
            return (Reason::Silent, cause, check_agent(&location));
        }
        if let Some((location, _, since)) = self.first(ReplicaState::Loading) {
            let for_long = ago(self.now, since);
            if let Some(failure) = &self.version.last_failure {
                let cause = format!(
                    "{}; {location} has been retrying version {number} for {for_long}",
                    strip_period(failure)
                );
                return (Reason::LoadFailed, cause, "fix the cause, or wait for the retry".to_owned());
            }
            let cause = format!("{location} has been loading version {number} for {for_long}");
            return (
                Reason::Loading,
                cause,
                format!("wait; the agent's log of {location} shows the progress"),
            );
        }
        if let Some((location, _, since)) = self.first(ReplicaState::Loaded) {
            let for_long = ago(self.now, since);
            let cause = format!(
                "{location} has loaded it, but a gateway has not acknowledged its route for {for_long}"
            );
            return (Reason::Routing, cause, CHECK_GATEWAYS.to_owned());
        }
        if let Some((location, ..)) = self.first(ReplicaState::Draining) {
            let cause = format!("{location} is draining and no other replica serves it yet");
            return (Reason::Draining, cause, "add a server replica, or wait".to_owned());
        }
        let busy =
            [ReplicaState::UnloadEnvoyRequested, ReplicaState::Unloading, ReplicaState::UnloadRequested];
        match busy.into_iter().find_map(|state| self.first(state)) {
            Some((location, ..)) => {
                let cause = format!("{location} must unload it before loading it again");
                (Reason::Terminating, cause, "wait".to_owned())
            }
            None => (Reason::Loading, "it is about to be placed".to_owned(), "wait".to_owned()),
        }
    }

    fn remedy(&self, unschedulable: &Unschedulable) -> String {
        match unschedulable {
            Unschedulable::NoServer => {
                "start a server, or check that its agent can reach the scheduler".to_owned()
            }
            Unschedulable::NotShared(server) => {
                format!("set spec.server: {server}, or start a shared server")
            }
            Unschedulable::ServerNotFound(server) => {
                let known: Vec<&str> = self.state.servers().keys().map(|k| &**k).collect();
                if known.is_empty() {
                    return format!("start server {server}");
                }
                format!("start server {server}, or set spec.server to one of: {}", known.join(", "))
            }
            Unschedulable::ServerTerminating(server) => {
                format!("keep server {server}, or start another with the same capabilities")
            }
            Unschedulable::MissingCapabilities { missing, .. } => {
                format!("add {} to a server's capabilities, or remove the requirement", missing.join(" and "))
            }
            Unschedulable::Disconnected(id) => check_agent(&id.to_string()),
            Unschedulable::Draining(_) | Unschedulable::Unloading(_) => {
                "wait, or add a server replica".to_owned()
            }
            Unschedulable::InsufficientMemory { needs, free, .. } => format!(
                "free {} on a server, add a replica with more memory, or lower spec.memory",
                Bytes(needs.saturating_sub(*free))
            ),
            Unschedulable::InsufficientReplicas { possible, server, desired, because } => {
                match because.as_deref() {
                    Some(because) => self.remedy(because),
                    None => format!(
                        "add {} to server {server}, or set spec.replicas to {possible}, or set spec.minReplicas",
                        many(desired.saturating_sub(*possible) as usize, "replica")
                    ),
                }
            }
        }
    }

    fn facts(&self) -> Vec<Fact> {
        let version = self.version;
        let retries = (version.attempts > 0).then(|| {
            let next = version
                .retry_at
                .map(|due| format!(", next in {}", Span(due.saturating_sub(self.state.clock.monotonic_now))));
            let last = version.last_failure.as_ref().map(|failure| format!(", last on {failure}"));
            let (next, last) = (next.unwrap_or_default(), last.unwrap_or_default());
            format!("{} failed in a row{last}{next}", many(version.attempts as usize, "load"))
        });
        let verdicts = (!self.model.deleted).then(|| {
            self.state.servers().iter().map(|(name, server)| self.verdict(name, server)).collect::<Vec<_>>()
        });
        let replicas = self.model.versions.iter().rev().flat_map(|v| {
            v.placements().map(|(server, index, status)| {
                let why =
                    if status.reason.is_empty() { String::new() } else { format!(": {}", status.reason) };
                format!(
                    "version {} on {server}-{index}   {:?} for {}{why}",
                    v.number,
                    status.state,
                    ago(self.now, status.since)
                )
            })
        });
        [
            fact("desired", self.desired_state()),
            fact("servers", verdicts.unwrap_or_default()),
            fact("replicas", replicas),
            fact("retries", retries),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn desired_state(&self) -> Vec<String> {
        let definition = &self.version.definition;
        let needs = &definition.needs;
        let mut what = vec![format!("version {}", self.version.number)];
        let scaling = definition.scaling;
        what.push(many(scaling.replicas as usize, "replica"));
        if scaling.min > 0 {
            what.push(format!("at least {}", scaling.min));
        }
        if scaling.max > 0 {
            what.push(format!("at most {}", scaling.max));
        }
        if let Some(scaled) = self.version.scaled {
            what.push(format!("{scaled} by autoscaling"));
        }
        if !needs.requirements.is_empty() {
            what.push(format!("requirements: {}", needs.requirements.join(" ")));
        }
        if needs.explainer {
            what.push("an explainer".to_owned());
        }
        if self.version.memory_required() > 0 {
            what.push(format!("{} each", Bytes(self.version.memory_required())));
        }
        if let Some(server) = &needs.server {
            what.push(format!("on server {server}"));
        }
        let mut lines = vec![what.join(", ")];
        lines.extend(managed(self.model.owner.as_ref(), definition.generation));
        lines
    }

    /// Suitability of a server for this version.
    fn verdict(&self, name: &Arc<str>, server: &Server) -> String {
        let needs = &self.version.definition.needs;
        let replicas = many(server.replicas.len(), "replica");
        let most = server
            .replicas
            .iter()
            .map(|(&index, replica)| free(&self.state.index, name, index, replica))
            .max()
            .unwrap_or(0);
        let line = format!("{name}   {replicas}   {}   most free {}", capabilities(server), Bytes(most));
        if server.replicas.is_empty() {
            return format!("{name}   no replica has joined");
        }
        if !admits(needs, name, server) {
            let why = match &needs.server {
                Some(only) => format!("the model requires server {only}"),
                None => "not shared".to_owned(),
            };
            return format!("{line}   {why}");
        }
        let only = BTreeMap::from([(name.clone(), server.clone())]);
        match place(self.version, &only, &self.state.index, None) {
            Placement::On { short: None, .. } => format!("{line}   suitable"),
            Placement::On { short: Some(short), .. } => format!("{line}   {short}"),
            Placement::Nowhere(_) => {
                let why = match diagnose(self.version, &only, &self.state.index, None) {
                    Unschedulable::MissingCapabilities { missing, .. } => {
                        format!("lacks {}", missing.join(" and "))
                    }
                    Unschedulable::InsufficientMemory { needs, free, .. } => {
                        format!("lacks {}", Bytes(needs.saturating_sub(free)))
                    }
                    Unschedulable::NoServer | Unschedulable::ServerNotFound(_) => {
                        format!(
                            "has fewer than {} for it",
                            many(self.version.desired_replicas() as usize, "replica")
                        )
                    }
                    other => other.to_string(),
                };
                format!("{line}   {why}")
            }
        }
    }
}

fn check_agent(location: &str) -> String {
    format!("check that the agent of {location} runs and can reach the scheduler")
}
