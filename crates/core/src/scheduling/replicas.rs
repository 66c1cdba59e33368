//! What agents tell: that they are there, gone, silent or about to go, and how loading went.

use super::{
    Millis,
    command::{Effects, Order, ReplicaEvent},
    desk::Desk,
    index::Timer,
    model::{Model, ReplicaState},
    server::{Replica, ReplicaId},
    settle::numbers_on,
    state::State,
};
use crate::mutant;
use std::{collections::BTreeSet, sync::Arc};

impl State {
    pub(super) fn replica_joined(
        &mut self,
        id: &ReplicaId,
        replica: Replica,
        shared: bool,
        loaded: Vec<(Arc<str>, u32)>,
        now: Millis,
        fx: &mut Effects,
    ) {
        // What gateways were told before this moment may still lead them to what is not wanted any more.
        let told = self.sequence;
        self.strays.retain(|(_, of, ..)| of != id);
        let server = self.servers.entry(id.server.clone()).or_default();
        // An announcement may leave it out: agents always say whether they take any model.
        server.joined_shared |= shared;
        if shared && !server.shared {
            server.shared = true;
            fx.store_servers.insert(id.server.clone());
        }
        server.since = now;
        let replica = Replica {
            silent_since: None,
            draining: false,
            owes_answer: false,
            packed: false,
            due: None,
            ..replica
        };
        let earlier = server.replicas.remove(&id.index);
        let moved = earlier.as_ref().is_none_or(|e| e.endpoint != replica.endpoint);
        if earlier.as_ref().is_none_or(|e| !e.lasts_as(&replica)) {
            fx.store_servers.insert(id.server.clone());
        }
        if let Some(mut earlier) = earlier {
            self.index.set_timer(&mut earlier.due, None, &Timer::Replica(id.clone()));
        }
        server.replicas.insert(id.index, replica);
        fx.servers.insert(id.server.clone());
        // What the agent says that it holds is true; what was thought of it is not, where they differ.
        let loaded: BTreeSet<(Arc<str>, u32)> = loaded.into_iter().collect();
        for name in self.index.models_on(id) {
            self.with(&name, now, fx, |desk, model| {
                desk.reconcile(model, id, &loaded, moved);
                desk.settle(model, true);
            });
        }
        for (name, number) in &loaded {
            let wanted = self.with(name, now, fx, |desk, model| desk.welcome(model, *number, id));
            if wanted != Some(true) && !mutant::is("leaves_strays") {
                self.strays.insert((told, id.clone(), name.clone(), *number));
            }
        }
        self.unload_strays(fx);
        let joined = self.index.on(&id.server, id.index).is_none();
        if joined && self.policy.server_autoscaling {
            self.look_at_server_later(&id.server);
        }
        self.retry_waiting(&id.server, true, now, fx);
    }

    pub(super) fn replica_silent(&mut self, id: &ReplicaId, now: Millis, fx: &mut Effects) {
        let due = self.clock.passed.saturating_add(self.policy.grace);
        let Some(server) = self.servers.get_mut(&id.server) else { return };
        let Some(replica) = server.replicas.get_mut(&id.index) else { return };
        if replica.silent_since.is_some() {
            return;
        }
        replica.silent_since = Some(now);
        self.index.set_timer(&mut replica.due, Some(due), &Timer::Replica(id.clone()));
        server.since = now;
        fx.servers.insert(id.server.clone());
        for name in self.index.models_on(id) {
            self.with(&name, now, fx, |desk, model| {
                desk.fall_silent(model, id);
                desk.settle(model, false);
            });
        }
    }

    pub(super) fn replica_lost(&mut self, id: &ReplicaId, now: Millis, fx: &mut Effects) {
        let Some(server) = self.servers.get_mut(&id.server) else { return };
        let Some(mut replica) = server.replicas.remove(&id.index) else { return };
        server.since = now;
        self.index.set_timer(&mut replica.due, None, &Timer::Replica(id.clone()));
        fx.servers.insert(id.server.clone());
        fx.store_servers.insert(id.server.clone());
        if replica.owes_answer {
            fx.drained.push((id.clone(), self.index.on(&id.server, id.index).is_none()));
        }
        for name in self.index.models_on(id) {
            self.with(&name, now, fx, |desk, model| {
                for version in &mut model.versions {
                    desk.clear(version, &id.server, id.index);
                }
                if !mutant::is("forgets_the_lost") {
                    desk.settle(model, true);
                }
            });
        }
        self.forget_server_if_gone(&id.server, fx);
    }

