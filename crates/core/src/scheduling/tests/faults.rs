//! Silence, loss, draining, moves, retries, restarts and clocks.

use super::*;

/// A world in which `m` serves in one replica on `s-0`.
fn served() -> World {
    let mut world = World::new();
    world.join(&id("s", 0), 100);
    world.load(definition("m", 1, 1)).unwrap();
    world.quiesce();
    world
}

fn states(world: &World, name: &str) -> Vec<(String, ReplicaState)> {
    let model = &world.state.models()[name];
    model.versions.iter().flat_map(Version::places).map(|(s, i, r)| (format!("{s}-{i}"), r.state)).collect()
}

#[test]
fn states_have_the_contracts_numbers() {
    let replicas = [
        (ReplicaState::LoadRequested, 1),
        (ReplicaState::Loading, 2),
        (ReplicaState::Loaded, 3),
        (ReplicaState::LoadFailed, 4),
        (ReplicaState::UnloadRequested, 5),
        (ReplicaState::Unloading, 6),
        (ReplicaState::UnloadFailed, 8),
        (ReplicaState::Available, 9),
        (ReplicaState::LoadedUnavailable, 10),
        (ReplicaState::UnloadEnvoyRequested, 11),
        (ReplicaState::Draining, 12),
    ];
    assert!(replicas.iter().all(|(state, number)| *state as i32 == *number));
    let models = [
        (ModelState::Progressing, 1),
        (ModelState::Available, 2),
        (ModelState::Failed, 3),
        (ModelState::Terminating, 4),
        (ModelState::Terminated, 5),
        (ModelState::TerminateFailed, 6),
        (ModelState::ScheduleFailed, 7),
        (ModelState::ScaledDown, 8),
    ];
    assert!(models.iter().all(|(state, number)| *state as i32 == *number));
}

#[test]
fn a_silent_replica_keeps_its_routes_and_counts_for_nothing() {
    let mut world = served();
    let s = id("s", 0);
    world.silence(&s);
    assert_eq!(states(&world, "m"), [("s-0".to_owned(), ReplicaState::LoadedUnavailable)]);
    assert_eq!(world.summary("m").state, ModelState::Progressing);
    assert_eq!((world.summary("m").code, world.summary("m").available), (Some(Reason::Silent), 0));
    assert_eq!(world.routed_to("m"), ["s-0"]);
    let effects = world.announce(&s);
    assert_eq!(world.summary("m").state, ModelState::Available);
    assert!(effects.routes.is_empty(), "every gateway routes to it as before");
    assert!(effects.orders.is_empty());
}

#[test]
fn a_replica_that_comes_back_elsewhere_is_routed_anew() {
    let mut world = served();
    world.silence(&id("s", 0));
    let endpoint = Endpoint { host: "10.0.0.7".into(), http_port: 1, grpc_port: 2 };
    let replica = Replica { endpoint, memory_free: 90, ..replica(100) };
    world.agents.get_mut(&id("s", 0)).unwrap().connected = true;
    let loaded = vec![("m".into(), 1)];
    let joined = Command::ReplicaJoined { id: id("s", 0), replica, shared: true, loaded };
    assert!(world.apply(joined).unwrap().routes.contains("m"));
    assert_eq!(world.summary("m").state, ModelState::Progressing, "gateways still have the old place");
    world.follow_routes();
    assert_eq!(world.summary("m").state, ModelState::Available);
}

#[test]
fn after_the_grace_a_silent_replica_is_lost() {
    let mut world = served();
    world.join(&id("t", 0), 100);
    world.silence(&id("s", 0));
    world.wait(9_000);
    assert_eq!(world.routed_to("m"), ["s-0"]);
    world.wait(2_000);
    world.quiesce();
    assert_eq!(world.routed_to("m"), ["t-0"]);
    assert!(world.state.servers()["s"].replicas.is_empty());
}

