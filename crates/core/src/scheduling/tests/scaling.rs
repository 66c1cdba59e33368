//! Autoscaling.

use super::*;

fn scaled(replicas: u32, min: u32, max: u32) -> Definition {
    Definition { scaling: Scaling { replicas, min, max }, ..definition("m", 1, replicas) }
}

/// `m` serves on a server with five replicas.
fn served(definition: Definition) -> Harness {
    let mut harness = Harness::new();
    for index in 0..5 {
        harness.join(&id("s", index), 100);
    }
    harness.load(definition).unwrap();
    harness.quiesce();
    harness
}

fn desired(harness: &Harness) -> u32 {
    harness.state.models()["m"].latest().unwrap().desired_replicas()
}

#[test]
fn model_scales_up_at_once_and_down_after_cool_down() {
    let mut harness = served(scaled(1, 1, 3));
    for (in_flight, replicas) in [(30, 1), (31, 2), (500, 3)] {
        let effects = harness.apply(demand("m", in_flight, false)).unwrap();
        assert_eq!(desired(&harness), replicas, "{in_flight} requests at once");
        assert_eq!(effects.store_models.contains("m"), in_flight > 30, "the scale is durable");
    }
    harness.quiesce();
    assert_eq!(harness.version_status("m").available, 3);
    assert_eq!(
        harness.state.models()["m"].latest().unwrap().definition.scaling.replicas,
        1,
        "unchanged definition"
    );
    for _ in 0..11 {
        harness.apply(demand("m", 20, false)).unwrap();
        harness.wait(5_000);
        assert_eq!(desired(&harness), 3);
    }
    harness.apply(demand("m", 20, false)).unwrap();
    harness.wait(5_000);
    harness.apply(demand("m", 20, false)).unwrap();
    assert_eq!(desired(&harness), 1, "lower load for a minute");
    harness.quiesce();
    assert_eq!(harness.routed_to("m").len(), 1);
}

#[test]
fn idle_model_scales_to_zero_and_back() {
    let mut harness = served(scaled(1, 0, 2));
    harness.wait(500_000);
    assert_eq!(desired(&harness), 1);
    harness.apply(demand("m", 1, false)).unwrap();
    harness.wait(590_000);
    assert_eq!(desired(&harness), 1, "it had a request meanwhile");
    let effects = harness.wait(20_000);
    assert!(effects.routes.contains("m"));
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::ScaledDown);
    assert_eq!(harness.version_status("m").code, Some(Reason::Sleeping));
    assert!(harness.state.route("m").scaled_to_zero);
    assert!(harness.agents.values().all(|a| a.loaded.is_empty()));
    harness.restart();
    (0..5).for_each(|index| drop(harness.subscribe(&id("s", index))));
    assert!(harness.state.route("m").scaled_to_zero, "still scaled to zero after a restart");
    harness.apply(demand("m", 0, true)).unwrap();
    assert!(!harness.state.route("m").scaled_to_zero);
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn new_version_of_scaled_to_zero_model_is_loaded() {
    let mut harness = served(scaled(1, 0, 2));
    harness.wait(700_000);
    harness.quiesce();
    assert!(harness.state.route("m").scaled_to_zero);
    harness.load(Definition { spec: Digest(7), ..scaled(1, 0, 2) }).unwrap();
    harness.quiesce();
    assert_eq!((harness.version_status("m").state, harness.routed("m")), (ModelState::Available, vec![2]));
}

#[test]
fn model_without_bounds_is_not_autoscaled() {
    let mut harness = served(scaled(2, 0, 0));
    harness.apply(demand("m", 500, true)).unwrap();
    harness.wait(3_600_000);
    harness.apply(Command::ScaleModel { name: "m".into(), version: 1, change: 2 }).unwrap();
    assert_eq!(desired(&harness), 2);
    let mut harness = Harness::with(Policy { model_autoscaling: false, ..Policy::default() });
    harness.join(&id("s", 0), 100);
    harness.load(scaled(1, 0, 3)).unwrap();
    harness.apply(demand("m", 500, true)).unwrap();
    assert_eq!(desired(&harness), 1, "autoscaling is disabled");
}

#[test]
fn scaling_triggers_respect_bounds_and_cool_down() {
    let mut harness = served(scaled(1, 1, 3));
    let mut trigger = |version, change, after: Millis| {
        harness.wait(after);
        harness.apply(Command::ScaleModel { name: "m".into(), version, change }).unwrap();
        desired(&harness)
    };
    assert_eq!(trigger(1, 1, 0), 2);
    assert_eq!(trigger(1, 1, 30_000), 2, "within the cool-down");
    assert_eq!(trigger(1, 9, 40_000), 3);
    assert_eq!(trigger(2, -1, 70_000), 3, "not the latest version");
    assert_eq!(trigger(1, -9, 70_000), 1);
}

