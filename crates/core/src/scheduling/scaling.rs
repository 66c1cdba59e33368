//! Autoscaling of models by load, and of servers by models.

use super::{
    Millis,
    index::Timer,
    model::{Demand, Model, Version},
    model_context::ModelContext,
    placement::{admits, offers_all},
};
use std::sync::Arc;

impl ModelContext<'_> {
    /// Whether autoscaling applies to a version.
    pub(super) fn is_autoscaled(&self, version: &Version) -> bool {
        let scaling = version.definition.scaling;
        self.policy.model_autoscaling && (scaling.min > 0 || scaling.max > 0)
    }

    /// Records the load reported by gateways, and scales.
    pub(super) fn record_demand(
        &mut self,
        model: &mut Model,
        in_flight_milli: u64,
        answered: u64,
        waits: bool,
    ) {
        if !model.latest().is_some_and(|v| v.autoscaled) {
            return;
        }
        let monotonic_now = self.monotonic_now;
        let demand = model.demand.get_or_insert_default();
        demand.in_flight_milli = in_flight_milli;
        demand.seen = monotonic_now;
        if in_flight_milli > 0 || answered > 0 || waits {
            demand.active = monotonic_now;
        }
        let scaled_to_zero = model.latest().is_some_and(Version::scaled_to_zero);
        if waits && scaled_to_zero {
            self.scale(model, 1);
        }
        self.autoscale(model);
    }

    /// Scales up at once, down after the cool-down, to zero after the idle time.
    pub(super) fn autoscale(&mut self, model: &mut Model) {
        let Some(version) = model.versions.last() else { return };
        if model.deleted || !version.autoscaled {
            return;
        }
        let current = version.desired_replicas();
        let desired = self.desired_by_demand(model, version, current);
        let policy = *self.policy;
        let monotonic_now = self.monotonic_now;
        let demand = model
            .demand
            .get_or_insert_with(|| Box::new(Demand { active: monotonic_now, ..Demand::default() }));
        if desired >= current {
            demand.low_since = None;
            if desired > current {
                self.scale(model, desired);
            }
            return;
        }
        let idle = monotonic_now.saturating_sub(demand.active) >= policy.idle;
        let low_since = *demand.low_since.get_or_insert(monotonic_now);
        let rested = |since: Millis| monotonic_now.saturating_sub(since) >= policy.cool_down;
        if demand.changed.is_none_or(rested) && (idle || rested(low_since)) {
            self.scale(model, desired);
        }
    }

    /// Replicas for the current load.
    fn desired_by_demand(&self, model: &Model, version: &Version, current: u32) -> u32 {
        let bounds = version.definition.scaling;
        let most = if bounds.max == 0 { u32::MAX } else { bounds.max };
        let Some(demand) = &model.demand else { return current.clamp(bounds.min.min(most), most) };
        let fresh = self.monotonic_now.saturating_sub(demand.seen) < self.policy.demand_ttl;
        let in_flight = if fresh { demand.in_flight_milli } else { 0 };
        if in_flight == 0 {
            let idle = self.monotonic_now.saturating_sub(demand.active) >= self.policy.idle;
            let stays = if idle { bounds.min } else { current };
            return stays.clamp(bounds.min.min(most), most);
        }
        let each = u64::from(self.policy.target_concurrency.max(1)) * 1000;
        let desired = u32::try_from(in_flight.div_ceil(each)).unwrap_or(u32::MAX);
        desired.clamp(bounds.min.max(1).min(most), most)
    }

    /// Overrides the number of replicas.
    fn scale(&mut self, model: &mut Model, replicas: u32) {
        let monotonic_now = self.monotonic_now;
        let demand = model.demand.get_or_insert_default();
        demand.changed = Some(monotonic_now);
        demand.low_since = None;
        let Some(version) = model.versions.last_mut() else { return };
        let requested = version.definition.scaling.replicas;
        version.scaled = (replicas != requested).then_some(replicas);
        version.since = self.now;
        self.effects.store_models.insert(self.name.clone());
        self.effects.models.insert(self.name.clone());
    }

    /// Applies an external autoscaling trigger.
    pub(super) fn scale_by(&mut self, model: &mut Model, number: u32, change: i32) {
        let Some(version) = model.versions.last() else { return };
        if model.deleted || !version.autoscaled || version.number != number {
            return;
        }
        let changed = model.demand.as_ref().and_then(|d| d.changed);
        if changed.is_some_and(|at| self.monotonic_now.saturating_sub(at) < self.policy.cool_down) {
            return;
        }
        let bounds = version.definition.scaling;
        let most = if bounds.max == 0 { u32::MAX } else { bounds.max };
        let current = version.desired_replicas();
        let replicas = current.saturating_add_signed(change).clamp(bounds.min.min(most), most);
        if replicas != current {
            self.scale(model, replicas);
        }
    }

    /// When the scale could next change without another report.
    pub(super) fn next_scale(&self, model: &Model) -> Option<Millis> {
        let version = model.versions.last().filter(|v| v.autoscaled)?;
        let demand = model.demand.as_ref()?;
        if version.desired_replicas() <= version.definition.scaling.min {
            return None;
        }
        let policy = self.policy;
        let rested = demand.changed.map_or(0, |at| at.saturating_add(policy.cool_down));
        let next = match demand.low_since {
            Some(since) => since.saturating_add(policy.cool_down),
            None => demand.active.saturating_add(policy.idle),
        };
        Some(next.max(rested).max(self.monotonic_now.saturating_add(1)))
    }

    /// Requests more replicas of a server that could then take the version.
    pub(super) fn request_scale_up(&mut self, version: &Version) {
        if !self.policy.server_autoscaling {
            return;
        }
        let needs = &version.definition.needs;
        let desired = version.desired_replicas();
        let least = match version.min_acceptable() {
            0 => desired,
            min_acceptable => min_acceptable,
        };
        let mut best: Option<(u32, Arc<str>)> = None;
        for (name, server) in &*self.servers {
            let Some(expected) = server.expected.filter(|e| e.max > 0 && e.replicas > 0) else { continue };
            let elsewhere = version.server.as_ref().is_some_and(|current_server| current_server != name);
            let able = admits(needs, name, server) && server.replicas.values().any(|r| offers_all(needs, r));
            if elsewhere || !able || expected.max < least || expected.replicas >= expected.max {
                continue;
            }
            // With enough replicas, memory is missing: one more may have it. Wait for outstanding replicas first.
            let complete = server.present() >= expected.replicas as usize;
            let target = match desired.max(expected.replicas).min(expected.max) {
                same if same == expected.replicas && complete => same.saturating_add(1).min(expected.max),
                more => more,
            };
            if target > expected.replicas && best.as_ref().is_none_or(|(known, _)| target < *known) {
                best = Some((target, name.clone()));
            }
        }
        let Some((target, name)) = best else { return };
        let monotonic_now = self.monotonic_now;
        if let Some(server) = self.servers.get_mut(&name)
            && (server.requested_replicas.is_none_or(|requested| requested < target)
                // Repeat the request: it may have been lost.
                || monotonic_now.saturating_sub(server.requested_at) >= self.policy.cool_down)
        {
            server.requested_replicas = Some(target);
            server.requested_at = monotonic_now;
            self.effects.scale_servers.insert(name.clone(), target);
            self.effects.servers.insert(name);
        }
    }
}

