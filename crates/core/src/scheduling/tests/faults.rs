//! Disconnects, loss, draining, moves, retries, restarts and clocks.

use super::*;

/// `m` serves in one replica on `s-0`.
fn served() -> Harness {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    harness
}

fn states(harness: &Harness, name: &str) -> Vec<(String, ReplicaState)> {
    let model = &harness.state.models()[name];
    model
        .versions
        .iter()
        .flat_map(Version::placements)
        .map(|(s, i, r)| (format!("{s}-{i}"), r.state))
        .collect()
}

#[test]
fn state_numbers_match_seldon_api() {
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
fn disconnected_replica_keeps_routes_but_is_unavailable() {
    let mut harness = served();
    let s = id("s", 0);
    harness.disconnect(&s);
    assert_eq!(states(&harness, "m"), [("s-0".to_owned(), ReplicaState::LoadedUnavailable)]);
    assert_eq!(harness.version_status("m").state, ModelState::Progressing);
    assert_eq!(
        (harness.version_status("m").code, harness.version_status("m").available),
        (Some(Reason::Silent), 0)
    );
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    let effects = harness.subscribe(&s);
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    assert!(effects.routes.is_empty(), "routes are unchanged");
    assert!(effects.orders.is_empty());
}

#[test]
fn rejoin_with_new_endpoint_publishes_route() {
    let mut harness = served();
    harness.disconnect(&id("s", 0));
    let endpoint = Endpoint { host: "10.0.0.7".into(), http_port: 1, grpc_port: 2 };
    let replica = Replica { endpoint, memory_free: 90, ..replica(100) };
    harness.agents.get_mut(&id("s", 0)).unwrap().connected = true;
    let loaded = vec![loaded_version("m", 1, None)];
    let joined = Command::ReplicaJoined { id: id("s", 0), replica, shared: true, loaded };
    assert!(harness.apply(joined).unwrap().routes.contains("m"));
    assert_eq!(harness.version_status("m").state, ModelState::Progressing, "gateways have the old endpoint");
    harness.acknowledge_routes();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn disconnected_replica_is_lost_after_grace_period() {
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
fn deleted_model_reloading_after_rejoin_is_drained_first() {
    let mut harness = served();
    let s = id("s", 0);
    // The server loses the model and its agent rejoins at once; gateways have not acknowledged either.
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
    // A model that was never routed is unloaded at once.
    harness.load(definition("n", 1, 1)).unwrap();
    assert_eq!(states(&harness, "n"), [("s-0".to_owned(), ReplicaState::Loading)]);
    assert_eq!(harness.apply(unload("n")).unwrap().orders.len(), 1);
}

#[test]
fn rejoin_reloads_lost_models_and_resends_orders() {
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
fn draining_replica_serves_until_another_is_available() {
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
fn drain_fails_when_models_cannot_move() {
    let mut harness = served();
    let effects = harness.apply(Command::DrainReplica { id: id("s", 0) }).unwrap();
    assert_eq!(effects.drained, [(id("s", 0), false)]);
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    let effects = harness.apply(Command::DrainReplica { id: id("x", 9) }).unwrap();
    assert_eq!(effects.drained, [(id("x", 9), true)], "an unknown replica is empty");
    harness.subscribe(&id("s", 0));
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available, "it rejoined");
}

/// After a restart of the scheduler, a replica that drains may be the first one that rejoins.
#[test]
fn drain_waits_for_a_replica_that_may_rejoin() {
    let (from, to) = (id("s", 0), id("s", 1));
    let drained = |harness: &mut Harness| {
        harness.join(&to, 100);
        harness.restart();
        harness.subscribe(&from);
        harness.apply(Command::DrainReplica { id: from.clone() }).unwrap().drained
    };
    let mut harness = served();
    assert_eq!(drained(&mut harness), [], "the other replica is not connected yet");
    let effects = harness.subscribe(&to);
    assert_eq!(effects.drained, []);
    harness.work(&to, Outcome::Success);
    harness.acknowledge_routes();
    assert_eq!(harness.routed_to("m"), ["s-1"]);

    let mut harness = served();
    assert_eq!(drained(&mut harness), []);
    let grace = harness.state.policy.grace;
    let effects = harness.wait(grace);
    assert_eq!(effects.drained, [(from.clone(), false)], "the other replica is lost");
    assert_eq!(harness.routed_to("m"), ["s-0"]);

    let mut harness = served();
    assert_eq!(drained(&mut harness), []);
    // It is another machine now, too small for the model.
    let effects = harness.join(&to, 0);
    assert_eq!(effects.drained, [(from, false)], "the other replica has no room");
}

#[test]
fn terminating_replica_leaves_route_when_others_serve() {
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
    assert_eq!(harness.routed_to("m"), ["s-0", "s-1"], "the rejoined replica is used again");
}

#[test]
fn models_move_off_terminating_server_without_interruption() {
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
fn version_moves_when_server_lacks_replicas() {
    let mut harness = Harness::new();
    for index in 0..2 {
        harness.join(&id("s", index), 100);
    }
    harness.load(definition("m", 1, 2)).unwrap();
    harness.quiesce();
    harness.lose(&id("s", 1));
    assert_eq!(harness.version_status("m").state, ModelState::Progressing);
    assert_eq!(harness.version_status("m").reason, "2 replicas desired, server s can take 1");
    for index in 0..2 {
        harness.join(&id("t", index), 100);
    }
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["t-0", "t-1"]);
    assert!(harness.agents[&id("s", 0)].loaded.is_empty());
}

#[test]
fn failed_load_is_retried_with_backoff() {
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

/// After a reconnect, the failure of the first order arrives during the second.
#[test]
fn success_after_a_failure_of_an_earlier_order_is_unloaded() {
    let mut harness = Harness::new();
    let s = id("s", 0);
    harness.join(&s, 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.agents.get_mut(&s).unwrap().orders.clear();
    harness.agents.get_mut(&s).unwrap().loaded.insert(("m".into(), 1));
    for event in [ReplicaEvent::LoadFailed { reason: "no".into() }, ReplicaEvent::Loaded { multiplier: None }]
    {
        let report =
            Command::ReplicaReported { id: s.clone(), model: "m".into(), version: 1, event, memory_free: 60 };
        harness.apply(report).unwrap();
    }
    let order = harness.agents[&s].orders.front().unwrap();
    assert!(order.load.is_none(), "{order:?}");
    harness.work(&s, Outcome::Success);
    harness.wait(2_000);
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn rejected_load_is_not_retried_until_something_changes() {
    let mut harness = Harness::new();
    let s = id("s", 0);
    harness.join(&s, 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.work(&s, Outcome::Rejection);
    assert_eq!(harness.version_status("m").state, ModelState::Failed);
    assert_eq!(harness.version_status("m").reason, "s-0: no such file");
    for _ in 0..10 {
        harness.wait(400_000);
        assert!(harness.agents[&s].orders.is_empty(), "nothing changed");
    }
    harness.load(definition("m", 1, 1)).unwrap();
    assert_eq!(harness.agents[&s].orders.len(), 1, "applied again");
    harness.work(&s, Outcome::Rejection);
    harness.join(&s, 100);
    assert_eq!(harness.agents[&s].orders.len(), 1, "the agent joined again");
    harness.work(&s, Outcome::Rejection);
    harness.load(definition("m", 2, 1)).unwrap();
    harness.work(&s, Outcome::Success);
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available, "another definition");
}

#[test]
fn failed_load_is_retried_elsewhere_when_replicas_change() {
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
fn failed_unload_is_retried() {
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
fn restart_restores_routes_at_once() {
    let mut harness = served();
    harness.load(definition("asleep", 1, 0)).unwrap();
    harness.join(&id("t", 0), 100);
    harness.restart();
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    assert_eq!(harness.version_status("m").state, ModelState::Progressing);
    harness.acknowledge_routes();
    let effects = harness.subscribe(&id("s", 0));
    assert!(effects.orders.is_empty(), "loaded models stay");
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    harness.restart();
    harness.subscribe(&id("s", 0));
    assert_eq!(harness.version_status("m").state, ModelState::Progressing, "not acknowledged");
    harness.acknowledge_routes();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    harness.restart();
    harness.subscribe(&id("t", 0));
    assert!(harness.agents[&id("t", 0)].orders.is_empty(), "within the grace period");
    harness.wait(11_000);
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["t-0"]);
}

#[test]
fn clock_jump_expires_nothing() {
    let mut harness = served();
    harness.disconnect(&id("s", 0));
    harness.now += 3_600_000;
    harness.apply(Command::Tick).unwrap();
    assert_eq!(harness.routed_to("m"), ["s-0"], "one hour forward");
    harness.now -= 7_200_000;
    for _ in 0..3 {
        harness.apply(Command::Tick).unwrap();
    }
    assert_eq!(harness.routed_to("m"), ["s-0"], "two hours back");
    harness.wait(11_000);
    assert!(harness.routed_to("m").is_empty(), "the grace period still ends");
}

#[test]
fn wake_at_is_set_while_timers_are_pending() {
    let mut harness = served();
    assert_eq!(harness.apply(Command::Tick).unwrap().wake_at, None, "no timer");
    harness.agents.get_mut(&id("s", 0)).unwrap().connected = false;
    let effects = harness.apply(Command::ReplicaDisconnected { id: id("s", 0) }).unwrap();
    assert_eq!(effects.wake_at, Some(harness.now + 5_000), "limited by max_clock_step");
    harness.now += 4_000;
    let effects = harness.apply(Command::Tick).unwrap();
    assert_eq!(effects.wake_at, Some(harness.now + 5_000));
    harness.now += 4_000;
    let effects = harness.apply(Command::Tick).unwrap();
    assert!(effects.wake_at.unwrap() < harness.now + 5_000);
}

#[test]
fn version_number_is_never_reused() {
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
    assert_eq!(number(&harness), 2, "same spec");
    gone(&mut harness);
    harness.load(definition("m", 1, 1)).unwrap();
    assert_eq!(number(&harness), 3, "another spec");
    gone(&mut harness);
    harness.load(Definition { generation: Some(9), ..definition("m", 1, 1) }).unwrap();
    assert_eq!(number(&harness), 9);
    gone(&mut harness);
    let effects = harness.wait(2 * 86_400_000);
    assert!(effects.store_models.contains("m"));
    assert!(!harness.state.models().contains_key("m"), "the tombstone expires");
}

#[test]
fn join_touches_only_models_it_can_place() {
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
    assert!(effects.models.len() <= 4, "{} models were touched", effects.models.len());
    assert_eq!(effects.wake_at, Some(harness.now), "the others are retried in batches");
    let looked_at = |effects: Effects| effects.models.len();
    let parts =
        [looked_at(harness.apply(Command::Tick).unwrap()), looked_at(harness.apply(Command::Tick).unwrap())];
    assert!(parts.iter().all(|part| *part <= 500) && parts.iter().sum::<usize>() >= 596, "{parts:?}");
    assert!(harness.version_status("m599").reason.starts_with("needs 11 B, most free is 5 B"));
    assert_eq!(harness.apply(Command::Tick).unwrap().models.len(), 0, "retried once");
}

#[test]
fn small_models_are_placed_before_large_ones() {
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
fn placement_prefers_free_memory_then_fewer_models() {
    let mut harness = Harness::new();
    for (index, memory) in [(0, 50), (1, 80), (2, 80)] {
        harness.join(&id("s", index), memory);
    }
    let placed = |w: &Harness, name: &str| states(w, name)[0].0.clone();
    harness.load(definition("a", 1, 1)).unwrap();
    assert_eq!(placed(&harness, "a"), "s-1", "most free memory, then lowest index");
    harness.load(definition("b", 1, 1)).unwrap();
    assert_eq!(placed(&harness, "b"), "s-2", "reserved memory is not free");
    let mut weightless = definition("c", 1, 1);
    weightless.needs.memory = 0;
    harness.load(weightless.clone()).unwrap();
    weightless.name = "d".into();
    harness.load(weightless).unwrap();
    assert_eq!((placed(&harness, "c").as_str(), placed(&harness, "d").as_str()), ("s-1", "s-2"));
}

#[test]
fn reported_memory_multiplier_applies_to_placement() {
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
        "2 replicas desired, server s can take 1: needs 40 B, most free is 35 B on s-1"
    );
}

#[test]
fn shared_flag_of_agents_is_kept() {
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
fn failed_load_releases_reserved_memory() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 15);
    harness.load(definition("a", 1, 1)).unwrap();
    harness.load(definition("b", 1, 1)).unwrap();
    assert_eq!(harness.version_status("b").code, Some(Reason::NoMemory));
    harness.work(&id("s", 0), Outcome::Failure);
    assert_eq!(states(&harness, "b"), [("s-0".to_owned(), ReplicaState::Loading)]);
    harness.quiesce();
    harness.wait(2_000);
    assert_eq!(harness.version_status("a").code, Some(Reason::NoMemory), "no memory left");
}

#[test]
fn older_version_serves_until_superseded() {
    let mut harness = served();
    harness.join(&id("s", 1), 300);
    harness.load(definition("m", 2, 1)).unwrap();
    harness.work(&id("s", 1), Outcome::Success);
    assert_eq!(harness.routed("m"), [2]);
    harness.disconnect(&id("s", 1));
    assert_eq!(harness.routed("m"), [1, 2], "the new version disconnected before taking over");
    harness.subscribe(&id("s", 1));
    assert_eq!(harness.routed("m"), [2]);
    harness.acknowledge_routes();
    harness.disconnect(&id("s", 1));
    harness.wait(11_000);
    harness.quiesce();
    assert_eq!(harness.routed("m"), [2], "the new version had taken over");
    assert_eq!(harness.routed_to("m"), ["s-0"]);
}

#[test]
fn crashed_replica_leaves_route_and_is_retried() {
    let mut harness = served();
    harness.crash(&id("s", 0));
    assert!(harness.routed_to("m").is_empty());
    assert_eq!(harness.version_status("m").reason, "s-0: it crashed");
    harness.wait(1_500);
    assert_eq!(harness.version_status("m").reason, "retried after s-0: it crashed");
    harness.quiesce();
    assert_eq!(
        (harness.version_status("m").state, harness.version_status("m").reason.as_str()),
        (ModelState::Available, "")
    );
}

#[test]
fn unexpected_replica_is_unloaded_after_gateways_drain() {
    let mut harness = served();
    let (s, t) = (id("s", 0), id("t", 0));
    harness.join(&t, 100);
    harness.disconnect(&s);
    harness.wait(11_000);
    harness.work(&t, Outcome::Success);
    let effects = harness.subscribe(&s);
    assert!(effects.orders.is_empty(), "a gateway may still use the old route");
    harness.acknowledge(0, 9);
    assert!(harness.agents[&s].orders.is_empty());
    harness.acknowledge_routes();
    assert_eq!(harness.agents[&s].orders.len(), 1);
    harness.quiesce();
    assert!(harness.agents[&s].loaded.is_empty());
    assert_eq!(harness.routed_to("m"), ["t-0"]);
}

#[test]
fn replica_is_unloaded_only_when_drained() {
    let mut harness = served();
    let s = id("s", 0);
    harness.apply(unload("m")).unwrap();
    harness.acknowledge(0, 1);
    assert!(harness.agents[&s].orders.is_empty(), "applied, but not drained");
    harness.acknowledge(0, 0);
    assert_eq!(harness.agents[&s].orders.len(), 1);
}

#[test]
fn unschedulable_reason_is_updated_when_servers_change() {
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

/// An agent joins with one loaded version of `m`.
fn join_with(harness: &mut Harness, id: &ReplicaId, version: u32, spec: Option<u8>) -> Effects {
    let agent =
        Agent { memory: 100, connected: true, loaded: [("m".into(), version)].into(), ..Agent::default() };
    harness.agents.insert(id.clone(), agent);
    let loaded = vec![loaded_version("m", version, spec)];
    let replica = replica(100);
    harness.apply(Command::ReplicaJoined { id: id.clone(), replica, shared: true, loaded }).unwrap()
}

#[test]
fn version_with_the_number_of_another_content_is_unloaded_before_it_is_loaded() {
    let mut harness = Harness::new();
    let s = id("s", 0);
    harness.load(definition("m", 2, 1)).unwrap();
    // The scheduler lost its state: version 1 was another content.
    join_with(&mut harness, &s, 1, Some(1));
    assert_eq!(harness.version_status("m").available, 0);
    harness.acknowledge_routes();
    let next = |harness: &Harness| harness.agents[&s].orders.front().map(|o| (o.version, o.load.is_some()));
    assert_eq!(next(&harness), Some((1, false)));
    harness.work(&s, Outcome::Success);
    assert_eq!(next(&harness), Some((1, true)));
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn rejoined_replica_with_another_content_leaves_the_route() {
    let mut harness = served();
    harness.disconnect(&id("s", 0));
    join_with(&mut harness, &id("s", 0), 1, Some(9));
    assert_eq!(harness.routed_to("m"), Vec::<String>::new());
    harness.quiesce();
    assert_eq!(harness.routed_to("m"), ["s-0"]);
    assert_eq!(harness.version_status("m").state, ModelState::Available);
}

#[test]
fn new_model_avoids_the_number_of_another_content_in_memory() {
    for (held, spec, applied, version) in [
        (1, Some(1), 2, 2),
        // The same content, or one that the agent does not report.
        (1, Some(2), 2, 1),
        (3, Some(2), 2, 3),
        (1, None, 2, 1),
    ] {
        let mut harness = Harness::new();
        let s = id("s", 0);
        join_with(&mut harness, &s, held, spec);
        harness.load(definition("m", applied, 1)).unwrap();
        assert_eq!(harness.state.models()["m"].latest().unwrap().number, version, "{held} {spec:?}");
        harness.quiesce();
        assert_eq!(harness.version_status("m").state, ModelState::Available);
    }
}

#[test]
fn waiting_model_is_placed_when_a_load_ends_that_the_agent_had_subtracted() {
    let mut harness = Harness::new();
    let s = id("s", 0);
    harness.join(&s, 20);
    harness.load(definition("a", 1, 1)).unwrap();
    // Seldon's agent subtracts a load in progress from its free memory.
    let report = |model: &str, event| Command::ReplicaReported {
        id: id("s", 0),
        model: model.into(),
        version: 1,
        event,
        memory_free: 10,
    };
    let unrelated = ReplicaEvent::UnloadFailed { reason: String::new() };
    harness.apply(report("other", unrelated)).unwrap();
    harness.load(definition("b", 1, 1)).unwrap();
    assert_eq!(harness.version_status("b").state, ModelState::ScheduleFailed);
    harness.work(&s, Outcome::Success);
    assert_eq!(harness.agents[&s].orders.front().map(|o| &*o.model), Some("b"));
    harness.quiesce();
    assert_eq!(harness.version_status("b").state, ModelState::Available);
}
