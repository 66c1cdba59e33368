//! Silence, loss, draining, moves, retries, restarts and clocks.

use super::*;

/// A world in which `m` serves in one replica on `s-0`.
fn served() -> Harness {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    harness
}

fn states(harness: &Harness, name: &str) -> Vec<(String, ReplicaState)> {
    let model = &harness.state.models()[name];
    model.versions.iter().flat_map(Version::placements).map(|(s, i, r)| (format!("{s}-{i}"), r.state)).collect()
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
    let mut harness = served();
    let s = id("s", 0);
    harness.disconnect(&s);
    assert_eq!(states(&harness, "m"), [("s-0".to_owned(), ReplicaState::LoadedUnavailable)]);
    assert_eq!(harness.version_status("m").state, ModelState::Progressing);
    assert_eq!((harness.version_status("m").code, harness.version_status("m").available), (Some(Reason::Silent), 0));
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    let effects = harness.subscribe(&s);
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    assert!(effects.routes.is_empty(), "every gateway routes to it as before");
    assert!(effects.orders.is_empty());
}

#[test]
fn a_replica_that_comes_back_elsewhere_is_routed_anew() {
    let mut harness = served();
    harness.disconnect(&id("s", 0));
    let endpoint = Endpoint { host: "10.0.0.7".into(), http_port: 1, grpc_port: 2 };
    let replica = Replica { endpoint, memory_free: 90, ..replica(100) };
    harness.agents.get_mut(&id("s", 0)).unwrap().connected = true;
    let loaded = vec![("m".into(), 1)];
    let joined = Command::ReplicaJoined { id: id("s", 0), replica, shared: true, loaded };
    assert!(harness.apply(joined).unwrap().routes.contains("m"));
    assert_eq!(harness.version_status("m").state, ModelState::Progressing, "gateways still have the old place");
    harness.acknowledge_routes();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn after_the_grace_a_silent_replica_is_lost() {
    let mut harness = served();
    harness.join(&id("t", 0), 100);
    harness.disconnect(&id("s", 0));
    harness.wait(9_000);
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    harness.wait(2_000);
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["t-0"]);
    assert!(harness.state.servers()["s"].replicas.is_empty());
}

#[test]
fn what_comes_back_and_is_not_wanted_stays_until_no_gateway_uses_it() {
    let mut harness = served();
    let s = id("s", 0);
    // The server lost the model, and its agent joins again at once; a gateway has not heard of either.
    harness.disconnect(&s);
    harness.agents.get_mut(&s).unwrap().loaded.clear();
    harness.forget(&s, None);
    harness.subscribe(&s);
    assert_eq!(states(&harness, "m"), [("s-0".to_owned(), ReplicaState::Loading)]);
    let effects = harness.apply(unload("m")).unwrap();
    assert!(effects.orders.is_empty(), "a gateway may route there: {effects:?}");
    assert_eq!(states(&harness, "m"), [("s-0".to_owned(), ReplicaState::UnloadEnvoyRequested)]);
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Terminated);
    assert!(harness.agents[&s].loaded.is_empty());
    // What no gateway ever heard of goes at once.
    harness.load(definition("n", 1, 1)).unwrap();
    assert_eq!(states(&harness, "n"), [("s-0".to_owned(), ReplicaState::Loading)]);
    assert_eq!(harness.apply(unload("n")).unwrap().orders.len(), 1);
}

