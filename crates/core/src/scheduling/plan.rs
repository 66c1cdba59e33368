//! What would happen if something were asked for now. Changes nothing.

use super::{
    Millis,
    command::{Command, Order},
    manager::Kind,
    model::{Model, Version},
    obstacle::Bytes,
    server::ReplicaId,
    state::State,
};
use std::{collections::BTreeSet, sync::Arc};

/// What would become of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Arc<str>,
    /// What would be done with it.
    pub action: Action,
    /// The version before; `None` when there is none.
    pub from_version: Option<u32>,
    /// The version after; `None` when there is none.
    pub to_version: Option<u32>,
    /// What would follow, a sentence each.
    pub effects: Vec<String>,
    /// Whether it would be served, as far as can be known before it is loaded.
    pub placed: bool,
}

/// What would be done with an object. The numbers are the contract's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Unchanged = 0,
    /// It is new.
    Create = 1,
    /// A new version beside the old one.
    Update = 2,
    /// The same version, in more or fewer replicas or with other settings.
    Adjust = 3,
    /// It would go.
    Delete = 4,
    /// It would be refused; the sentences say why.
    Refuse = 5,
}

/// What would become of the objects that the commands name, if they were given in this order.
///
/// Commands that name no model and no server are passed over. It is tried out on a copy of everything: for people who
/// ask, not for every command.
pub fn plan(state: &State, commands: Vec<Command>, now: Millis) -> Vec<PlannedChange> {
    let mut trial = state.clone();
    trial.keep();
    commands.into_iter().filter_map(|command| planned(&mut trial, command, now)).collect()
}

fn planned(trial: &mut State, command: Command, now: Millis) -> Option<PlannedChange> {
    let (kind, name) = match &command {
        Command::LoadModel { definition, .. } => (Kind::Model, definition.name.clone()),
        Command::UnloadModel { name, .. } | Command::AdoptModel { name, .. } => (Kind::Model, name.clone()),
        Command::ExpectServer { name, .. } | Command::AdoptServer { name, .. } => {
            (Kind::Server, name.clone())
        }
        _ => return None,
    };
    // A model's change touches that model; a server's may touch every one.
    let old = trial.models().get(&name).filter(|m| kind == Kind::Model && !m.deleted).cloned();
    let before = (kind == Kind::Server).then(|| trial.clone());
    let outcome = trial.apply(command, now);
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
        Err(refusal) => {
            let says = refusal.to_string().lines().map(str::to_owned).collect();
            return Some(change(Action::Refuse, says, false));
        }
    };
    Some(if let Some(before) = before {
        let (action, says) = server(&before, trial, &name);
        let placed = trial.servers().get(&name).is_some_and(|s| s.present() > 0 && !s.is_leaving());
        change(action, says, placed)
    } else {
        let (action, says, placed) = model(old.as_ref(), trial, &name, &effects.orders);
        change(action, says, placed)
    })
}

