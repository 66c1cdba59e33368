//! What can be derived from models and servers, kept so that a command costs what it touches, not what there is.

use super::{
    Millis,
    model::{Model, NEXT_CHANGE, Version},
    server::{ReplicaId, Server},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What a model that waits for room needs. Models of one shape can be placed in the same places: when one that needs
/// little memory cannot, one that needs more cannot either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) server: Option<Arc<str>>,
    pub(super) requirements: Vec<String>,
    pub(super) explainer: bool,
    pub(super) wanted: u32,
    pub(super) floor: u32,
    /// Where it is in part, and on which replicas.
    pub(super) home: Option<Arc<str>>,
    pub(super) held: Vec<u32>,
}

impl Shape {
    pub(super) fn of(version: &Version) -> Self {
        let needs = &version.definition.needs;
        Self {
            server: needs.server.clone(),
            requirements: needs.requirements.clone(),
            explainer: needs.explainer,
            wanted: version.wanted(),
            floor: version.floor(),
            home: version.server.clone(),
            held: version.replicas.keys().copied().collect(),
        }
    }
}

/// Something to be looked at when time has passed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Model(Arc<str>),
    Replica(ReplicaId),
    Server(Arc<str>),
}

/// What is on a replica of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Models with anything on it, and in how many versions.
    pub(super) models: BTreeMap<Arc<str>, u32>,
    /// Memory promised to what is loading there.
    pub(super) promised: u64,
}

/// Everything that is derived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    held: BTreeMap<Arc<str>, BTreeMap<u32, Held>>,
    /// Models that want more replicas than they have, by shape and then by memory.
    pub(super) waiting: BTreeMap<Arc<Shape>, BTreeSet<(u64, Arc<str>)>>,
    /// Models with a replica that waits for a route change to be applied or drained.
    pub(super) settling: BTreeMap<u64, Arc<str>>,
    /// What is to be looked at, and when, in time that passed.
    pub(super) timers: BTreeSet<(Millis, Timer)>,
}

impl Index {
    /// Derives everything anew.
    pub(super) fn rebuild(models: &BTreeMap<Arc<str>, Model>, servers: &BTreeMap<Arc<str>, Server>) -> Self {
        let mut index = Self::default();
        for (name, model) in models {
            for (server, replica, status) in model.versions.iter().flat_map(Version::places) {
                index.hold(server, replica, name);
                index.promise(server, replica, 0, status.promised);
                if status.awaits != 0 && status.awaits != NEXT_CHANGE {
                    index.settling.insert(status.awaits, name.clone());
                }
            }
            if let Some((shape, demand)) = &model.waits {
                index.waiting.entry(shape.clone()).or_default().insert((*demand, name.clone()));
            }
            index.timers.extend(model.due.map(|due| (due, Timer::Model(name.clone()))));
        }
        for (name, server) in servers {
            index.timers.extend(server.due.map(|due| (due, Timer::Server(name.clone()))));
            for (&index_of, replica) in &server.replicas {
                let id = ReplicaId { server: name.clone(), index: index_of };
                index.timers.extend(replica.due.map(|due| (due, Timer::Replica(id))));
            }
        }
        index
    }

    /// What is on a replica.
    pub(super) fn on(&self, server: &str, index: u32) -> Option<&Held> {
        self.held.get(server)?.get(&index)
    }

    /// The models with anything on a replica.
    pub(super) fn models_on(&self, id: &ReplicaId) -> Vec<Arc<str>> {
        self.on(&id.server, id.index).map(|h| h.models.keys().cloned().collect()).unwrap_or_default()
    }

    /// Memory promised on a replica.
    pub(super) fn promised(&self, server: &str, index: u32) -> u64 {
        self.on(server, index).map_or(0, |h| h.promised)
    }

    fn entry(&mut self, server: &Arc<str>, index: u32) -> &mut Held {
        if !self.held.contains_key(server) {
            self.held.insert(server.clone(), BTreeMap::new());
        }
        // It was just made sure that it is there; a second lookup is cheaper than a clone of the key each time.
        self.held.entry(server.clone()).or_default().entry(index).or_default()
    }

    /// A version of a model has something on a replica.
    pub(super) fn hold(&mut self, server: &Arc<str>, index: u32, name: &Arc<str>) {
        *self.entry(server, index).models.entry(name.clone()).or_default() += 1;
    }

    /// A version of a model has nothing on a replica any more. Returns whether nothing is there at all now.
    pub(super) fn release(&mut self, server: &Arc<str>, index: u32, name: &Arc<str>) -> bool {
        let Some(of_server) = self.held.get_mut(server) else { return false };
        let Some(held) = of_server.get_mut(&index) else { return false };
        if let Some(count) = held.models.get_mut(name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.models.remove(name);
            }
        }
        let empty = held.models.is_empty();
        if empty {
            of_server.remove(&index);
            if of_server.is_empty() {
                self.held.remove(server);
            }
        }
        empty
    }

    /// Keeps the sum of what is promised on a replica. It has to hold something there, or hold it no more.
    pub(super) fn promise(&mut self, server: &str, index: u32, before: u64, after: u64) {
        if before == after {
            return;
        }
        if let Some(held) = self.held.get_mut(server).and_then(|s| s.get_mut(&index)) {
            held.promised = held.promised.saturating_sub(before).saturating_add(after);
        }
    }

    /// The shapes of models that wait and that a server could take: those that name it, and those that name none.
    pub(super) fn shapes_for(&self, server: &Arc<str>) -> Vec<Arc<Shape>> {
        let first = |server: Option<Arc<str>>| Shape {
            server,
            requirements: Vec::new(),
            explainer: false,
            wanted: 0,
            floor: 0,
            home: None,
            held: Vec::new(),
        };
        let of = |server: Option<Arc<str>>| {
            let from = Arc::new(first(server.clone()));
            self.waiting
                .range(from..)
                .map(|(shape, _)| shape)
                .take_while(move |s| s.server == server)
                .cloned()
        };
        of(None).chain(of(Some(server.clone()))).collect()
    }

    /// Keeps under what a model waits.
    pub(super) fn wait(&mut self, name: &Arc<str>, model: &mut Model, waits: Option<(Arc<Shape>, u64)>) {
        if model.waits == waits {
            return;
        }
        if let Some((shape, demand)) = model.waits.take()
            && let Some(names) = self.waiting.get_mut(&shape)
        {
            names.remove(&(demand, name.clone()));
            if names.is_empty() {
                self.waiting.remove(&shape);
            }
        }
        if let Some((shape, demand)) = &waits {
            self.waiting.entry(shape.clone()).or_default().insert((*demand, name.clone()));
        }
        model.waits = waits;
    }

    /// Moves a timer.
    pub(super) fn set_timer(&mut self, before: &mut Option<Millis>, after: Option<Millis>, timer: &Timer) {
        if *before == after {
            return;
        }
        if let Some(due) = before.take() {
            self.timers.remove(&(due, timer.clone()));
        }
        self.timers.extend(after.map(|due| (due, timer.clone())));
        *before = after;
    }
}
