//! Mutable context for one model: replica transitions that keep the index consistent.

use super::{
    Millis, Policy,
    command::{Effects, Order},
    index::{Index, Timer},
    model::{Definition, Model, NEXT_CHANGE, PublishedRoute, ReplicaState, ReplicaStatus, Version},
    route::Route,
    server::{ReplicaId, Server},
};
use std::{collections::BTreeMap, sync::Arc};

/// Everything but the model itself.
pub(super) struct ModelContext<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) servers: &'a mut BTreeMap<Arc<str>, Server>,
    pub(super) index: &'a mut Index,
    pub(super) policy: &'a Policy,
    /// Sequence number of the last route change.
    pub(super) sequence: &'a mut u64,
    /// Wall clock, for display only.
    pub(super) now: Millis,
    /// Logical time, for timers.
    pub(super) monotonic_now: Millis,
    pub(super) effects: &'a mut Effects,
    /// Whether the route changed since it was last published.
    pub(super) dirty: bool,
}

impl ModelContext<'_> {
    /// The only place where a replica's state changes, so that the index cannot drift from it.
    pub(super) fn set(
        &mut self,
        version: &mut Version,
        server: &Arc<str>,
        index: u32,
        state: ReplicaState,
        reason: String,
    ) {
        let earlier = version.status(server, index);
        let before = earlier.map(|r| r.state);
        let was_reserved = earlier.map_or(0, |r| r.reserved);
        // An unload order may overtake a load order, but the agent may already use the memory.
        let reserved = match state {
            ReplicaState::LoadRequested | ReplicaState::Loading => version.memory_required(),
            ReplicaState::UnloadRequested | ReplicaState::Unloading | ReplicaState::UnloadEnvoyRequested => {
                was_reserved
            }
            _ => 0,
        };
        let awaits = match state {
            ReplicaState::Loaded | ReplicaState::UnloadEnvoyRequested => NEXT_CHANGE,
            // Still in the route; an acknowledgement may still be outstanding.
            ReplicaState::LoadedUnavailable => earlier.map_or(0, |r| r.awaits),
            _ => 0,
        };
        version.since = self.now;
        version.ever_routed |= state.is_routed();
        if state.is_routed() && !version.served {
            version.served = true;
            self.effects.store_models.insert(self.name.clone());
        }
        let now = self.now;
        let status =
            ReplicaStatus { state, reason, since: now, awaits, reserved, no_memory: false, rejected: false };
        if let Some(leaving) = version.leaving_mut(server, index) {
            *leaving = status;
        } else {
            if version.server.is_none() {
                version.server = Some(server.clone());
            }
            if version.server.as_ref() == Some(server) {
                version.replicas.insert(index, status);
            } else {
                version.leaving.insert(ReplicaId { server: server.clone(), index }, status);
            }
        }
        if before.is_none() {
            self.index.assign(server, index, self.name);
        }
        self.index.reserve(server, index, was_reserved, reserved);
        self.mark_changed(server, before.is_some_and(ReplicaState::is_routed) != state.is_routed());
    }

    /// Removes a replica of a version.
    pub(super) fn clear(&mut self, version: &mut Version, server: &Arc<str>, index: u32) {
        let mut before = None;
        if version.server.as_ref() == Some(server) {
            before = version.replicas.remove(&index);
            if version.replicas.is_empty() {
                version.server = None;
            }
        }
        if before.is_none() && !version.leaving.is_empty() {
            before = version.leaving.remove(&ReplicaId { server: server.clone(), index });
        }
        let Some(before) = before else { return };
        self.index.reserve(server, index, before.reserved, 0);
        let empty = self.index.unassign(server, index, self.name);
        if empty {
            self.schedule_scale_down(server);
        }
        version.since = self.now;
        self.mark_changed(server, before.state.is_routed());
    }

    fn mark_changed(&mut self, server: &Arc<str>, route: bool) {
        if route {
            // Routed replicas are stored, so that routes are complete right after a restart.
            self.dirty = true;
            self.effects.store_models.insert(self.name.clone());
        }
        if !self.effects.models.contains(self.name) {
            self.effects.models.insert(self.name.clone());
        }
        if !self.effects.servers.contains(server) {
            self.effects.servers.insert(server.clone());
        }
    }

    /// Loads the version on a replica.
    pub(super) fn order_load(&mut self, version: &mut Version, server: &Arc<str>, index: u32) {
        let connected = self.is_connected(server, index);
        let state = if connected { ReplicaState::Loading } else { ReplicaState::LoadRequested };
        self.set(version, server, index, state, String::new());
        if connected {
            let load = Some(version.definition.clone());
            self.order(version, server, index, load);
        }
    }

    /// Unloads the version from a replica.
    pub(super) fn order_unload(&mut self, version: &mut Version, server: &Arc<str>, index: u32) {
        let connected = self.is_connected(server, index);
        let state = if connected { ReplicaState::Unloading } else { ReplicaState::UnloadRequested };
        self.set(version, server, index, state, String::new());
        if connected {
            self.order(version, server, index, None);
        }
    }

    fn order(&mut self, version: &Version, server: &Arc<str>, index: u32, load: Option<Arc<Definition>>) {
        self.effects.orders.push(Order {
            replica: ReplicaId { server: server.clone(), index },
            model: self.name.clone(),
            version: version.number,
            load,
            autoscaled: version.autoscaled,
        });
    }

    fn is_connected(&self, server: &str, index: u32) -> bool {
        self.servers
            .get(server)
            .and_then(|s| s.replicas.get(&index))
            .is_some_and(|r| r.disconnected_since.is_none())
    }

    /// Removes one replica; a routed one leaves the route first.
    pub(super) fn retire_replica(&mut self, version: &mut Version, server: &Arc<str>, index: u32) {
        match version.status(server, index).map(|s| s.state) {
            Some(state) if state.is_routed() => {
                self.set(version, server, index, ReplicaState::UnloadEnvoyRequested, String::new());
            }
            // It may have been lost and reloaded here: a lagging gateway may still route to it.
            Some(ReplicaState::LoadRequested | ReplicaState::Loading) if version.ever_routed => {
                self.set(version, server, index, ReplicaState::UnloadEnvoyRequested, String::new());
            }
            Some(ReplicaState::LoadRequested | ReplicaState::Loading) => {
                self.order_unload(version, server, index);
            }
            Some(ReplicaState::LoadFailed) => self.clear(version, server, index),
            _ => {}
        }
    }

    /// Schedules a check whether the server has too many replicas.
    pub(super) fn schedule_scale_down(&mut self, name: &Arc<str>) {
        if !self.policy.server_autoscaling {
            return;
        }
        if let Some(server) = self.servers.get_mut(name)
            && server.due.is_none()
            && server.expected.is_some_and(|e| e.max > 0)
        {
            let due = Some(self.monotonic_now.saturating_add(self.policy.cool_down));
            self.index.set_timer(&mut server.due, due, &Timer::Server(name.clone()));
        }
    }

    /// Publishes the route if it changed, under a new sequence number that the affected replicas wait for.
    pub(super) fn publish_route(&mut self, model: &mut Model) {
        let pending = model.versions.iter().flat_map(Version::statuses).any(|r| r.awaits == NEXT_CHANGE);
        // Gateways return the reason to clients of a model without replicas.
        let routed = model.versions.iter().any(|v| v.any(ReplicaState::is_routed));
        let latest = model.latest().filter(|_| !model.deleted);
        let count = |is: fn(ReplicaState) -> bool| {
            model.versions.iter().flat_map(Version::statuses).filter(|r| is(r.state)).count()
        };
        let published = PublishedRoute {
            // Gateways prefer the others, if there are any.
            disconnected: if count(ReplicaState::is_routed) > 1 {
                count(|state| state == ReplicaState::LoadedUnavailable)
            } else {
                0
            },
            reason: latest.filter(|_| !routed).map(|latest| model.version_status(latest).reason),
            scaled_to_zero: latest.is_some_and(Version::scaled_to_zero),
            only_latest: latest.is_some_and(|latest| {
                let is_older = |v: &Version| v.number != latest.number && v.any(ReplicaState::is_routed);
                model.versions.iter().any(is_older) && Route::takes_all(latest)
            }),
            rollout_generation: model.rollout.as_ref().map_or(0, |rollout| rollout.state.generation),
        };
        if !pending && published == model.published && !self.dirty {
            return;
        }
        self.dirty = false;
        model.published = published;
        *self.sequence += 1;
        model.route_sequence = *self.sequence;
        if pending {
            let replicas =
                model.versions.iter_mut().flat_map(|v| v.replicas.values_mut().chain(v.leaving.values_mut()));
            for replica in replicas.filter(|r| r.awaits == NEXT_CHANGE) {
                replica.awaits = *self.sequence;
            }
            self.index.awaiting_routes.insert(*self.sequence, self.name.clone());
        }
        self.weights_published(model);
        self.effects.routes.insert(self.name.clone());
    }
}
