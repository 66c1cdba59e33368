use super::*;
use crate::{
    policy::result_class::ResultClass,
    routes::{InFlightRequest, Selector},
};
use gantry_core::rollout::Bucket;
use pb::{Endpoint, Reset, Route, RouteEvent, RouteVersion, Synced, route_event::Event};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

fn event(state_id: u64, event: Event) -> RouteEvent {
    RouteEvent { state_id, epoch: 1, sequence: 1, event: Some(event) }
}

/// A route with these versions on `replicas` replicas.
fn route(generation: u64, versions: &[u32], replicas: u32) -> Event {
    let endpoint = |replica| Endpoint { server: "s".into(), replica, ..Endpoint::default() };
    let version = |version: &u32| RouteVersion {
        version: *version,
        weight: 1,
        endpoints: (0..replicas).map(endpoint).collect(),
    };
    let versions = versions.iter().map(version).collect();
    Event::Upsert(Route { model: "m".into(), versions, rollout_generation: generation, ..Route::default() })
}

fn routed(generation: u64, versions: &[u32]) -> Routes {
    let routes = Routes::default();
    routes.apply(event(0, route(generation, versions, 1)));
    routes
}

fn start(routes: &Routes, version: u32) -> InFlightRequest {
    let version = Some(version);
    let selector = Selector { version, max_in_flight: usize::MAX, ..Selector::default() };
    routes.acquire("m", &selector).unwrap()
}

fn end(request: &InFlightRequest, class: ResultClass) {
    request.attribution.as_ref().unwrap().record(class, Instant::now());
}

/// Generation, version and requests of each entry.
fn taken(routes: &Routes) -> Vec<(u64, u32, u64)> {
    let (_, models) = routes.take_traffic();
    assert!(models.iter().all(|m| m.model == "m"));
    let versions = models.iter().flat_map(|m| m.versions.iter().map(|v| (m.generation, v)));
    versions.map(|(generation, v)| (generation, v.version, v.requests)).collect()
}

#[test]
fn figures_are_reported_once_by_class_and_latency() {
    let routes = routed(1, &[1, 2]);
    let cases = [
        (ResultClass::Success, 1),
        (ResultClass::ClientError, 2),
        (ResultClass::ServerError, 4),
        (ResultClass::Timeout, 8),
        (ResultClass::NoResponse, 16),
    ];
    for (class, count) in cases {
        for _ in 0..count {
            let request = start(&routes, 2);
            request.attribution.as_ref().unwrap().record_latency(class, Duration::from_millis(1));
        }
    }
    let (_, models) = routes.take_traffic();
    assert_eq!(models.len(), 1);
    assert_eq!((models[0].model.as_str(), models[0].generation), ("m", 1));
    let mut latency = vec![0; Bucket::of(1.0).index() + 1];
    *latency.last_mut().unwrap() = 1 + 2 + 4 + 8;
    let expected = pb::VersionTraffic {
        version: 2,
        requests: 31,
        client_errors: 2,
        server_errors: 4,
        timeouts: 8,
        connection_errors: 16,
        latency,
        ..pb::VersionTraffic::default()
    };
    assert_eq!(models[0].versions, [expected]);
    assert_eq!(routes.take_traffic().1, []);
}

#[test]
fn concurrent_requests_are_counted_exactly_once() {
    const THREADS: usize = 2 * SHARDS;
    const REQUESTS: u64 = 5_000;
    let routes = routed(1, &[1]);
    let stop = AtomicBool::new(false);
    let take = || {
        let (_, models) = routes.take_traffic();
        let versions = models.iter().flat_map(|m| &m.versions);
        versions.fold([0; 3], |[requests, errors, latency], v| {
            [requests + v.requests, errors + v.server_errors, latency + v.latency.iter().sum::<u64>()]
        })
    };
    let add = |a: [u64; 3], b: [u64; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
    let during = thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut sum = [0; 3];
            while !stop.load(Ordering::SeqCst) {
                sum = add(sum, take());
            }
            sum
        });
        let recording: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    for i in 0..REQUESTS {
                        let is_error = i % 5 == 0;
                        let class = if is_error { ResultClass::ServerError } else { ResultClass::Success };
                        end(&start(&routes, 1), class);
                    }
                })
            })
            .collect();
        for one in recording {
            one.join().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        taking.join().unwrap()
    });
    let total = THREADS as u64 * REQUESTS;
    assert_eq!(add(during, take()), [total, total / 5, total]);
}

#[test]
fn request_that_ends_under_newer_weights_counts_for_its_own_generation() {
    let routes = routed(1, &[1, 2]);
    let (early, late) = (start(&routes, 2), start(&routes, 2));
    end(&early, ResultClass::Success);
    drop(early);
    routes.apply(event(0, route(2, &[1, 2], 1)));
    end(&start(&routes, 2), ResultClass::Success);
    assert_eq!(taken(&routes), [(1, 2, 1), (2, 2, 1)]);
    end(&late, ResultClass::ServerError);
    assert_eq!(taken(&routes), [(1, 2, 1)]);
    assert!(routes.inner.traffic.lock().versions.iter().any(|v| v.generation == 1), "in flight");
    drop(late);
    assert_eq!(taken(&routes), []);
    assert!(routes.inner.traffic.lock().versions.iter().all(|v| v.generation == 2));
}

