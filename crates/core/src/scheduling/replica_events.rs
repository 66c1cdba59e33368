//! Reports of agents: joined, disconnected, lost, draining, load and unload results.

use super::{
    Millis,
    command::{Effects, LoadedVersion, Order, ReplicaEvent},
    index::Timer,
    model::{Digest, Model, ReplicaState, Version},
    model_context::ModelContext,
    placement::free,
    reconcile::versions_on,
    route::Removal,
    server::{Replica, ReplicaId},
    state::State,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

impl State {
    pub(super) fn replica_joined(
        &mut self,
        id: &ReplicaId,
        replica: Replica,
        shared: bool,
        loaded: Vec<LoadedVersion>,
        now: Millis,
        effects: &mut Effects,
    ) {
        // Routes published up to now may still lead gateways to unexpected replicas.
        let published = self.sequence;
        self.unexpected_replicas.retain(|(_, of, ..)| of != id);
        self.forget_unexpected_specs(id);
        let server = self.servers.entry(id.server.clone()).or_default();
        // Server notifications may omit `shared`; agents always report it.
        server.joined_shared |= shared;
        if shared && !server.shared {
            server.shared = true;
            effects.store_servers.insert(id.server.clone());
        }
        server.since = now;
        let replica = Replica {
            disconnected_since: None,
            draining: false,
            drain_pending: false,
            packed: false,
            due: None,
            ..replica
        };
        let earlier = server.replicas.remove(&id.index);
        let moved = earlier.as_ref().is_none_or(|e| e.endpoint != replica.endpoint);
        if earlier.as_ref().is_none_or(|e| !e.same_record(&replica)) {
            effects.store_servers.insert(id.server.clone());
        }
        if let Some(mut earlier) = earlier {
            self.index.set_timer(&mut earlier.due, None, &Timer::Replica(id.clone()));
        }
        server.replicas.insert(id.index, replica);
        effects.servers.insert(id.server.clone());
        // The agent's inventory wins over the recorded state.
        let loaded: Inventory = loaded.into_iter().map(|l| ((l.model, l.version), l.spec)).collect();
        for name in self.index.models_on(id) {
            self.with(&name, now, effects, |ctx, model| {
                ctx.sync_loaded(model, id, &loaded, moved);
                ctx.reconcile(model, true);
            });
        }
        for ((name, number), spec) in &loaded {
            let desired =
                self.with(name, now, effects, |ctx, model| ctx.adopt_loaded(model, *number, *spec, id));
            if desired != Some(true) {
                self.unexpected_replicas.insert((published, id.clone(), name.clone(), *number));
                let of_version = self.unexpected_specs.entry((name.clone(), *number)).or_default();
                of_version.insert(id.clone(), *spec);
            }
        }
        self.unload_unexpected(effects);
        let joined = self.index.on(&id.server, id.index).is_none();
        if joined && self.policy.server_autoscaling {
            self.schedule_scale_down(&id.server);
        }
        self.retry_waiting(&id.server, true, now, effects);
        self.answer_drains(&id.server, effects);
    }

    pub(super) fn replica_disconnected(&mut self, id: &ReplicaId, now: Millis, effects: &mut Effects) {
        let due = self.clock.monotonic_now.saturating_add(self.policy.grace);
        let Some(server) = self.servers.get_mut(&id.server) else { return };
        let Some(replica) = server.replicas.get_mut(&id.index) else { return };
        if replica.disconnected_since.is_some() {
            return;
        }
        replica.disconnected_since = Some(now);
        self.index.set_timer(&mut replica.due, Some(due), &Timer::Replica(id.clone()));
        server.since = now;
        effects.servers.insert(id.server.clone());
        for name in self.index.models_on(id) {
            self.with(&name, now, effects, |ctx, model| {
                ctx.mark_disconnected(model, id);
                ctx.reconcile(model, false);
            });
        }
    }

    pub(super) fn replica_lost(&mut self, id: &ReplicaId, now: Millis, effects: &mut Effects) {
        let Some(server) = self.servers.get_mut(&id.server) else { return };
        let Some(mut replica) = server.replicas.remove(&id.index) else { return };
        server.since = now;
        self.index.set_timer(&mut replica.due, None, &Timer::Replica(id.clone()));
        self.forget_unexpected_specs(id);
        effects.servers.insert(id.server.clone());
        effects.store_servers.insert(id.server.clone());
        if replica.drain_pending {
            effects.drained.push((id.clone(), self.index.on(&id.server, id.index).is_none()));
        }
        for name in self.index.models_on(id) {
            self.with(&name, now, effects, |ctx, model| {
                for version in &mut model.versions {
                    ctx.clear(version, &id.server, id.index);
                }
                ctx.reconcile(model, true);
            });
        }
        self.answer_drains(&id.server, effects);
        self.forget_server_if_gone(&id.server, effects);
    }

    fn forget_unexpected_specs(&mut self, id: &ReplicaId) {
        self.unexpected_specs.retain(|_, replicas| {
            replicas.remove(id);
            !replicas.is_empty()
        });
    }

    /// Removes a terminating server without replicas.
    pub(super) fn forget_server_if_gone(&mut self, name: &Arc<str>, effects: &mut Effects) {
        let gone = self.servers.get(name).is_some_and(|s| s.is_terminating() && s.replicas.is_empty());
        if gone && let Some(mut server) = self.servers.remove(name) {
            self.index.set_timer(&mut server.due, None, &Timer::Server(name.clone()));
            effects.store_servers.insert(name.clone());
            effects.servers.insert(name.clone());
        }
    }

    pub(super) fn drain_replica(&mut self, id: &ReplicaId, now: Millis, effects: &mut Effects) {
        let replica = self.servers.get_mut(&id.server).and_then(|s| s.replicas.get_mut(&id.index));
        let Some(replica) = replica else {
            // An unknown replica holds nothing.
            effects.drained.push((id.clone(), true));
            return;
        };
        replica.draining = true;
        replica.packed = false;
        replica.drain_pending = true;
        effects.servers.insert(id.server.clone());
        self.reconcile_all_on(id, false, now, effects);
        self.answer_drain(id, effects);
    }

    /// Completes the drains of a server that end without a further report.
    fn answer_drains(&mut self, server: &Arc<str>, effects: &mut Effects) {
        let replicas = self.servers.get(server).into_iter().flat_map(|server| &server.replicas);
        let pending = replicas.filter(|(_, replica)| replica.drain_pending).map(|(&index, _)| index);
        for index in pending.collect::<Vec<_>>() {
            self.answer_drain(&ReplicaId { server: server.clone(), index }, effects);
        }
    }

    /// Completes a drain when the replica is empty, or when the remaining models cannot be placed elsewhere. Another replica
    /// of the server may be about to rejoin: after a restart of the scheduler none is connected at first.
    pub(super) fn answer_drain(&mut self, id: &ReplicaId, effects: &mut Effects) {
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
        let others_may_rejoin = || {
            let replicas = self.servers.get(&id.server).into_iter().flat_map(|server| &server.replicas);
            replicas.into_iter().any(|(&index, r)| index != id.index && r.disconnected_since.is_some())
        };
        if !done && (others_may_rejoin() || !on.is_some_and(|assigned| assigned.models.keys().all(stuck))) {
            return;
        }
        let replica = self.servers.get_mut(&id.server).and_then(|s| s.replicas.get_mut(&id.index));
        if let Some(replica) = replica.filter(|r| r.drain_pending) {
            replica.drain_pending = false;
            effects.drained.push((id.clone(), done));
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one command")]
    pub(super) fn replica_reported(
        &mut self,
        id: &ReplicaId,
        name: &Arc<str>,
        number: u32,
        event: ReplicaEvent,
        memory_free: u64,
        now: Millis,
        effects: &mut Effects,
    ) {
        let Some(free_before) = self.free_on(id) else { return };
        let replica = self.servers.get_mut(&id.server).and_then(|s| s.replicas.get_mut(&id.index));
        let Some(replica) = replica else { return };
        replica.memory_free = memory_free;
        let (draining, silent) = (replica.draining, replica.disconnected_since.is_some());
        effects.servers.insert(id.server.clone());
        if silent {
            // No order can be sent without a connection; the replica reports its inventory when it rejoins.
            return;
        }
        // A failed load releases its reserved memory.
        let releases_memory = !matches!(event, ReplicaEvent::Loaded { .. });
        let loaded = matches!(event, ReplicaEvent::Loaded { .. });
        let unexpected = (loaded || event == ReplicaEvent::Unloaded)
            && self.unexpected_specs.contains_key(&(name.clone(), number));
        if unexpected && let Some(replicas) = self.unexpected_specs.get_mut(&(name.clone(), number)) {
            replicas.remove(id);
            if replicas.is_empty() {
                self.unexpected_specs.remove(&(name.clone(), number));
            }
        }
        let known = self
            .with(name, now, effects, |ctx, model| ctx.apply_report(model, number, id, event))
            .unwrap_or(false);
        if loaded && !known {
            // A version without a placement here must not stay in memory.
            effects.orders.push(unload(id, name, number));
        }
        // Agents may subtract a load in progress from their free memory, which is reserved for it too: when it ends, more
        // is free without another report.
        let freed = self.free_on(id).is_some_and(|free| free > free_before);
        if freed || (releases_memory && known) {
            self.retry_waiting(&id.server, false, now, effects);
        }
        if draining {
            self.answer_if_empty(id, effects);
        }
    }

    /// Memory of a replica that is neither used nor reserved.
    fn free_on(&self, id: &ReplicaId) -> Option<u64> {
        let replica = self.servers.get(&id.server)?.replicas.get(&id.index)?;
        Some(free(&self.index, &id.server, id.index, replica))
    }

    fn answer_if_empty(&mut self, id: &ReplicaId, effects: &mut Effects) {
        if self.index.on(&id.server, id.index).is_none() {
            self.answer_drain(id, effects);
        }
    }

    /// Unloads unexpected replicas that no gateway can route to.
    fn unload_unexpected(&mut self, effects: &mut Effects) {
        let drained =
            self.unexpected_replicas.iter().take_while(|(published, ..)| *published <= self.drained);
        let drained = drained.filter(|(_, id, name, number)| !is_in(&self.undrained, name, *number, id));
        for entry in drained.cloned().collect::<Vec<_>>() {
            self.unexpected_replicas.remove(&entry);
            let (_, id, name, number) = entry;
            let desired = self.models.get(&name).into_iter().flat_map(|m| &m.versions);
            let desired =
                desired.filter(|v| v.number == number).any(|v| v.status(&id.server, id.index).is_some());
            let replica = self.servers.get(&id.server).and_then(|s| s.replicas.get(&id.index));
            if !desired && replica.is_some_and(|r| r.disconnected_since.is_none()) {
                effects.orders.push(unload(&id, &name, number));
            }
        }
    }

    pub(super) fn routes_acknowledged(
        &mut self,
        applied: u64,
        drained: u64,
        undrained: BTreeSet<Removal>,
        now: Millis,
        effects: &mut Effects,
    ) {
        self.drained = drained;
        let reached = applied.max(drained);
        let later = self.index.awaiting_routes.split_off(&reached.saturating_add(1));
        let due = std::mem::replace(&mut self.index.awaiting_routes, later);
        for name in due.into_values() {
            self.with(&name, now, effects, |ctx, model| {
                let weights = model.rollout.as_mut().is_some_and(|rollout| rollout.acknowledge(applied));
                if ctx.routes_acknowledged(model, applied, drained, &undrained) || weights {
                    ctx.reconcile(model, false);
                }
                // Drained further than applied: the weights are still awaited.
                let awaits = model.rollout.as_ref().and_then(|rollout| rollout.awaits());
                ctx.index.awaiting_routes.extend(awaits.map(|sequence| (sequence, ctx.name.clone())));
            });
        }
        self.acknowledge_dependants(applied, now, effects);
        self.undrained = undrained;
        self.unload_unexpected(effects);
    }
}

/// The loaded versions of a replica, with the digests of their specs.
type Inventory = BTreeMap<(Arc<str>, u32), Option<Digest>>;

/// Whether a loaded version has another content than the desired one of its number.
fn is_other(loaded: Option<Digest>, version: &Version) -> bool {
    loaded.is_some_and(|spec| spec != version.definition.spec)
}

/// Whether a gateway has requests in flight there, although the route no longer leads there.
fn is_in(undrained: &BTreeSet<Removal>, model: &Arc<str>, version: u32, id: &ReplicaId) -> bool {
    let removal = || Removal { model: model.clone(), version, replica: id.clone() };
    !undrained.is_empty() && undrained.contains(&removal())
}

fn unload(id: &ReplicaId, name: &Arc<str>, version: u32) -> Order {
    Order { replica: id.clone(), model: name.clone(), version, load: None, autoscaled: false }
}

impl ModelContext<'_> {
    /// Syncs the recorded state of a replica with its agent's inventory.
    fn sync_loaded(&mut self, model: &mut Model, id: &ReplicaId, loaded: &Inventory, moved: bool) {
        let (server, index) = (&id.server, id.index);
        for (number, state) in versions_on(model, server, index) {
            let held = loaded.get(&(self.name.clone(), number));
            let Some(version) = model.versions.iter_mut().find(|v| v.number == number) else { continue };
            match (state, held.is_some()) {
                // Another content has its number there.
                (
                    ReplicaState::LoadRequested
                    | ReplicaState::Loading
                    | ReplicaState::LoadFailed
                    | ReplicaState::Loaded
                    | ReplicaState::LoadedUnavailable
                    | ReplicaState::Available
                    | ReplicaState::Draining,
                    true,
                ) if held.is_some_and(|spec| is_other(*spec, version)) => {
                    self.set(version, server, index, ReplicaState::UnloadEnvoyRequested, String::new());
                }
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
                // Retried, preferably elsewhere.
                (ReplicaState::LoadFailed, false) => {}
                (_, false) => self.clear(version, server, index),
            }
        }
    }

    /// Adopts a version that is loaded without an order, when it can serve. Returns whether it was adopted.
    fn adopt_loaded(&mut self, model: &mut Model, number: u32, spec: Option<Digest>, id: &ReplicaId) -> bool {
        let deleted = model.deleted;
        let Some(version) = model.versions.iter_mut().find(|v| v.number == number) else { return false };
        if version.status(&id.server, id.index).is_some() {
            return true;
        }
        if is_other(spec, version) && !deleted {
            // It has to be unloaded before the version can be loaded there.
            self.set(version, &id.server, id.index, ReplicaState::UnloadEnvoyRequested, String::new());
            self.reconcile(model, false);
            return true;
        }
        let here = version.server.as_ref().is_none_or(|s| *s == id.server);
        let admitted = version.definition.needs.server.as_ref().is_none_or(|only| *only == id.server);
        if deleted || !here || !admitted {
            return false;
        }
        self.set(version, &id.server, id.index, ReplicaState::Loaded, String::new());
        self.reconcile(model, false);
        true
    }

    fn mark_disconnected(&mut self, model: &mut Model, id: &ReplicaId) {
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

    /// Applies a report. Returns whether the version has a placement on that replica.
    fn apply_report(&mut self, model: &mut Model, number: u32, id: &ReplicaId, event: ReplicaEvent) -> bool {
        let (server, index) = (&id.server, id.index);
        let Some(version) = model.versions.iter_mut().find(|v| v.number == number) else { return false };
        let Some(state) = version.status(server, index).map(|s| s.state) else { return false };
        match (event, state) {
            (ReplicaEvent::Loaded { multiplier }, ReplicaState::Loading) => {
                self.set(version, server, index, ReplicaState::Loaded, String::new());
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
            // The failure may be of an earlier order than the success, after a reconnect. It is loaded again.
            (ReplicaEvent::Loaded { .. }, ReplicaState::LoadFailed) => return false,
            // A failure report for a loaded version removes it from the route at once.
            (ReplicaEvent::LoadFailed { reason }, state)
                if state == ReplicaState::Loading || state.is_routed() =>
            {
                self.set(version, server, index, ReplicaState::LoadFailed, reason);
                self.record_failure(version, server, index, false);
            }
            (ReplicaEvent::LoadRejected { reason }, state)
                if state == ReplicaState::Loading || state.is_routed() =>
            {
                self.set(version, server, index, ReplicaState::LoadFailed, reason);
                let retry_at = version.retry_at;
                self.record_failure(version, server, index, false);
                version.retry_at = retry_at;
                if let Some(status) = version.status_mut(server, index) {
                    status.rejected = true;
                }
            }
            (ReplicaEvent::LoadFailedMemory { reason }, state)
                if state == ReplicaState::Loading || state.is_routed() =>
            {
                self.set(version, server, index, ReplicaState::LoadFailed, reason);
                self.record_failure(version, server, index, true);
            }
            (ReplicaEvent::UnloadFailed { reason }, ReplicaState::Unloading) => {
                self.set(version, server, index, ReplicaState::UnloadFailed, reason);
                self.record_failure(version, server, index, false);
            }
            (ReplicaEvent::Unloaded, ReplicaState::LoadFailed | ReplicaState::Loading) => return true,
            (ReplicaEvent::Unloaded, _) => self.clear(version, server, index),
            _ => return true,
        }
        self.reconcile(model, false);
        true
    }

    fn record_failure(&mut self, version: &mut Version, server: &str, index: u32, no_memory: bool) {
        version.attempts = version.attempts.saturating_add(1);
        let due = self.monotonic_now.saturating_add(self.backoff(version.attempts));
        version.retry_at = Some(version.retry_at.map_or(due, |known| known.max(due)));
        let Some(status) = version.status_mut(server, index) else { return };
        status.no_memory = no_memory;
        let loading = status.state == ReplicaState::LoadFailed;
        let failure = loading.then(|| format!("{server}-{index}: {}", status.reason));
        version.last_failure = failure.or_else(|| version.last_failure.take());
    }

    /// Advances replicas whose route change is acknowledged. Returns whether anything changed.
    fn routes_acknowledged(
        &mut self,
        model: &mut Model,
        applied: u64,
        drained: u64,
        undrained: &BTreeSet<Removal>,
    ) -> bool {
        let mut changed = false;
        for version in &mut model.versions {
            if version.statuses().all(|s| s.awaits == 0) {
                continue;
            }
            let mut settled = Vec::with_capacity(version.replicas.len() + version.leaving.len());
            settled.extend(
                version
                    .placements()
                    .filter(|(_, _, s)| s.awaits != 0)
                    .map(|(server, index, s)| (server.clone(), index, s.state, s.awaits)),
            );
            for (server, index, state, awaits) in settled {
                let id = ReplicaId { server: server.clone(), index };
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
                        if awaits <= drained && !is_in(undrained, self.name, version.number, &id) =>
                    {
                        self.order_unload(version, &server, index);
                        changed = true;
                    }
                    _ => {
                        self.index.awaiting_routes.insert(awaits, self.name.clone());
                    }
                }
            }
        }
        changed
    }
}
