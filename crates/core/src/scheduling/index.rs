//! Indexes derived from models and servers, so that the cost of a command depends on what it touches.

use super::{
    Millis,
    model::{Model, NEXT_CHANGE, Version},
    server::{ReplicaId, Server},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Waiting models with the same placement constraints: when one cannot be placed, one that needs more memory cannot
/// either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EquivalenceClass {
    pub(super) server: Option<Arc<str>>,
    pub(super) requirements: Vec<String>,
    pub(super) explainer: bool,
    pub(super) desired: u32,
    pub(super) min_acceptable: u32,
    /// Current partial placement.
    pub(super) current_server: Option<Arc<str>>,
    pub(super) assigned: Vec<u32>,
}

impl EquivalenceClass {
    pub(super) fn of(version: &Version) -> Self {
        let needs = &version.definition.needs;
        Self {
            server: needs.server.clone(),
            requirements: needs.requirements.clone(),
            explainer: needs.explainer,
            desired: version.desired_replicas(),
            min_acceptable: version.min_acceptable(),
            current_server: version.server.clone(),
            assigned: version.replicas.keys().copied().collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Model(Arc<str>),
    Replica(ReplicaId),
    Server(Arc<str>),
    Pipeline(Arc<str>),
    Experiment(Arc<str>),
    Service(Arc<str>),
}

/// Models on a server replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assignments {
    /// Number of versions by model.
    pub(super) models: BTreeMap<Arc<str>, u32>,
    /// Memory reserved for pending loads.
    pub(super) reserved: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    assigned: BTreeMap<Arc<str>, BTreeMap<u32, Assignments>>,
    /// Models with fewer replicas than desired, by class and memory.
    pub(super) waiting: BTreeMap<Arc<EquivalenceClass>, BTreeSet<(u64, Arc<str>)>>,
    /// Models with a replica that waits for a route change to be applied or drained, by sequence.
    pub(super) awaiting_routes: BTreeMap<u64, Arc<str>>,
    /// By due time, in logical time.
    pub(super) timers: BTreeSet<(Millis, Timer)>,
}

impl Index {
    pub(super) fn rebuild(models: &BTreeMap<Arc<str>, Model>, servers: &BTreeMap<Arc<str>, Server>) -> Self {
        let mut index = Self::default();
        for (name, model) in models {
            for (server, replica, status) in model.versions.iter().flat_map(Version::placements) {
                index.assign(server, replica, name);
                index.reserve(server, replica, 0, status.reserved);
                if status.awaits != 0 && status.awaits != NEXT_CHANGE {
                    index.awaiting_routes.insert(status.awaits, name.clone());
                }
            }
            let of_weights = model.rollout.as_ref().and_then(|rollout| rollout.awaits());
            index.awaiting_routes.extend(of_weights.map(|sequence| (sequence, name.clone())));
            if let Some((class, demand)) = &model.waits {
                index.waiting.entry(class.clone()).or_default().insert((*demand, name.clone()));
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

    pub(super) fn on(&self, server: &str, index: u32) -> Option<&Assignments> {
        self.assigned.get(server)?.get(&index)
    }

    pub(super) fn models_on(&self, id: &ReplicaId) -> Vec<Arc<str>> {
        self.on(&id.server, id.index).map(|h| h.models.keys().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn reserved(&self, server: &str, index: u32) -> u64 {
        self.on(server, index).map_or(0, |h| h.reserved)
    }

    fn entry(&mut self, server: &Arc<str>, index: u32) -> &mut Assignments {
        if !self.assigned.contains_key(server) {
            self.assigned.insert(server.clone(), BTreeMap::new());
        }
        // It was just made sure that it is there; a second lookup is cheaper than a clone of the key each time.
        self.assigned.entry(server.clone()).or_default().entry(index).or_default()
    }

    /// A version of a model has something on a replica.
    pub(super) fn assign(&mut self, server: &Arc<str>, index: u32, name: &Arc<str>) {
        *self.entry(server, index).models.entry(name.clone()).or_default() += 1;
    }

    /// A version of a model has nothing on a replica any more. Returns whether nothing is there at all now.
    pub(super) fn unassign(&mut self, server: &Arc<str>, index: u32, name: &Arc<str>) -> bool {
        let Some(of_server) = self.assigned.get_mut(server) else { return false };
        let Some(assigned) = of_server.get_mut(&index) else { return false };
        if let Some(count) = assigned.models.get_mut(name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                assigned.models.remove(name);
            }
        }
        let empty = assigned.models.is_empty();
        if empty {
            of_server.remove(&index);
            if of_server.is_empty() {
                self.assigned.remove(server);
            }
        }
        empty
    }

    /// Updates the reserved memory of a server replica.
    pub(super) fn reserve(&mut self, server: &str, index: u32, before: u64, after: u64) {
        if before == after {
            return;
        }
        if let Some(assigned) = self.assigned.get_mut(server).and_then(|s| s.get_mut(&index)) {
            assigned.reserved = assigned.reserved.saturating_sub(before).saturating_add(after);
        }
    }

    /// The classes of waiting models that name this server or none.
    pub(super) fn classes_for(&self, server: &Arc<str>) -> Vec<Arc<EquivalenceClass>> {
        let first = |server: Option<Arc<str>>| EquivalenceClass {
            server,
            requirements: Vec::new(),
            explainer: false,
            desired: 0,
            min_acceptable: 0,
            current_server: None,
            assigned: Vec::new(),
        };
        let of = |server: Option<Arc<str>>| {
            let from = Arc::new(first(server.clone()));
            self.waiting
                .range(from..)
                .map(|(class, _)| class)
                .take_while(move |s| s.server == server)
                .cloned()
        };
        of(None).chain(of(Some(server.clone()))).collect()
    }

    /// Moves a model to another class.
    pub(super) fn wait(
        &mut self,
        name: &Arc<str>,
        model: &mut Model,
        waits: Option<(Arc<EquivalenceClass>, u64)>,
    ) {
        if model.waits == waits {
            return;
        }
        if let Some((class, demand)) = model.waits.take()
            && let Some(names) = self.waiting.get_mut(&class)
        {
            names.remove(&(demand, name.clone()));
            if names.is_empty() {
                self.waiting.remove(&class);
            }
        }
        if let Some((class, demand)) = &waits {
            self.waiting.entry(class.clone()).or_default().insert((*demand, name.clone()));
        }
        model.waits = waits;
    }

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