#[test]
fn what_comes_back_and_is_not_wanted_stays_until_no_gateway_uses_it() {
    let mut world = served();
    let s = id("s", 0);
    // The server lost the model, and its agent joins again at once; a gateway has not heard of either.
    world.silence(&s);
    world.agents.get_mut(&s).unwrap().loaded.clear();
    world.forget(&s, None);
    world.announce(&s);
    assert_eq!(states(&world, "m"), [("s-0".to_owned(), ReplicaState::Loading)]);
    let effects = world.apply(unload("m")).unwrap();
    assert!(effects.orders.is_empty(), "a gateway may route there: {effects:?}");
    assert_eq!(states(&world, "m"), [("s-0".to_owned(), ReplicaState::UnloadEnvoyRequested)]);
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Terminated);
    assert!(world.agents[&s].loaded.is_empty());
    // What no gateway ever heard of goes at once.
    world.load(definition("n", 1, 1)).unwrap();
    assert_eq!(states(&world, "n"), [("s-0".to_owned(), ReplicaState::Loading)]);
    assert_eq!(world.apply(unload("n")).unwrap().orders.len(), 1);
}

#[test]
fn what_an_agent_lost_is_loaded_again_and_orders_are_given_again() {
    let mut world = served();
    let s = id("s", 0);
    world.load(definition("n", 1, 1)).unwrap();
    world.silence(&s);
    assert_eq!(states(&world, "n"), [("s-0".to_owned(), ReplicaState::LoadRequested)]);
    world.agents.get_mut(&s).unwrap().loaded.clear();
    world.forget(&s, None);
    let effects = world.announce(&s);
    let loads: Vec<&str> = effects.orders.iter().filter(|o| o.load.is_some()).map(|o| &*o.model).collect();
    assert_eq!(loads, ["m", "n"]);
    world.silence(&s);
    world.apply(unload("n")).unwrap();
    assert_eq!(states(&world, "n"), [("s-0".to_owned(), ReplicaState::UnloadRequested)]);
    world.announce(&s);
    world.quiesce();
    assert_eq!(world.summary("n").state, ModelState::Terminated);
    assert_eq!(world.summary("m").state, ModelState::Available);
}

#[test]
fn a_drained_replica_serves_until_another_does() {
    let mut world = served();
    let (from, to) = (id("s", 0), id("s", 1));
    world.join(&to, 100);
    let effects = world.apply(Command::DrainReplica { id: from.clone() }).unwrap();
    assert!(effects.drained.is_empty());
    assert_eq!(world.routed_to("m"), ["s-0"]);
    assert_eq!(states(&world, "m")[0].1, ReplicaState::Draining);
    world.work(&to, Luck::Good);
    assert_eq!(world.routed_to("m"), ["s-0", "s-1"]);
    world.follow_routes();
    assert_eq!(world.routed_to("m"), ["s-1"]);
    world.follow_routes();
    let order = world.agents.get_mut(&from).unwrap().orders.pop_front().unwrap();
    assert!(order.load.is_none());
    world.agents.get_mut(&from).unwrap().loaded.clear();
    let (model, version, event) = (order.model, order.version, ReplicaEvent::Unloaded);
    let report = Command::ReplicaReported { id: from.clone(), model, version, event, memory_free: 100 };
    assert_eq!(world.apply(report).unwrap().drained, [(from, true)]);
}

#[test]
fn what_cannot_go_anywhere_stays_and_the_drain_says_so() {
    let mut world = served();
    let effects = world.apply(Command::DrainReplica { id: id("s", 0) }).unwrap();
    assert_eq!(effects.drained, [(id("s", 0), false)]);
    assert_eq!(world.routed_to("m"), ["s-0"]);
    let effects = world.apply(Command::DrainReplica { id: id("x", 9) }).unwrap();
    assert_eq!(effects.drained, [(id("x", 9), true)], "nothing is on what is not there");
    world.announce(&id("s", 0));
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Available, "it is back after all");
}