fn model(
    old: Option<&Model>,
    after: &State,
    name: &Arc<str>,
    orders: &[Order],
) -> (Action, Vec<String>, bool) {
    let new = after.models().get(name).filter(|m| !m.deleted);
    let (Some(new), Some(version)) = (new, new.and_then(Model::latest)) else {
        let places: BTreeSet<String> = old
            .into_iter()
            .flat_map(|m| &m.versions)
            .flat_map(Version::routed)
            .map(|id| id.to_string())
            .collect();
        let says = match (old, places.is_empty()) {
            (None, _) => return (Action::Unchanged, vec!["is deleted already".to_owned()], false),
            (Some(_), true) => "would be forgotten; nothing serves it".to_owned(),
            (Some(_), false) => format!(
                "would leave {} when its last request is answered",
                places.into_iter().collect::<Vec<_>>().join(", ")
            ),
        };
        return (Action::Delete, vec![says], false);
    };
    let old_version = old.and_then(Model::latest);
    let action = match old_version {
        None => Action::Create,
        Some(old) if old.number != version.number => Action::Update,
        Some(old) if old.definition != version.definition => Action::Adjust,
        Some(_) if old.and_then(|m| m.manager.as_ref()) != new.manager.as_ref() => Action::Adjust,
        Some(_) => Action::Unchanged,
    };
    let mut says = Vec::new();
    let loads: Vec<&Order> = orders
        .iter()
        .filter(|o| o.load.is_some() && o.model == *name && o.version == version.number)
        .collect();
    if !loads.is_empty() {
        says.push(loading(after, version, old, &loads));
    } else if action == Action::Unchanged {
        says.push("is what it would be".to_owned());
    } else if version.wanted() == 0 {
        says.push("would not be served: no replica is wanted".to_owned());
    }
    let fewer = orders.iter().filter(|o| o.load.is_none() && o.model == *name).count();
    if let Some(old) = old_version.filter(|old| action == Action::Adjust && old.wanted() > version.wanted()) {
        says.push(format!("would go from {} to {} replicas", old.wanted(), version.wanted()));
    } else if fewer > 0 {
        says.push("would give up what is being loaded now".to_owned());
    }
    says.extend(version.unplaced.as_ref().map(ToString::to_string));
    let older = new.versions.iter().rev().find(|v| v.number != version.number && v.serves_enough());
    if let (Some(older), true) = (older, version.unplaced.is_some()) {
        says.push(format!("version {} would go on serving", older.number));
    }
    says.extend(overcommitted(after, &loads));
    let placed = version.any(super::ReplicaState::is_wanted) && version.unplaced.is_none();
    (action, says, placed || version.wanted() == 0)
}

/// Where a version would be loaded.
fn loading(state: &State, version: &Version, old: Option<&Model>, loads: &[&Order]) -> String {
    let server = loads.first().map(|o| o.replica.server.clone()).unwrap_or_default();
    let size = state.servers().get(&server).map_or(0, |s| s.replicas.len());
    let place = if size > 1 {
        let places: Vec<String> = loads.iter().map(|o| o.replica.to_string()).collect();
        if places.len() > 3 { format!("{} replicas of {server}", places.len()) } else { places.join(" and ") }
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

/// Which replicas would promise more than they have, and by how much.
fn overcommitted(after: &State, loads: &[&Order]) -> Vec<String> {
    let places: BTreeSet<&ReplicaId> = loads.iter().map(|o| &o.replica).collect();
    places
        .into_iter()
        .filter_map(|id| {
            let replica = after.servers().get(&id.server)?.replicas.get(&id.index)?;
            let promised = after.index.promised(&id.server, id.index);
            let used = replica.memory_total.saturating_sub(replica.memory_free).saturating_add(promised);
            let over = used.saturating_sub(replica.memory_real());
            (replica.over_commit > 0 && over > 0).then(|| {
                format!(
                    "{id} would be over-committed by {}: it evicts what was used least recently",
                    Bytes(over)
                )
            })
        })
        .collect()
}

fn server(before: &State, after: &State, name: &Arc<str>) -> (Action, Vec<String>) {
    let old = before.servers().get(name);
    let Some(new) = after.servers().get(name) else {
        let says = if old.is_some() { "would be forgotten: it has no replica" } else { "is not known" };
        return (if old.is_some() { Action::Delete } else { Action::Unchanged }, vec![says.to_owned()]);
    };
    if old == Some(new) {
        return (Action::Unchanged, vec!["is what it would be".to_owned()]);
    }
    let action = match old {
        None => Action::Create,
        Some(_) if new.is_leaving() => Action::Delete,
        Some(_) => Action::Adjust,
    };
    let mut says = Vec::new();
    if let Some(expected) = new.expected.filter(|e| e.replicas as usize > new.present()) {
        says.push(format!(
            "would wait for {} of {} replicas",
            expected.replicas as usize - new.present(),
            expected.replicas
        ));
    }
    let (mut moved, mut stuck, mut helped) = (0usize, Vec::new(), 0usize);
    for (model, now) in after.models() {
        let Some(was) = before.models().get(model).filter(|was| *was != now) else { continue };
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
        says.push(format!("{helped} that wait would be placed"));
    }
    if moved > 0 {
        says.push(format!("{moved} would move to another server first"));
    }
    if !stuck.is_empty() {
        let (count, first) = (stuck.len(), stuck.into_iter().take(5).collect::<Vec<_>>().join(", "));
        says.push(format!("{count} would have nowhere to go: {first}"));
    }
    (action, says)
}
