//! Tables for single decisions, and properties over whole histories of commands.

use super::*;
use proptest::prelude::*;
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
        endpoint: Endpoint::default(),
        capabilities: vec!["onnx".into(), "xgboost".into()],
        memory_total: memory,
        memory_free: memory,
        over_commit: 0,
        ..Replica::default()
    }
}

fn id(server: &str, index: u32) -> ReplicaId {
    ReplicaId { server: server.into(), index }
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
    loaded: BTreeSet<(Arc<str>, u32)>,
    orders: VecDeque<Order>,
}

impl World {
    fn new() -> Self {
        Self { state: State::default(), agents: BTreeMap::new(), now: 0 }
    }

    fn apply(&mut self, command: Command) -> Result<Effects, Refusal> {
        self.now += 1;
        let result = self.state.apply(command, self.now);
        if let Ok(effects) = &result {
            for order in &effects.orders {
                let agent =
                    self.agents.get_mut(&order.replica).expect("an order goes to a replica that has joined");
                agent.orders.push_back(order.clone());
            }
        }
        self.check();
        result
    }

    fn load(&mut self, definition: Definition) -> Result<Effects, Refusal> {
        self.apply(Command::LoadModel { definition: Box::new(definition), by: Manager::Cli })
    }

    fn join(&mut self, id: &ReplicaId, memory: u64) {
        self.agents.insert(id.clone(), Agent { memory, ..Agent::default() });
        let command =
            Command::ReplicaJoined { id: id.clone(), replica: replica(memory), shared: true, loaded: vec![] };
        self.apply(command).unwrap();
    }

    fn lose(&mut self, id: &ReplicaId) {
        self.agents.remove(id);
        self.apply(Command::ReplicaLost { id: id.clone() }).unwrap();
    }