#[test]
fn changed_replicas_override_autoscaling() {
    let mut harness = served(scaled(1, 1, 5));
    harness.apply(demand("m", 100, false)).unwrap();
    assert_eq!(desired(&harness), 4);
    harness.load(scaled(1, 1, 5)).unwrap();
    assert_eq!(desired(&harness), 4, "reapplying changes nothing");
    harness.load(scaled(2, 1, 5)).unwrap();
    assert_eq!(desired(&harness), 2);
}

#[test]
fn server_scale_up_is_requested_for_waiting_models() {
    let mut harness = Harness::new();
    harness.apply(expect("s", 1, 1, 3)).unwrap();
    harness.join(&id("s", 0), 100);
    let requested = |effects: &Effects| {
        effects.scale_servers.iter().map(|(s, n)| (s.to_string(), *n)).collect::<Vec<_>>()
    };
    let effects = harness.load(definition("m", 1, 2)).unwrap();
    assert_eq!(requested(&effects), [("s".to_owned(), 2)]);
    let effects = harness.load(definition("n", 1, 2)).unwrap();
    assert_eq!(requested(&effects), [], "already requested");
    let effects = harness.load(definition("too-many", 1, 4)).unwrap();
    assert_eq!(requested(&effects), [], "insufficient even at max");
    harness.apply(expect("s", 2, 1, 3)).unwrap();
    harness.join(&id("s", 1), 100);
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    let mut large = definition("large", 1, 1);
    large.needs.memory = 95;
    let effects = harness.load(large).unwrap();
    assert_eq!(requested(&effects), [("s".to_owned(), 3)], "one more replica may have the memory");
}

#[test]
fn server_scale_down_is_requested_for_empty_replicas() {
    let mut harness = Harness::new();
    harness.apply(expect("s", 3, 1, 5)).unwrap();
    for index in 0..3 {
        harness.join(&id("s", index), 100);
    }
    harness.load(definition("m", 1, 3)).unwrap();
    harness.quiesce();
    assert!(harness.wait(200_000).scale_servers.is_empty());
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    let effects = harness.wait(70_000);
    assert_eq!(effects.scale_servers.get("s"), Some(&1));
    assert!(harness.wait(200_000).scale_servers.is_empty(), "requested once");
    let mut harness = Harness::with(Policy { server_autoscaling: false, ..Policy::default() });
    harness.apply(expect("s", 2, 1, 5)).unwrap();
    harness.join(&id("s", 0), 100);
    harness.join(&id("s", 1), 100);
    assert!(harness.wait(200_000).scale_servers.is_empty(), "autoscaling is disabled");
}

#[test]
fn packing_frees_the_last_replica() {
    let mut harness = Harness::with(Policy { packing: true, packing_percentage: 100, ..Policy::default() });
    harness.apply(expect("s", 2, 1, 2)).unwrap();
    harness.join(&id("s", 0), 100);
    harness.join(&id("s", 1), 100);
    harness.load(definition("a", 1, 1)).unwrap();
    harness.load(definition("b", 1, 1)).unwrap();
    harness.quiesce();
    assert_eq!(
        (harness.routed_to("a"), harness.routed_to("b")),
        (vec!["s-0".to_owned()], vec!["s-1".to_owned()])
    );
    harness.wait(70_000);
    harness.quiesce();
    assert_eq!(harness.routed_to("b"), ["s-0"]);
    let effects = harness.wait(130_000);
    assert_eq!(effects.scale_servers.get("s"), Some(&1));
    harness.wait(130_000);
    assert!(!harness.state.servers()["s"].replicas[&1].draining, "not removed: back in service");
}

#[test]
fn autoscaled_replicas_are_best_effort() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    harness.join(&id("s", 1), 100);
    harness.load(scaled(1, 0, 4)).unwrap();
    harness.quiesce();
    harness.apply(demand("m", 100, false)).unwrap();
    assert_eq!(harness.version_status("m").state, ModelState::Available, "as many serve as requested");
    harness.quiesce();
    assert_eq!((desired(&harness), harness.version_status("m").available), (4, 2));
    assert_eq!(harness.version_status("m").code, Some(Reason::TooFewReplicas));
}