    /// A server that was to go and has nothing left is gone.
    pub(super) fn forget_server_if_gone(&mut self, name: &Arc<str>, fx: &mut Effects) {
        let gone = self.servers.get(name).is_some_and(|s| s.is_leaving() && s.replicas.is_empty());
        if gone && let Some(mut server) = self.servers.remove(name) {
            self.index.set_timer(&mut server.due, None, &Timer::Server(name.clone()));
            fx.store_servers.insert(name.clone());
            fx.servers.insert(name.clone());
        }
    }

    pub(super) fn drain_replica(&mut self, id: &ReplicaId, now: Millis, fx: &mut Effects) {
        let replica = self.servers.get_mut(&id.server).and_then(|s| s.replicas.get_mut(&id.index));
        let Some(replica) = replica else {
            // Nothing is on a replica that is not there.
            fx.drained.push((id.clone(), true));
            return;
        };
        replica.draining = true;
        replica.packed = false;
        replica.owes_answer = true;
        fx.servers.insert(id.server.clone());
        self.settle_all_on(id, false, now, fx);
        self.answer_drain(id, fx);
    }

    /// Answers whoever asked to drain a replica, when everything is gone from it or what is left cannot go anywhere.
    pub(super) fn answer_drain(&mut self, id: &ReplicaId, fx: &mut Effects) {
        let on = self.index.on(&id.server, id.index);
        let stuck = |name: &Arc<str>| {
            let versions = self.models.get(name).map(|m| m.versions.as_slice()).unwrap_or_default();
            versions.iter().filter_map(|v| Some((v, v.status(&id.server, id.index)?))).all(|(v, status)| {
                let waits = v.unplaced.is_some() || v.any(|s| s == ReplicaState::LoadFailed);
                let failed = status.state == ReplicaState::UnloadFailed;
                failed || (status.state == ReplicaState::Draining && waits)
            })
        };
        let done = on.is_none();
        if !done && !on.is_some_and(|held| held.models.keys().all(stuck)) {
            return;
        }
        let replica = self.servers.get_mut(&id.server).and_then(|s| s.replicas.get_mut(&id.index));
        if let Some(replica) = replica.filter(|r| r.owes_answer) {
            replica.owes_answer = false;
            fx.drained.push((id.clone(), done));
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one report, taken apart once")]
    pub(super) fn replica_reported(
        &mut self,
        id: &ReplicaId,
        name: &Arc<str>,
        number: u32,
        event: ReplicaEvent,
        memory_free: u64,
        now: Millis,
        fx: &mut Effects,
    ) {
        let replica = self.servers.get_mut(&id.server).and_then(|s| s.replicas.get_mut(&id.index));
        let Some(replica) = replica else { return };
        let freed = memory_free > replica.memory_free;
        replica.memory_free = memory_free;
        let (draining, silent) = (replica.draining, replica.silent_since.is_some());
        fx.servers.insert(id.server.clone());
        if silent {
            // Without a connection it cannot be told what follows. It says what it holds when it joins again.
            return;
        }
        // Also what could not be loaded leaves room: what was promised to it.
        let leaves_room = !matches!(event, ReplicaEvent::Loaded { .. });
        let loaded = matches!(event, ReplicaEvent::Loaded { .. });
        let known =
            self.with(name, now, fx, |desk, model| desk.hear(model, number, id, event)).unwrap_or(false);
        if loaded && !known {
            // A version that nobody wants any more must not stay in memory.
            fx.orders.push(unload(id, name, number));
        }
        if (freed || (leaves_room && known)) && !mutant::is("does_not_see_room") {
            self.retry_waiting(&id.server, false, now, fx);
        }
        if draining {
            self.answer_if_empty(id, fx);
        }
    }

    fn answer_if_empty(&mut self, id: &ReplicaId, fx: &mut Effects) {
        if self.index.on(&id.server, id.index).is_none() {
            self.answer_drain(id, fx);
        }
    }

    /// Unloads what nobody wants and no gateway can use any more.
    fn unload_strays(&mut self, fx: &mut Effects) {
        while self.strays.first().is_some_and(|(told, ..)| *told <= self.drained)
            && let Some((_, id, name, number)) = self.strays.pop_first()
        {
            let wanted = self.models.get(&name).into_iter().flat_map(|m| &m.versions);
            let wanted =
                wanted.filter(|v| v.number == number).any(|v| v.status(&id.server, id.index).is_some());
            let replica = self.servers.get(&id.server).and_then(|s| s.replicas.get(&id.index));
            if !wanted && replica.is_some_and(|r| r.silent_since.is_none()) {
                fx.orders.push(unload(&id, &name, number));
            }
        }
    }

    pub(super) fn routes_settled(&mut self, applied: u64, drained: u64, now: Millis, fx: &mut Effects) {
        self.drained = drained;
        let reached = applied.max(drained);
        let later = self.index.settling.split_off(&reached.saturating_add(1));
        let due = std::mem::replace(&mut self.index.settling, later);
        for name in due.into_values() {
            self.with(&name, now, fx, |desk, model| {
                if desk.routes_settled(model, applied, drained) {
                    desk.settle(model, false);
                }
            });
        }
        self.unload_strays(fx);
    }
}

fn unload(id: &ReplicaId, name: &Arc<str>, version: u32) -> Order {
    Order { replica: id.clone(), model: name.clone(), version, load: None, autoscaled: false }
}

impl Desk<'_> {
    /// Brings what is thought of a replica in line with what its agent holds.
    fn reconcile(
        &mut self,
        model: &mut Model,
        id: &ReplicaId,
        loaded: &BTreeSet<(Arc<str>, u32)>,
        moved: bool,
    ) {
        let (server, index) = (&id.server, id.index);
        for (number, state) in numbers_on(model, server, index) {
            let holds = loaded.contains(&(self.name.clone(), number));
            let Some(version) = model.versions.iter_mut().find(|v| v.number == number) else { continue };
            match (state, holds) {
                (ReplicaState::Loaded | ReplicaState::LoadedUnavailable | ReplicaState::Available, true) => {
                    let awaits = version.status(server, index).map_or(0, |s| s.awaits);
                    if moved {
                        self.dirty = true;
                        self.set(version, server, index, ReplicaState::Loaded, String::new());
                    } else if awaits == 0 {
                        self.set(version, server, index, ReplicaState::Available, String::new());
                    } else {
                        self.set(version, server, index, ReplicaState::Loaded, String::new());
                        if let Some(status) = version.status_mut(server, index) {
                            status.awaits = awaits;
                        }
                    }
                }
                (ReplicaState::LoadRequested | ReplicaState::Loading | ReplicaState::LoadFailed, true) => {
                    self.set(version, server, index, ReplicaState::Loaded, String::new());
                }
                (ReplicaState::LoadRequested | ReplicaState::Loading, false) => {
                    self.order_load(version, server, index);
                }
                (
                    ReplicaState::UnloadRequested | ReplicaState::Unloading | ReplicaState::UnloadFailed,
                    true,
                ) => self.order_unload(version, server, index),
                (ReplicaState::Draining | ReplicaState::UnloadEnvoyRequested, true) => self.dirty |= moved,
                // It is tried again, elsewhere first.
                (ReplicaState::LoadFailed, false) => {}
                (_, false) if mutant::is("believes_its_own_memory") => {}
                (_, false) => self.clear(version, server, index),
            }
        }
    }

    /// Takes a version that an agent holds without having been told to, when it is of use. Returns whether it is.
    fn welcome(&mut self, model: &mut Model, number: u32, id: &ReplicaId) -> bool {
        let deleted = model.deleted;
        let Some(version) = model.versions.iter_mut().find(|v| v.number == number) else { return false };
        if version.status(&id.server, id.index).is_some() {
            return true;
        }
        let here = version.server.as_ref().is_none_or(|s| *s == id.server);
        let admitted = version.definition.needs.server.as_ref().is_none_or(|only| *only == id.server);
        if deleted || !here || !admitted {
            return false;
        }
        self.set(version, &id.server, id.index, ReplicaState::Loaded, String::new());
        self.settle(model, false);
        true
    }

    fn fall_silent(&mut self, model: &mut Model, id: &ReplicaId) {
        for version in &mut model.versions {
            let Some(status) = version.status(&id.server, id.index) else { continue };
            let state = match status.state {
                ReplicaState::Loading => ReplicaState::LoadRequested,
                ReplicaState::Loaded | ReplicaState::Available => ReplicaState::LoadedUnavailable,
                ReplicaState::Unloading => ReplicaState::UnloadRequested,
                _ => continue,
            };
            self.set(version, &id.server, id.index, state, String::new());
        }
    }

    /// Takes a report. Returns whether the version has a place on that replica.
    fn hear(&mut self, model: &mut Model, number: u32, id: &ReplicaId, event: ReplicaEvent) -> bool {
        let (server, index) = (&id.server, id.index);
        let Some(version) = model.versions.iter_mut().find(|v| v.number == number) else { return false };
        let Some(state) = version.status(server, index).map(|s| s.state) else { return false };
        match (event, state) {
            (ReplicaEvent::Loaded { multiplier }, ReplicaState::Loading) => {
                self.set(version, server, index, ReplicaState::Loaded, String::new());
                if mutant::is("is_available_at_once") {
                    self.set(version, server, index, ReplicaState::Available, String::new());
                }
                if let Some(multiplier) = multiplier {
                    version.multiplier = multiplier.max(1);
                }
                if !version.any(|s| s == ReplicaState::LoadFailed) {
                    version.attempts = 0;
                    version.last_failure = None;
                    version.retry_at = None;
                    version.avoid.clear();
                }
            }
            // Also what was loaded may turn out not to be: then it leaves the route at once.
            (ReplicaEvent::LoadFailed { .. }, _) if mutant::is("does_not_hear_failures") => return true,
            (ReplicaEvent::LoadFailed { reason }, state)
                if state == ReplicaState::Loading || state.is_routed() =>
            {
                self.set(version, server, index, ReplicaState::LoadFailed, reason);
                self.fail(version, server, index, false);
            }
            (ReplicaEvent::LoadFailedMemory { reason }, state)
                if state == ReplicaState::Loading || state.is_routed() =>
            {
                self.set(version, server, index, ReplicaState::LoadFailed, reason);
                self.fail(version, server, index, true);
            }
            (ReplicaEvent::UnloadFailed { reason }, ReplicaState::Unloading) => {
                self.set(version, server, index, ReplicaState::UnloadFailed, reason);
                self.fail(version, server, index, false);
            }
            (ReplicaEvent::Unloaded, ReplicaState::LoadFailed | ReplicaState::Loading) => return true,
            (ReplicaEvent::Unloaded, _) => self.clear(version, server, index),
            _ => return true,
        }
        self.settle(model, false);
        true
    }

    fn fail(&mut self, version: &mut super::Version, server: &str, index: u32, no_memory: bool) {
        version.attempts = version.attempts.saturating_add(1);
        let due = self.passed.saturating_add(self.backoff(version.attempts));
        version.retry_at = Some(version.retry_at.map_or(due, |known| known.max(due)));
        let Some(status) = version.status_mut(server, index) else { return };
        status.no_memory = no_memory;
        let loading = status.state == ReplicaState::LoadFailed;
        let failure = loading.then(|| format!("{server}-{index}: {}", status.reason));
        version.last_failure = failure.or_else(|| version.last_failure.take());
    }

    /// Every gateway has followed up to here. Returns whether anything changed.
    fn routes_settled(&mut self, model: &mut Model, applied: u64, drained: u64) -> bool {
        let mut changed = false;
        for version in &mut model.versions {
            if version.statuses().all(|s| s.awaits == 0) {
                continue;
            }
            let mut settled = Vec::with_capacity(version.replicas.len() + version.leaving.len());
            settled.extend(
                version
                    .places()
                    .filter(|(_, _, s)| s.awaits != 0)
                    .map(|(server, index, s)| (server.clone(), index, s.state, s.awaits)),
            );
            for (server, index, state, awaits) in settled {
                match state {
                    ReplicaState::Loaded if awaits <= applied => {
                        self.set(version, &server, index, ReplicaState::Available, String::new());
                        changed = true;
                    }
                    ReplicaState::LoadedUnavailable if awaits <= applied => {
                        if let Some(status) = version.status_mut(&server, index) {
                            status.awaits = 0;
                        }
                    }
                    ReplicaState::UnloadEnvoyRequested
                        if awaits <= drained + u64::from(mutant::is("drains_one_too_few"))
                            || (mutant::is("unloads_when_applied") && awaits <= applied) =>
                    {
                        self.order_unload(version, &server, index);
                        changed = true;
                    }
                    _ => {
                        self.index.settling.insert(awaits, self.name.clone());
                    }
                }
            }
        }
        changed
    }
}