    /// Lets an agent carry out its next order.
    fn work(&mut self, id: &ReplicaId, fails: bool) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Some(order) = agent.orders.pop_front() else { return };
        let key = (order.model.clone(), order.version);
        let event = match (order.load.is_some(), fails) {
            (true, true) => ReplicaEvent::LoadFailed { reason: "no such file".into() },
            (true, false) => {
                agent.loaded.insert(key);
                ReplicaEvent::Loaded { multiplier: None }
            }
            (false, _) => {
                agent.loaded.remove(&key);
                ReplicaEvent::Unloaded
            }
        };
        let memory_free = agent.memory - 10 * agent.loaded.len() as u64;
        let (model, version) = (order.model, order.version);
        self.apply(Command::ReplicaReported { id: id.clone(), model, version, event, memory_free }).unwrap();
    }

    fn follow_routes(&mut self) {
        let sequence = self.state.sequence();
        self.apply(Command::RoutesSettled { applied: sequence, drained: sequence }).unwrap();
    }

    /// Lets everything that is under way come to an end.
    fn quiesce(&mut self) {
        for _ in 0..200 {
            let busy: Vec<ReplicaId> =
                self.agents.iter().filter(|(_, a)| !a.orders.is_empty()).map(|(id, _)| id.clone()).collect();
            for id in &busy {
                self.work(id, false);
            }
            let before = self.state.clone();
            self.follow_routes();
            if busy.is_empty() && before.models() == self.state.models() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// What must hold at every moment.
    fn check(&self) {
        self.state.check_index();
        let mut used: BTreeMap<ReplicaId, u64> = BTreeMap::new();
        for (name, model) in self.state.models() {
            let route = self.state.route(name);
            assert!(!model.deleted || route.versions.is_empty(), "{name} is deleted and routed");
            for version in &route.versions {
                assert_eq!(version.weight as usize, version.replicas.len());
                for replica in &version.replicas {
                    let agent = self.agents.get(replica).expect("a routed replica has joined");
                    assert!(
                        agent.loaded.contains(&(name.clone(), version.version)),
                        "{name} is routed where it is not loaded"
                    );
                }
            }
            for version in &model.versions {
                for (&index, status) in &version.replicas {
                    if status.state != ReplicaState::LoadFailed {
                        let id = ReplicaId { server: version.server.clone().unwrap(), index };
                        *used.entry(id).or_default() += version.demand();
                    }
                }
            }
        }
        for (id, used) in used {
            assert!(used <= self.agents[&id].memory, "{id} promises {used} of {}", self.agents[&id].memory);
        }
    }

    fn summary(&self, name: &str) -> Summary {
        let model = &self.state.models()[name];
        model.summary(model.latest().unwrap())
    }
}

#[test]
fn a_model_is_available_only_when_every_gateway_routes_to_it() {
    let mut world = World::new();
    let builtin = id("builtin", 0);
    world.join(&builtin, 100);
    world.load(definition("iris", 1, 1)).unwrap();
    assert_eq!(world.summary("iris").state, ModelState::Progressing);
    world.work(&builtin, false);
    assert_eq!(world.summary("iris").state, ModelState::Progressing, "no gateway has the route yet");
    assert_eq!(world.state.route("iris").versions.len(), 1);
    world.follow_routes();
    assert_eq!(world.summary("iris").state, ModelState::Available);
}

#[test]
fn the_old_version_serves_until_the_new_one_does() {
    let mut world = World::new();
    let builtin = id("builtin", 0);
    world.join(&builtin, 100);
    world.load(definition("iris", 1, 1)).unwrap();
    world.quiesce();
    world.load(definition("iris", 2, 1)).unwrap();
    let routed = |w: &World| w.state.route("iris").versions.iter().map(|v| v.version).collect::<Vec<_>>();
    assert_eq!(routed(&world), [1]);
    world.work(&builtin, true);
    assert_eq!(world.summary("iris").state, ModelState::Failed);
    assert_eq!(world.summary("iris").reason, "builtin-0: no such file");
    world.quiesce();
    assert_eq!(routed(&world), [1], "a version that never loads never takes traffic");
    world.load(definition("iris", 3, 1)).unwrap();
    world.work(&builtin, false);
    assert_eq!(routed(&world), [3]);
    assert_eq!(world.agents[&builtin].loaded.len(), 2, "the old one stays until no gateway uses it");
    world.quiesce();
    assert_eq!(world.agents[&builtin].loaded.len(), 1);
    assert_eq!(world.state.models()["iris"].versions.len(), 1);
}

#[test]
fn asking_for_the_same_again_changes_nothing_but_retries_a_failure() {
    let mut world = World::new();
    let builtin = id("builtin", 0);
    world.join(&builtin, 100);
    world.load(definition("iris", 1, 1)).unwrap();
    world.quiesce();
    let effects = world.load(definition("iris", 1, 1)).unwrap();
    assert!(effects.orders.is_empty() && effects.store_models.is_empty() && effects.routes.is_empty());
    world.load(definition("bad", 1, 1)).unwrap();
    world.work(&builtin, true);
    assert_eq!(world.summary("bad").state, ModelState::Failed);
    world.load(definition("bad", 1, 1)).unwrap();
    world.quiesce();
    assert_eq!(world.summary("bad").state, ModelState::Available);
}

#[test]
fn why_a_model_is_not_placed() {
    let needs = |change: fn(&mut Needs)| {
        let mut d = definition("m", 1, 1);
        change(&mut d.needs);
        d
    };
    for (d, says) in [
        (
            needs(|n| n.requirements = vec!["lightgbm".into()]),
            "no server offers lightgbm; builtin offers onnx, xgboost",
        ),
        (needs(|n| n.explainer = true), "no server offers alibi-explain; builtin offers onnx, xgboost"),
        (needs(|n| n.memory = 6_000_000_000), "needs 6.0 GB, most free is 100 B on builtin-0"),
        (needs(|n| n.server = Some("triton".into())), "server triton, which the model names, has not joined"),
        (definition("m", 1, 3), "3 replicas are wanted, server builtin can take 1"),
    ] {
        let mut world = World::new();
        world.join(&id("builtin", 0), 100);
        world.load(d).unwrap();
        assert_eq!(world.summary("m").state, ModelState::ScheduleFailed);
        assert_eq!(world.summary("m").reason, says);
    }
    let mut world = World::new();
    world.load(definition("m", 1, 1)).unwrap();
    assert_eq!(world.summary("m").reason, "no server has joined yet");
}

#[test]
fn gateways_are_told_why_nothing_serves_a_model() {
    let mut world = World::new();
    let effects = world.load(definition("m", 1, 1)).unwrap();
    assert!(effects.routes.contains("m"), "no server has joined");
    let s = id("s", 0);
    world.agents.insert(s.clone(), Agent { memory: 100, ..Agent::default() });
    let joined =
        Command::ReplicaJoined { id: s.clone(), replica: replica(100), shared: true, loaded: vec![] };
    assert!(world.apply(joined).unwrap().routes.contains("m"), "it is being loaded");
    let order = world.agents.get_mut(&s).unwrap().orders.pop_front().unwrap();
    let event = ReplicaEvent::LoadFailed { reason: "no such file".into() };
    let failed = Command::ReplicaReported { id: s, model: order.model, version: 1, event, memory_free: 100 };
    assert!(world.apply(failed.clone()).unwrap().routes.contains("m"), "it could not be loaded");
    assert!(world.apply(failed).unwrap().routes.is_empty(), "nothing is new");
}

#[test]
fn a_model_with_a_floor_is_placed_in_part_and_grows() {
    let mut world = World::new();
    world.join(&id("s", 0), 100);
    let mut d = definition("m", 1, 3);
    d.scaling.min = 1;
    world.load(d).unwrap();
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Available);
    assert_eq!(world.summary("m").reason, "3 replicas are wanted, server s can take 1");
    world.join(&id("s", 1), 100);
    world.join(&id("s", 2), 100);
    world.quiesce();
    assert_eq!((world.summary("m").available, world.summary("m").reason.as_str()), (3, ""));
}

