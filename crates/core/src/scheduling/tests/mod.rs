//! Tables for single decisions, and properties over whole histories of commands.

mod explain;
mod faults;
mod histories;
mod lifecycle;
mod ownership;
mod plan;
mod scaling;

use super::*;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

fn definition(name: &str, spec: u8, replicas: u32) -> Definition {
    Definition {
        name: name.into(),
        spec: Arc::from([spec].as_slice()),
        whole: Arc::from([spec, replicas as u8].as_slice()),
        needs: Needs { requirements: vec!["onnx".into()], memory: 10, ..Needs::default() },
        scaling: Scaling { replicas, min: 0, max: 0 },
        generation: None,
    }
}

fn replica(memory: u64) -> Replica {
    Replica {
        capabilities: vec!["onnx".into(), "xgboost".into()],
        memory_total: memory,
        memory_free: memory,
        ..Replica::default()
    }
}

fn id(server: &str, index: u32) -> ReplicaId {
    ReplicaId { server: server.into(), index }
}

fn expect(name: &str, replicas: u32, min: u32, max: u32) -> Command {
    Command::ExpectServer {
        name: name.into(),
        expected: Expectation { replicas, min, max, generation: None },
        shared: true,
        namespace: None,
        by: Manager::Cli,
    }
}

fn unload(name: &str) -> Command {
    Command::UnloadModel { name: name.into(), by: Manager::Cli }
}

fn demand(model: &str, in_flight: u64, waiting: bool) -> Command {
    Command::DemandSeen {
        model: model.into(),
        in_flight_milli: in_flight * 1000,
        answered: in_flight,
        waiting,
    }
}

/// Agents that do what they are told, and gateways that follow: the world around a [`State`].
struct World {
    state: State,
    agents: BTreeMap<ReplicaId, Agent>,
    now: Millis,
}

#[derive(Default)]
struct Agent {
    memory: u64,
    connected: bool,
    loaded: BTreeSet<(Arc<str>, u32)>,
    orders: VecDeque<Order>,
}

impl Agent {
    fn memory_free(&self) -> u64 {
        self.memory - 10 * self.loaded.len() as u64
    }
}

/// How an agent's work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Luck {
    Good,
    Bad,
    NoMemory,
}

impl World {
    fn new() -> Self {
        Self::with(Policy::default())
    }

    fn with(policy: Policy) -> Self {
        Self { state: State::new(policy), agents: BTreeMap::new(), now: 1_000_000_000_000 }
    }

    fn apply(&mut self, command: Command) -> Result<Effects, Refusal> {
        self.now += 1;
        let before = self.state.clone();
        let shown = format!("{command:?}");
        let result = self.state.apply(command.clone(), self.now);
        if let Ok(effects) = &result {
            for order in &effects.orders {
                let agent =
                    self.agents.get_mut(&order.replica).expect("an order goes to a replica that has joined");
                assert!(agent.connected, "an order goes to a replica that listens");
                agent.orders.push_back(order.clone());
            }
            self.check_effects(&before, effects, &shown);
        } else {
            assert_eq!(before.models(), self.state.models(), "what is refused changes nothing");
            assert_eq!(before.servers(), self.state.servers(), "what is refused changes nothing");
        }
        let mut twin = before;
        assert_eq!(twin.apply(command, self.now), result, "the same command gives the same effects");
        self.check();
        result
    }

    fn load(&mut self, definition: Definition) -> Result<Effects, Refusal> {
        self.apply(Command::LoadModel { definition: Box::new(definition), by: Manager::Cli })
    }

    fn join(&mut self, id: &ReplicaId, memory: u64) -> Effects {
        self.agents.insert(id.clone(), Agent { memory, connected: true, ..Agent::default() });
        self.announce(id)
    }

    /// An agent subscribes and says what it holds.
    fn announce(&mut self, id: &ReplicaId) -> Effects {
        let agent = self.agents.get_mut(id).unwrap();
        agent.connected = true;
        agent.orders.clear();
        let offered = Replica { memory_free: agent.memory_free(), ..replica(agent.memory) };
        let loaded = agent.loaded.iter().cloned().collect();
        self.apply(Command::ReplicaJoined { id: id.clone(), replica: offered, shared: true, loaded }).unwrap()
    }

    fn silence(&mut self, id: &ReplicaId) {
        if let Some(agent) = self.agents.get_mut(id) {
            agent.connected = false;
            self.apply(Command::ReplicaSilent { id: id.clone() }).unwrap();
        }
    }

    fn lose(&mut self, id: &ReplicaId) {
        self.agents.remove(id);
        self.apply(Command::ReplicaLost { id: id.clone() }).unwrap();
    }

