//! How many replicas a model is to have by its demand, and a server by its models.

use super::{
    Millis,
    desk::Desk,
    index::Timer,
    model::{Demand, Model, Version},
    placement::{admits, offers_all},
};
use std::sync::Arc;

impl Desk<'_> {
    /// Whether a version's demand decides how many replicas there are.
    pub(super) fn is_autoscaled(&self, version: &Version) -> bool {
        let scaling = version.definition.scaling;
        self.policy.model_autoscaling && (scaling.min > 0 || scaling.max > 0)
    }

    /// Takes note of what gateways see, and scales.
    pub(super) fn see_demand(&mut self, model: &mut Model, in_flight_milli: u64, answered: u64, waits: bool) {
        if !model.latest().is_some_and(|v| v.autoscaled) {
            return;
        }
        let passed = self.passed;
        let demand = model.demand.get_or_insert_default();
        demand.in_flight_milli = in_flight_milli;
        demand.seen = passed;
        if in_flight_milli > 0 || answered > 0 || waits {
            demand.active = passed;
        }
        let sleeps = model.latest().is_some_and(Version::sleeps);
        if waits && sleeps {
            self.scale(model, 1);
        }
        self.autoscale(model);
    }

    /// Follows the demand: up at once, down when it has been lower for a while, to sleep after a time without any.
    pub(super) fn autoscale(&mut self, model: &mut Model) {
        let Some(version) = model.versions.last() else { return };
        if model.deleted || !version.autoscaled {
            return;
        }
        let current = version.wanted();
        let desired = self.desired(model, version, current);
        let policy = *self.policy;
        let passed = self.passed;
        let demand =
            model.demand.get_or_insert_with(|| Box::new(Demand { active: passed, ..Demand::default() }));
        if desired >= current {
            demand.low_since = None;
            if desired > current {
                self.scale(model, desired);
            }
            return;
        }
        let idle = passed.saturating_sub(demand.active) >= policy.idle;
        let low_since = *demand.low_since.get_or_insert(passed);
        let rested = |since: Millis| passed.saturating_sub(since) >= policy.cool_down;
        if demand.changed.is_none_or(rested) && (idle || rested(low_since)) {
            self.scale(model, desired);
        }
    }

    /// How many replicas the demand calls for.
    fn desired(&self, model: &Model, version: &Version, current: u32) -> u32 {
        let bounds = version.definition.scaling;
        let most = if bounds.max == 0 { u32::MAX } else { bounds.max };
        let Some(demand) = &model.demand else { return current.clamp(bounds.min.min(most), most) };
        let fresh = self.passed.saturating_sub(demand.seen) < self.policy.demand_lasts;
        let in_flight = if fresh { demand.in_flight_milli } else { 0 };
        if in_flight == 0 {
            let idle = self.passed.saturating_sub(demand.active) >= self.policy.idle;
            let stays = if idle { bounds.min } else { current };
            return stays.clamp(bounds.min.min(most), most);
        }
        let each = u64::from(self.policy.target_concurrency.max(1)) * 1000;
        let desired = u32::try_from(in_flight.div_ceil(each)).unwrap_or(u32::MAX);
        desired.clamp(bounds.min.max(1).min(most), most)
    }

    /// Sets how many replicas are wanted, apart from what was asked.
    fn scale(&mut self, model: &mut Model, replicas: u32) {
        let passed = self.passed;
        let demand = model.demand.get_or_insert_default();
        demand.changed = Some(passed);
        demand.low_since = None;
        let Some(version) = model.versions.last_mut() else { return };
        let asked = version.definition.scaling.replicas;
        version.scaled = (replicas != asked).then_some(replicas);
        version.since = self.now;
        self.fx.store_models.insert(self.name.clone());
        self.fx.models.insert(self.name.clone());
    }

    /// Somebody who watches the model's load asks for another number of replicas.
    pub(super) fn scale_by(&mut self, model: &mut Model, number: u32, change: i32) {
        let Some(version) = model.versions.last() else { return };
        if model.deleted || !version.autoscaled || version.number != number {
            return;
        }
        let changed = model.demand.as_ref().and_then(|d| d.changed);
        if changed.is_some_and(|at| self.passed.saturating_sub(at) < self.policy.cool_down) {
            return;
        }
        let bounds = version.definition.scaling;
        let most = if bounds.max == 0 { u32::MAX } else { bounds.max };
        let current = version.wanted();
        let replicas = current.saturating_add_signed(change).clamp(bounds.min.min(most), most);
        if replicas != current {
            self.scale(model, replicas);
        }
    }

    /// When the scale could next change without news, in time that passed.
    pub(super) fn next_scale(&self, model: &Model) -> Option<Millis> {
        let version = model.versions.last().filter(|v| v.autoscaled)?;
        let demand = model.demand.as_ref()?;
        if version.wanted() <= version.definition.scaling.min {
            return None;
        }
        let policy = self.policy;
        let rested = demand.changed.map_or(0, |at| at.saturating_add(policy.cool_down));
        let next = match demand.low_since {
            Some(since) => since.saturating_add(policy.cool_down),
            None => demand.active.saturating_add(policy.idle),
        };
        Some(next.max(rested).max(self.passed.saturating_add(1)))
    }

    /// Asks the server that could take a version, if it had more replicas, to have more.
    pub(super) fn ask_for_replicas(&mut self, version: &Version) {
        if !self.policy.server_autoscaling {
            return;
        }
        let needs = &version.definition.needs;
        let wanted = version.wanted();
        let least = match version.floor() {
            0 => wanted,
            floor => floor,
        };
        let mut best: Option<(u32, Arc<str>)> = None;
        for (name, server) in &*self.servers {
            let Some(expected) = server.expected.filter(|e| e.max > 0 && e.replicas > 0) else { continue };
            let elsewhere = version.server.as_ref().is_some_and(|home| home != name);
            let able = admits(needs, name, server) && server.replicas.values().any(|r| offers_all(needs, r));
            if elsewhere || !able || expected.max < least || expected.replicas >= expected.max {
                continue;
            }
            // With as many replicas as are wanted it is memory that is missing: one more may have it. But not before
            // those that were asked for have come.
            let complete = server.present() >= expected.replicas as usize;
            let target = match wanted.max(expected.replicas).min(expected.max) {
                same if same == expected.replicas && complete => same.saturating_add(1).min(expected.max),
                more => more,
            };
            if target > expected.replicas && best.as_ref().is_none_or(|(known, _)| target < *known) {
                best = Some((target, name.clone()));
            }
        }
        let Some((target, name)) = best else { return };
        let passed = self.passed;
        if let Some(server) = self.servers.get_mut(&name)
            && (server.asked.is_none_or(|asked| asked < target)
                // Whoever was asked may not have heard it.
                || passed.saturating_sub(server.asked_at) >= self.policy.cool_down)
        {
            server.asked = Some(target);
            server.asked_at = passed;
            self.fx.scale_servers.insert(name.clone(), target);
            self.fx.servers.insert(name);
        }
    }
}

