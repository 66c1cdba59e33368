//! Moves a model as far towards what is asked as it can go now.

use super::{
    Millis,
    desk::Desk,
    index::{Shape, Timer},
    model::{Model, ReplicaState, Version},
    placement::{Placement, place},
    server::Server,
};
use crate::mutant;
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

impl Desk<'_> {
    /// Moves the model as far as it can go. `again` tries loads that failed without waiting for their time.
    pub(super) fn settle(&mut self, model: &mut Model, again: bool) {
        let latest_serves = !mutant::is("keeps_old_versions")
            && (mutant::is("drops_old_versions_early") || model.latest().is_some_and(Version::serves_enough));
        if latest_serves {
            self.supersede(model);
        }
        let (deleted, count) = (model.deleted, model.versions.len());
        let home = model.versions.iter().rev().find_map(|v| v.server.clone());
        let mut waits = None;
        for (position, version) in model.versions.iter_mut().enumerate() {
            let is_latest = position + 1 == count;
            self.retry(version, again);
            if !deleted && (is_latest || (version.served && !latest_serves)) {
                if self.fill(version, home.as_deref()) {
                    waits = Some((Arc::new(Shape::of(version)), version.demand()));
                }
            } else {
                self.retire(version, 0);
                self.set_unplaced(version, None);
            }
        }
        self.index.wait(self.name, model, waits);
        self.prune(model);
        self.publish_route(model);
        self.arm(model);
    }

    /// The latest version serves: older ones never come back, whatever becomes of it.
    fn supersede(&mut self, model: &mut Model) {
        let older = model.versions.len().saturating_sub(1);
        for version in model.versions.iter_mut().take(older).filter(|v| v.served) {
            version.served = false;
            self.fx.store_models.insert(self.name.clone());
        }
    }

    /// Clears the way for another try where loading or unloading failed.
    fn retry(&mut self, version: &mut Version, again: bool) {
        let failed = |s| matches!(s, ReplicaState::LoadFailed | ReplicaState::UnloadFailed);
        if !version.any(failed) {
            return;
        }
        if mutant::is("never_tries_again") {
            version.retry_at = None;
            return;
        }
        if !again && version.retry_at.is_some_and(|due| due > self.passed) {
            return;
        }
        version.retry_at = None;
        version.avoid.clear();
        for (server, index, state) in which(version, failed) {
            if state == ReplicaState::LoadFailed {
                version.avoid.push(index);
                self.clear(version, &server, index);
            } else {
                self.order_unload(version, &server, index);
            }
        }
    }

    /// Places the replicas that a version lacks and retires those that it has too many of. Returns whether some
    /// could not be placed.
    fn fill(&mut self, version: &mut Version, home: Option<&str>) -> bool {
        self.stay_again(version);
        self.leave_what_goes(version);
        let wanted = version.wanted();
        let most = wanted + u32::from(mutant::is("keeps_one_too_many"));
        if wanted == 0 || version.count(ReplicaState::is_wanted) > most {
            self.retire(version, wanted);
        }
        let have = version.count(ReplicaState::is_wanted);
        let failed = version.any(|s| s == ReplicaState::LoadFailed);
        let mut waits = false;
        if have >= wanted || failed {
            self.set_unplaced(version, None);
        } else {
            match place(version, self.servers, self.index, home) {
                Placement::Nowhere(obstacle) => {
                    self.ask_for_replicas(version);
                    self.set_unplaced(version, Some(obstacle));
                    waits = true;
                }
                Placement::On { server, replicas, short } => {
                    if version.server.as_ref().is_some_and(|s| *s != server) {
                        version.leave_server();
                        self.fx.store_models.insert(self.name.clone());
                        self.leave_what_goes(version);
                    }
                    let missing = wanted.saturating_sub(version.count(ReplicaState::is_wanted)) as usize;
                    let mut placed = 0;
                    self.fx.orders.reserve(missing.min(replicas.len()));
                    for index in replicas {
                        if placed < missing && !version.replicas.contains_key(&index) {
                            self.order_load(version, &server, index);
                            placed += 1;
                        }
                    }
                    waits = placed < missing;
                    if short.is_some() {
                        self.ask_for_replicas(version);
                    }
                    self.set_unplaced(version, short);
                }
            }
        }
        let loading = |s| matches!(s, ReplicaState::Loading | ReplicaState::LoadRequested);
        if !version.any(loading) {
            let enough = version.serves_enough();
            // One that goes is lost in any case: while others serve, requests are better off without it.
            let some = waits && version.any(|s| s == ReplicaState::Available);
            for (server, index, _) in which(version, |s| s == ReplicaState::Draining) {
                if enough || (some && self.goes_by_itself(&server, index)) {
                    self.take_away(version, &server, index);
                }
            }
        }
        waits
    }

    /// Whether a replica's agent has said that it ends, whatever is on it.
    fn goes_by_itself(&self, server: &str, index: u32) -> bool {
        let replica = self.servers.get(server).and_then(|s| s.replicas.get(&index));
        replica.is_some_and(|r| r.draining && !r.packed)
    }

    /// What was about to go with its replica and may stay after all.
    fn stay_again(&mut self, version: &mut Version) {
        let Some(server) = version.server.clone() else { return };
        if !version.replicas.values().any(|s| s.state == ReplicaState::Draining) {
            return;
        }
        let stays: Vec<(u32, bool)> = version
            .replicas
            .iter()
            .filter(|(_, s)| s.state == ReplicaState::Draining)
            .filter_map(|(&index, _)| Some((index, self.servers.get(&server)?)))
            .filter(|(index, s)| !s.goes(*index))
            .map(|(index, s)| (index, s.replicas.get(&index).is_some_and(|r| r.silent_since.is_none())))
            .collect();
        for (index, connected) in stays {
            let state = if connected { ReplicaState::Loaded } else { ReplicaState::LoadedUnavailable };
            self.set(version, &server, index, state, String::new());
        }
    }

    /// What is on a replica that is about to go serves until enough others do; what does not serve yet is taken away.
    fn leave_what_goes(&mut self, version: &mut Version) {
        let home = version.server.as_ref().map(|name| self.servers.get(name));
        // Almost always nothing goes, and this is asked with every report.
        if version.leaving.is_empty() && home.is_none_or(|home| home.is_some_and(Server::nothing_goes)) {
            return;
        }
        let goes = |server: &str, index| self.servers.get(server).is_none_or(|s| s.goes(index));
        let leaves: Vec<(Arc<str>, u32, ReplicaState)> = version
            .places()
            .filter(|(server, index, status)| {
                let wanted = status.state.is_wanted() || status.state == ReplicaState::LoadFailed;
                wanted && (version.server.as_ref() != Some(server) || goes(server, *index))
            })
            .map(|(server, index, status)| (server.clone(), index, status.state))
            .collect();
        for (server, index, state) in leaves {
            if state.is_routed() {
                self.set(version, &server, index, ReplicaState::Draining, String::new());
            } else {
                self.take_away(version, &server, index);
            }
        }
    }

    /// Takes replicas away until `keep` are wanted: those that do not serve yet first.
    fn retire(&mut self, version: &mut Version, keep: u32) {
        if version.is_nowhere() {
            return;
        }
        let mut wanted = which(version, ReplicaState::is_wanted);
        let rank = |state| match state {
            ReplicaState::LoadRequested | ReplicaState::Loading => 0,
            ReplicaState::LoadedUnavailable => 1,
            ReplicaState::Loaded => 2,
            _ => 3,
        };
        wanted.sort_by_key(|&(_, index, state)| (rank(state), Reverse(index)));
        let excess = wanted.len().saturating_sub(keep as usize);
        for (server, index, _) in wanted.into_iter().take(excess) {
            self.take_away(version, &server, index);
        }
        if keep == 0 {
            let rest = |s| matches!(s, ReplicaState::LoadFailed | ReplicaState::Draining);
            for (server, index, _) in which(version, rest) {
                self.take_away(version, &server, index);
            }
        }
    }

    pub(super) fn set_unplaced(&mut self, version: &mut Version, why: Option<super::Obstacle>) {
        if version.unplaced.as_deref() != why.as_ref() {
            version.unplaced = why.map(Arc::new);
            self.fx.models.insert(self.name.clone());
        }
    }

    /// Forgets older versions that hold nothing any more and will not be asked for again.
    fn prune(&mut self, model: &mut Model) {
        if model.versions.len() < 2 {
            return;
        }
        let latest_serves = model.latest().is_some_and(Version::serves_enough);
        let before = model.versions.len();
        let latest = model.latest().map(|v| v.number);
        let deleted = model.deleted;
        model.versions.retain(|v| {
            let keeps = v.served && !latest_serves && !deleted;
            Some(v.number) == latest || keeps || !v.is_nowhere()
        });
        if model.versions.len() != before {
            self.fx.store_models.insert(self.name.clone());
            self.fx.models.insert(self.name.clone());
        }
    }

    /// Sets the time when the model is to be looked at again.
    pub(super) fn arm(&mut self, model: &mut Model) {
        let mut due: Option<Millis> = model.versions.iter().filter_map(|v| v.retry_at).min();
        if model.deleted {
            if model.versions.iter().all(Version::is_nowhere) {
                let later = self.passed.saturating_add(self.policy.deleted_stays);
                due = Some(*model.forget_at.get_or_insert(later));
            }
        } else if let Some(scale) = self.next_scale(model) {
            due = Some(due.map_or(scale, |d| d.min(scale)));
        }
        self.index.set_timer(&mut model.due, due, &Timer::Model(self.name.clone()));
    }

    /// How long until the next try after a failure.
    pub(super) fn backoff(&self, attempts: u32) -> Millis {
        let doubled = 1u64.checked_shl(attempts.saturating_sub(1)).unwrap_or(u64::MAX);
        self.policy.retry_first.saturating_mul(doubled).min(self.policy.retry_longest)
    }
}

/// The replicas of a version that are in a state, and where.
fn which(version: &Version, of: impl Fn(ReplicaState) -> bool) -> Vec<(Arc<str>, u32, ReplicaState)> {
    version
        .places()
        .filter(|(_, _, status)| of(status.state))
        .map(|(server, index, status)| (server.clone(), index, status.state))
        .collect()
}

/// What the versions of a model have on one replica of a server.
pub(super) fn numbers_on(model: &Model, server: &str, index: u32) -> BTreeMap<u32, ReplicaState> {
    model.versions.iter().filter_map(|v| Some((v.number, v.status(server, index)?.state))).collect()
}
