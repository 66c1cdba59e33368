//! Routes of services: numbering, admission, demand, durability.

use super::*;

fn record(name: &str, route: &str, sleeps: bool) -> ServiceRecord {
    ServiceRecord {
        name: name.into(),
        route: route.as_bytes().into(),
        sleeps,
        idle_timeout: None,
        delivery: None,
        rollout: None,
    }
}

fn put(state: &mut State, name: &str, route: &str, sleeps: bool) -> Effects {
    state.apply(Command::PutService(Box::new(record(name, route, sleeps))), 0).unwrap()
}

fn delete(state: &mut State, name: &str) -> Effects {
    state.apply(Command::DeleteService { name: name.into() }, 0).unwrap()
}

fn acknowledge(state: &mut State, applied: Option<u64>) -> Effects {
    state.apply(Command::GatewaysAcknowledged { applied }, 0).unwrap()
}

fn demand(state: &mut State, name: &str, waiting: bool) -> Effects {
    state.apply(Command::ServiceDemanded { name: name.into(), waiting, is_active: waiting }, 0).unwrap()
}

#[test]
fn only_a_different_route_is_stored_and_sent() {
    let mut state = State::new(Policy::default());
    let effects = put(&mut state, "ns/a", "1", false);
    assert_eq!(effects.service_routes, BTreeMap::from([("ns/a".into(), 1)]));
    assert!(effects.store_services.contains("ns/a") && effects.services.contains("ns/a"));
    assert_eq!(put(&mut state, "ns/a", "1", false), Effects::default());
    assert_eq!(put(&mut state, "ns/a", "2", false).service_routes, BTreeMap::from([("ns/a".into(), 2)]));
    let effects = delete(&mut state, "ns/a");
    assert_eq!(effects.service_routes, BTreeMap::from([("ns/a".into(), 3)]));
    assert!(effects.store_services.contains("ns/a") && state.service_record("ns/a").is_none());
    assert_eq!(delete(&mut state, "ns/a"), Effects::default());
}

#[test]
fn service_is_admitted_when_every_gateway_has_its_route() {
    let mut state = State::new(Policy::default());
    put(&mut state, "ns/a", "1", false);
    put(&mut state, "ns/b", "1", false);
    let admitted = |state: &State, name: &str| state.services()[name].admitted;
    assert_eq!(state.service_obstacle(), "no gateway is connected");
    let told = acknowledge(&mut state, Some(0)).services;
    assert_eq!(told.len(), 2, "the obstacle is another one");
    assert_eq!(state.service_obstacle(), "a gateway has not acknowledged the route");
    assert_eq!(acknowledge(&mut state, Some(1)).services, BTreeSet::from(["ns/a".into()]));
    assert!(admitted(&state, "ns/a") && !admitted(&state, "ns/b"));
    assert!(acknowledge(&mut state, Some(0)).services.is_empty(), "a gateway that joins changes nothing");
    assert!(admitted(&state, "ns/a"));
    put(&mut state, "ns/a", "2", false);
    assert!(!admitted(&state, "ns/a"), "another route");
    acknowledge(&mut state, Some(3));
    assert!(admitted(&state, "ns/a") && admitted(&state, "ns/b"));
    assert_eq!(acknowledge(&mut state, None).services.len(), 2);
    assert!(!admitted(&state, "ns/a") && !admitted(&state, "ns/b"));
    acknowledge(&mut state, Some(3));
    assert!(admitted(&state, "ns/a") && admitted(&state, "ns/b"));
}

#[test]
fn requests_wait_for_a_sleeping_service_only() {
    let mut state = State::new(Policy::default());
    put(&mut state, "ns/a", "asleep", true);
    assert_eq!(demand(&mut state, "ns/a", true).services, BTreeSet::from(["ns/a".into()]));
    assert_eq!(demand(&mut state, "ns/a", true), Effects::default());
    put(&mut state, "ns/a", "still asleep", true);
    assert!(state.services()["ns/a"].waiting);
    put(&mut state, "ns/a", "awake", false);
    assert!(!state.services()["ns/a"].waiting);
    assert_eq!(demand(&mut state, "ns/a", true), Effects::default(), "a late report");
    assert_eq!(demand(&mut state, "ns/unknown", true), Effects::default());
    put(&mut state, "ns/a", "asleep", true);
    demand(&mut state, "ns/a", true);
    assert_eq!(demand(&mut state, "ns/a", false).services, BTreeSet::from(["ns/a".into()]));
}