#[test]
fn what_an_agent_lost_is_loaded_again_and_orders_are_given_again() {
    let mut harness = served();
    let s = id("s", 0);
    harness.load(definition("n", 1, 1)).unwrap();
    harness.disconnect(&s);
    assert_eq!(states(&harness, "n"), [("s-0".to_owned(), ReplicaState::LoadRequested)]);
    harness.agents.get_mut(&s).unwrap().loaded.clear();
    harness.forget(&s, None);
    let effects = harness.subscribe(&s);
    let loads: Vec<&str> = effects.orders.iter().filter(|o| o.load.is_some()).map(|o| &*o.model).collect();
    assert_eq!(loads, ["m", "n"]);
    harness.disconnect(&s);
    harness.apply(unload("n")).unwrap();
    assert_eq!(states(&harness, "n"), [("s-0".to_owned(), ReplicaState::UnloadRequested)]);
    harness.subscribe(&s);
    harness.quiesce();
    assert_eq!(harness.version_status("n").state, ModelState::Terminated);
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn a_drained_replica_serves_until_another_does() {
    let mut harness = served();
    let (from, to) = (id("s", 0), id("s", 1));
    harness.join(&to, 100);
    let effects = harness.apply(Command::DrainReplica { id: from.clone() }).unwrap();
    assert!(effects.drained.is_empty());
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    assert_eq!(states(&harness, "m")[0].1, ReplicaState::Draining);
    harness.work(&to, Outcome::Success);
    assert_eq!(harness.routed_to("m"), ["s-0", "s-1"]);
    harness.acknowledge_routes();
    assert_eq!(harness.routed_to("m"), ["s-1"]);
    harness.acknowledge_routes();
    let order = harness.agents.get_mut(&from).unwrap().orders.pop_front().unwrap();
    assert!(order.load.is_none());
    harness.agents.get_mut(&from).unwrap().loaded.clear();
    let (model, version, event) = (order.model, order.version, ReplicaEvent::Unloaded);
    let report = Command::ReplicaReported { id: from.clone(), model, version, event, memory_free: 100 };
    assert_eq!(harness.apply(report).unwrap().drained, [(from, true)]);
}

#[test]
fn what_cannot_go_anywhere_stays_and_the_drain_says_so() {
    let mut harness = served();
    let effects = harness.apply(Command::DrainReplica { id: id("s", 0) }).unwrap();
    assert_eq!(effects.drained, [(id("s", 0), false)]);
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    let effects = harness.apply(Command::DrainReplica { id: id("x", 9) }).unwrap();
    assert_eq!(effects.drained, [(id("x", 9), true)], "nothing is on what is not there");
    harness.subscribe(&id("s", 0));
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available, "it is back after all");
}

#[test]
fn a_replica_that_ends_leaves_the_route_of_a_model_that_others_serve_even_without_room_for_one_more() {
    let mut harness = Harness::new();
    for index in 0..2 {
        harness.join(&id("s", index), 100);
    }
    harness.load(definition("m", 1, 2)).unwrap();
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["s-0", "s-1"]);
    let effects = harness.apply(Command::DrainReplica { id: id("s", 1) }).unwrap();
    assert!(effects.drained.is_empty(), "gateways may still send requests there: {effects:?}");
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    harness.acknowledge_routes();
    let order = harness.agents.get_mut(&id("s", 1)).unwrap().orders.pop_front().unwrap();
    assert!(order.load.is_none());
    harness.agents.get_mut(&id("s", 1)).unwrap().loaded.clear();
    let (model, version, event) = (order.model, order.version, ReplicaEvent::Unloaded);
    let report = Command::ReplicaReported { id: id("s", 1), model, version, event, memory_free: 100 };
    assert_eq!(harness.apply(report).unwrap().drained, [(id("s", 1), true)]);
    harness.lose(&id("s", 1));
    harness.join(&id("s", 1), 100);
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["s-0", "s-1"], "the one that comes back is filled again");
}

#[test]
fn models_leave_a_server_that_goes_and_are_served_meanwhile() {
    let mut harness = served();
    harness.join(&id("t", 0), 100);
    harness.apply(expect("s", 0, 0, 0)).unwrap();
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    assert_eq!(harness.state.models()["m"].latest().unwrap().server.as_deref(), Some("t"));
    harness.work(&id("t", 0), Outcome::Success);
    assert_eq!(harness.routed_to("m"), ["s-0", "t-0"]);
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["t-0"]);
    assert!(harness.agents[&id("s", 0)].loaded.is_empty());
    harness.lose(&id("s", 0));
    assert!(!harness.state.servers().contains_key("s"));
}

#[test]
fn a_version_moves_when_its_server_can_no_longer_hold_it() {
    let mut harness = Harness::new();
    for index in 0..2 {
        harness.join(&id("s", index), 100);
    }
    harness.load(definition("m", 1, 2)).unwrap();
    harness.quiesce();
    harness.lose(&id("s", 1));
    assert_eq!(harness.version_status("m").state, ModelState::Progressing);
    assert_eq!(harness.version_status("m").reason, "2 replicas are wanted, server s can take 1");
    for index in 0..2 {
        harness.join(&id("t", index), 100);
    }
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["t-0", "t-1"]);
    assert!(harness.agents[&id("s", 0)].loaded.is_empty());
}