#[test]
fn a_deleted_model_stays_known_and_can_come_back() {
    let mut world = World::new();
    world.join(&id("s", 0), 100);
    world.load(definition("m", 1, 1)).unwrap();
    world.quiesce();
    let unload = Command::UnloadModel { name: "m".into(), by: Manager::Cli };
    world.apply(unload.clone()).unwrap();
    assert_eq!(world.summary("m").state, ModelState::Terminating);
    assert_eq!(world.load(definition("m", 1, 1)), Err(Refusal::StillTerminating("m".into())));
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Terminated);
    world.load(definition("m", 1, 1)).unwrap();
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Available);
    assert_eq!(
        world.apply(Command::UnloadModel { name: "x".into(), by: Manager::Cli }),
        Err(Refusal::UnknownModel("x".into()))
    );
}

#[test]
fn a_restart_brings_back_what_was_stored_and_what_served() {
    let version = |number: u32, served| VersionRecord {
        number,
        definition: Arc::new(definition("m", number as u8, 1)),
        served,
        scaled: None,
        server: None,
        replicas: Vec::new(),
    };
    let stored =
        [ModelRecord { deleted: false, manager: None, versions: vec![version(1, true), version(2, false)] }];
    let mut world = World::new();
    world.state = State::restore(Policy::default(), stored, [], 0);
    let s = id("s", 0);
    world.join(&s, 100);
    assert_eq!(world.agents[&s].orders.len(), 2, "the version that served comes back beside the new one");
    world.work(&s, false);
    assert_eq!(world.state.route("m").versions.len(), 1);
    world.quiesce();
    assert_eq!(world.state.route("m").versions[0].version, 2);
    assert_eq!(world.agents[&s].loaded.len(), 1);
}