#[test]
fn a_replica_that_ends_leaves_the_route_of_a_model_that_others_serve_even_without_room_for_one_more() {
    let mut world = World::new();
    for index in 0..2 {
        world.join(&id("s", index), 100);
    }
    world.load(definition("m", 1, 2)).unwrap();
    world.quiesce();
    assert_eq!(world.routed_to("m"), ["s-0", "s-1"]);
    let effects = world.apply(Command::DrainReplica { id: id("s", 1) }).unwrap();
    assert!(effects.drained.is_empty(), "gateways may still send requests there: {effects:?}");
    assert_eq!(world.routed_to("m"), ["s-0"]);
    world.follow_routes();
    let order = world.agents.get_mut(&id("s", 1)).unwrap().orders.pop_front().unwrap();
    assert!(order.load.is_none());
    world.agents.get_mut(&id("s", 1)).unwrap().loaded.clear();
    let (model, version, event) = (order.model, order.version, ReplicaEvent::Unloaded);
    let report = Command::ReplicaReported { id: id("s", 1), model, version, event, memory_free: 100 };
    assert_eq!(world.apply(report).unwrap().drained, [(id("s", 1), true)]);
    world.lose(&id("s", 1));
    world.join(&id("s", 1), 100);
    world.quiesce();
    assert_eq!(world.routed_to("m"), ["s-0", "s-1"], "the one that comes back is filled again");
}

#[test]
fn models_leave_a_server_that_goes_and_are_served_meanwhile() {
    let mut world = served();
    world.join(&id("t", 0), 100);
    world.apply(expect("s", 0, 0, 0)).unwrap();
    assert_eq!(world.routed_to("m"), ["s-0"]);
    assert_eq!(world.state.models()["m"].latest().unwrap().server.as_deref(), Some("t"));
    world.work(&id("t", 0), Luck::Good);
    assert_eq!(world.routed_to("m"), ["s-0", "t-0"]);
    world.quiesce();
    assert_eq!(world.routed_to("m"), ["t-0"]);
    assert!(world.agents[&id("s", 0)].loaded.is_empty());
    world.lose(&id("s", 0));
    assert!(!world.state.servers().contains_key("s"));
}

#[test]
fn a_version_moves_when_its_server_can_no_longer_hold_it() {
    let mut world = World::new();
    for index in 0..2 {
        world.join(&id("s", index), 100);
    }
    world.load(definition("m", 1, 2)).unwrap();
    world.quiesce();
    world.lose(&id("s", 1));
    assert_eq!(world.summary("m").state, ModelState::Progressing);
    assert_eq!(world.summary("m").reason, "2 replicas are wanted, server s can take 1");
    for index in 0..2 {
        world.join(&id("t", index), 100);
    }
    world.quiesce();
    assert_eq!(world.routed_to("m"), ["t-0", "t-1"]);
    assert!(world.agents[&id("s", 0)].loaded.is_empty());
}

#[test]
fn a_failed_load_is_tried_again_with_growing_waits() {
    let mut world = World::new();
    let s = id("s", 0);
    world.join(&s, 100);
    world.load(definition("m", 1, 1)).unwrap();
    for wait in [1_000u64, 2_000, 4_000, 8_000] {
        world.work(&s, Luck::Bad);
        assert_eq!(world.summary("m").state, ModelState::Failed);
        world.wait(wait - 200);
        assert!(world.agents[&s].orders.is_empty(), "not before {wait} ms");
        world.wait(400);
        assert_eq!(world.agents[&s].orders.len(), 1, "after {wait} ms");
    }
    for _ in 0..8 {
        world.work(&s, Luck::Bad);
        world.wait(301_000);
    }
    assert_eq!(world.agents[&s].orders.len(), 1, "never more than five minutes apart");
    world.work(&s, Luck::Good);
    world.quiesce();
    assert_eq!(world.state.models()["m"].latest().unwrap().attempts, 0);
}

#[test]
fn a_failed_load_is_tried_at_once_when_replicas_change_and_elsewhere_first() {
    let mut world = World::new();
    world.join(&id("s", 0), 100);
    world.join(&id("s", 1), 50);
    world.load(definition("m", 1, 1)).unwrap();
    world.work(&id("s", 0), Luck::Bad);
    world.load(definition("m", 1, 1)).unwrap();
    assert_eq!(states(&world, "m"), [("s-1".to_owned(), ReplicaState::Loading)]);
    world.work(&id("s", 1), Luck::NoMemory);
    assert_eq!(world.summary("m").code, Some(Reason::LoadFailedMemory));
    world.announce(&id("s", 1));
    assert_eq!(states(&world, "m"), [("s-0".to_owned(), ReplicaState::Loading)]);
}