#[test]
fn a_failed_load_is_tried_again_with_growing_waits() {
    let mut harness = Harness::new();
    let s = id("s", 0);
    harness.join(&s, 100);
    harness.load(definition("m", 1, 1)).unwrap();
    for wait in [1_000u64, 2_000, 4_000, 8_000] {
        harness.work(&s, Outcome::Failure);
        assert_eq!(harness.version_status("m").state, ModelState::Failed);
        harness.wait(wait - 200);
        assert!(harness.agents[&s].orders.is_empty(), "not before {wait} ms");
        harness.wait(400);
        assert_eq!(harness.agents[&s].orders.len(), 1, "after {wait} ms");
    }
    for _ in 0..8 {
        harness.work(&s, Outcome::Failure);
        harness.wait(301_000);
    }
    assert_eq!(harness.agents[&s].orders.len(), 1, "never more than five minutes apart");
    harness.work(&s, Outcome::Success);
    harness.quiesce();
    assert_eq!(harness.state.models()["m"].latest().unwrap().attempts, 0);
}

#[test]
fn a_failed_load_is_tried_at_once_when_replicas_change_and_elsewhere_first() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    harness.join(&id("s", 1), 50);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.work(&id("s", 0), Outcome::Failure);
    harness.load(definition("m", 1, 1)).unwrap();
    assert_eq!(states(&harness, "m"), [("s-1".to_owned(), ReplicaState::Loading)]);
    harness.work(&id("s", 1), Outcome::OutOfMemory);
    assert_eq!(harness.version_status("m").code, Some(Reason::LoadFailedMemory));
    harness.subscribe(&id("s", 1));
    assert_eq!(states(&harness, "m"), [("s-0".to_owned(), ReplicaState::Loading)]);
}

#[test]
fn what_could_not_be_unloaded_is_tried_again() {
    let mut harness = served();
    let s = id("s", 0);
    harness.apply(unload("m")).unwrap();
    harness.acknowledge_routes();
    harness.work(&s, Outcome::Failure);
    assert_eq!(harness.version_status("m").state, ModelState::TerminateFailed);
    harness.wait(1_500);
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Terminated);
}

#[test]
fn after_a_restart_everything_is_routed_at_once() {
    let mut harness = served();
    harness.load(definition("asleep", 1, 0)).unwrap();
    harness.join(&id("t", 0), 100);
    harness.restart();
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    assert_eq!(harness.version_status("m").state, ModelState::Progressing);
    harness.acknowledge_routes();
    let effects = harness.subscribe(&id("s", 0));
    assert!(effects.orders.is_empty(), "what is loaded stays");
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    harness.restart();
    harness.subscribe(&id("s", 0));
    assert_eq!(
        harness.version_status("m").state,
        ModelState::Progressing,
        "gateways have not said that they route to it"
    );
    harness.acknowledge_routes();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    harness.restart();
    harness.subscribe(&id("t", 0));
    assert!(harness.agents[&id("t", 0)].orders.is_empty(), "its replica has its time of grace");
    harness.wait(11_000);
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["t-0"]);
}

#[test]
fn a_jump_of_the_clock_expires_nothing() {
    let mut harness = served();
    harness.disconnect(&id("s", 0));
    harness.now += 3_600_000;
    harness.apply(Command::Tick).unwrap();
    assert_eq!(harness.routed_to("m"), ["s-0"], "an hour forward");
    harness.now -= 7_200_000;
    for _ in 0..3 {
        harness.apply(Command::Tick).unwrap();
    }
    assert_eq!(harness.routed_to("m"), ["s-0"], "two hours back");
    harness.wait(11_000);
    assert!(harness.routed_to("m").is_empty(), "and the grace ends all the same");
}

#[test]
fn the_scheduler_asks_to_be_woken_when_there_is_something_to_do() {
    let mut harness = served();
    assert_eq!(harness.apply(Command::Tick).unwrap().wake_at, None, "nothing is to do");
    harness.agents.get_mut(&id("s", 0)).unwrap().connected = false;
    let effects = harness.apply(Command::ReplicaDisconnected { id: id("s", 0) }).unwrap();
    assert_eq!(effects.wake_at, Some(harness.now + 5_000), "longer steps would not count");
    harness.now += 4_000;
    let effects = harness.apply(Command::Tick).unwrap();
    assert_eq!(effects.wake_at, Some(harness.now + 5_000));
    harness.now += 4_000;
    let effects = harness.apply(Command::Tick).unwrap();
    assert!(effects.wake_at.unwrap() < harness.now + 5_000);
}