#[test]
fn restart_keeps_services_and_their_admission_until_gateways_are_gone() {
    let mut state = State::new(Policy::default());
    put(&mut state, "ns/a", "1", false);
    put(&mut state, "ns/b", "2", true);
    let mut restored = State::restore(Policy::default(), state.records(), 0);
    assert_eq!(restored.records(), state.records());
    let sequences: Vec<u64> = restored.services().values().map(|s| s.route_sequence).collect();
    assert_eq!((sequences, restored.sequence()), (vec![1, 2], 2));
    assert!(restored.services().values().all(|s| s.admitted));
    assert!(put(&mut restored, "ns/b", "2", true).store_services.is_empty());
    acknowledge(&mut restored, None);
    assert!(restored.services().values().all(|s| !s.admitted));
}

#[test]
fn rollback_reverts_services() {
    let mut state = State::new(Policy::default());
    put(&mut state, "ns/a", "1", true);
    acknowledge(&mut state, Some(1));
    let (before, sequence) = (state.services().clone(), state.sequence());
    state.begin();
    put(&mut state, "ns/a", "2", true);
    put(&mut state, "ns/b", "1", true);
    demand(&mut state, "ns/a", true);
    delete(&mut state, "ns/a");
    acknowledge(&mut state, None);
    state.rollback();
    assert_eq!((state.services(), state.sequence()), (&before, sequence));
    assert_eq!(state.service_obstacle(), "a gateway has not acknowledged the route");
}

/// Time passes in steps that the logical clock does not cap. Returns when the service became idle, if it did.
fn idle_within(state: &mut State, from: Millis, until: Millis) -> Option<Millis> {
    let mut at = from;
    while at < until {
        at += 1_000;
        let told = state.apply(Command::Tick, at).unwrap().services;
        assert_eq!(told.is_empty(), !state.services()["ns/a"].idle, "{at}");
        if !told.is_empty() {
            return Some(at - from);
        }
    }
    None
}

#[test]
fn service_is_idle_after_its_time_without_requests() {
    for (timeout, idle_after) in
        [(None, None), (Some(60_000), Some(60_000)), (Some(0), Some(600_000)), (Some(1), Some(5_000))]
    {
        let mut state = State::new(Policy::default());
        let record = ServiceRecord { idle_timeout: timeout, ..record("ns/a", "1", false) };
        state.apply(Command::PutService(record.into()), 1_000).unwrap();
        assert_eq!(idle_within(&mut state, 1_000, 700_000), idle_after, "{timeout:?}");
        state.check_index();
    }
}

#[test]
fn requests_and_the_first_pod_restart_the_time_until_a_service_is_idle() {
    let mut state = State::new(Policy::default());
    let of =
        |route: &str, sleeps| ServiceRecord { idle_timeout: Some(10_000), ..record("ns/a", route, sleeps) };
    let report = |state: &mut State, is_active, now| {
        let (name, waiting) = ("ns/a".into(), false);
        state.apply(Command::ServiceDemanded { name, waiting, is_active }, now).unwrap().services.len()
    };
    state.apply(Command::PutService(Box::new(of("1", false))), 0).unwrap();
    assert_eq!(idle_within(&mut state, 0, 8_000), None);
    assert_eq!(report(&mut state, true, 8_000), 0, "nothing changes for a service in use");
    assert_eq!(report(&mut state, false, 9_000), 0);
    assert_eq!(idle_within(&mut state, 9_000, 60_000), Some(9_000));
    assert_eq!(state.apply(Command::Tick, 20_000).unwrap().wake_at, None, "nothing is left to wait for");
    // The route without pods changes nothing.
    state.apply(Command::PutService(Box::new(of("asleep", true))), 20_000).unwrap();
    assert!(state.services()["ns/a"].idle);
    assert_eq!(report(&mut state, true, 21_000), 1);
    assert!(!state.services()["ns/a"].idle);
    state.apply(Command::PutService(Box::new(of("still asleep", true))), 25_000).unwrap();
    state.apply(Command::PutService(Box::new(of("awake", false))), 29_000).unwrap();
    assert_eq!(idle_within(&mut state, 29_000, 60_000), Some(10_000));
    // A restart starts it again.
    let mut restored = State::restore(Policy::default(), state.records(), 0);
    assert!(!restored.services()["ns/a"].idle);
    restored.check_index();
    assert_eq!(idle_within(&mut restored, 0, 60_000), Some(10_000));
    delete(&mut restored, "ns/a");
    restored.check_index();
}