#[test]
fn what_could_not_be_unloaded_is_tried_again() {
    let mut world = served();
    let s = id("s", 0);
    world.apply(unload("m")).unwrap();
    world.follow_routes();
    world.work(&s, Luck::Bad);
    assert_eq!(world.summary("m").state, ModelState::TerminateFailed);
    world.wait(1_500);
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Terminated);
}

#[test]
fn after_a_restart_everything_is_routed_at_once() {
    let mut world = served();
    world.load(definition("asleep", 1, 0)).unwrap();
    world.join(&id("t", 0), 100);
    world.restart();
    assert_eq!(world.routed_to("m"), ["s-0"]);
    assert_eq!(world.summary("m").state, ModelState::Progressing);
    world.follow_routes();
    let effects = world.announce(&id("s", 0));
    assert!(effects.orders.is_empty(), "what is loaded stays");
    assert_eq!(world.summary("m").state, ModelState::Available);
    world.restart();
    world.announce(&id("s", 0));
    assert_eq!(
        world.summary("m").state,
        ModelState::Progressing,
        "gateways have not said that they route to it"
    );
    world.follow_routes();
    assert_eq!(world.summary("m").state, ModelState::Available);
    world.restart();
    world.announce(&id("t", 0));
    assert!(world.agents[&id("t", 0)].orders.is_empty(), "its replica has its time of grace");
    world.wait(11_000);
    world.quiesce();
    assert_eq!(world.routed_to("m"), ["t-0"]);
}

#[test]
fn a_jump_of_the_clock_expires_nothing() {
    let mut world = served();
    world.silence(&id("s", 0));
    world.now += 3_600_000;
    world.apply(Command::Tick).unwrap();
    assert_eq!(world.routed_to("m"), ["s-0"], "an hour forward");
    world.now -= 7_200_000;
    for _ in 0..3 {
        world.apply(Command::Tick).unwrap();
    }
    assert_eq!(world.routed_to("m"), ["s-0"], "two hours back");
    world.wait(11_000);
    assert!(world.routed_to("m").is_empty(), "and the grace ends all the same");
}

#[test]
fn the_scheduler_asks_to_be_woken_when_there_is_something_to_do() {
    let mut world = served();
    assert_eq!(world.apply(Command::Tick).unwrap().wake_at, None, "nothing is to do");
    world.agents.get_mut(&id("s", 0)).unwrap().connected = false;
    let effects = world.apply(Command::ReplicaSilent { id: id("s", 0) }).unwrap();
    assert_eq!(effects.wake_at, Some(world.now + 5_000), "longer steps would not count");
    world.now += 4_000;
    let effects = world.apply(Command::Tick).unwrap();
    assert_eq!(effects.wake_at, Some(world.now + 5_000));
    world.now += 4_000;
    let effects = world.apply(Command::Tick).unwrap();
    assert!(effects.wake_at.unwrap() < world.now + 5_000);
}

#[test]
fn a_number_never_means_two_versions() {
    let mut world = served();
    let number = |w: &World| w.state.models()["m"].latest().unwrap().number;
    world.load(definition("m", 2, 1)).unwrap();
    assert_eq!(number(&world), 2);
    let gone = |w: &mut World| {
        w.apply(unload("m")).unwrap();
        w.quiesce();
    };
    gone(&mut world);
    world.load(definition("m", 2, 1)).unwrap();
    assert_eq!(number(&world), 2, "the same again");
    gone(&mut world);
    world.load(definition("m", 1, 1)).unwrap();
    assert_eq!(number(&world), 3, "something else");
    gone(&mut world);
    world.load(Definition { generation: Some(9), ..definition("m", 1, 1) }).unwrap();
    assert_eq!(number(&world), 9);
    gone(&mut world);
    let effects = world.wait(2 * 86_400_000);
    assert!(effects.store_models.contains("m"));
    assert!(!world.state.models().contains_key("m"), "what was deleted is forgotten in the end");
}

