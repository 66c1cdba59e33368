//! Weights and pods of InferenceServices change under load.

use crate::support::{
    Answer, FakePod, Running, backend, component, config, event, reset, send, service, synced, until,
    unused_address,
};
use gantry_proto::gantry::{
    PodEndpoint, ServiceBackend, ServiceRoute, route_event::Event, service_component::Role,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

const HOST: (&str, &str) = ("host", "iris-default.example.com");
const PATH: &str = "/v1/models/iris:predict";

fn iris(backends: Vec<ServiceBackend>) -> ServiceRoute {
    service("iris", vec![component(Role::Predictor, backends)])
}

async fn ask(running: &Running) -> Answer {
    running.client().send("POST", PATH, &[HOST], "{}").await
}

/// Responses by backend, over several connections.
async fn split(running: &Running, requests: usize) -> BTreeMap<String, usize> {
    const CONNECTIONS: usize = 10;
    let clients = (0..CONNECTIONS).map(|_| {
        let client = running.client();
        tokio::spawn(async move {
            let mut connection = client.connect().await;
            let mut by_backend = BTreeMap::new();
            for _ in 0..requests / CONNECTIONS {
                let answer = send(&mut connection, "POST", PATH, &[HOST], "{}").await;
                assert_eq!(answer.status, 200, "{answer:?}");
                *by_backend.entry(answer.header("x-seldon-route").to_owned()).or_insert(0) += 1;
            }
            by_backend
        })
    });
    let mut total = BTreeMap::new();
    for client in clients.collect::<Vec<_>>() {
        for (backend, count) in client.await.unwrap() {
            *total.entry(backend).or_insert(0) += count;
        }
    }
    total
}

#[tokio::test(flavor = "multi_thread")]
async fn canary_gets_its_share() {
    let (stable, canary) = (FakePod::start("stable-0").await, FakePod::start("canary-0").await);
    let running = Running::start(config(), |_| {});
    let backends = |pods: &[&FakePod]| vec![backend("stable", 80, &[&stable]), backend("canary", 20, pods)];
    running.service(iris(backends(&[&canary])));
    // 2,000 of 10,000 within three standard deviations of 40; an even chance misses that once in 370 rounds.
    let mut rounds = Vec::new();
    for _ in 0..2 {
        rounds.push(split(&running, 10_000).await[":canary:"]);
        if rounds.iter().any(|share| (1880..=2120).contains(share)) {
            break;
        }
    }
    assert!(rounds.iter().any(|share| (1880..=2120).contains(share)), "{rounds:?}");

    running.service(iris(backends(&[])));
    assert_eq!(split(&running, 100).await, [(":stable:".to_owned(), 100)].into(), "the share without pods");
    // A client that was served by a backend may return to it.
    running.service(iris(backends(&[&canary])));
    let sticky = [HOST, ("x-seldon-route", ":canary:")];
    for _ in 0..20 {
        let answer = running.client().send("POST", PATH, &sticky, "{}").await;
        assert_eq!(answer.header("x-seldon-route"), ":canary:");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_and_pods_change_without_a_failed_request() {
    let (one, two, three) =
        (FakePod::start("one").await, FakePod::start("two").await, FakePod::start("three").await);
    let running = Arc::new(Running::start(config(), |_| {}));
    running.service(iris(vec![backend("old", 100, &[&one])]));
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop, sent) = (running.client(), Arc::clone(&stop), Arc::clone(&sent));
            tokio::spawn(async move {
                let mut connection = client.connect().await;
                while !stop.load(Ordering::SeqCst) {
                    let answer = send(&mut connection, "POST", PATH, &[HOST], "{}").await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let transformer = component(Role::Transformer, vec![backend("front", 1, &[&three])]);
    for round in 0..10 {
        for weight in [0, 20, 50, 100] {
            let new: &[&FakePod] = if round % 2 == 0 { &[&two] } else { &[&two, &three] };
            let mut route = iris(vec![backend("old", 100 - weight, &[&one]), backend("new", weight, new)]);
            // A component comes and goes as well.
            route.components.extend((weight == 50).then(|| transformer.clone()));
            running.service(route);
            let before = sent.load(Ordering::SeqCst);
            until("requests with this route", || async { sent.load(Ordering::SeqCst) >= before + 8 }).await;
        }
        running.service(iris(vec![backend("old", 100, &[&one])]));
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_pod_finishes_its_requests() {
    let (old, new) = (FakePod::held("old").await, FakePod::start("new").await);
    let running = Running::start(config(), |_| {});
    running.predictor("iris", &[&old]);
    let asking = {
        let client = running.client();
        tokio::spawn(async move { client.send("POST", PATH, &[HOST], "{}").await })
    };
    until("the request is at the pod", || async { old.local.arrived() == 1 }).await;
    let removed = running.predictor("iris", &[&new]);
    assert!(!removed.is_drained());
    assert!(ask(&running).await.text().contains("\"pod\":\"new\""));
    old.local.gate.add_permits(1);
    assert_eq!(asking.await.unwrap().status, 200);
    removed.drained().await;
    assert_eq!(old.local.arrived(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_connection_is_retried_on_another_pod() {
    let good = FakePod::start("good").await;
    let running = Running::start(config(), |_| {});
    let port = u32::from(unused_address().port());
    let refusing =
        PodEndpoint { name: "refusing".into(), host: "127.0.0.1".into(), http_port: port, grpc_port: port };
    let mut backends = vec![backend("iris-predictor", 100, &[&good])];
    backends[0].pods.push(refusing.clone());
    running.service(iris(backends.clone()));
    for _ in 0..20 {
        assert_eq!(ask(&running).await.status, 200);
    }
    assert!(running.metric("gantry_gateway_retries_total") > 0);
    // Of another backend too.
    let mut canary = backend("canary", 50, &[]);
    canary.pods = vec![refusing.clone()];
    running.service(iris(vec![backend("iris-predictor", 50, &[&good]), canary]));
    for _ in 0..20 {
        assert_eq!(ask(&running).await.status, 200);
    }

    backends[0].pods = vec![refusing];
    running.service(service("alone", vec![component(Role::Predictor, backends)]));
    let answer = running.client().send("POST", "/serving/default/alone/", &[], "{}").await;
    assert_eq!(answer.status, 503);
    let text = answer.text();
    assert!(
        text == "{\"error\":\"pod default/refusing (the predictor of InferenceService default/alone) is unreachable\"}"
            || text.starts_with(
                "{\"error\":\"all pods of the predictor of InferenceService default/alone (1) are failing"
            ),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_service_is_unknown() {
    let pod = FakePod::start("iris-0").await;
    let running = Running::start(config(), |_| {});
    running.service(ServiceRoute {
        hosts: vec!["iris.example.org".into()],
        ..iris(vec![backend("iris-predictor", 1, &[&pod])])
    });
    running.predictor("other", &[&pod]);
    let client = running.client();
    assert_eq!(client.send("POST", PATH, &[("host", "iris.example.org")], "{}").await.status, 200);
    running.delete_service("iris");
    running.delete_service("iris");
    assert_eq!(ask(&running).await.status, 404);
    assert_eq!(client.send("POST", "/serving/default/iris/", &[], "{}").await.status, 404);
    let answer = client.send("POST", PATH, &[("host", "iris.example.org")], "{}").await;
    assert_eq!(answer.text(), "{\"error\":\"there is no model \\\"iris\\\"\"}", "a host of the gateway");
    assert_eq!(client.send("POST", "/serving/default/other/", &[], "{}").await.status, 200);
    running.delete_service("other");
    assert_eq!(client.send("GET", "/v2", &[HOST], "").await.status, 200, "hosts are free without services");
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_replaces_services() {
    let (kept, gone) = (FakePod::start("kept").await, FakePod::start("gone").await);
    let running = Running::start(config(), |_| {});
    running.predictor("kept", &[&kept]);
    running.predictor("gone", &[&gone]);
    let status = |name: &'static str| {
        let client = running.client();
        async move { client.send("POST", &format!("/serving/default/{name}/"), &[], "{}").await.status.as_u16() }
    };
    running.routes.apply(reset());
    let backends = vec![backend("kept-predictor", 100, &[&kept])];
    let route = service("kept", vec![component(Role::Predictor, backends)]);
    running.routes.apply(event(Event::UpsertService(route)));
    assert_eq!((status("kept").await, status("gone").await), (200, 200), "until the replay is complete");
    let removed = running.routes.apply(synced());
    assert_eq!((status("kept").await, status("gone").await), (200, 404));
    assert!(removed.is_drained());
    // An older scheduler sends no services.
    running.routes.apply(reset());
    running.routes.apply(synced());
    assert_eq!(status("kept").await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_keeps_services_of_the_process() {
    let pod = FakePod::start("own").await;
    let running = Running::start(config(), |_| {});
    let own = |name: &str| service(name, vec![component(Role::Predictor, vec![backend(name, 1, &[&pod])])]);
    running.predictor("scheduled", &[&pod]);
    running.routes.set_local_services(&[own("one"), own("two")]);
    running.routes.apply(reset());
    running.routes.apply(synced());
    let status = |name: &'static str| {
        let client = running.client();
        async move { client.send("POST", &format!("/serving/default/{name}/"), &[], "{}").await.status.as_u16() }
    };
    assert_eq!((status("one").await, status("two").await, status("scheduled").await), (200, 200, 404));
    running.routes.set_local_services(&[own("two")]);
    assert_eq!((status("one").await, status("two").await), (404, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn first_service_of_a_host_has_it() {
    let (one, two) = (FakePod::start("one").await, FakePod::start("two").await);
    let running = Running::start(config(), |_| {});
    let claim = |name: &str, pod: &FakePod| ServiceRoute {
        hosts: vec!["shared.example.org".into()],
        ..service(name, vec![component(Role::Predictor, vec![backend(name, 1, &[pod])])])
    };
    running.service(claim("b", &two));
    running.service(claim("a", &one));
    let ask = || {
        let client = running.client();
        async move {
            client
                .send("GET", "/", &[("host", "shared.example.org")], "")
                .await
                .header("x-seldon-route")
                .to_owned()
        }
    };
    assert_eq!(ask().await, ":a:");
    running.delete_service("a");
    assert_eq!(ask().await, ":b:");
}
