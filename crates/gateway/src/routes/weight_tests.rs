//! Requests are split by weight, whatever replicas the versions have.

use super::{InFlightRequest, Routes, SelectError, Selector};
use gantry_proto::gantry::{Endpoint, Route, RouteEvent, RouteVersion, route_event::Event};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Weight and number of replicas of versions 1, 2, …
fn route(versions: &[(u32, u32)]) -> RouteEvent {
    let endpoint =
        |version: u32, replica| Endpoint { server: format!("s{version}"), replica, ..Endpoint::default() };
    let version = |(number, (weight, replicas)): (u32, &(u32, u32))| RouteVersion {
        version: number,
        weight: *weight,
        endpoints: (0..*replicas).map(|replica| endpoint(number, replica)).collect(),
    };
    let versions = (1..).zip(versions).map(version).collect();
    let route = Route { model: "m".into(), versions, rollout_generation: 1, ..Route::default() };
    RouteEvent { epoch: 1, event: Some(Event::Upsert(route)), ..RouteEvent::default() }
}

fn routed(versions: &[(u32, u32)]) -> Routes {
    let routes = Routes::default();
    routes.apply(route(versions));
    routes
}

fn select(routes: &Routes, selector: &Selector<'_>) -> Result<InFlightRequest, SelectError> {
    routes.acquire("m", &Selector { max_in_flight: usize::MAX, ..*selector })
}

fn pick(routes: &Routes, random: u64) -> InFlightRequest {
    select(routes, &Selector { random, ..Selector::default() }).unwrap()
}

#[test]
fn ten_thousand_requests_are_split_by_weight_not_by_replicas() {
    // Three standard deviations of a share of 20 % and 1 %.
    for (stable, canary, expected, tolerance) in [(8000, 2000, 2000, 120), (9900, 100, 100, 30)] {
        for replicas in [(1, 1), (10, 1), (1, 10), (20, 1), (1, 20)] {
            let routes = routed(&[(stable, replicas.0), (canary, replicas.1)]);
            let mut random = fastrand::Rng::with_seed(7);
            // Requests in flight make replicas unequal.
            let held: Vec<_> = (0..100).map(|_| pick(&routes, random.u64(..))).collect();
            let picked = (0..10_000).filter(|_| pick(&routes, random.u64(..)).version.number == 2).count();
            let is_within = picked.abs_diff(expected) <= tolerance;
            assert!(is_within, "{picked} of 10000 for {canary}/{stable} with {replicas:?} replicas");
            drop(held);
        }
    }
}

#[test]
fn next_request_follows_new_weights() {
    let routes = routed(&[(10_000, 2), (0, 1)]);
    for (weights, version) in [((0, 10_000), 2), ((10_000, 0), 1), ((0, 1), 2)] {
        routes.apply(route(&[(weights.0, 2), (weights.1, 1)]));
        for random in 0..100 {
            assert_eq!(pick(&routes, random).version.number, version, "{weights:?}");
        }
    }
}

#[test]
fn version_without_weight_serves_only_requests_that_name_it() {
    let routes = routed(&[(100, 1), (0, 1)]);
    let sticky = Selector { sticky: Some(b":m_2:"), ..Selector::default() };
    assert_eq!(select(&routes, &sticky).unwrap().version.number, 1);
    let named = Selector { version: Some(2), ..Selector::default() };
    let request = select(&routes, &named).unwrap();
    assert_eq!(request.version.number, 2);
    assert!(!routes.is_routed("m", &request.target()), "open streams leave it");
    assert!(routes.is_routed("m", &pick(&routes, 0).target()));
    // Neither a retry nor an open circuit falls back to it.
    let excluded = [pick(&routes, 0).endpoint.id];
    let retry = Selector { excluded: &excluded, ..Selector::default() };
    assert!(select(&routes, &retry).is_err());
    routes.apply(route(&[(0, 1), (0, 1)]));
    assert!(matches!(select(&routes, &Selector::default()), Err(SelectError::NoReplica { .. })));
}

proptest! {
    #[test]
    fn every_request_of_a_cycle_is_split_exactly(
        versions in prop::collection::vec((0_u32..40, 0_u32..4), 1..5),
    ) {
        let routes = routed(&versions);
        let served = (1..).zip(&versions).filter(|(_, (weight, replicas))| *weight > 0 && *replicas > 0);
        let expected: BTreeMap<u32, u32> = served.map(|(number, (weight, _))| (number, *weight)).collect();
        let mut picked = BTreeMap::new();
        for random in 0..u64::from(expected.values().sum::<u32>()) {
            *picked.entry(pick(&routes, random).version.number).or_default() += 1;
        }
        prop_assert_eq!(picked, expected);
    }
}
