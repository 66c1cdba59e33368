//! Lifecycle of a model.

use super::*;

#[test]
fn model_is_available_after_gateways_acknowledge() {
    let mut harness = Harness::new();
    let builtin = id("builtin", 0);
    harness.join(&builtin, 100);
    harness.load(definition("iris", 1, 1)).unwrap();
    assert_eq!(harness.version_status("iris").state, ModelState::Progressing);
    harness.work(&builtin, Outcome::Success);
    assert_eq!(harness.version_status("iris").state, ModelState::Progressing, "not acknowledged yet");
    assert_eq!(harness.state.route("iris").versions.len(), 1);
    harness.acknowledge_routes();
    assert_eq!(harness.version_status("iris").state, ModelState::Available);
}

#[test]
fn old_version_serves_until_new_one_does() {
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
    assert_eq!(harness.agents[&builtin].loaded.len(), 2, "the old version stays until drained");
    harness.quiesce();
    assert_eq!(harness.agents[&builtin].loaded.len(), 1);
    assert_eq!(harness.state.models()["iris"].versions.len(), 1);
}

#[test]
fn reapplying_a_model_only_retries_failures() {
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
fn unschedulable_model_reports_reason() {
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
        (needs(|n| n.server = Some("triton".into())), "server triton in spec.server has not joined"),
        (definition("m", 1, 3), "3 replicas desired, server builtin can take 1"),
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
fn route_is_published_when_reason_changes() {
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
    assert!(harness.apply(failed).unwrap().routes.is_empty(), "no change");
}

#[test]
fn model_with_min_replicas_is_placed_partially() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    let mut d = definition("m", 1, 3);
    d.scaling.min = 1;
    harness.load(d).unwrap();
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    assert_eq!(harness.version_status("m").reason, "3 replicas desired, server s can take 1");
    harness.join(&id("s", 1), 100);
    harness.join(&id("s", 2), 100);
    harness.quiesce();
    assert_eq!((harness.version_status("m").available, harness.version_status("m").reason.as_str()), (3, ""));
}

#[test]
fn deleted_model_is_kept_as_tombstone() {
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
fn restart_restores_latest_and_serving_versions() {
    let version = |number: u32, served| VersionRecord {
        number,
        definition: Arc::new(definition("m", number as u8, 1)),
        served,
        scaled: None,
        server: None,
        replicas: Vec::new(),
        leaving: Vec::new(),
    };
    let models = vec![ModelRecord {
        deleted: false,
        unloaded: false,
        owner: None,
        versions: vec![version(1, true), version(2, false)],
        rollout: None,
    }];
    let mut harness = Harness::new();
    harness.state = State::restore(Policy::default(), Records { models, ..Records::default() }, 0);
    let s = id("s", 0);
    harness.join(&s, 100);
    assert_eq!(harness.agents[&s].orders.len(), 2, "the serving version is restored beside the new one");
    harness.work(&s, Outcome::Success);
    assert_eq!(harness.state.route("m").versions.len(), 1);
    harness.quiesce();
    assert_eq!(harness.state.route("m").versions[0].version, 2);
    assert_eq!(harness.agents[&s].loaded.len(), 1);
}

#[test]
fn rejoin_keeps_desired_and_unloads_unknown_models() {
    let mut harness = Harness::new();
    let s = id("s", 0);
    harness.join(&s, 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    let loaded: Vec<(Arc<str>, u32)> = vec![("m".into(), 1), ("gone".into(), 4)];
    harness.agents.get_mut(&s).unwrap().loaded = loaded.iter().cloned().collect();
    let loaded = loaded.iter().map(|(model, version)| loaded_version(model, *version, None)).collect();
    let effects = harness
        .apply(Command::ReplicaJoined { id: s.clone(), replica: replica(100), shared: true, loaded })
        .unwrap();
    let orders: Vec<_> = effects.orders.iter().map(|o| (&*o.model, o.load.is_some())).collect();
    assert_eq!(orders, [("gone", false)]);
    assert_eq!(harness.state.route("m").versions.len(), 1);
}
