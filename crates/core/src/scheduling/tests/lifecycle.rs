//! Single decisions of a model's life, one history each.

use super::*;

#[test]
fn a_model_is_available_only_when_every_gateway_routes_to_it() {
    let mut world = World::new();
    let builtin = id("builtin", 0);
    world.join(&builtin, 100);
    world.load(definition("iris", 1, 1)).unwrap();
    assert_eq!(world.summary("iris").state, ModelState::Progressing);
    world.work(&builtin, Luck::Good);
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
    assert_eq!(world.routed("iris"), [1]);
    world.work(&builtin, Luck::Bad);
    assert_eq!(world.summary("iris").state, ModelState::Failed);
    assert_eq!(world.summary("iris").reason, "builtin-0: no such file");
    world.quiesce();
    assert_eq!(world.routed("iris"), [1], "a version that never loads never takes traffic");
    world.load(definition("iris", 3, 1)).unwrap();
    world.work(&builtin, Luck::Good);
    assert_eq!(world.routed("iris"), [3]);
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
    world.work(&builtin, Luck::Bad);
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
    world.agents.insert(s.clone(), Agent { memory: 100, connected: true, ..Agent::default() });
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
        leaving: Vec::new(),
    };
    let stored =
        [ModelRecord { deleted: false, manager: None, versions: vec![version(1, true), version(2, false)] }];
    let mut world = World::new();
    world.state = State::restore(Policy::default(), stored, [], 0);
    let s = id("s", 0);
    world.join(&s, 100);
    assert_eq!(world.agents[&s].orders.len(), 2, "the version that served comes back beside the new one");
    world.work(&s, Luck::Good);
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
