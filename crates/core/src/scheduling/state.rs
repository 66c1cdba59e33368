//! The state, and how a command changes it.

use super::{
    Millis, Policy,
    command::{Command, Effects, Order, Refusal, ReplicaEvent},
    manager::{Kind, Manager, may_change, owner_after},
    model::{Definition, Model, ReplicaState, ReplicaStatus, Version},
    placement::{Placement, place},
    record::{ModelRecord, ServerRecord, VersionRecord},
    route::Route,
    server::{Replica, ReplicaId, Server},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Everything the scheduler knows. The public fields are for reading; only [`State::apply`] changes them.
#[derive(Clone, Debug, Default)]
pub struct State {
    policy: Policy,
    models: BTreeMap<Arc<str>, Model>,
    servers: BTreeMap<Arc<str>, Server>,
    /// The last route change.
    sequence: u64,
    /// What follows can be derived from the models; it is kept so that a command costs what it touches, not what
    /// there is.
    index: Index,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Index {
    /// Models that want more replicas than they have.
    waiting: BTreeSet<Arc<str>>,
    /// Models with anything on a replica.
    on_replica: BTreeMap<ReplicaId, BTreeSet<Arc<str>>>,
    /// Memory promised on a replica to what is loading there.
    promised: BTreeMap<ReplicaId, u64>,
    /// Models with a replica that waits for a route change to be applied or drained.
    settling: BTreeMap<u64, Arc<str>>,
}

impl State {
    /// Nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// What has to last of a model; `None` when nothing has.
    pub fn model_record(&self, name: &str) -> Option<ModelRecord> {
        let model = self.models.get(name)?;
        let latest = model.latest()?.number;
        let versions = model
            .versions
            .iter()
            .filter(|v| v.number == latest || v.served)
            .map(|v| VersionRecord {
                number: v.number,
                definition: v.definition.clone(),
                served: v.served,
                scaled: v.scaled,
                server: v.server.clone(),
                replicas: v.replicas.iter().filter(|(_, r)| r.state.is_routed()).map(|(&i, _)| i).collect(),
            })
            .collect();
        Some(ModelRecord { deleted: model.deleted, manager: model.manager.clone(), versions })
    }

    /// What has to last of a server; `None` when nothing has.
    pub fn server_record(&self, name: &str) -> Option<ServerRecord> {
        let (name, server) = self.servers.get_key_value(name)?;
        Some(ServerRecord {
            name: name.clone(),
            expected: server.expected,
            shared: server.shared,
            namespace: server.namespace.clone(),
            manager: server.manager.clone(),
            replicas: server.replicas.iter().map(|(&index, r)| (index, r.clone())).collect(),
        })
    }

    /// The numbers that decisions follow.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// From now on remembers what was, for [`State::undo`].
    pub fn begin(&mut self) {}

    /// Takes back every command since [`State::begin`]. Nothing of their effects may have been told to anybody.
    pub fn undo(&mut self) {}

    /// Forgets what was remembered since [`State::begin`].
    pub fn keep(&mut self) {}

    /// The state after a restart: what was stored, nothing placed.
    ///
    /// Versions are oldest first; older ones are those that served when the latest did not yet.
    pub fn restore(
        policy: Policy,
        models: impl IntoIterator<Item = ModelRecord>,
        servers: impl IntoIterator<Item = ServerRecord>,
        now: Millis,
    ) -> Self {
        let mut state = Self::new(policy);
        for ModelRecord { deleted, manager, versions } in models {
            let versions: Vec<Version> = versions
                .into_iter()
                .map(|v| Version { served: v.served, ..Version::new(v.number, v.definition, now) })
                .collect();
            let Some(name) = versions.last().map(|v| v.definition.name.clone()) else {
                continue;
            };
            if !deleted {
                state.index.waiting.insert(name.clone());
            }
            state.models.insert(name, Model { versions, deleted, manager, route_sequence: 0, told: None });
        }
        for ServerRecord { name, expected, shared, namespace, manager, .. } in servers {
            let server = Server { expected, namespace, shared, manager, since: now, ..Server::default() };
            state.servers.insert(name, server);
        }
        let mut effects = Effects::default();
        for name in state.index.waiting.clone() {
            state.settle(&name, now, &mut effects);
        }
        state
    }

    /// All models, by name.
    pub const fn models(&self) -> &BTreeMap<Arc<str>, Model> {
        &self.models
    }

    /// All servers, by name.
    pub const fn servers(&self) -> &BTreeMap<Arc<str>, Server> {
        &self.servers
    }

    /// The number of the last route change.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many model replicas are loaded on a server replica.
    pub fn loaded_on(&self, id: &ReplicaId) -> usize {
        self.index
            .on_replica
            .get(id)
            .into_iter()
            .flatten()
            .filter_map(|name| self.models.get(name))
            .flat_map(|m| &m.versions)
            .filter(|v| v.server.as_ref() == Some(&id.server))
            .filter(|v| v.replicas.get(&id.index).is_some_and(|r| r.state.is_routed()))
            .count()
    }

    /// Carries out one command.
    pub fn apply(&mut self, command: Command, now: Millis) -> Result<Effects, Refusal> {
        let mut effects = Effects::default();
        let fx = &mut effects;
        match command {
            Command::LoadModel { definition, by } => self.load_model(*definition, by, now, fx)?,
            Command::UnloadModel { name, by } => self.unload_model(&name, &by, now, fx)?,
            Command::ExpectServer { name, expected, shared, namespace, by } => {
                let server = self.servers.entry(name.clone()).or_default();
                if let Some(owner) = server.manager.clone().filter(|o| !may_change(Some(o), &by)) {
                    let generation = server.expected.and_then(|e| e.generation);
                    let (kind, delete) = (Kind::Server, expected.replicas == 0);
                    return Err(Refusal::Owned { kind, name, owner, generation, delete });
                }
                let manager = owner_after(server.manager.clone(), by);
                let changed = server.manager != manager
                    || server.expected != Some(expected)
                    || server.namespace != namespace
                    || server.shared != shared;
                if changed {
                    server.manager = manager;
                    server.expected = Some(expected);
                    server.namespace = namespace;
                    server.shared = shared;
                    server.since = now;
                    fx.store_servers.insert(name.clone());
                    fx.servers.insert(name);
                    self.retry_waiting(now, fx);
                }
            }
            Command::ReplicaJoined { id, replica, shared, loaded } => {
                self.replica_joined(&id, replica, shared, &loaded, now, fx);
            }
            Command::AdoptModel { name, by } => {
                let Some(model) = self.models.get_mut(&name).filter(|m| !m.deleted) else {
                    return Err(Refusal::UnknownModel(name));
                };
                model.manager = Some(by);
                fx.models.insert(name.clone());
                fx.store_models.insert(name);
            }
            Command::AdoptServer { name, by } => {
                let Some(server) = self.servers.get_mut(&name) else {
                    return Err(Refusal::UnknownServer(name));
                };
                server.manager = Some(by);
                fx.servers.insert(name.clone());
                fx.store_servers.insert(name);
            }
            Command::DrainReplica { .. }
            | Command::ScaleModel { .. }
            | Command::DemandSeen { .. }
            | Command::Tick => {}
            Command::ReplicaSilent { id } | Command::ReplicaLost { id } => self.replica_lost(&id, now, fx),
            Command::ReplicaReported { id, model, version, event, memory_free } => {
                self.replica_reported(&id, &model, version, event, memory_free, now, fx);
            }
            Command::RoutesSettled { applied, drained } => self.routes_settled(applied, drained, now, fx),
        }
        Ok(effects)
    }

    fn check_model_owner(&self, name: &Arc<str>, by: &Manager, delete: bool) -> Result<(), Refusal> {
        let Some(model) = self.models.get(name).filter(|m| !m.deleted) else { return Ok(()) };
        match &model.manager {
            Some(owner) if !may_change(Some(owner), by) => Err(Refusal::Owned {
                kind: Kind::Model,
                name: name.clone(),
                owner: owner.clone(),
                generation: model.latest().and_then(|v| v.definition.generation),
                delete,
            }),
            _ => Ok(()),
        }
    }

    fn load_model(
        &mut self,
        definition: Definition,
        by: Manager,
        now: Millis,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let name = definition.name.clone();
        self.check_model_owner(&name, &by, false)?;
        let first = || definition.generation.and_then(|g| u32::try_from(g).ok()).unwrap_or(1).max(1);
        let Some(model) = self.models.get_mut(&name).filter(|m| !m.deleted) else {
            if self.models.get(&name).is_some_and(|m| m.versions.iter().any(|v| !v.replicas.is_empty())) {
                return Err(Refusal::StillTerminating(name));
            }
            let route_sequence = self.models.get(&name).map_or(0, |m| m.route_sequence);
            let versions = vec![Version::new(first(), Arc::new(definition), now)];
            self.models.insert(
                name.clone(),
                Model {
                    versions,
                    deleted: false,
                    manager: owner_after(None, by),
                    route_sequence,
                    told: None,
                },
            );
            fx.store_models.insert(name.clone());
            self.settle(&name, now, fx);
            return Ok(());
        };
        if model.manager.is_none() && by != Manager::Gateway {
            fx.store_models.insert(name.clone());
        }
        model.manager = owner_after(model.manager.take(), by);
        let Some(latest) = model.versions.last_mut() else {
            return Ok(());
        };
        if latest.definition.spec != definition.spec {
            let number = latest.number.saturating_add(1);
            model.versions.push(Version::new(number, Arc::new(definition), now));
            fx.store_models.insert(name.clone());
        } else if *latest.definition != definition {
            latest.definition = Arc::new(definition);
            fx.store_models.insert(name.clone());
        }
        // Asking again for a model that failed means: try again.
        self.forget_failures(&name, fx);
        self.settle(&name, now, fx);
        Ok(())
    }

    fn unload_model(
        &mut self,
        name: &Arc<str>,
        by: &Manager,
        now: Millis,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        self.check_model_owner(name, by, true)?;
        let Some(model) = self.models.get_mut(name) else {
            return Err(Refusal::UnknownModel(name.clone()));
        };
        if !model.deleted {
            model.deleted = true;
            model.manager = None;
            fx.store_models.insert(name.clone());
        }
        self.settle(name, now, fx);
        Ok(())
    }

    fn replica_joined(
        &mut self,
        id: &ReplicaId,
        replica: Replica,
        shared: bool,
        loaded: &[(Arc<str>, u32)],
        now: Millis,
        fx: &mut Effects,
    ) {
        // Whatever was thought of an earlier life of this replica is void.
        self.replica_lost(id, now, fx);
        let server = self.servers.entry(id.server.clone()).or_default();
        server.shared |= shared;
        server.since = now;
        server.replicas.insert(id.index, replica);
        fx.servers.insert(id.server.clone());
        for (name, number) in loaded {
            let wanted = self.models.get(name).filter(|m| !m.deleted).is_some_and(|m| {
                m.versions
                    .iter()
                    .any(|v| v.number == *number && v.server.as_ref().is_none_or(|s| *s == id.server))
            });
            if wanted {
                self.set(name, *number, id, ReplicaState::Loaded, String::new(), now, fx);
                self.settle(name, now, fx);
            } else {
                fx.orders.push(Order {
                    replica: id.clone(),
                    model: name.clone(),
                    version: *number,
                    load: None,
                    autoscaled: false,
                });
            }
        }
        self.retry_waiting(now, fx);
    }

    fn replica_lost(&mut self, id: &ReplicaId, now: Millis, fx: &mut Effects) {
        let known = self.servers.get_mut(&id.server).is_some_and(|s| s.replicas.remove(&id.index).is_some());
        if known {
            fx.servers.insert(id.server.clone());
        }
        let touched = self.index.on_replica.get(id).cloned().unwrap_or_default();
        for name in touched {
            let numbers: Vec<u32> = self
                .models
                .get(&name)
                .map(|m| m.versions.iter().map(|v| v.number).collect())
                .unwrap_or_default();
            for number in numbers {
                self.clear(&name, number, id, fx);
            }
            self.settle(&name, now, fx);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one report, taken apart once")]
    fn replica_reported(
        &mut self,
        id: &ReplicaId,
        name: &Arc<str>,
        number: u32,
        event: ReplicaEvent,
        memory_free: u64,
        now: Millis,
        fx: &mut Effects,
    ) {
        let Some(replica) = self.servers.get_mut(&id.server).and_then(|s| s.replicas.get_mut(&id.index))
        else {
            return;
        };
        replica.memory_free = memory_free;
        fx.servers.insert(id.server.clone());
        let state = self.replica_state(name, number, id);
        match (event, state) {
            (ReplicaEvent::Loaded { multiplier }, Some(ReplicaState::Loading)) => {
                self.set(name, number, id, ReplicaState::Loaded, String::new(), now, fx);
                if let (Some(multiplier), Some(version)) = (multiplier, self.version_mut(name, number)) {
                    version.multiplier = multiplier.max(1);
                }
            }
            (
                ReplicaEvent::LoadFailed { reason } | ReplicaEvent::LoadFailedMemory { reason },
                Some(ReplicaState::Loading),
            ) => {
                self.set(name, number, id, ReplicaState::LoadFailed, reason, now, fx);
            }
            // A version that nobody wants any more must not stay in memory.
            (ReplicaEvent::Loaded { .. }, None) => {
                fx.orders.push(Order {
                    replica: id.clone(),
                    model: name.clone(),
                    version: number,
                    load: None,
                    autoscaled: false,
                });
            }
            (ReplicaEvent::Unloaded, Some(_)) => {
                self.clear(name, number, id, fx);
                self.settle(name, now, fx);
                self.retry_waiting(now, fx);
                return;
            }
            (ReplicaEvent::UnloadFailed { reason }, Some(ReplicaState::Unloading)) => {
                self.set(name, number, id, ReplicaState::UnloadFailed, reason, now, fx);
            }
            _ => return,
        }
        self.settle(name, now, fx);
    }

    fn routes_settled(&mut self, applied: u64, drained: u64, now: Millis, fx: &mut Effects) {
        let reached = applied.max(drained);
        let due: Vec<(u64, Arc<str>)> =
            self.index.settling.range(..=reached).map(|(s, n)| (*s, n.clone())).collect();
        for (sequence, name) in due {
            self.index.settling.remove(&sequence);
            let mut later: Vec<u64> = Vec::new();
            let mut unload: Vec<(u32, ReplicaId)> = Vec::new();
            let mut serve: Vec<(u32, ReplicaId)> = Vec::new();
            for version in self.models.get(&name).into_iter().flat_map(|m| &m.versions) {
                let Some(server) = &version.server else { continue };
                for (&index, replica) in &version.replicas {
                    let id = ReplicaId { server: server.clone(), index };
                    match replica.state {
                        ReplicaState::Loaded if replica.awaits <= applied => serve.push((version.number, id)),
                        ReplicaState::UnloadEnvoyRequested if replica.awaits <= drained => {
                            unload.push((version.number, id));
                        }
                        ReplicaState::Loaded | ReplicaState::UnloadEnvoyRequested => {
                            later.push(replica.awaits);
                        }
                        _ => {}
                    }
                }
            }
            for sequence in later {
                self.index.settling.insert(sequence, name.clone());
            }
            for (number, id) in serve {
                self.set(&name, number, &id, ReplicaState::Available, String::new(), now, fx);
            }
            for (number, id) in unload {
                self.order_unload(&name, number, &id, now, fx);
            }
            self.settle(&name, now, fx);
        }
    }

    fn retry_waiting(&mut self, now: Millis, fx: &mut Effects) {
        for name in self.index.waiting.clone() {
            self.settle(&name, now, fx);
        }
    }

    /// Moves a model as far towards what is asked as it can go now.
    fn settle(&mut self, name: &Arc<str>, now: Millis, fx: &mut Effects) {
        let Some(model) = self.models.get(name) else {
            return;
        };
        fx.models.insert(name.clone());
        let deleted = model.deleted;
        let latest = model.latest().map(|v| v.number);
        let latest_serves =
            model.latest().is_some_and(|v| v.serves_enough() || v.definition.scaling.replicas == 0);
        let versions: Vec<(u32, bool)> = model.versions.iter().map(|v| (v.number, v.served)).collect();
        let mut waits = false;
        for (number, served) in versions {
            let is_latest = Some(number) == latest;
            let keeps = is_latest || (served && !latest_serves);
            if keeps && !deleted {
                waits |= self.fill(name, number, now, fx);
            } else {
                self.retire(name, number, 0, now, fx);
            }
        }
        if waits {
            self.index.waiting.insert(name.clone());
        } else {
            self.index.waiting.remove(name);
        }
        self.prune(name, latest_serves, fx);
        self.publish_route(name, fx);
    }

    /// Places the replicas that a version lacks and retires those that it has too many of. Returns whether some
    /// could not be placed.
    fn fill(&mut self, name: &Arc<str>, number: u32, now: Millis, fx: &mut Effects) -> bool {
        let Some(model) = self.models.get(name) else {
            return false;
        };
        let Some(version) = model.versions.iter().find(|v| v.number == number) else {
            return false;
        };
        let wanted = version.definition.scaling.replicas;
        let have = version.count(ReplicaState::is_wanted);
        if have > wanted {
            self.retire(name, number, wanted, now, fx);
        }
        let failed = version_failed(self.version(name, number));
        let replaced = self.version(name, number).is_some_and(|v| v.count(ReplicaState::is_wanted) < wanted);
        if !replaced || failed {
            self.set_unplaced(name, number, None);
            return false;
        }
        let Some(model) = self.models.get(name) else {
            return false;
        };
        let Some(version) = model.versions.iter().find(|v| v.number == number) else {
            return false;
        };
        let home = model.versions.iter().rev().find_map(|v| v.server.clone());
        let placement = place(version, &self.servers, |id| self.free(id), home.as_deref());
        match placement {
            Placement::Nowhere(obstacle) => {
                self.set_unplaced(name, number, Some(obstacle.to_string()));
                true
            }
            Placement::On { server, replicas, short } => {
                let definition = version.definition.whole.clone();
                let fresh: Vec<u32> =
                    replicas.into_iter().filter(|i| !version.replicas.contains_key(i)).collect();
                let missing = wanted.saturating_sub(version.count(ReplicaState::is_wanted)) as usize;
                let still_short = fresh.len() < missing;
                for index in fresh.into_iter().take(missing) {
                    let id = ReplicaId { server: server.clone(), index };
                    self.set(name, number, &id, ReplicaState::Loading, String::new(), now, fx);
                    fx.orders.push(Order {
                        replica: id,
                        model: name.clone(),
                        version: number,
                        load: Some(definition.clone()),
                        autoscaled: false,
                    });
                }
                self.set_unplaced(name, number, short.map(|s| s.to_string()));
                still_short
            }
        }
    }

    /// Takes replicas away until `keep` are wanted: those that do not serve yet first.
    fn retire(&mut self, name: &Arc<str>, number: u32, keep: u32, now: Millis, fx: &mut Effects) {
        let Some(version) = self.version(name, number) else {
            return;
        };
        let Some(server) = version.server.clone() else {
            return;
        };
        let mut wanted: Vec<(ReplicaState, u32)> = version
            .replicas
            .iter()
            .filter(|(_, r)| r.state.is_wanted())
            .map(|(&index, r)| (r.state, index))
            .collect();
        wanted.sort_unstable_by_key(|&(state, index)| (state, std::cmp::Reverse(index)));
        let excess = wanted.len().saturating_sub(keep as usize);
        let failed: Vec<u32> = version
            .replicas
            .iter()
            .filter(|(_, r)| r.state == ReplicaState::LoadFailed && keep == 0)
            .map(|(&index, _)| index)
            .collect();
        for (state, index) in wanted.into_iter().take(excess) {
            let id = ReplicaId { server: server.clone(), index };
            if state.is_routed() {
                self.set(name, number, &id, ReplicaState::UnloadEnvoyRequested, String::new(), now, fx);
            } else {
                self.order_unload(name, number, &id, now, fx);
            }
        }
        for index in failed {
            self.clear(name, number, &ReplicaId { server: server.clone(), index }, fx);
        }
    }

    /// Forgets older versions that hold nothing any more and will not be asked for again.
    fn prune(&mut self, name: &Arc<str>, latest_serves: bool, fx: &mut Effects) {
        let Some(model) = self.models.get_mut(name) else {
            return;
        };
        let before = model.versions.len();
        let latest = model.latest().map(|v| v.number);
        let deleted = model.deleted;
        model.versions.retain(|v| {
            let keeps = v.served && !latest_serves && !deleted;
            Some(v.number) == latest || keeps || !v.replicas.is_empty()
        });
        if model.versions.len() != before {
            fx.store_models.insert(name.clone());
        }
    }

    /// Numbers the change if the route changed, and lets the replicas concerned wait for it.
    fn publish_route(&mut self, name: &Arc<str>, fx: &mut Effects) {
        let Some(model) = self.models.get_mut(name) else {
            return;
        };
        let pending = model
            .versions
            .iter()
            .flat_map(|v| v.replicas.values())
            .any(|r| r.awaits == 0 && awaits_routes(r.state));
        // Whoever asks for a model that nothing serves is told why: when that changes, gateways have to know.
        let routed = model.versions.iter().any(|v| v.count(ReplicaState::is_routed) > 0);
        let tell = match model.latest() {
            Some(latest) if !routed && !model.deleted => Some(model.summary(latest).reason),
            _ => None,
        };
        let news = tell != model.told;
        if !pending && !news && !fx.routes.contains(name) {
            return;
        }
        model.told = tell;
        self.sequence += 1;
        model.route_sequence = self.sequence;
        for replica in model.versions.iter_mut().flat_map(|v| v.replicas.values_mut()) {
            if replica.awaits == 0 && awaits_routes(replica.state) {
                replica.awaits = self.sequence;
                self.index.settling.insert(self.sequence, name.clone());
            }
        }
        fx.routes.insert(name.clone());
    }

    fn order_unload(&mut self, name: &Arc<str>, number: u32, id: &ReplicaId, now: Millis, fx: &mut Effects) {
        self.set(name, number, id, ReplicaState::Unloading, String::new(), now, fx);
        fx.orders.push(Order {
            replica: id.clone(),
            model: name.clone(),
            version: number,
            load: None,
            autoscaled: false,
        });
    }

    fn forget_failures(&mut self, name: &Arc<str>, fx: &mut Effects) {
        let failed: Vec<(u32, ReplicaId)> = self
            .models
            .get(name)
            .into_iter()
            .flat_map(|m| &m.versions)
            .filter_map(|v| v.server.as_ref().map(|s| (v, s)))
            .flat_map(|(v, server)| {
                v.replicas
                    .iter()
                    .filter(|(_, r)| r.state == ReplicaState::LoadFailed)
                    .map(|(&index, _)| (v.number, ReplicaId { server: server.clone(), index }))
            })
            .collect();
        for (number, id) in failed {
            self.clear(name, number, &id, fx);
        }
    }

    /// Memory of a replica that is neither used nor promised.
    fn free(&self, id: &ReplicaId) -> u64 {
        let replica = self.servers.get(&id.server).and_then(|s| s.replicas.get(&id.index));
        let promised = self.index.promised.get(id).copied().unwrap_or(0);
        replica.map_or(0, |r| r.memory_free.saturating_sub(promised))
    }

    fn version(&self, name: &str, number: u32) -> Option<&Version> {
        self.models.get(name)?.versions.iter().find(|v| v.number == number)
    }

    fn version_mut(&mut self, name: &str, number: u32) -> Option<&mut Version> {
        self.models.get_mut(name)?.versions.iter_mut().find(|v| v.number == number)
    }

    fn replica_state(&self, name: &str, number: u32, id: &ReplicaId) -> Option<ReplicaState> {
        let version = self.version(name, number)?;
        (version.server.as_ref() == Some(&id.server))
            .then(|| version.replicas.get(&id.index).map(|r| r.state))?
    }

    fn set_unplaced(&mut self, name: &str, number: u32, why: Option<String>) {
        if let Some(version) = self.version_mut(name, number) {
            version.unplaced = why;
        }
    }

    /// The one place where a replica's state changes, so that the index cannot drift from it.
    #[allow(clippy::too_many_arguments, reason = "the parts of one transition")]
    fn set(
        &mut self,
        name: &Arc<str>,
        number: u32,
        id: &ReplicaId,
        state: ReplicaState,
        reason: String,
        now: Millis,
        fx: &mut Effects,
    ) {
        let Some(version) =
            self.models.get_mut(name).and_then(|m| m.versions.iter_mut().find(|v| v.number == number))
        else {
            return;
        };
        version.server = Some(id.server.clone());
        version.since = now;
        let demand = version.demand();
        version.served |= state == ReplicaState::Available;
        let earlier = version.replicas.get(&id.index).map(|r| (r.state, r.promised));
        let (before, was_promised) = earlier.unzip();
        let was_promised = was_promised.unwrap_or(0);
        // An order to unload overtakes one to load, but the agent may have the memory in use by then.
        let promised = match state {
            ReplicaState::Loading => demand,
            ReplicaState::Unloading => was_promised,
            _ => 0,
        };
        version.replicas.insert(id.index, ReplicaStatus { state, reason, since: now, awaits: 0, promised });
        self.promise(id, was_promised, promised);
        self.index.on_replica.entry(id.clone()).or_default().insert(name.clone());
        if before.is_some_and(ReplicaState::is_routed) != state.is_routed() {
            fx.routes.insert(name.clone());
        }
        fx.models.insert(name.clone());
        fx.servers.insert(id.server.clone());
    }

    /// Forgets a replica of a version.
    fn clear(&mut self, name: &Arc<str>, number: u32, id: &ReplicaId, fx: &mut Effects) {
        let Some(model) = self.models.get_mut(name) else {
            return;
        };
        let Some(version) = model.versions.iter_mut().find(|v| v.number == number) else {
            return;
        };
        if version.server.as_ref() != Some(&id.server) {
            return;
        }
        let Some(before) = version.replicas.remove(&id.index) else {
            return;
        };
        if version.replicas.is_empty() {
            version.server = None;
        }
        let elsewhere = model
            .versions
            .iter()
            .any(|v| v.server.as_ref() == Some(&id.server) && v.replicas.contains_key(&id.index));
        if !elsewhere && let Some(names) = self.index.on_replica.get_mut(id) {
            names.remove(name);
            if names.is_empty() {
                self.index.on_replica.remove(id);
            }
        }
        self.promise(id, before.promised, 0);
        if before.state.is_routed() {
            fx.routes.insert(name.clone());
        }
        fx.models.insert(name.clone());
        fx.servers.insert(id.server.clone());
    }

    /// Keeps the sum of what is promised on a replica.
    fn promise(&mut self, id: &ReplicaId, before: u64, after: u64) {
        if before == after {
            return;
        }
        let promised = self.index.promised.entry(id.clone()).or_default();
        *promised = promised.saturating_sub(before).saturating_add(after);
        if *promised == 0 {
            self.index.promised.remove(id);
        }
    }

    /// The route of a model.
    pub fn route(&self, name: &str) -> Route {
        self.models.get(name).map(Route::of).unwrap_or_default()
    }

    /// Checks that what is derived agrees with what it is derived from. For tests.
    #[cfg(test)]
    pub(super) fn check_index(&self) {
        let mut on_replica: BTreeMap<ReplicaId, BTreeSet<Arc<str>>> = BTreeMap::new();
        let mut promised: BTreeMap<ReplicaId, u64> = BTreeMap::new();
        for (name, model) in &self.models {
            for version in &model.versions {
                assert_eq!(
                    version.server.is_none(),
                    version.replicas.is_empty(),
                    "{name}: a server without replicas"
                );
                for (&index, replica) in &version.replicas {
                    let id = ReplicaId { server: version.server.clone().unwrap(), index };
                    on_replica.entry(id.clone()).or_default().insert(name.clone());
                    if replica.promised > 0 {
                        *promised.entry(id).or_default() += replica.promised;
                    }
                    if awaits_routes(replica.state) {
                        assert!(replica.awaits > 0, "{name} waits for no route change");
                        assert!(
                            self.index
                                .settling
                                .iter()
                                .any(|(s, n)| n == name && *s <= replica.awaits.max(*s)),
                            "{name} waits, and nobody will wake it"
                        );
                    }
                }
            }
        }
        assert_eq!(self.index.on_replica, on_replica);
        assert_eq!(self.index.promised, promised);
    }
}

fn version_failed(version: Option<&Version>) -> bool {
    version.is_some_and(|v| v.count(|s| s == ReplicaState::LoadFailed) > 0)
}

/// Whether a state lasts only until gateways have followed a route change.
const fn awaits_routes(state: ReplicaState) -> bool {
    matches!(state, ReplicaState::Loaded | ReplicaState::UnloadEnvoyRequested)
}
