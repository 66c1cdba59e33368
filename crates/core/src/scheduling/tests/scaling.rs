//! Scaling by demand.

use super::*;

fn scaled(replicas: u32, min: u32, max: u32) -> Definition {
    Definition { scaling: Scaling { replicas, min, max }, ..definition("m", 1, replicas) }
}

/// A world in which `m` serves, on a server of five replicas.
fn served(definition: Definition) -> World {
    let mut world = World::new();
    for index in 0..5 {
        world.join(&id("s", index), 100);
    }
    world.load(definition).unwrap();
    world.quiesce();
    world
}

fn wanted(world: &World) -> u32 {
    world.state.models()["m"].latest().unwrap().wanted()
}

#[test]
fn demand_scales_up_at_once_and_down_after_a_while() {
    let mut world = served(scaled(1, 1, 3));
    for (in_flight, replicas) in [(30, 1), (31, 2), (500, 3)] {
        let effects = world.apply(demand("m", in_flight, false)).unwrap();
        assert_eq!(wanted(&world), replicas, "{in_flight} requests at once");
        assert_eq!(effects.store_models.contains("m"), in_flight > 30, "what is scaled is durable");
    }
    world.quiesce();
    assert_eq!(world.summary("m").available, 3);
    assert_eq!(world.state.models()["m"].latest().unwrap().definition.scaling.replicas, 1, "as asked");
    for _ in 0..11 {
        world.apply(demand("m", 20, false)).unwrap();
        world.wait(5_000);
        assert_eq!(wanted(&world), 3);
    }
    world.apply(demand("m", 20, false)).unwrap();
    world.wait(5_000);
    world.apply(demand("m", 20, false)).unwrap();
    assert_eq!(wanted(&world), 1, "a minute of less");
    world.quiesce();
    assert_eq!(world.routed_to("m").len(), 1);
}

#[test]
fn a_model_that_may_sleep_sleeps_and_wakes() {
    let mut world = served(scaled(1, 0, 2));
    world.wait(500_000);
    assert_eq!(wanted(&world), 1);
    world.apply(demand("m", 1, false)).unwrap();
    world.wait(590_000);
    assert_eq!(wanted(&world), 1, "it was asked for meanwhile");
    let effects = world.wait(20_000);
    assert!(effects.routes.contains("m"));
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::ScaledDown);
    assert_eq!(world.summary("m").code, Some(Reason::Sleeping));
    assert!(world.state.route("m").sleeps);
    assert!(world.agents.values().all(|a| a.loaded.is_empty()));
    world.restart();
    (0..5).for_each(|index| drop(world.announce(&id("s", index))));
    assert!(world.state.route("m").sleeps, "a restart does not wake it");
    world.apply(demand("m", 0, true)).unwrap();
    assert!(!world.state.route("m").sleeps);
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Available);
}

#[test]
fn a_new_version_of_what_sleeps_is_tried() {
    let mut world = served(scaled(1, 0, 2));
    world.wait(700_000);
    world.quiesce();
    assert!(world.state.route("m").sleeps);
    world.load(Definition { spec: Arc::from([7].as_slice()), ..scaled(1, 0, 2) }).unwrap();
    world.quiesce();
    assert_eq!((world.summary("m").state, world.routed("m")), (ModelState::Available, vec![2]));
}

#[test]
fn what_was_not_given_bounds_is_not_scaled() {
    let mut world = served(scaled(2, 0, 0));
    world.apply(demand("m", 500, true)).unwrap();
    world.wait(3_600_000);
    world.apply(Command::ScaleModel { name: "m".into(), version: 1, change: 2 }).unwrap();
    assert_eq!(wanted(&world), 2);
    let mut world = World::with(Policy { model_autoscaling: false, ..Policy::default() });
    world.join(&id("s", 0), 100);
    world.load(scaled(1, 0, 3)).unwrap();
    world.apply(demand("m", 500, true)).unwrap();
    assert_eq!(wanted(&world), 1, "it is switched off");
}

#[test]
fn triggers_scale_within_bounds_and_not_too_often() {
    let mut world = served(scaled(1, 1, 3));
    let mut trigger = |version, change, after: Millis| {
        world.wait(after);
        world.apply(Command::ScaleModel { name: "m".into(), version, change }).unwrap();
        wanted(&world)
    };
    assert_eq!(trigger(1, 1, 0), 2);
    assert_eq!(trigger(1, 1, 30_000), 2, "it changed a moment ago");
    assert_eq!(trigger(1, 9, 40_000), 3);
    assert_eq!(trigger(2, -1, 70_000), 3, "not the version that there is");
    assert_eq!(trigger(1, -9, 70_000), 1);
}