#[test]
fn a_join_costs_what_it_can_place() {
    let mut world = World::new();
    for number in 0..600 {
        let mut d = definition(&format!("m{number}"), 1, 1);
        d.needs.memory = 10 + number / 300;
        world
            .state
            .apply(Command::LoadModel { definition: Box::new(d), by: Manager::Cli }, world.now)
            .unwrap();
    }
    let effects = world.join(&id("s", 0), 25);
    assert_eq!(effects.orders.len(), 2);
    assert!(effects.models.len() <= 4, "{} models were looked at", effects.models.len());
    assert_eq!(effects.wake_at, Some(world.now), "the others are looked at in parts");
    let looked_at = |effects: Effects| effects.models.len();
    let parts =
        [looked_at(world.apply(Command::Tick).unwrap()), looked_at(world.apply(Command::Tick).unwrap())];
    assert!(parts.iter().all(|part| *part <= 500) && parts.iter().sum::<usize>() >= 596, "{parts:?}");
    assert!(world.summary("m599").reason.starts_with("needs 11 B, most free is 5 B"));
    assert_eq!(world.apply(Command::Tick).unwrap().models.len(), 0, "and only once");
}

#[test]
fn small_ones_do_not_wait_behind_large_ones() {
    let mut world = World::new();
    world.join(&id("s", 0), 30);
    for (name, memory) in [("a", 30), ("large", 25), ("small", 5)] {
        let mut d = definition(name, 1, 1);
        d.needs.memory = memory;
        world.load(d).unwrap();
    }
    assert_eq!(world.state.waiting(), 2);
    world.apply(unload("a")).unwrap();
    let order = world.agents.get_mut(&id("s", 0)).unwrap().orders.pop_front().unwrap();
    assert_eq!(&*order.model, "a");
    let event = ReplicaEvent::Unloaded;
    let report =
        Command::ReplicaReported { id: id("s", 0), model: "a".into(), version: 1, event, memory_free: 30 };
    let orders: Vec<_> = world.apply(report).unwrap().orders.into_iter().map(|o| o.model).collect();
    assert_eq!(orders, ["small".into(), Arc::<str>::from("large")]);
}

#[test]
fn replicas_are_chosen_by_room_then_by_how_little_they_have() {
    let mut world = World::new();
    for (index, memory) in [(0, 50), (1, 80), (2, 80)] {
        world.join(&id("s", index), memory);
    }
    let placed = |w: &World, name: &str| states(w, name)[0].0.clone();
    world.load(definition("a", 1, 1)).unwrap();
    assert_eq!(placed(&world, "a"), "s-1", "most free, then the first");
    world.load(definition("b", 1, 1)).unwrap();
    assert_eq!(placed(&world, "b"), "s-2", "what is promised is not free");
    let mut weightless = definition("c", 1, 1);
    weightless.needs.memory = 0;
    world.load(weightless.clone()).unwrap();
    weightless.name = "d".into();
    world.load(weightless).unwrap();
    assert_eq!((placed(&world, "c").as_str(), placed(&world, "d").as_str()), ("s-1", "s-2"));
}

#[test]
fn what_the_runtime_takes_counts_from_then_on() {
    let mut world = World::new();
    world.join(&id("s", 0), 100);
    world.join(&id("s", 1), 35);
    world.load(definition("m", 1, 1)).unwrap();
    let order = world.agents.get_mut(&id("s", 0)).unwrap().orders.pop_front().unwrap();
    world.agents.get_mut(&id("s", 0)).unwrap().loaded.insert((order.model.clone(), 1));
    let event = ReplicaEvent::Loaded { multiplier: Some(4) };
    let report =
        Command::ReplicaReported { id: id("s", 0), model: order.model, version: 1, event, memory_free: 60 };
    world.apply(report).unwrap();
    world.load(definition("m", 1, 2)).unwrap();
    assert_eq!(
        world.summary("m").reason,
        "2 replicas are wanted, server s can take 1: needs 40 B, most free is 35 B on s-1"
    );
}