#[test]
fn an_agent_that_comes_back_keeps_what_is_wanted() {
    let mut world = World::new();
    let s = id("s", 0);
    world.join(&s, 100);
    world.load(definition("m", 1, 1)).unwrap();
    world.quiesce();
    let loaded: Vec<(Arc<str>, u32)> = vec![("m".into(), 1), ("gone".into(), 4)];
    world.agents.get_mut(&s).unwrap().loaded = loaded.iter().cloned().collect();
    let effects = world
        .apply(Command::ReplicaJoined { id: s.clone(), replica: replica(100), shared: true, loaded })
        .unwrap();
    let orders: Vec<_> = effects.orders.iter().map(|o| (&*o.model, o.load.is_some())).collect();
    assert_eq!(orders, [("gone", false)]);
    assert_eq!(world.state.route("m").versions.len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Load { model: u8, spec: u8, replicas: u32 },
    Unload { model: u8 },
    Join { server: u8, index: u32 },
    Lose { server: u8, index: u32 },
    Work { server: u8, index: u32, fails: bool },
    FollowRoutes,
}

fn step() -> impl Strategy<Value = Step> {
    let small = 0u8..2;
    prop_oneof![
        4 => (0u8..4, 0u8..3, 0u32..4).prop_map(|(model, spec, replicas)| Step::Load { model, spec, replicas }),
        2 => (0u8..4).prop_map(|model| Step::Unload { model }),
        2 => (small.clone(), 0u32..3).prop_map(|(server, index)| Step::Join { server, index }),
        1 => (small.clone(), 0u32..3).prop_map(|(server, index)| Step::Lose { server, index }),
        6 => (small, 0u32..3, prop::bool::weighted(0.2))
            .prop_map(|(server, index, fails)| Step::Work { server, index, fails }),
        3 => Just(Step::FollowRoutes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, the invariants hold at each step; and when the world comes to rest with
    /// room for everybody, every model is what was asked for last.
    #[test]
    fn every_history_converges(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        let mut asked: BTreeMap<String, (u8, u32)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Load { model, spec, replicas } => {
                    let name = format!("m{model}");
                    if world.load(definition(&name, spec, replicas)).is_ok() {
                        asked.insert(name, (spec, replicas));
                    }
                }
                Step::Unload { model } => {
                    let name = format!("m{model}");
                    let known = world.apply(Command::UnloadModel { name: name.as_str().into(), by: Manager::Cli }).is_ok();
                    prop_assert_eq!(known, world.state.models().contains_key(name.as_str()));
                    asked.remove(&name);
                }
                Step::Join { server, index } => world.join(&id(&format!("s{server}"), index), 35),
                Step::Lose { server, index } => world.lose(&id(&format!("s{server}"), index)),
                Step::Work { server, index, fails } => world.work(&id(&format!("s{server}"), index), fails),
                Step::FollowRoutes => world.follow_routes(),
            }
        }
        for server in 0..2 {
            for index in 0..4 {
                let id = id(&format!("s{server}"), index);
                if let Some(agent) = world.agents.get_mut(&id) {
                    agent.memory = 1000;
                    let memory_free = 1000 - 10 * agent.loaded.len() as u64;
                    let event = ReplicaEvent::Unloaded;
                    world.apply(Command::ReplicaReported { id, model: "nobody".into(), version: 1, event, memory_free }).unwrap();
                } else {
                    world.join(&id, 1000);
                }
            }
        }
        world.quiesce();
        for (name, (spec, replicas)) in &asked {
            world.load(definition(name, *spec, *replicas)).unwrap();
        }
        world.quiesce();
        for (name, (spec, replicas)) in &asked {
            let model = &world.state.models()[name.as_str()];
            let latest = model.latest().unwrap();
            prop_assert_eq!(latest.definition.spec.first(), Some(spec));
            prop_assert_eq!(model.versions.len(), 1, "{}: older versions linger", name);
            let expected = if *replicas == 0 { ModelState::ScaledDown } else { ModelState::Available };
            prop_assert_eq!(world.summary(name).state, expected, "{}: {}", name, world.summary(name).reason);
            prop_assert_eq!(world.summary(name).available, *replicas);
        }
        for (name, model) in world.state.models() {
            prop_assert_eq!(model.deleted, !asked.contains_key(&**name));
        }
        let held: usize = world.agents.values().map(|a| a.loaded.len()).sum();
        let wanted: u32 = asked.values().map(|(_, replicas)| replicas).sum();
        prop_assert_eq!(held, wanted as usize, "agents hold what nobody asked for");
    }
}