impl super::State {
    /// Looks whether a server can do with fewer replicas: the last ones when nothing is on them; with packing also when
    /// what is on the very last one fits on the others.
    pub(super) fn shrink(&mut self, name: &Arc<str>, now: Millis, fx: &mut super::Effects) {
        let again = self.clock.passed.saturating_add(self.policy.cool_down);
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
            if server.asked != Some(target) {
                server.asked = Some(target);
                fx.scale_servers.insert(name.clone(), target);
                fx.servers.insert(name.clone());
                if server.replicas.values().any(|r| r.packed) {
                    self.index.set_timer(&mut server.due, Some(again), &timer);
                }
                return;
            }
            // Nobody took the replica away that was emptied for it: it is of use again.
            for replica in server.replicas.values_mut().filter(|r| r.packed) {
                (replica.packed, replica.draining) = (false, false);
                fx.servers.insert(name.clone());
            }
            self.retry_waiting(name, true, now, fx);
            return;
        }
        if !policy.packing {
            return;
        }
        self.index.set_timer(&mut server.due, Some(again), &timer);
        let Some((&last, _)) = server.replicas.last_key_value() else { return };
        let id = super::ReplicaId { server: name.clone(), index: last };
        if !self.could_pack(&id) {
            return;
        }
        let Some(server) = self.servers.get_mut(name) else { return };
        // One in so many opportunities, without a die: the same history gives the same decisions.
        let share = |count: u32| u64::from(count) * u64::from(policy.packing_percentage.min(100)) / 100;
        let turn = share(server.packable.saturating_add(1)) > share(server.packable);
        server.packable = server.packable.wrapping_add(1) % 100;
        if turn && let Some(replica) = server.replicas.get_mut(&last) {
            replica.draining = true;
            replica.packed = true;
            fx.servers.insert(name.clone());
            self.settle_all_on(&id, false, now, fx);
        }
    }

    /// Whether everything on a replica has room on the other replicas of its server.
    fn could_pack(&self, id: &super::ReplicaId) -> bool {
        let Some(server) = self.servers.get(&id.server) else { return false };
        let mut room: std::collections::BTreeMap<u32, u64> = server
            .replicas
            .iter()
            .filter(|(index, r)| **index != id.index && r.takes_models())
            .map(|(&index, r)| (index, super::placement::free(&self.index, &id.server, index, r)))
            .collect();
        let Some(held) = self.index.on(&id.server, id.index) else { return true };
        for name in held.models.keys() {
            let versions = self.models.get(name).map(|m| m.versions.as_slice()).unwrap_or_default();
            for version in versions {
                match version.status(&id.server, id.index).map(|s| s.state) {
                    None => continue,
                    Some(super::ReplicaState::Available) => {}
                    Some(_) => return false,
                }
                let fits = room
                    .iter_mut()
                    .filter(|(index, room)| {
                        **room >= version.demand() && version.status(&id.server, **index).is_none()
                    })
                    .max_by_key(|(index, room)| (**room, std::cmp::Reverse(**index)));
                let Some((_, room)) = fits else { return false };
                *room -= version.demand();
            }
        }
        true
    }
}