    /// Lets an agent carry out its next order.
    fn work(&mut self, id: &ReplicaId, luck: Luck) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Some(order) = agent.orders.pop_front() else { return };
        let key = (order.model.clone(), order.version);
        let reason = "no such file".to_owned();
        let event = match (order.load.is_some(), luck) {
            (true, Luck::Bad) => ReplicaEvent::LoadFailed { reason },
            (true, Luck::NoMemory) => ReplicaEvent::LoadFailedMemory { reason },
            (true, Luck::Good) => {
                agent.loaded.insert(key);
                ReplicaEvent::Loaded { multiplier: None }
            }
            (false, Luck::Bad) => ReplicaEvent::UnloadFailed { reason },
            (false, _) => {
                agent.loaded.remove(&key);
                ReplicaEvent::Unloaded
            }
        };
        if !agent.connected {
            // It did what it was told before the connection ended; nobody hears of it.
            return;
        }
        let (model, version, memory_free) = (order.model, order.version, agent.memory_free());
        self.apply(Command::ReplicaReported { id: id.clone(), model, version, event, memory_free }).unwrap();
    }

    fn follow_routes(&mut self) {
        let sequence = self.state.sequence();
        self.apply(Command::RoutesSettled { applied: sequence, drained: sequence }).unwrap();
    }

    /// Lets time pass, with ticks as often as they are asked for.
    fn wait(&mut self, time: Millis) -> Effects {
        let end = self.now + time;
        let mut all = Effects::default();
        while self.now < end {
            self.now = (self.now + 5000).min(end);
            all.merge(self.apply(Command::Tick).unwrap());
        }
        all
    }

    /// The scheduler stops and starts again from what it stored. Every agent has to subscribe again.
    fn restart(&mut self) {
        let state = &self.state;
        let models: Vec<ModelRecord> = state.models().keys().filter_map(|n| state.model_record(n)).collect();
        let servers: Vec<ServerRecord> =
            state.servers().keys().filter_map(|n| state.server_record(n)).collect();
        self.agents.values_mut().for_each(|agent| {
            agent.connected = false;
            agent.orders.clear();
        });
        self.state = State::restore(*self.state.policy(), models, servers, self.now);
        self.check();
    }

    /// Lets everything that is under way come to an end.
    fn quiesce(&mut self) {
        for _ in 0..200 {
            let busy: Vec<ReplicaId> =
                self.agents.iter().filter(|(_, a)| !a.orders.is_empty()).map(|(id, _)| id.clone()).collect();
            for id in &busy {
                self.work(id, Luck::Good);
            }
            let before = self.state.clone();
            self.follow_routes();
            if busy.is_empty() && before.models() == self.state.models() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// What a command says it changed is all that it changed.
    fn check_effects(&self, before: &State, effects: &Effects, shown: &str) {
        let names: BTreeSet<&Arc<str>> = before.models().keys().chain(self.state.models().keys()).collect();
        for name in names {
            if before.model_record(name) != self.state.model_record(name) {
                assert!(effects.store_models.contains(name), "{shown}: {name} is not stored");
            }
            if before.route(name) != self.state.route(name) {
                assert!(effects.routes.contains(name), "{shown}: gateways are not told of {name}");
            }
            let status = |state: &State| {
                let model = state.models().get(name)?;
                let statuses: Vec<_> = model
                    .versions
                    .iter()
                    .flat_map(|v| v.places().map(|(s, i, r)| (s.clone(), i, r.state)).collect::<Vec<_>>())
                    .collect();
                Some((model.summary(model.latest()?), model.deleted, statuses))
            };
            let forgotten = !self.state.models().contains_key(name);
            if status(before) != status(&self.state) && !forgotten {
                assert!(effects.models.contains(name), "{shown}: nobody is told of {name}");
            }
        }
        let servers: BTreeSet<&Arc<str>> =
            before.servers().keys().chain(self.state.servers().keys()).collect();
        for name in servers {
            let record = |state: &State| {
                let r = state.server_record(name)?;
                let replicas: Vec<_> = r.replicas.iter().map(|(i, r)| (*i, r.endpoint.clone())).collect();
                Some((r.expected, r.shared, r.namespace, r.manager, replicas))
            };
            if record(before) != record(&self.state) {
                assert!(effects.store_servers.contains(name), "{shown}: {name} is not stored");
            }
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        self.state.check_index();
        let mut used: BTreeMap<ReplicaId, u64> = BTreeMap::new();
        for (name, model) in self.state.models() {
            let route = self.state.route(name);
            assert!(!model.deleted || route.versions.is_empty(), "{name} is deleted and routed");
            assert!(!model.deleted || model.manager.is_none(), "{name} is deleted and owned");
            for version in &route.versions {
                assert_eq!(version.weight as usize, version.replicas.len());
                for replica in &version.replicas {
                    let known = self.state.servers()[&replica.server].replicas.get(&replica.index);
                    assert!(known.is_some(), "{name} is routed to {replica}, which is not there");
                    let agent = &self.agents[replica];
                    assert!(
                        !agent.connected || agent.loaded.contains(&(name.clone(), version.version)),
                        "{name} is routed to {replica}, where it is not loaded"
                    );
                }
            }
            for version in &model.versions {
                for (server, index, status) in version.places() {
                    let id = ReplicaId { server: server.clone(), index };
                    let silent = !self.agents[&id].connected;
                    let needs_connection =
                        matches!(status.state, ReplicaState::Loading | ReplicaState::Unloading);
                    assert!(!(silent && needs_connection), "{name} on {id}: nobody heard the order");
                    let serves = matches!(status.state, ReplicaState::Loaded | ReplicaState::Available);
                    assert!(!(silent && serves), "{name} on {id} is silent and counts");
                    // An order to unload may have overtaken one to load: then nothing is there, or promised still.
                    let loaded = self.agents[&id].loaded.contains(&(name.clone(), version.number));
                    let takes = if loaded { version.demand() } else { 0 };
                    *used.entry(id).or_default() += takes.max(status.promised);
                }
            }
        }
        for (id, used) in used {
            let agent = &self.agents[&id];
            assert!(!agent.connected || used <= agent.memory, "{id} promises {used} of {}", agent.memory);
        }
    }

    fn summary(&self, name: &str) -> Summary {
        let model = &self.state.models()[name];
        model.summary(model.latest().unwrap())
    }

    /// The versions that take traffic.
    fn routed(&self, name: &str) -> Vec<u32> {
        self.state.route(name).versions.iter().map(|v| v.version).collect()
    }

    /// The replicas that take traffic.
    fn routed_to(&self, name: &str) -> Vec<String> {
        let route = self.state.route(name);
        route.versions.iter().flat_map(|v| v.replicas.iter().map(ToString::to_string)).collect()
    }
}
