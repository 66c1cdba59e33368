//! Route changes under load: no failed requests, one version per response, removed targets drain.

use crate::support::{
    FakeLocal, FakeRemote, Running, config, event, local_endpoint, remote_endpoint, reset, route, send,
    synced, until,
};
use gantry_proto::gantry::{RouteEvent, route_event::Event};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

#[tokio::test(flavor = "multi_thread")]
async fn rolling_updates_under_load_fail_no_request() {
    let remote = FakeRemote::start(FakeLocal::new()).await;
    let running = Running::start(config(), |g| g.register_local("builtin", 0, FakeLocal::new() as _));
    let targets = [local_endpoint("builtin", 0), remote_endpoint("s", 0, remote.address)];
    running.route(route("m", &[(1, 1, &targets)]));
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop, answered) = (running.client(), Arc::clone(&stop), Arc::clone(&answered));
            tokio::spawn(async move {
                let mut connection = client.connect().await;
                while !stop.load(Ordering::Relaxed) {
                    let answer = send(&mut connection, "POST", "/v2/models/m/infer", &[], "{}").await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                    let version = answer.header("x-seldon-route").trim_matches(':').to_owned();
                    let expected =
                        format!("{{\"model\":\"{version}\",\"path\":\"/v2/models/{version}/infer\"}}");
                    assert_eq!(answer.text(), expected, "one version per response");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for version in 2..=100 {
        // Requests complete between any two changes.
        let before = answered.load(Ordering::Relaxed);
        until("requests are answered", || async { answered.load(Ordering::Relaxed) > before + 4 }).await;
        // As a rolling update: both versions, then the new one only.
        running.route(route("m", &[(version - 1, 1, &targets), (version, 1, &targets)]));
        let removed = running.route(route("m", &[(version, 1, &targets)]));
        removed.drained().await;
        assert!(removed.is_drained());
        running.routes.drained("m", version - 1).await;
        for (server, replica) in [("builtin", 0), ("s", 0)] {
            assert_eq!(running.routes.in_flight("m", version - 1, server, replica), 0);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for client in load {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_flight_request_keeps_its_version() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let client = running.client();
    let pending = tokio::spawn(async move { client.infer("iris").await });
    until("it arrives", || async { local.arrived() == 1 }).await;
    let removed = running.route(route("iris", &[(2, 1, &[local_endpoint("builtin", 0)])]));
    assert!(!removed.is_drained());
    assert_eq!(running.routes.in_flight("iris", 1, "builtin", 0), 1);
    let gone = running.routes.apply(event(Event::Delete("iris".into())));
    assert!(gone.is_drained(), "version 2 had no requests");
    assert_eq!(running.client().infer("iris").await.status, 404);
    let waiting = {
        let routes = running.routes.clone();
        tokio::spawn(async move { routes.drained("iris", 1).await })
    };
    assert!(!waiting.is_finished());
    local.gate.add_permits(1);
    assert_eq!(pending.await.unwrap().header("x-seldon-route"), ":iris_1:");
    waiting.await.unwrap();
    assert!(removed.is_drained());
}

#[tokio::test(flavor = "multi_thread")]
async fn resync_takes_effect_at_synced() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let here = [local_endpoint("builtin", 0)];
    let at = |epoch, what| RouteEvent { epoch, event: Some(what), ..Default::default() };
    let routes = &running.routes;
    routes.apply(at(5, Event::Reset(gantry_proto::gantry::Reset {})));
    routes.apply(at(5, Event::Upsert(route("other", &[(1, 1, &here)]))));
    assert_eq!(routes.models(), ["iris"], "no change before Synced");
    assert!(!routes.is_synced());
    routes.apply(at(5, Event::Synced(gantry_proto::gantry::Synced {})));
    assert_eq!(routes.models(), ["other"]);
    assert!(routes.is_synced());

    routes.apply(at(4, Event::Delete("other".into())));
    routes.apply(reset());
    routes.apply(synced());
    assert_eq!(routes.models(), ["other"], "older epochs are ignored");
    routes.apply(at(5, Event::Delete("other".into())));
    assert!(routes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_routes_are_added_and_removed() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let here = [local_endpoint("builtin", 0)];
    for i in 0..10_000 {
        running.route(route(&format!("model-{i}"), &[(1, 1, &here)]));
    }
    assert_eq!(running.routes.len(), 10_001);
    let answer = running.client().infer("model-9999").await;
    assert_eq!(answer.header("x-seldon-route"), ":model-9999_1:");
    for i in 0..10_000 {
        running.routes.apply(event(Event::Delete(format!("model-{i}"))));
    }
    assert_eq!(running.routes.models(), ["iris"]);
}