#[test]
fn a_number_never_means_two_versions() {
    let mut harness = served();
    let number = |w: &Harness| w.state.models()["m"].latest().unwrap().number;
    harness.load(definition("m", 2, 1)).unwrap();
    assert_eq!(number(&harness), 2);
    let gone = |w: &mut Harness| {
        w.apply(unload("m")).unwrap();
        w.quiesce();
    };
    gone(&mut harness);
    harness.load(definition("m", 2, 1)).unwrap();
    assert_eq!(number(&harness), 2, "the same again");
    gone(&mut harness);
    harness.load(definition("m", 1, 1)).unwrap();
    assert_eq!(number(&harness), 3, "something else");
    gone(&mut harness);
    harness.load(Definition { generation: Some(9), ..definition("m", 1, 1) }).unwrap();
    assert_eq!(number(&harness), 9);
    gone(&mut harness);
    let effects = harness.wait(2 * 86_400_000);
    assert!(effects.store_models.contains("m"));
    assert!(!harness.state.models().contains_key("m"), "what was deleted is forgotten in the end");
}

#[test]
fn a_join_costs_what_it_can_place() {
    let mut harness = Harness::new();
    for number in 0..600 {
        let mut d = definition(&format!("m{number}"), 1, 1);
        d.needs.memory = 10 + number / 300;
        harness
            .state
            .apply(Command::LoadModel { definition: Box::new(d), by: Owner::Cli }, harness.now)
            .unwrap();
    }
    let effects = harness.join(&id("s", 0), 25);
    assert_eq!(effects.orders.len(), 2);
    assert!(effects.models.len() <= 4, "{} models were looked at", effects.models.len());
    assert_eq!(effects.wake_at, Some(harness.now), "the others are looked at in parts");
    let looked_at = |effects: Effects| effects.models.len();
    let parts =
        [looked_at(harness.apply(Command::Tick).unwrap()), looked_at(harness.apply(Command::Tick).unwrap())];
    assert!(parts.iter().all(|part| *part <= 500) && parts.iter().sum::<usize>() >= 596, "{parts:?}");
    assert!(harness.version_status("m599").reason.starts_with("needs 11 B, most free is 5 B"));
    assert_eq!(harness.apply(Command::Tick).unwrap().models.len(), 0, "and only once");
}

#[test]
fn small_ones_do_not_wait_behind_large_ones() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 30);
    for (name, memory) in [("a", 30), ("large", 25), ("small", 5)] {
        let mut d = definition(name, 1, 1);
        d.needs.memory = memory;
        harness.load(d).unwrap();
    }
    assert_eq!(harness.state.waiting(), 2);
    harness.apply(unload("a")).unwrap();
    let order = harness.agents.get_mut(&id("s", 0)).unwrap().orders.pop_front().unwrap();
    assert_eq!(&*order.model, "a");
    let event = ReplicaEvent::Unloaded;
    let report =
        Command::ReplicaReported { id: id("s", 0), model: "a".into(), version: 1, event, memory_free: 30 };
    let orders: Vec<_> = harness.apply(report).unwrap().orders.into_iter().map(|o| o.model).collect();
    assert_eq!(orders, ["small".into(), Arc::<str>::from("large")]);
}

#[test]
fn replicas_are_chosen_by_room_then_by_how_little_they_have() {
    let mut harness = Harness::new();
    for (index, memory) in [(0, 50), (1, 80), (2, 80)] {
        harness.join(&id("s", index), memory);
    }
    let placed = |w: &Harness, name: &str| states(w, name)[0].0.clone();
    harness.load(definition("a", 1, 1)).unwrap();
    assert_eq!(placed(&harness, "a"), "s-1", "most free, then the first");
    harness.load(definition("b", 1, 1)).unwrap();
    assert_eq!(placed(&harness, "b"), "s-2", "what is promised is not free");
    let mut weightless = definition("c", 1, 1);
    weightless.needs.memory = 0;
    harness.load(weightless.clone()).unwrap();
    weightless.name = "d".into();
    harness.load(weightless).unwrap();
    assert_eq!((placed(&harness, "c").as_str(), placed(&harness, "d").as_str()), ("s-1", "s-2"));
}

#[test]
fn what_the_runtime_takes_counts_from_then_on() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    harness.join(&id("s", 1), 35);
    harness.load(definition("m", 1, 1)).unwrap();
    let order = harness.agents.get_mut(&id("s", 0)).unwrap().orders.pop_front().unwrap();
    harness.agents.get_mut(&id("s", 0)).unwrap().loaded.insert((order.model.clone(), 1));
    let event = ReplicaEvent::Loaded { multiplier: Some(4) };
    let report =
        Command::ReplicaReported { id: id("s", 0), model: order.model, version: 1, event, memory_free: 60 };
    harness.apply(report).unwrap();
    harness.load(definition("m", 1, 2)).unwrap();
    assert_eq!(
        harness.version_status("m").reason,
        "2 replicas are wanted, server s can take 1: needs 40 B, most free is 35 B on s-1"
    );
}