#[test]
fn asking_for_another_number_overrules_demand() {
    let mut world = served(scaled(1, 1, 5));
    world.apply(demand("m", 100, false)).unwrap();
    assert_eq!(wanted(&world), 4);
    world.load(scaled(1, 1, 5)).unwrap();
    assert_eq!(wanted(&world), 4, "the same again changes nothing");
    world.load(scaled(2, 1, 5)).unwrap();
    assert_eq!(wanted(&world), 2);
}

#[test]
fn a_server_is_asked_to_grow_for_what_waits() {
    let mut world = World::new();
    world.apply(expect("s", 1, 1, 3)).unwrap();
    world.join(&id("s", 0), 100);
    let asked = |effects: &Effects| {
        effects.scale_servers.iter().map(|(s, n)| (s.to_string(), *n)).collect::<Vec<_>>()
    };
    let effects = world.load(definition("m", 1, 2)).unwrap();
    assert_eq!(asked(&effects), [("s".to_owned(), 2)]);
    let effects = world.load(definition("n", 1, 2)).unwrap();
    assert_eq!(asked(&effects), [], "it was asked already");
    let effects = world.load(definition("too-many", 1, 4)).unwrap();
    assert_eq!(asked(&effects), [], "it would not help");
    world.apply(expect("s", 2, 1, 3)).unwrap();
    world.join(&id("s", 1), 100);
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Available);
    let mut large = definition("large", 1, 1);
    large.needs.memory = 95;
    let effects = world.load(large).unwrap();
    assert_eq!(asked(&effects), [("s".to_owned(), 3)], "memory is missing: one more may have it");
}

#[test]
fn a_server_is_asked_to_shrink_when_its_last_replicas_are_empty() {
    let mut world = World::new();
    world.apply(expect("s", 3, 1, 5)).unwrap();
    for index in 0..3 {
        world.join(&id("s", index), 100);
    }
    world.load(definition("m", 1, 3)).unwrap();
    world.quiesce();
    assert!(world.wait(200_000).scale_servers.is_empty());
    world.load(definition("m", 1, 1)).unwrap();
    world.quiesce();
    assert_eq!(world.routed_to("m"), ["s-0"]);
    let effects = world.wait(70_000);
    assert_eq!(effects.scale_servers.get("s"), Some(&1));
    assert!(world.wait(200_000).scale_servers.is_empty(), "once is enough");
    let mut world = World::with(Policy { server_autoscaling: false, ..Policy::default() });
    world.apply(expect("s", 2, 1, 5)).unwrap();
    world.join(&id("s", 0), 100);
    world.join(&id("s", 1), 100);
    assert!(world.wait(200_000).scale_servers.is_empty(), "it is switched off");
}

#[test]
fn packing_frees_the_last_replica() {
    let mut world = World::with(Policy { packing: true, packing_percentage: 100, ..Policy::default() });
    world.apply(expect("s", 2, 1, 2)).unwrap();
    world.join(&id("s", 0), 100);
    world.join(&id("s", 1), 100);
    world.load(definition("a", 1, 1)).unwrap();
    world.load(definition("b", 1, 1)).unwrap();
    world.quiesce();
    assert_eq!(
        (world.routed_to("a"), world.routed_to("b")),
        (vec!["s-0".to_owned()], vec!["s-1".to_owned()])
    );
    world.wait(70_000);
    world.quiesce();
    assert_eq!(world.routed_to("b"), ["s-0"]);
    let effects = world.wait(130_000);
    assert_eq!(effects.scale_servers.get("s"), Some(&1));
    world.wait(130_000);
    assert!(!world.state.servers()["s"].replicas[&1].draining, "nobody took it away: it is of use again");
}

#[test]
fn more_than_was_asked_is_taken_as_far_as_it_can_be_had() {
    let mut world = World::new();
    world.join(&id("s", 0), 100);
    world.join(&id("s", 1), 100);
    world.load(scaled(1, 0, 4)).unwrap();
    world.quiesce();
    world.apply(demand("m", 100, false)).unwrap();
    assert_eq!(world.summary("m").state, ModelState::Available, "as many serve as were asked for");
    world.quiesce();
    assert_eq!((wanted(&world), world.summary("m").available), (4, 2));
    assert_eq!(world.summary("m").code, Some(Reason::TooFewReplicas));
}
