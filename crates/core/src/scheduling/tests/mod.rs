//! Unit tests of single decisions, and properties over command sequences.

mod arbitrary_commands;
mod dry_run;
mod experiments;
mod explain;
mod faults;
mod lifecycle;
mod ownership;
mod pipeline_rollouts;
mod pipelines;
mod placement;
mod properties;
mod rollouts;
mod scaling;
mod service_rollouts;
mod services;

use super::*;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

fn definition(name: &str, spec: u8, replicas: u32) -> Definition {
    Definition {
        name: name.into(),
        spec: Digest(spec.into()),
        content: Digest(u128::from(spec) << 32 | u128::from(replicas)),
        needs: Needs { requirements: vec!["onnx".into()], memory: 10, ..Needs::default() },
        scaling: Scaling { replicas, min: 0, max: 0 },
        generation: None,
        replaces: None,
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

fn loaded_version(model: &str, version: u32, spec: Option<u8>) -> LoadedVersion {
    LoadedVersion { model: model.into(), version, spec: spec.map(|spec| Digest(spec.into())) }
}

fn id(server: &str, index: u32) -> ReplicaId {
    ReplicaId { server: server.into(), index }
}

fn expect(name: &str, replicas: u32, min: u32, max: u32) -> Command {
    Command::UpsertServer {
        name: name.into(),
        expected: ExpectedReplicas { replicas, min, max, generation: None },
        shared: true,
        namespace: None,
        by: Owner::Cli,
    }
}

fn unload(name: &str) -> Command {
    Command::UnloadModel { name: name.into(), by: Owner::Cli }
}

fn pipeline(name: &str, spec: u8, steps: &[&str]) -> PipelineDefinition {
    PipelineDefinition {
        name: name.into(),
        spec: Digest(spec.into()),
        content: Digest(spec.into()),
        steps: steps.iter().map(|step| (*step).into()).collect(),
        keep_payloads: false,
        generation: None,
        replaces: None,
    }
}

fn experiment(name: &str, resource: Resource, candidates: &[&str]) -> ExperimentDefinition {
    let candidates: Vec<(Arc<str>, u32)> = candidates.iter().map(|name| ((*name).into(), 50)).collect();
    let spec = Digest(candidates.len() as u128);
    ExperimentDefinition {
        name: name.into(),
        spec,
        content: spec,
        resource,
        default: candidates.first().map(|(name, _)| name.clone()),
        candidates,
        mirror: None,
        generation: None,
        replaces: None,
    }
}

fn unload_pipeline(name: &str) -> Command {
    Command::UnloadPipeline { name: name.into(), by: Owner::Cli }
}

fn start(definition: ExperimentDefinition) -> Command {
    Command::StartExperiment { definition: Box::new(definition), by: Owner::Cli }
}

fn stop(name: &str) -> Command {
    Command::StopExperiment { name: name.into(), by: Owner::Cli }
}

fn demand(model: &str, in_flight: u64, waiting: bool) -> Command {
    Command::DemandReported {
        model: model.into(),
        in_flight_milli: in_flight * 1000,
        answered: in_flight,
        waiting,
    }
}

/// Half the default number of cases, because each is long; `PROPTEST_CASES=20000` overrides it.
fn proptest_config() -> proptest::prelude::ProptestConfig {
    let usual = proptest::prelude::ProptestConfig::default();
    proptest::prelude::ProptestConfig { cases: usual.cases / 2, failure_persistence: None, ..usual }
}

/// The record of a model, without the statistics of a rollout: they may be lost.
fn durable_record(state: &State, name: &str) -> Option<(ModelRecord, Option<String>)> {
    let mut record = state.model_record(name)?;
    let rollout = record.rollout.take().map(decisions);
    Some((record, rollout))
}

/// As [`durable_record`].
fn durable_pipeline(state: &State, name: &str) -> Option<(PipelineRecord, Option<String>)> {
    let mut record = state.pipeline_record(name)?;
    let rollout = record.rollout.take().map(decisions);
    Some((record, rollout))
}

fn decisions(RolloutRecord { policy, state }: RolloutRecord) -> String {
    let stable = state.phase.stable().map(|stable| (&stable.revision, &stable.previous));
    let decided = (state.phase.name(), stable, state.phase.other(), state.generation, &state.ready);
    format!("{policy} {decided:?} {:?} {:?} {}", state.failed, state.history, state.handled)
}

/// Replicas with the version that each serves.
type Places = BTreeSet<(ReplicaId, u32)>;

/// A [`State`] with simulated agents and gateways.
struct Harness {
    state: State,
    agents: BTreeMap<ReplicaId, Agent>,
    now: Millis,
    /// Published routes by sequence number, and the sequence up to which gateways have drained.
    published: BTreeMap<Arc<str>, BTreeMap<u64, Places>>,
    drained: u64,
    /// Number of the last UID.
    uid: u32,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    Failure,
    Rejection,
    OutOfMemory,
}

impl Harness {
    fn new() -> Self {
        Self::with(Policy::default())
    }

    fn with(policy: Policy) -> Self {
        let (state, now) = (State::new(policy), 1_000_000_000_000);
        Self { state, agents: BTreeMap::new(), now, published: BTreeMap::new(), drained: 0, uid: 0 }
    }

    fn apply(&mut self, command: Command) -> Result<Effects, Rejection> {
        self.now += 1;
        let before = self.state.clone();
        let shown = format!("{command:?}");
        let result = self.state.apply(command.clone(), self.now);
        if let Ok(effects) = &result {
            for order in &effects.orders {
                let agent = self.agents.get_mut(&order.replica).expect("orders are for joined replicas");
                assert!(agent.connected, "orders are for connected replicas");
                agent.orders.push_back(order.clone());
            }
            self.check_effects(&before, effects, &shown);
            self.publish(&effects.routes);
        } else {
            assert_eq!(before.models(), self.state.models(), "a rejected command changes nothing");
            assert_eq!(before.servers(), self.state.servers(), "a rejected command changes nothing");
            assert_eq!(before.pipelines(), self.state.pipelines(), "a rejected command changes nothing");
            assert_eq!(before.experiments(), self.state.experiments(), "a rejected command changes nothing");
        }
        let mut twin = before;
        assert_eq!(twin.apply(command, self.now), result, "the same command gives the same effects");
        self.check();
        result
    }

    fn load(&mut self, definition: Definition) -> Result<Effects, Rejection> {
        self.apply(Command::LoadModel { definition: Box::new(definition), by: Owner::Cli })
    }

    fn load_pipeline(&mut self, definition: PipelineDefinition) -> Result<Effects, Rejection> {
        self.uid += 1;
        let uid = format!("uid-{}", self.uid).into();
        self.apply(Command::LoadPipeline { definition: Box::new(definition), uid, by: Owner::Cli })
    }

    fn publish(&mut self, names: &BTreeSet<Arc<str>>) {
        for name in names {
            let Some(model) = self.state.models().get(name) else { continue };
            let placements = self.state.route(name).versions.into_iter().flat_map(|v| {
                let number = v.version;
                v.replicas.into_iter().map(move |id| (id, number))
            });
            self.published
                .entry(name.clone())
                .or_default()
                .insert(model.route_sequence, placements.collect());
        }
    }

    /// Drops routes to models that an agent lost.
    fn forget(&mut self, id: &ReplicaId, model: Option<&str>) {
        for (name, routes) in &mut self.published {
            if model.is_none_or(|m| m == &**name) {
                for placements in routes.values_mut() {
                    placements.retain(|(place, _)| place != id);
                }
            }
        }
    }

    fn join(&mut self, id: &ReplicaId, memory: u64) -> Effects {
        self.forget(id, None);
        self.agents.insert(id.clone(), Agent { memory, connected: true, ..Agent::default() });
        self.subscribe(id)
    }

    /// An agent subscribes with its inventory.
    fn subscribe(&mut self, id: &ReplicaId) -> Effects {
        let agent = self.agents.get_mut(id).unwrap();
        agent.connected = true;
        agent.orders.clear();
        let offered = Replica { memory_free: agent.memory_free(), ..replica(agent.memory) };
        let version = |(model, version): &(Arc<str>, u32)| loaded_version(model, *version, None);
        let loaded = agent.loaded.iter().map(version).collect();
        self.apply(Command::ReplicaJoined { id: id.clone(), replica: offered, shared: true, loaded }).unwrap()
    }

    fn disconnect(&mut self, id: &ReplicaId) {
        if let Some(agent) = self.agents.get_mut(id) {
            agent.connected = false;
            self.apply(Command::ReplicaDisconnected { id: id.clone() }).unwrap();
        }
    }

    /// An agent loses a loaded model.
    fn crash(&mut self, id: &ReplicaId) {
        let Some(agent) = self.agents.get_mut(id).filter(|a| a.connected) else { return };
        let Some((model, version)) = agent.loaded.pop_first() else { return };
        let memory_free = agent.memory_free();
        self.forget(id, Some(&model));
        let event = ReplicaEvent::LoadFailed { reason: "it crashed".into() };
        self.apply(Command::ReplicaReported { id: id.clone(), model, version, event, memory_free }).unwrap();
    }

    fn lose(&mut self, id: &ReplicaId) {
        self.forget(id, None);
        self.agents.remove(id);
        self.apply(Command::ReplicaLost { id: id.clone() }).unwrap();
    }

    /// Executes an agent's next order.
    fn work(&mut self, id: &ReplicaId, outcome: Outcome) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Some(order) = agent.orders.pop_front() else { return };
        let key = (order.model.clone(), order.version);
        let reason = "no such file".to_owned();
        let event = match (order.load.is_some(), outcome) {
            (true, Outcome::Failure) => ReplicaEvent::LoadFailed { reason },
            (true, Outcome::Rejection) => ReplicaEvent::LoadRejected { reason },
            (true, Outcome::OutOfMemory) => ReplicaEvent::LoadFailedMemory { reason },
            (true, Outcome::Success) => {
                agent.loaded.insert(key);
                ReplicaEvent::Loaded { multiplier: None }
            }
            (false, Outcome::Failure) => ReplicaEvent::UnloadFailed { reason },
            (false, _) => {
                agent.loaded.remove(&key);
                ReplicaEvent::Unloaded
            }
        };
        if !agent.connected {
            // Executed before the disconnect, but not reported.
            return;
        }
        let (model, version, memory_free) = (order.model, order.version, agent.memory_free());
        self.apply(Command::ReplicaReported { id: id.clone(), model, version, event, memory_free }).unwrap();
    }

    fn acknowledge_routes(&mut self) {
        self.acknowledge(0, 0);
    }

    /// Gateways acknowledge all but the last changes.
    fn acknowledge(&mut self, not_applied: u64, not_drained: u64) {
        let sequence = self.state.sequence();
        let applied = sequence.saturating_sub(not_applied);
        self.drained = self.drained.max(applied.saturating_sub(not_drained));
        self.apply(Command::RoutesAcknowledged {
            applied,
            drained: self.drained,
            undrained: BTreeSet::new(),
        })
        .unwrap();
    }

    /// Every replica that a gateway may send a request to.
    fn in_use(&self) -> impl Iterator<Item = (&Arc<str>, &(ReplicaId, u32))> {
        self.published.iter().flat_map(|(name, routes)| {
            let last = routes.range(..=self.drained).next_back();
            let later = routes.range(self.drained + 1..);
            last.into_iter()
                .chain(later)
                .flat_map(move |(_, placements)| placements.iter().map(move |p| (name, p)))
        })
    }

    /// Advances time in ticks.
    fn wait(&mut self, time: Millis) -> Effects {
        let end = self.now + time;
        let mut all = Effects::default();
        while self.now < end {
            self.now = (self.now + 5000).min(end);
            all.merge(self.apply(Command::Tick).unwrap());
        }
        all
    }

    /// Restarts the scheduler from its records; agents have to subscribe again.
    fn restart(&mut self) {
        let records = self.state.records();
        self.agents.values_mut().for_each(|agent| {
            agent.connected = false;
            agent.orders.clear();
        });
        self.state = State::restore(*self.state.policy(), records, self.now);
        self.published.clear();
        self.drained = 0;
        self.publish(&self.state.models().keys().cloned().collect());
        self.check();
    }

    /// Runs until nothing is in flight.
    fn quiesce(&mut self) {
        for _ in 0..200 {
            let busy: Vec<ReplicaId> =
                self.agents.iter().filter(|(_, a)| !a.orders.is_empty()).map(|(id, _)| id.clone()).collect();
            for id in &busy {
                self.work(id, Outcome::Success);
            }
            let before = self.state.clone();
            self.acknowledge_routes();
            let settled = before.models() == self.state.models()
                && before.pipelines() == self.state.pipelines()
                && before.experiments() == self.state.experiments();
            if busy.is_empty() && settled {
                return;
            }
        }
        panic!("the state does not settle");
    }

    /// Effects must cover every change of the state.
    fn check_effects(&self, before: &State, effects: &Effects, shown: &str) {
        let names: BTreeSet<&Arc<str>> = before.models().keys().chain(self.state.models().keys()).collect();
        for name in names {
            if durable_record(before, name) != durable_record(&self.state, name) {
                assert!(
                    effects.store_models.contains(name),
                    "{shown}: {name} is missing from the stored records"
                );
            }
            if before.route(name) != self.state.route(name) {
                assert!(effects.routes.contains(name), "{shown}: {name} is missing from effects.routes");
            }
            let status = |state: &State| {
                let model = state.models().get(name)?;
                let statuses: Vec<_> = model
                    .versions
                    .iter()
                    .flat_map(|v| v.placements().map(|(s, i, r)| (s.clone(), i, r.state)).collect::<Vec<_>>())
                    .collect();
                Some((model.version_status(model.latest()?), model.deleted, statuses))
            };
            let forgotten = !self.state.models().contains_key(name);
            if status(before) != status(&self.state) && !forgotten {
                assert!(effects.models.contains(name), "{shown}: {name} is missing from effects.models");
            }
        }
        check_covered(
            before.pipelines(),
            self.state.pipelines(),
            |p| {
                (
                    p.deleted,
                    p.owner.clone(),
                    p.versions.iter().map(|v| p.version_status(v)).collect::<Vec<_>>(),
                )
            },
            |p| {
                let split: Vec<_> = p.split().iter().map(|(v, percent)| (v.uid.clone(), *percent)).collect();
                (split, p.rollout_generation(), p.obstacle().filter(|_| !p.deleted), p.deleted)
            },
            [&effects.pipelines, &effects.pipeline_routes],
            shown,
        );
        check_covered(
            before.experiments(),
            self.state.experiments(),
            |e| (e.status(), e.owner.clone(), e.definition.clone()),
            |e| (e.definition.spec, e.obstacle(), e.deleted),
            [&effects.experiments, &effects.experiment_routes],
            shown,
        );
        let names = before.pipelines().keys().chain(self.state.pipelines().keys());
        for name in names.chain(before.experiments().keys()).chain(self.state.experiments().keys()) {
            assert!(
                durable_pipeline(before, name) == durable_pipeline(&self.state, name)
                    || effects.store_pipelines.contains(name),
                "{shown}: pipeline {name} is missing from the stored records"
            );
            assert!(
                before.experiment_record(name) == self.state.experiment_record(name)
                    || effects.store_experiments.contains(name),
                "{shown}: experiment {name} is missing from the stored records"
            );
        }
        let servers: BTreeSet<&Arc<str>> =
            before.servers().keys().chain(self.state.servers().keys()).collect();
        for name in servers {
            let record = |state: &State| {
                let r = state.server_record(name)?;
                let replicas: Vec<_> = r.replicas.iter().map(|(i, r)| (*i, r.endpoint.clone())).collect();
                Some((r.expected, r.shared, r.namespace, r.owner, replicas))
            };
            if record(before) != record(&self.state) {
                assert!(
                    effects.store_servers.contains(name),
                    "{shown}: {name} is missing from the stored records"
                );
            }
        }
    }

    /// Invariants.
    fn check(&self) {
        self.state.check_index();
        for (name, (id, version)) in self.in_use() {
            let agent = self.agents.get(id).filter(|a| a.connected);
            assert!(
                agent.is_none_or(|a| a.loaded.contains(&(name.clone(), *version))),
                "{name} version {version} was unloaded from {id} while a gateway may have requests there"
            );
        }
        self.check_pipelines();
        self.check_experiments();
        let mut used: BTreeMap<ReplicaId, u64> = BTreeMap::new();
        for (name, model) in self.state.models() {
            let route = self.state.route(name);
            assert!(!model.deleted || route.versions.is_empty(), "{name} is deleted and routed");
            assert!(!model.deleted || model.unloaded || model.owner.is_none(), "{name} is deleted and owned");
            assert!(model.deleted || !model.unloaded, "{name} is unloaded and not deleted");
            for version in &route.versions {
                let by_replicas = version.weight as usize == version.replicas.len();
                assert!(by_replicas || model.rollout.is_some(), "{name} has weights without a rollout");
                for replica in &version.replicas {
                    let known = self.state.servers()[&replica.server].replicas.get(&replica.index);
                    assert!(known.is_some(), "{name} is routed to unknown replica {replica}");
                    let agent = &self.agents[replica];
                    assert!(
                        !agent.connected || agent.loaded.contains(&(name.clone(), version.version)),
                        "{name} is routed to {replica}, where it is not loaded"
                    );
                }
            }
            for version in &model.versions {
                for (server, index, status) in version.placements() {
                    let id = ReplicaId { server: server.clone(), index };
                    let silent = !self.agents[&id].connected;
                    let needs_connection =
                        matches!(status.state, ReplicaState::Loading | ReplicaState::Unloading);
                    assert!(!(silent && needs_connection), "{name} on {id}: order sent without a connection");
                    let serves = matches!(status.state, ReplicaState::Loaded | ReplicaState::Available);
                    assert!(!(silent && serves), "{name} on {id} is disconnected and counts as loaded");
                    // An unload order may overtake a load order: then nothing is loaded, or memory is still reserved.
                    let loaded = self.agents[&id].loaded.contains(&(name.clone(), version.number));
                    let takes = if loaded { version.memory_required() } else { 0 };
                    *used.entry(id).or_default() += takes.max(status.reserved);
                }
            }
        }
        for (id, used) in used {
            let agent = &self.agents[&id];
            assert!(!agent.connected || used <= agent.memory, "{id} has reserved {used} of {}", agent.memory);
        }
    }

    fn serves(&self, model: &str) -> bool {
        let sleeps = |m: &Model| !m.deleted && m.latest().is_some_and(super::model::Version::scaled_to_zero);
        !self.routed(model).is_empty() || self.state.models().get(model).is_some_and(sleeps)
    }

    fn check_pipelines(&self) {
        for (name, pipeline) in self.state.pipelines() {
            let latest = pipeline.latest().expect("a pipeline has a version");
            assert!(!pipeline.deleted || pipeline.owner.is_none(), "{name} is deleted and owned");
            for version in pipeline.versions.iter().filter(|_| !pipeline.deleted) {
                let ready = version.definition.steps.iter().all(|step| self.serves(step));
                assert_eq!(version.unready.is_none(), ready, "{name} version {}", version.number);
                assert!(!pipeline.version_status(version).models_ready || ready, "{name}");
            }
            let split = pipeline.split();
            for (routed, _) in &split {
                assert!(routed.was_ready, "{name}: a version is executed that was never ready");
                assert!(!pipeline.deleted, "{name} is deleted and executed");
            }
            let percents: u32 = split.iter().map(|(_, percent)| percent).sum();
            assert!(split.is_empty() || percents == 100, "{name}: {percents} % of the requests");
            // With a rollout: the stable version, the one before, a candidate and the desired one.
            let most = if pipeline.rollout.is_some() { 4 } else { 2 };
            assert!(pipeline.versions.len() <= most || pipeline.awaits != 0, "{name} keeps old versions");
            let ready = pipeline.version_status(latest);
            assert!(
                ready.state != PipelineState::Ready || latest.created || pipeline.deleted,
                "{name} is ready and a gateway does not know it"
            );
        }
    }

    fn check_experiments(&self) {
        let mut defaults = BTreeSet::new();
        for (name, experiment) in self.state.experiments().iter().filter(|(_, e)| !e.deleted) {
            let serves = |resource: &Arc<str>| match experiment.definition.resource {
                Resource::Model => self.serves(resource),
                Resource::Pipeline => self.state.pipelines().get(resource).is_some_and(|p| {
                    p.routed().is_some_and(|v| v.definition.steps.iter().all(|step| self.serves(step)))
                }),
            };
            let all = experiment.definition.resources().all(serves);
            assert_eq!(experiment.obstacle().is_none(), all, "{name}: {:?}", experiment.obstacle());
            assert!(!experiment.status().active || all, "{name} is active without a candidate");
            let default = experiment.definition.default.clone();
            let key = default.map(|default| (experiment.definition.resource, default));
            assert!(key.is_none_or(|key| defaults.insert(key)), "{name} shares its default with another");
        }
    }

    fn pipeline_status(&self, name: &str) -> PipelineStatus {
        let pipeline = &self.state.pipelines()[name];
        pipeline.version_status(pipeline.latest().unwrap())
    }

    fn version_status(&self, name: &str) -> VersionStatus {
        let model = &self.state.models()[name];
        model.version_status(model.latest().unwrap())
    }

    fn routed(&self, name: &str) -> Vec<u32> {
        self.state.route(name).versions.iter().map(|v| v.version).collect()
    }

    fn routed_to(&self, name: &str) -> Vec<String> {
        let route = self.state.route(name);
        route.versions.iter().flat_map(|v| v.replicas.iter().map(ToString::to_string)).collect()
    }
}

/// Effects name every object whose status or route changed.
fn check_covered<T, S: PartialEq, R: PartialEq>(
    before: &BTreeMap<Arc<str>, T>,
    after: &BTreeMap<Arc<str>, T>,
    status: impl Fn(&T) -> S,
    route: impl Fn(&T) -> R,
    [statuses, routes]: [&BTreeSet<Arc<str>>; 2],
    shown: &str,
) {
    for (name, value) in after {
        let earlier = before.get(name);
        let changed = earlier.map(&status) != Some(status(value));
        assert!(!changed || statuses.contains(name), "{shown}: the status of {name} is missing from effects");
        let changed = earlier.map(&route) != Some(route(value));
        assert!(!changed || routes.contains(name), "{shown}: the route of {name} is missing from effects");
    }
}
