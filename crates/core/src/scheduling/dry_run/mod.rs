//! Predicted outcome of commands, without applying them.

mod dependants;

use super::{
    Millis,
    command::{Command, Order, Rejection},
    explain::many,
    model::{Model, Version},
    owner::Kind,
    server::{ReplicaId, Server},
    state::State,
    unschedulable::Bytes,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Predicted change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    pub kind: Kind,
    pub name: Arc<str>,
    pub action: Action,
    pub from_version: Option<u32>,
    pub to_version: Option<u32>,
    /// One sentence each.
    pub effects: Vec<String>,
    /// Whether it would be placed; of pipelines and experiments, whether everything that they need serves.
    pub placed: bool,
}

/// The numbers are those of the gRPC API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Unchanged = 0,
    Create = 1,
    /// A new version.
    Update = 2,
    /// The same version with another number of replicas or other settings.
    Adjust = 3,
    Delete = 4,
    /// Rejected; the sentences state the reason.
    Reject = 5,
}

/// The changes that the commands would cause, applied in order.
///
/// Commands that concern no object of a client are skipped. `trial` is a copy of the state, which they change.
pub fn dry_run(mut trial: State, commands: Vec<Command>, now: Millis) -> Vec<PlannedChange> {
    commands.into_iter().filter_map(|command| planned(&mut trial, command, now)).collect()
}

fn planned(trial: &mut State, command: Command, now: Millis) -> Option<PlannedChange> {
    let (kind, name) = match &command {
        Command::LoadModel { definition, .. } => (Kind::Model, definition.name.clone()),
        Command::ReloadModel { name }
        | Command::UnloadModel { name, .. }
        | Command::AdoptModel { name, .. } => (Kind::Model, name.clone()),
        Command::UpsertServer { name, .. } | Command::AdoptServer { name, .. } => {
            (Kind::Server, name.clone())
        }
        Command::LoadPipeline { definition, .. } => (Kind::Pipeline, definition.name.clone()),
        Command::UnloadPipeline { name, .. } | Command::AdoptPipeline { name, .. } => {
            (Kind::Pipeline, name.clone())
        }
        Command::StartExperiment { definition, .. } => (Kind::Experiment, definition.name.clone()),
        Command::StopExperiment { name, .. } | Command::AdoptExperiment { name, .. } => {
            (Kind::Experiment, name.clone())
        }
        _ => return None,
    };
    match kind {
        Kind::Pipeline => return Some(dependants::planned_pipeline(trial, command, name, now)),
        Kind::Experiment => return Some(dependants::planned_experiment(trial, command, name, now)),
        Kind::Model | Kind::Server | Kind::Service => {}
    }
    // A model command changes only that model; a server command may change every model.
    let old = trial.models().get(&name).filter(|m| kind == Kind::Model && !m.deleted).cloned();
    let old_server = trial.servers().get(&name).filter(|_| kind == Kind::Server).cloned();
    trial.track_models();
    let outcome = trial.apply(command, now);
    let changed = trial.tracked_models();
    let number = |model: Option<&Model>| model.and_then(Model::latest).map(|v| v.number);
    let new = trial.models().get(&name).filter(|m| kind == Kind::Model && !m.deleted);
    let (from_version, to_version) = (number(old.as_ref()), number(new));
    let change = |action, effects, placed| PlannedChange {
        kind,
        name: name.clone(),
        action,
        from_version,
        to_version,
        effects,
        placed,
    };
    let effects = match outcome {
        Ok(effects) => effects,
        Err(rejection) => return Some(change(Action::Reject, lines(&rejection), false)),
    };
    Some(if kind == Kind::Server {
        let (action, messages) = server(old_server.as_ref(), &changed, trial, &name);
        let placed = trial.servers().get(&name).is_some_and(|s| s.present() > 0 && !s.is_terminating());
        change(action, messages, placed)
    } else {
        let (action, messages, placed) = model(old.as_ref(), trial, &name, &effects.orders);
        change(action, messages, placed)
    })
}

fn lines(rejection: &Rejection) -> Vec<String> {
    rejection.to_string().lines().map(str::to_owned).collect()
}