impl super::State {
    /// Scales a server down when its last replicas are empty or, with packing, when the models of the last one fit on
    /// the others.
    pub(super) fn scale_down_server(&mut self, name: &Arc<str>, now: Millis, effects: &mut super::Effects) {
        let again = self.clock.monotonic_now.saturating_add(self.policy.cool_down);
        let policy = self.policy;
        let Some(server) = self.servers.get_mut(name) else { return };
        let timer = Timer::Server(name.clone());
        self.index.set_timer(&mut server.due, None, &timer);
        let Some(expected) = server.expected.filter(|e| e.max > 0 && e.replicas > 0) else { return };
        let fewest = expected.min.max(1);
        if expected.replicas <= fewest || server.present() < expected.replicas as usize {
            return;
        }
        let empties = server.replicas.keys().rev().take_while(|i| self.index.on(name, **i).is_none()).count();
        let target = expected.replicas.saturating_sub(u32::try_from(empties).unwrap_or(u32::MAX)).max(fewest);
        if target < expected.replicas {
            if server.requested_replicas != Some(target) {
                server.requested_replicas = Some(target);
                effects.scale_servers.insert(name.clone(), target);
                effects.servers.insert(name.clone());
                if server.replicas.values().any(|r| r.packed) {
                    self.index.set_timer(&mut server.due, Some(again), &timer);
                }
                return;
            }
            // The request was not fulfilled: return the emptied replica to service.
            for replica in server.replicas.values_mut().filter(|r| r.packed) {
                (replica.packed, replica.draining) = (false, false);
                effects.servers.insert(name.clone());
            }
            self.retry_waiting(name, true, now, effects);
            return;
        }
        if !policy.packing {
            return;
        }
        self.index.set_timer(&mut server.due, Some(again), &timer);
        let Some((&last, _)) = server.replicas.last_key_value() else { return };
        let id = super::ReplicaId { server: name.clone(), index: last };
        if !self.can_pack(&id) {
            return;
        }
        let Some(server) = self.servers.get_mut(name) else { return };
        // Deterministic share of opportunities, so that replays reach the same decisions.
        let share = |count: u32| u64::from(count) * u64::from(policy.packing_percentage.min(100)) / 100;
        let turn = share(server.packable.saturating_add(1)) > share(server.packable);
        server.packable = server.packable.wrapping_add(1) % 100;
        if turn && let Some(replica) = server.replicas.get_mut(&last) {
            replica.draining = true;
            replica.packed = true;
            effects.servers.insert(name.clone());
            self.reconcile_all_on(&id, false, now, effects);
        }
    }

    /// Whether all models of a replica fit on the other replicas of its server.
    fn can_pack(&self, id: &super::ReplicaId) -> bool {
        let Some(server) = self.servers.get(&id.server) else { return false };
        let mut free_memory: std::collections::BTreeMap<u32, u64> = server
            .replicas
            .iter()
            .filter(|(index, r)| **index != id.index && r.takes_models())
            .map(|(&index, r)| (index, super::placement::free(&self.index, &id.server, index, r)))
            .collect();
        let Some(assigned) = self.index.on(&id.server, id.index) else { return true };
        for name in assigned.models.keys() {
            let versions = self.models.get(name).map(|m| m.versions.as_slice()).unwrap_or_default();
            for version in versions {
                match version.status(&id.server, id.index).map(|s| s.state) {
                    None => continue,
                    Some(super::ReplicaState::Available) => {}
                    Some(_) => return false,
                }
                let fits = free_memory
                    .iter_mut()
                    .filter(|(index, free_memory)| {
                        **free_memory >= version.memory_required()
                            && version.status(&id.server, **index).is_none()
                    })
                    .max_by_key(|(index, free_memory)| (**free_memory, std::cmp::Reverse(**index)));
                let Some((_, free_memory)) = fits else { return false };
                *free_memory -= version.memory_required();
            }
        }
        true
    }
}