#[test]
fn what_agents_say_of_sharing_counts() {
    let mut harness = Harness::new();
    let unsaid = |replicas| Command::UpsertServer {
        name: "s".into(),
        expected: ExpectedReplicas { replicas, min: 0, max: 0, generation: None },
        shared: false,
        namespace: None,
        by: Owner::Cli,
    };
    harness.apply(unsaid(1)).unwrap();
    harness.join(&id("s", 0), 100);
    harness.apply(unsaid(2)).unwrap();
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn what_could_not_be_loaded_leaves_its_room_to_others() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 15);
    harness.load(definition("a", 1, 1)).unwrap();
    harness.load(definition("b", 1, 1)).unwrap();
    assert_eq!(harness.version_status("b").code, Some(Reason::NoMemory));
    harness.work(&id("s", 0), Outcome::Failure);
    assert_eq!(states(&harness, "b"), [("s-0".to_owned(), ReplicaState::Loading)]);
    harness.quiesce();
    harness.wait(2_000);
    assert_eq!(harness.version_status("a").code, Some(Reason::NoMemory), "now it has to wait");
}

#[test]
fn an_older_version_helps_until_it_is_superseded_and_never_after() {
    let mut harness = served();
    harness.join(&id("s", 1), 300);
    harness.load(definition("m", 2, 1)).unwrap();
    harness.work(&id("s", 1), Outcome::Success);
    assert_eq!(harness.routed("m"), [2]);
    harness.disconnect(&id("s", 1));
    assert_eq!(harness.routed("m"), [1, 2], "the new one fell silent before it took over");
    harness.subscribe(&id("s", 1));
    assert_eq!(harness.routed("m"), [2]);
    harness.acknowledge_routes();
    harness.disconnect(&id("s", 1));
    harness.wait(11_000);
    harness.quiesce();
    assert_eq!(harness.routed("m"), [2], "it had taken over");
    assert_eq!(harness.routed_to("m"), ["s-0"]);
}

#[test]
fn what_turns_out_not_to_be_loaded_leaves_the_route() {
    let mut harness = served();
    harness.crash(&id("s", 0));
    assert!(harness.routed_to("m").is_empty());
    assert_eq!(harness.version_status("m").reason, "s-0: it crashed");
    harness.wait(1_500);
    assert_eq!(harness.version_status("m").reason, "tried again after s-0: it crashed");
    harness.quiesce();
    assert_eq!((harness.version_status("m").state, harness.version_status("m").reason.as_str()), (ModelState::Available, ""));
}

#[test]
fn what_nobody_wants_is_unloaded_when_no_gateway_can_use_it() {
    let mut harness = served();
    let (s, t) = (id("s", 0), id("t", 0));
    harness.join(&t, 100);
    harness.disconnect(&s);
    harness.wait(11_000);
    harness.work(&t, Outcome::Success);
    let effects = harness.subscribe(&s);
    assert!(effects.orders.is_empty(), "a gateway may not know yet that it moved");
    harness.acknowledge(0, 9);
    assert!(harness.agents[&s].orders.is_empty());
    harness.acknowledge_routes();
    assert_eq!(harness.agents[&s].orders.len(), 1);
    harness.quiesce();
    assert!(harness.agents[&s].loaded.is_empty());
    assert_eq!(harness.routed_to("m"), ["t-0"]);
}

#[test]
fn a_replica_is_unloaded_when_its_last_request_is_answered_not_before() {
    let mut harness = served();
    let s = id("s", 0);
    harness.apply(unload("m")).unwrap();
    harness.acknowledge(0, 1);
    assert!(harness.agents[&s].orders.is_empty(), "gateways know, but are not done");
    harness.acknowledge(0, 0);
    assert_eq!(harness.agents[&s].orders.len(), 1);
}

#[test]
fn why_a_model_waits_is_found_anew_when_servers_change() {
    let mut harness = Harness::new();
    let mut d = definition("m", 1, 1);
    d.needs.requirements = vec!["lightgbm".into()];
    harness.load(d).unwrap();
    assert_eq!(harness.version_status("m").code, Some(Reason::NoServer));
    let effects = harness.join(&id("s", 0), 100);
    assert_eq!(effects.wake_at, Some(harness.now));
    let effects = harness.apply(Command::Tick).unwrap();
    assert!(effects.models.contains("m") && effects.routes.contains("m"));
    assert_eq!(harness.version_status("m").code, Some(Reason::NoCapability));
}
