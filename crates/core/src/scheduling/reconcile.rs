//! Moves a model towards its desired state.

use super::{
    Millis,
    index::{EquivalenceClass, Timer},
    model::{Model, ReplicaState, Version},
    model_context::ModelContext,
    placement::{Placement, place},
    server::Server,
};
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

impl ModelContext<'_> {
    /// Moves the model as far as possible now. `retry_now` retries failed loads without waiting for their backoff.
    pub(super) fn reconcile(&mut self, model: &mut Model, retry_now: bool) {
        // Commands have their own step, and report a rejection there.
        let _ = self.step_rollout(model, None, None);
        let by_rollout = model.rollout.as_ref().map(|rollout| rollout.wanted(&model.versions));
        if by_rollout.is_none() && model.latest().is_some_and(Version::serves_enough) {
            self.supersede(model);
        }
        let (deleted, count) = (model.deleted, model.versions.len());
        let current_server = model.versions.iter().rev().find_map(|v| v.server.clone());
        let mut waits = None;
        for (position, version) in model.versions.iter_mut().enumerate() {
            let is_wanted = match &by_rollout {
                Some(wanted) => wanted.contains(&version.number),
                None => position + 1 == count || version.served,
            };
            self.retry(version, retry_now);
            if !deleted && is_wanted {
                if self.place_replicas(version, current_server.as_deref()) {
                    waits = Some((Arc::new(EquivalenceClass::of(version)), version.memory_required()));
                }
            } else {
                self.retire(version, 0);
                self.set_unplaced(version, None);
            }
        }
        self.index.wait(self.name, model, waits);
        self.prune(model);
        self.publish_route(model);
        self.set_model_timer(model);
    }

    /// The latest version serves: older ones never take traffic again.
    fn supersede(&mut self, model: &mut Model) {
        let older = model.versions.len().saturating_sub(1);
        for version in model.versions.iter_mut().take(older).filter(|v| v.served) {
            version.served = false;
            self.effects.store_models.insert(self.name.clone());
        }
    }

    /// Retries failed loads and unloads whose backoff has ended; permanent failures only with `retry_now`.
    fn retry(&mut self, version: &mut Version, retry_now: bool) {
        let failed = |s| matches!(s, ReplicaState::LoadFailed | ReplicaState::UnloadFailed);
        if !version.any(failed) {
            return;
        }
        if !retry_now && version.retry_at.is_some_and(|due| due > self.monotonic_now) {
            return;
        }
        version.retry_at = None;
        version.avoid.clear();
        for (server, index, state) in replicas_in(version, failed) {
            if !retry_now && version.status(&server, index).is_some_and(|s| s.rejected) {
                continue;
            }
            if state == ReplicaState::LoadFailed {
                version.avoid.push(index);
                self.clear(version, &server, index);
            } else {
                self.order_unload(version, &server, index);
            }
        }
    }

    /// Places missing replicas and retires surplus ones. Returns whether some could not be placed.
    fn place_replicas(&mut self, version: &mut Version, current_server: Option<&str>) -> bool {
        self.cancel_draining(version);
        self.drain_leaving(version);
        let desired = version.desired_replicas();
        if desired == 0 || version.count(ReplicaState::counts_as_desired) > desired {
            self.retire(version, desired);
        }
        let have = version.count(ReplicaState::counts_as_desired);
        let failed = version.any(|s| s == ReplicaState::LoadFailed);
        let mut waits = false;
        if have >= desired || failed {
            self.set_unplaced(version, None);
        } else {
            match place(version, self.servers, self.index, current_server) {
                Placement::Nowhere(obstacle) => {
                    self.request_scale_up(version);
                    self.set_unplaced(version, Some(obstacle));
                    waits = true;
                }
                Placement::On { server, replicas, short } => {
                    if version.server.as_ref().is_some_and(|s| *s != server) {
                        version.leave_server();
                        self.effects.store_models.insert(self.name.clone());
                        self.drain_leaving(version);
                    }
                    let missing =
                        desired.saturating_sub(version.count(ReplicaState::counts_as_desired)) as usize;
                    let mut placed = 0;
                    self.effects.orders.reserve(missing.min(replicas.len()));
                    for index in replicas {
                        if placed < missing && !version.replicas.contains_key(&index) {
                            self.order_load(version, &server, index);
                            placed += 1;
                        }
                    }
                    waits = placed < missing;
                    if short.is_some() {
                        self.request_scale_up(version);
                    }
                    self.set_unplaced(version, short);
                }
            }
        }
        let loading = |s| matches!(s, ReplicaState::Loading | ReplicaState::LoadRequested);
        if !version.any(loading) {
            let enough = version.serves_enough();
            // A terminating replica is lost anyway: drain it as soon as others serve.
            let some = waits && version.any(|s| s == ReplicaState::Available);
            for (server, index, _) in replicas_in(version, |s| s == ReplicaState::Draining) {
                if enough || (some && self.is_shutting_down(&server, index)) {
                    self.retire_replica(version, &server, index);
                }
            }
        }
        waits
    }

    /// Whether a replica terminates regardless of the models on it.
    fn is_shutting_down(&self, server: &str, index: u32) -> bool {
        let replica = self.servers.get(server).and_then(|s| s.replicas.get(&index));
        replica.is_some_and(|r| r.draining && !r.packed)
    }

    /// Returns draining replicas to service when their server replica no longer terminates.
    fn cancel_draining(&mut self, version: &mut Version) {
        let Some(server) = version.server.clone() else { return };
        if !version.replicas.values().any(|s| s.state == ReplicaState::Draining) {
            return;
        }
        let stays: Vec<(u32, bool)> = version
            .replicas
            .iter()
            .filter(|(_, s)| s.state == ReplicaState::Draining)
            .filter_map(|(&index, _)| Some((index, self.servers.get(&server)?)))
            .filter(|(index, s)| !s.is_draining(*index))
            .map(|(index, s)| (index, s.replicas.get(&index).is_some_and(|r| r.disconnected_since.is_none())))
            .collect();
        for (index, connected) in stays {
            let state = if connected { ReplicaState::Loaded } else { ReplicaState::LoadedUnavailable };
            self.set(version, &server, index, state, String::new());
        }
    }

    /// Drains replicas on terminating server replicas: routed ones serve until enough others do, others are retired.
    fn drain_leaving(&mut self, version: &mut Version) {
        let current_server = version.server.as_ref().map(|name| self.servers.get(name));
        // Fast path: this runs for every report, and almost always nothing is draining.
        if version.leaving.is_empty()
            && current_server
                .is_none_or(|current_server| current_server.is_some_and(Server::nothing_draining))
        {
            return;
        }
        let is_draining = |server: &str, index| self.servers.get(server).is_none_or(|s| s.is_draining(index));
        let leaves: Vec<(Arc<str>, u32, ReplicaState)> = version
            .placements()
            .filter(|(server, index, status)| {
                let desired = status.state.counts_as_desired() || status.state == ReplicaState::LoadFailed;
                desired && (version.server.as_ref() != Some(server) || is_draining(server, *index))
            })
            .map(|(server, index, status)| (server.clone(), index, status.state))
            .collect();
        for (server, index, state) in leaves {
            if state.is_routed() {
                self.set(version, &server, index, ReplicaState::Draining, String::new());
            } else {
                self.retire_replica(version, &server, index);
            }
        }
    }

    /// Retires replicas until `keep` are left; those that do not serve yet go first.
    fn retire(&mut self, version: &mut Version, keep: u32) {
        if version.has_no_replicas() {
            return;
        }
        let mut desired = replicas_in(version, ReplicaState::counts_as_desired);
        let rank = |state| match state {
            ReplicaState::LoadRequested | ReplicaState::Loading => 0,
            ReplicaState::LoadedUnavailable => 1,
            ReplicaState::Loaded => 2,
            _ => 3,
        };
        desired.sort_by_key(|&(_, index, state)| (rank(state), Reverse(index)));
        let excess = desired.len().saturating_sub(keep as usize);
        for (server, index, _) in desired.into_iter().take(excess) {
            self.retire_replica(version, &server, index);
        }
        if keep == 0 {
            let rest = |s| matches!(s, ReplicaState::LoadFailed | ReplicaState::Draining);
            for (server, index, _) in replicas_in(version, rest) {
                self.retire_replica(version, &server, index);
            }
        }
    }

    pub(super) fn set_unplaced(&mut self, version: &mut Version, why: Option<super::Unschedulable>) {
        if version.unplaced.as_deref() != why.as_ref() {
            version.unplaced = why.map(Arc::new);
            self.effects.models.insert(self.name.clone());
        }
    }

    /// Drops older versions without replicas that are no longer needed.
    fn prune(&mut self, model: &mut Model) {
        if model.versions.len() < 2 {
            return;
        }
        let latest_serves = model.latest().is_some_and(Version::serves_enough);
        let before = model.versions.len();
        let latest = model.latest().map(|v| v.number);
        let deleted = model.deleted;
        let rollout = model.rollout.as_deref();
        model.versions.retain(|v| {
            let keeps = match rollout {
                Some(rollout) => rollout.names(v),
                None => v.served && !latest_serves && !deleted,
            };
            Some(v.number) == latest || keeps || !v.has_no_replicas()
        });
        if model.versions.len() != before {
            self.effects.store_models.insert(self.name.clone());
            self.effects.models.insert(self.name.clone());
        }
    }

    /// Schedules the next reconcile of the model.
    pub(super) fn set_model_timer(&mut self, model: &mut Model) {
        let mut due: Option<Millis> = model.versions.iter().filter_map(|v| v.retry_at).min();
        if model.deleted {
            if model.versions.iter().all(Version::has_no_replicas) {
                let later = self.monotonic_now.saturating_add(self.policy.tombstone_ttl);
                due = Some(*model.forget_at.get_or_insert(later));
            }
        } else {
            let rollout = model.rollout.as_ref().and_then(|rollout| rollout.due);
            due = [due, self.next_scale(model), rollout].into_iter().flatten().min();
        }
        self.index.set_timer(&mut model.due, due, &Timer::Model(self.name.clone()));
    }

    pub(super) fn backoff(&self, attempts: u32) -> Millis {
        let doubled = 1u64.checked_shl(attempts.saturating_sub(1)).unwrap_or(u64::MAX);
        self.policy.backoff_min.saturating_mul(doubled).min(self.policy.backoff_max)
    }
}

/// The replicas of a version in the given states.
fn replicas_in(version: &Version, of: impl Fn(ReplicaState) -> bool) -> Vec<(Arc<str>, u32, ReplicaState)> {
    version
        .placements()
        .filter(|(_, _, status)| of(status.state))
        .map(|(server, index, status)| (server.clone(), index, status.state))
        .collect()
}

/// The versions of a model on one server replica.
pub(super) fn versions_on(model: &Model, server: &str, index: u32) -> BTreeMap<u32, ReplicaState> {
    model.versions.iter().filter_map(|v| Some((v.number, v.status(server, index)?.state))).collect()
}