#[test]
fn what_agents_say_of_sharing_counts() {
    let mut world = World::new();
    let unsaid = |replicas| Command::ExpectServer {
        name: "s".into(),
        expected: Expectation { replicas, min: 0, max: 0, generation: None },
        shared: false,
        namespace: None,
        by: Manager::Cli,
    };
    world.apply(unsaid(1)).unwrap();
    world.join(&id("s", 0), 100);
    world.apply(unsaid(2)).unwrap();
    world.load(definition("m", 1, 1)).unwrap();
    world.quiesce();
    assert_eq!(world.summary("m").state, ModelState::Available);
}

#[test]
fn what_could_not_be_loaded_leaves_its_room_to_others() {
    let mut world = World::new();
    world.join(&id("s", 0), 15);
    world.load(definition("a", 1, 1)).unwrap();
    world.load(definition("b", 1, 1)).unwrap();
    assert_eq!(world.summary("b").code, Some(Reason::NoMemory));
    world.work(&id("s", 0), Luck::Bad);
    assert_eq!(states(&world, "b"), [("s-0".to_owned(), ReplicaState::Loading)]);
    world.quiesce();
    world.wait(2_000);
    assert_eq!(world.summary("a").code, Some(Reason::NoMemory), "now it has to wait");
}

#[test]
fn an_older_version_helps_until_it_is_superseded_and_never_after() {
    let mut world = served();
    world.join(&id("s", 1), 300);
    world.load(definition("m", 2, 1)).unwrap();
    world.work(&id("s", 1), Luck::Good);
    assert_eq!(world.routed("m"), [2]);
    world.silence(&id("s", 1));
    assert_eq!(world.routed("m"), [1, 2], "the new one fell silent before it took over");
    world.announce(&id("s", 1));
    assert_eq!(world.routed("m"), [2]);
    world.follow_routes();
    world.silence(&id("s", 1));
    world.wait(11_000);
    world.quiesce();
    assert_eq!(world.routed("m"), [2], "it had taken over");
    assert_eq!(world.routed_to("m"), ["s-0"]);
}

#[test]
fn what_turns_out_not_to_be_loaded_leaves_the_route() {
    let mut world = served();
    world.crash(&id("s", 0));
    assert!(world.routed_to("m").is_empty());
    assert_eq!(world.summary("m").reason, "s-0: it crashed");
    world.wait(1_500);
    assert_eq!(world.summary("m").reason, "tried again after s-0: it crashed");
    world.quiesce();
    assert_eq!((world.summary("m").state, world.summary("m").reason.as_str()), (ModelState::Available, ""));
}

#[test]
fn what_nobody_wants_is_unloaded_when_no_gateway_can_use_it() {
    let mut world = served();
    let (s, t) = (id("s", 0), id("t", 0));
    world.join(&t, 100);
    world.silence(&s);
    world.wait(11_000);
    world.work(&t, Luck::Good);
    let effects = world.announce(&s);
    assert!(effects.orders.is_empty(), "a gateway may not know yet that it moved");
    world.follow(0, 9);
    assert!(world.agents[&s].orders.is_empty());
    world.follow_routes();
    assert_eq!(world.agents[&s].orders.len(), 1);
    world.quiesce();
    assert!(world.agents[&s].loaded.is_empty());
    assert_eq!(world.routed_to("m"), ["t-0"]);
}

#[test]
fn a_replica_is_unloaded_when_its_last_request_is_answered_not_before() {
    let mut world = served();
    let s = id("s", 0);
    world.apply(unload("m")).unwrap();
    world.follow(0, 1);
    assert!(world.agents[&s].orders.is_empty(), "gateways know, but are not done");
    world.follow(0, 0);
    assert_eq!(world.agents[&s].orders.len(), 1);
}

#[test]
fn why_a_model_waits_is_found_anew_when_servers_change() {
    let mut world = World::new();
    let mut d = definition("m", 1, 1);
    d.needs.requirements = vec!["lightgbm".into()];
    world.load(d).unwrap();
    assert_eq!(world.summary("m").code, Some(Reason::NoServer));
    let effects = world.join(&id("s", 0), 100);
    assert_eq!(effects.wake_at, Some(world.now));
    let effects = world.apply(Command::Tick).unwrap();
    assert!(effects.models.contains("m") && effects.routes.contains("m"));
    assert_eq!(world.summary("m").code, Some(Reason::NoCapability));
}