#[test]
fn figures_are_kept_when_only_replicas_change() {
    let routes = routed(7, &[1]);
    end(&start(&routes, 1), ResultClass::Success);
    routes.apply(event(0, route(7, &[1, 2], 3)));
    end(&start(&routes, 1), ResultClass::Success);
    end(&start(&routes, 2), ResultClass::Success);
    assert_eq!(taken(&routes), [(7, 1, 2), (7, 2, 1)]);
    assert_eq!(routes.inner.traffic.lock().versions.len(), 2);
}

#[test]
fn counters_exist_only_with_a_rollout() {
    let routes = routed(0, &[1]);
    assert!(start(&routes, 1).attribution.is_none());
    assert!(routes.inner.traffic.lock().versions.is_empty());
    routes.apply(event(0, route(1, &[1], 1)));
    end(&start(&routes, 1), ResultClass::Success);
    // The rollout ends, or the model is deleted: the last figures are reported.
    routes.apply(event(0, route(0, &[1], 1)));
    assert_eq!(taken(&routes), [(1, 1, 1)]);
    assert!(routes.inner.traffic.lock().versions.is_empty());
    routes.apply(event(0, route(2, &[1], 1)));
    end(&start(&routes, 1), ResultClass::Success);
    routes.apply(event(0, Event::Delete("m".into())));
    assert_eq!(taken(&routes), [(2, 1, 1)]);
    assert!(routes.inner.traffic.lock().versions.is_empty());
}

#[test]
fn backends_of_a_service_are_counted_by_version_while_they_have_a_revision() {
    let service = |generation, second: &str| {
        let backend = |name: &str, revision: &str, version, weight| pb::ServiceBackend {
            name: name.into(),
            weight,
            pods: vec![pb::PodEndpoint {
                name: format!("{name}-pod"),
                host: "127.0.0.1".into(),
                http_port: 1,
                grpc_port: 0,
            }],
            revision: revision.into(),
            version,
            readiness: 1,
        };
        let backends = vec![backend("a", "r7", 7, 0), backend("b", second, 9, 100)];
        let components = vec![pb::ServiceComponent { backends, ..pb::ServiceComponent::default() }];
        Event::UpsertService(pb::ServiceRoute {
            namespace: "ml".into(),
            name: "iris".into(),
            components,
            rollout_generation: generation,
            ..pb::ServiceRoute::default()
        })
    };
    let routes = Routes::default();
    let request = |route: &Event| {
        routes.apply(event(0, route.clone()));
        let selector = Selector { is_component: true, max_in_flight: usize::MAX, ..Selector::default() };
        routes.acquire("ml/iris/predictor", &selector).unwrap()
    };
    for (route, expected) in [
        (service(0, ""), None),
        (service(3, "r9"), Some((3, 9))),
        (service(4, "r9"), Some((4, 9))),
        (service(4, ""), None),
    ] {
        let request = request(&route);
        if let Some(attribution) = &request.attribution {
            attribution.record(ResultClass::ServerError, Instant::now());
        }
        let (_, taken) = routes.take_traffic();
        let counted = taken.first().map(|of| (of.generation, of.versions[0].version));
        assert_eq!(counted, expected, "{route:?}");
        let names = taken.iter().map(|of| (&*of.service, &*of.model, &*of.pipeline));
        assert!(names.clone().all(|names| names == ("ml/iris", "", "")), "{taken:?}");
    }
}

#[test]
fn figures_of_a_lost_state_are_dropped() {
    let routes = routed(1, &[1]);
    let request = start(&routes, 1);
    end(&start(&routes, 1), ResultClass::Success);
    routes.apply(event(9, Event::Reset(Reset {})));
    end(&request, ResultClass::Success);
    assert_eq!(taken(&routes), []);
    // The new state has other weights under the same number.
    routes.apply(event(9, route(1, &[1], 1)));
    routes.apply(event(9, Event::Synced(Synced {})));
    end(&request, ResultClass::Success);
    assert_eq!(taken(&routes), []);
    end(&start(&routes, 1), ResultClass::Success);
    assert_eq!(taken(&routes), [(1, 1, 1)]);
    assert_eq!(routes.traffic_state(), 9);
}

#[test]
fn generations_without_reports_are_bounded() {
    let routes = Routes::default();
    let mut requests = Vec::new();
    for generation in 1..=2 * MAX_RETIRED as u64 {
        routes.apply(event(0, route(generation, &[1], 1)));
        let request = start(&routes, 1);
        end(&request, ResultClass::Success);
        requests.push(request);
    }
    let known = taken(&routes);
    assert!(known.len() <= MAX_RETIRED + 2, "{}", known.len());
    assert_eq!(known.last(), Some(&(2 * MAX_RETIRED as u64, 1, 1)));
}

#[tokio::test]
async fn start_of_a_rollout_is_noticed() {
    let routes = routed(0, &[1]);
    let mut waiting = std::pin::pin!(routes.rollout_started());
    assert!(futures::poll!(&mut waiting).is_pending());
    routes.apply(event(0, route(1, &[1], 1)));
    waiting.await;
}
