//! Single decisions of a model's life, one history each.

use super::*;

#[test]
fn a_model_is_available_only_when_every_gateway_routes_to_it() {
    let mut harness = Harness::new();
    let builtin = id("builtin", 0);
    harness.join(&builtin, 100);
    harness.load(definition("iris", 1, 1)).unwrap();
    assert_eq!(harness.version_status("iris").state, ModelState::Progressing);
    harness.work(&builtin, Outcome::Success);
    assert_eq!(harness.version_status("iris").state, ModelState::Progressing, "no gateway has the route yet");
    assert_eq!(harness.state.route("iris").versions.len(), 1);
    harness.acknowledge_routes();
    assert_eq!(harness.version_status("iris").state, ModelState::Available);
}

#[test]
fn the_old_version_serves_until_the_new_one_does() {
    let mut harness = Harness::new();
    let builtin = id("builtin", 0);
    harness.join(&builtin, 100);
    harness.load(definition("iris", 1, 1)).unwrap();
    harness.quiesce();
    harness.load(definition("iris", 2, 1)).unwrap();
    assert_eq!(harness.routed("iris"), [1]);
    harness.work(&builtin, Outcome::Failure);
    assert_eq!(harness.version_status("iris").state, ModelState::Failed);
    assert_eq!(harness.version_status("iris").reason, "builtin-0: no such file");
    harness.quiesce();
    assert_eq!(harness.routed("iris"), [1], "a version that never loads never takes traffic");
    harness.load(definition("iris", 3, 1)).unwrap();
    harness.work(&builtin, Outcome::Success);
    assert_eq!(harness.routed("iris"), [3]);
    assert_eq!(harness.agents[&builtin].loaded.len(), 2, "the old one stays until no gateway uses it");
    harness.quiesce();
    assert_eq!(harness.agents[&builtin].loaded.len(), 1);
    assert_eq!(harness.state.models()["iris"].versions.len(), 1);
}

#[test]
fn asking_for_the_same_again_changes_nothing_but_retries_a_failure() {
    let mut harness = Harness::new();
    let builtin = id("builtin", 0);
    harness.join(&builtin, 100);
    harness.load(definition("iris", 1, 1)).unwrap();
    harness.quiesce();
    let effects = harness.load(definition("iris", 1, 1)).unwrap();
    assert!(effects.orders.is_empty() && effects.store_models.is_empty() && effects.routes.is_empty());
    harness.load(definition("bad", 1, 1)).unwrap();
    harness.work(&builtin, Outcome::Failure);
    assert_eq!(harness.version_status("bad").state, ModelState::Failed);
    harness.load(definition("bad", 1, 1)).unwrap();
    harness.quiesce();
    assert_eq!(harness.version_status("bad").state, ModelState::Available);
}

#[test]
fn why_a_model_is_not_placed() {
    let needs = |change: fn(&mut Needs)| {
        let mut d = definition("m", 1, 1);
        change(&mut d.needs);
        d
    };
    for (d, messages) in [
        (
            needs(|n| n.requirements = vec!["lightgbm".into()]),
            "no server offers lightgbm; builtin offers onnx, xgboost",
        ),
        (needs(|n| n.explainer = true), "no server offers alibi-explain; builtin offers onnx, xgboost"),
        (needs(|n| n.memory = 6_000_000_000), "needs 6.0 GB, most free is 100 B on builtin-0"),
        (needs(|n| n.server = Some("triton".into())), "server triton, which the model names, has not joined"),
        (definition("m", 1, 3), "3 replicas are wanted, server builtin can take 1"),
    ] {
        let mut harness = Harness::new();
        harness.join(&id("builtin", 0), 100);
        harness.load(d).unwrap();
        assert_eq!(harness.version_status("m").state, ModelState::ScheduleFailed);
        assert_eq!(harness.version_status("m").reason, messages);
    }
    let mut harness = Harness::new();
    harness.load(definition("m", 1, 1)).unwrap();
    assert_eq!(harness.version_status("m").reason, "no server has joined yet");
}

#[test]
fn gateways_are_told_why_nothing_serves_a_model() {
    let mut harness = Harness::new();
    let effects = harness.load(definition("m", 1, 1)).unwrap();
    assert!(effects.routes.contains("m"), "no server has joined");
    let s = id("s", 0);
    harness.agents.insert(s.clone(), Agent { memory: 100, connected: true, ..Agent::default() });
    let joined =
        Command::ReplicaJoined { id: s.clone(), replica: replica(100), shared: true, loaded: vec![] };
    assert!(harness.apply(joined).unwrap().routes.contains("m"), "it is being loaded");
    let order = harness.agents.get_mut(&s).unwrap().orders.pop_front().unwrap();
    let event = ReplicaEvent::LoadFailed { reason: "no such file".into() };
    let failed = Command::ReplicaReported { id: s, model: order.model, version: 1, event, memory_free: 100 };
    assert!(harness.apply(failed.clone()).unwrap().routes.contains("m"), "it could not be loaded");
    assert!(harness.apply(failed).unwrap().routes.is_empty(), "nothing is new");
}

#[test]
fn a_model_with_a_floor_is_placed_in_part_and_grows() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    let mut d = definition("m", 1, 3);
    d.scaling.min = 1;
    harness.load(d).unwrap();
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    assert_eq!(harness.version_status("m").reason, "3 replicas are wanted, server s can take 1");
    harness.join(&id("s", 1), 100);
    harness.join(&id("s", 2), 100);
    harness.quiesce();
    assert_eq!((harness.version_status("m").available, harness.version_status("m").reason.as_str()), (3, ""));
}

#[test]
fn a_deleted_model_stays_known_and_can_come_back() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    let unload = Command::UnloadModel { name: "m".into(), by: Owner::Cli };
    harness.apply(unload.clone()).unwrap();
    assert_eq!(harness.version_status("m").state, ModelState::Terminating);
    assert_eq!(harness.load(definition("m", 1, 1)), Err(Rejection::StillTerminating("m".into())));
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Terminated);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    assert_eq!(
        harness.apply(Command::UnloadModel { name: "x".into(), by: Owner::Cli }),
        Err(Rejection::UnknownModel("x".into()))
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
        [ModelRecord { deleted: false, owner: None, versions: vec![version(1, true), version(2, false)] }];
    let mut harness = Harness::new();
    harness.state = State::restore(Policy::default(), stored, [], 0);
    let s = id("s", 0);
    harness.join(&s, 100);
    assert_eq!(harness.agents[&s].orders.len(), 2, "the version that served comes back beside the new one");
    harness.work(&s, Outcome::Success);
    assert_eq!(harness.state.route("m").versions.len(), 1);
    harness.quiesce();
    assert_eq!(harness.state.route("m").versions[0].version, 2);
    assert_eq!(harness.agents[&s].loaded.len(), 1);
}

#[test]
fn an_agent_that_comes_back_keeps_what_is_wanted() {
    let mut harness = Harness::new();
    let s = id("s", 0);
    harness.join(&s, 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    let loaded: Vec<(Arc<str>, u32)> = vec![("m".into(), 1), ("gone".into(), 4)];
    harness.agents.get_mut(&s).unwrap().loaded = loaded.iter().cloned().collect();
    let effects = harness
        .apply(Command::ReplicaJoined { id: s.clone(), replica: replica(100), shared: true, loaded })
        .unwrap();
    let orders: Vec<_> = effects.orders.iter().map(|o| (&*o.model, o.load.is_some())).collect();
    assert_eq!(orders, [("gone", false)]);
    assert_eq!(harness.state.route("m").versions.len(), 1);
}