fn model(
    old: Option<&Model>,
    after: &State,
    name: &Arc<str>,
    orders: &[Order],
) -> (Action, Vec<String>, bool) {
    let new = after.models().get(name).filter(|m| !m.deleted);
    let (Some(new), Some(version)) = (new, new.and_then(Model::latest)) else {
        let placements: BTreeSet<String> = old
            .into_iter()
            .flat_map(|m| &m.versions)
            .flat_map(Version::routed)
            .map(|id| id.to_string())
            .collect();
        let messages = match (old, placements.is_empty()) {
            (None, _) => return (Action::Unchanged, vec!["already deleted".to_owned()], false),
            (Some(_), true) => "would be removed; no replica serves it".to_owned(),
            (Some(_), false) => format!(
                "would be unloaded from {} after its last request",
                placements.into_iter().collect::<Vec<_>>().join(", ")
            ),
        };
        return (Action::Delete, vec![messages], false);
    };
    let old_version = old.and_then(Model::latest);
    let action = match old_version {
        None => Action::Create,
        Some(old) if old.number != version.number => Action::Update,
        Some(old) if old.definition != version.definition => Action::Adjust,
        Some(_) if old.and_then(|m| m.owner.as_ref()) != new.owner.as_ref() => Action::Adjust,
        Some(_) => Action::Unchanged,
    };
    let mut messages = Vec::new();
    let loads: Vec<&Order> = orders
        .iter()
        .filter(|o| o.load.is_some() && o.model == *name && o.version == version.number)
        .collect();
    if !loads.is_empty() {
        messages.push(loading(after, version, old, &loads));
    } else if action == Action::Unchanged {
        messages.push("unchanged".to_owned());
    } else if version.desired_replicas() == 0 {
        messages.push("would not be served: no replica is desired".to_owned());
    }
    let fewer = orders.iter().filter(|o| o.load.is_none() && o.model == *name).count();
    if let Some(old) = old_version
        .filter(|old| action == Action::Adjust && old.desired_replicas() > version.desired_replicas())
    {
        messages.push(format!(
            "would scale from {} to {} replicas",
            old.desired_replicas(),
            version.desired_replicas()
        ));
    } else if fewer > 0 {
        messages.push("would cancel loads in progress".to_owned());
    }
    messages.extend(version.unplaced.as_ref().map(ToString::to_string));
    let older = new.versions.iter().rev().find(|v| v.number != version.number && v.serves_enough());
    if let (Some(older), true) = (older, version.unplaced.is_some()) {
        messages.push(format!("version {} would continue to serve", older.number));
    }
    messages.extend(overcommitted(after, &loads));
    let (have, min_acceptable) =
        (version.count(super::ReplicaState::counts_as_desired), version.min_acceptable());
    let placed = have >= version.desired_replicas() || (min_acceptable > 0 && have >= min_acceptable);
    (action, messages, placed)
}

fn loading(state: &State, version: &Version, old: Option<&Model>, loads: &[&Order]) -> String {
    let server = loads.first().map(|o| o.replica.server.clone()).unwrap_or_default();
    let size = state.servers().get(&server).map_or(0, |s| s.replicas.len());
    let place = if size > 1 {
        let placements: Vec<String> = loads.iter().map(|o| o.replica.to_string()).collect();
        if placements.len() > 3 {
            format!("{} replicas of {server}", placements.len())
        } else {
            placements.join(" and ")
        }
    } else {
        server.to_string()
    };
    let serving = old
        .into_iter()
        .flat_map(|m| &m.versions)
        .rev()
        .find(|v| v.number != version.number && v.any(super::ReplicaState::is_routed));
    match serving {
        Some(serving) => {
            format!("would load on {place} beside version {}, then take its traffic", serving.number)
        }
        None => format!("would load on {place}"),
    }
}

/// Replicas that would be over-committed, and by how much.
fn overcommitted(after: &State, loads: &[&Order]) -> Vec<String> {
    let placements: BTreeSet<&ReplicaId> = loads.iter().map(|o| &o.replica).collect();
    placements
        .into_iter()
        .filter_map(|id| {
            let replica = after.servers().get(&id.server)?.replicas.get(&id.index)?;
            let reserved = after.index.reserved(&id.server, id.index);
            let used = replica.memory_total.saturating_sub(replica.memory_free).saturating_add(reserved);
            let over = used.saturating_sub(replica.memory_real());
            (replica.over_commit > 0 && over > 0).then(|| {
                format!(
                    "{id} would be over-committed by {}: least recently used models are evicted",
                    Bytes(over)
                )
            })
        })
        .collect()
}

/// `changed` are the models that the command changed, before it.
fn server(
    old: Option<&Server>,
    changed: &BTreeMap<Arc<str>, Option<Model>>,
    after: &State,
    name: &Arc<str>,
) -> (Action, Vec<String>) {
    let Some(new) = after.servers().get(name) else {
        let messages = if old.is_some() { "would be removed: it has no replica" } else { "not found" };
        return (if old.is_some() { Action::Delete } else { Action::Unchanged }, vec![messages.to_owned()]);
    };
    if old == Some(new) {
        return (Action::Unchanged, vec!["unchanged".to_owned()]);
    }
    let action = match old {
        None => Action::Create,
        Some(_) if new.is_terminating() => Action::Delete,
        Some(_) => Action::Adjust,
    };
    let mut messages = Vec::new();
    if let Some(expected) = new.expected.filter(|e| e.replicas as usize > new.present()) {
        messages.push(format!(
            "would wait for {} of {} replicas",
            expected.replicas as usize - new.present(),
            expected.replicas
        ));
    }
    let (mut moved, mut stuck, mut helped) = (0usize, Vec::new(), 0usize);
    for (model, was) in changed {
        let (Some(was), Some(now)) = (was, after.models().get(model)) else { continue };
        let unplaced = |m: &Model| m.latest().is_some_and(|v| v.unplaced.is_some());
        let there = |m: &Model| m.versions.iter().any(|v| v.server.as_ref() == Some(name));
        match (unplaced(was), unplaced(now)) {
            (true, false) => helped += 1,
            (false, true) => stuck.push(model.to_string()),
            _ if there(was) && !there(now) => moved += 1,
            _ => {}
        }
    }
    if helped > 0 {
        messages.push(format!("{} would be placed", many(helped, "waiting model")));
    }
    if moved > 0 {
        messages.push(format!("{} would move to another server first", many(moved, "model")));
    }
    if !stuck.is_empty() {
        let (count, first) = (stuck.len(), stuck.into_iter().take(5).collect::<Vec<_>>().join(", "));
        messages.push(format!("{} could not be placed: {first}", many(count, "model")));
    }
    (action, messages)
}
