//! One model on the desk: the transitions of its replicas, and what has to be kept in step with them.

use super::{
    Millis, Policy,
    command::{Effects, Order},
    index::{Index, Timer},
    model::{Model, NEXT_CHANGE, ReplicaState, ReplicaStatus, Told, Version},
    route::Route,
    server::{ReplicaId, Server},
};
use crate::mutant;
use std::{collections::BTreeMap, sync::Arc};

/// Everything but the model that is being worked on.
pub(super) struct Desk<'a> {
    /// The model's name.
    pub(super) name: &'a Arc<str>,
    pub(super) servers: &'a mut BTreeMap<Arc<str>, Server>,
    pub(super) index: &'a mut Index,
    pub(super) policy: &'a Policy,
    /// The last route change.
    pub(super) sequence: &'a mut u64,
    /// The caller's clock: for people to read.
    pub(super) now: Millis,
    /// Time that passed: for waiting.
    pub(super) passed: Millis,
    pub(super) fx: &'a mut Effects,
    /// Whether the route changed and nobody was told.
    pub(super) dirty: bool,
}

impl Desk<'_> {
    /// The one place where a replica's state changes, so that what is derived cannot drift from it.
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
        let was_promised = earlier.map_or(0, |r| r.promised);
        // An order to unload overtakes one to load, but the agent may have the memory in use by then.
        let promised = match state {
            ReplicaState::LoadRequested | ReplicaState::Loading => version.demand(),
            ReplicaState::UnloadRequested | ReplicaState::Unloading | ReplicaState::UnloadEnvoyRequested => {
                was_promised
            }
            _ => 0,
        };
        let awaits = match state {
            ReplicaState::Loaded | ReplicaState::UnloadEnvoyRequested => NEXT_CHANGE,
            // It is in the route as it was; whoever had not applied that yet has not now.
            ReplicaState::LoadedUnavailable => earlier.map_or(0, |r| r.awaits),
            _ => 0,
        };
        version.since = self.now;
        version.was_routed |= state.is_routed();
        if state.is_routed() && !version.served {
            version.served = true;
            self.fx.store_models.insert(self.name.clone());
        }
        let status = ReplicaStatus { state, reason, since: self.now, awaits, promised, no_memory: false };
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
            self.index.hold(server, index, self.name);
        }
        self.index.promise(server, index, was_promised, promised);
        self.touched(server, before.is_some_and(ReplicaState::is_routed) != state.is_routed());
    }

    /// Forgets a replica of a version.
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
        self.index.promise(server, index, before.promised, 0);
        let empty = self.index.release(server, index, self.name);
        if empty {
            self.look_at_server(server);
        }
        version.since = self.now;
        self.touched(server, before.state.is_routed());
    }

    fn touched(&mut self, server: &Arc<str>, route: bool) {
        if route {
            // What is routed is stored too, so that it is routed at once after a restart.
            self.dirty = true;
            self.fx.store_models.insert(self.name.clone());
        }
        if !self.fx.models.contains(self.name) {
            self.fx.models.insert(self.name.clone());
        }
        if !self.fx.servers.contains(server) {
            self.fx.servers.insert(server.clone());
        }
    }

    /// Gives the order to load.
    pub(super) fn order_load(&mut self, version: &mut Version, server: &Arc<str>, index: u32) {
        let connected = self.is_connected(server, index);
        let state = if connected { ReplicaState::Loading } else { ReplicaState::LoadRequested };
        self.set(version, server, index, state, String::new());
        if connected {
            let load = Some(version.definition.whole.clone());
            self.order(version, server, index, load);
        }
    }

    /// Gives the order to unload.
    pub(super) fn order_unload(&mut self, version: &mut Version, server: &Arc<str>, index: u32) {
        let connected = self.is_connected(server, index);
        let state = if connected { ReplicaState::Unloading } else { ReplicaState::UnloadRequested };
        self.set(version, server, index, state, String::new());
        if connected {
            self.order(version, server, index, None);
        }
    }

    fn order(&mut self, version: &Version, server: &Arc<str>, index: u32, load: Option<Arc<[u8]>>) {
        self.fx.orders.push(Order {
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
            .is_some_and(|r| r.silent_since.is_none())
    }

    /// Takes one replica away: out of the route first when it is in it.
    pub(super) fn take_away(&mut self, version: &mut Version, server: &Arc<str>, index: u32) {
        match version.status(server, index).map(|s| s.state) {
            Some(state) if state.is_routed() && mutant::is("unloads_what_is_routed") => {
                self.order_unload(version, server, index);
            }
            Some(state) if state.is_routed() => {
                self.set(version, server, index, ReplicaState::UnloadEnvoyRequested, String::new());
            }
            // It may have been lost here and be on its way back: then a gateway that was told late routes here still.
            Some(ReplicaState::LoadRequested | ReplicaState::Loading) if version.was_routed => {
                self.set(version, server, index, ReplicaState::UnloadEnvoyRequested, String::new());
            }
            Some(ReplicaState::LoadRequested | ReplicaState::Loading) => {
                self.order_unload(version, server, index);
            }
            Some(ReplicaState::LoadFailed) => self.clear(version, server, index),
            _ => {}
        }
    }

    /// Looks later whether a server has too many replicas.
    pub(super) fn look_at_server(&mut self, name: &Arc<str>) {
        if !self.policy.server_autoscaling {
            return;
        }
        if let Some(server) = self.servers.get_mut(name)
            && server.due.is_none()
            && server.expected.is_some_and(|e| e.max > 0)
        {
            let due = Some(self.passed.saturating_add(self.policy.cool_down));
            self.index.set_timer(&mut server.due, due, &Timer::Server(name.clone()));
        }
    }

    /// Numbers the change if the route changed, and lets the replicas concerned wait for it.
    pub(super) fn publish_route(&mut self, model: &mut Model) {
        let pending = model.versions.iter().flat_map(Version::statuses).any(|r| r.awaits == NEXT_CHANGE);
        // Whoever asks for a model that nothing serves is told why: when that changes, gateways have to know.
        let routed = model.versions.iter().any(|v| v.any(ReplicaState::is_routed));
        let latest = model.latest().filter(|_| !model.deleted);
        let tell = Told {
            reason: latest.filter(|_| !routed).map(|latest| model.summary(latest).reason),
            sleeps: latest.is_some_and(Version::sleeps),
            only_latest: latest.is_some_and(|latest| {
                let is_older = |v: &Version| v.number != latest.number && v.any(ReplicaState::is_routed);
                model.versions.iter().any(is_older) && Route::takes_all(latest)
            }),
        };
        let news = tell != model.told;
        if !pending && !news && !self.dirty {
            return;
        }
        self.dirty = false;
        model.told = tell;
        *self.sequence += 1;
        model.route_sequence = *self.sequence;
        if pending {
            let replicas =
                model.versions.iter_mut().flat_map(|v| v.replicas.values_mut().chain(v.leaving.values_mut()));
            for replica in replicas.filter(|r| r.awaits == NEXT_CHANGE) {
                replica.awaits = *self.sequence;
            }
            self.index.settling.insert(*self.sequence, self.name.clone());
        }
        if !mutant::is("does_not_tell_gateways") || !self.sequence.is_multiple_of(7) {
            self.fx.routes.insert(self.name.clone());
        }
    }
}
