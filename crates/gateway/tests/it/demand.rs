//! What is asked of models is told; a model that sleeps is woken by a request, which waits for it.

use crate::support::{FakeLocal, Running, config, local_endpoint, route, until};
use gantry_gateway::Demand;
use gantry_proto::gantry::Route;
use std::{sync::Arc, time::Duration};

fn asleep(reason: &str) -> Route {
    Route { model: "iris".into(), reason: reason.into(), sleeps: true, ..Route::default() }
}

fn only(demands: &[Demand]) -> Demand {
    assert_eq!(demands.len(), 1, "{demands:?}");
    demands[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_were_answered_are_told_once() {
    let running = Running::with_iris(&FakeLocal::new());
    assert_eq!(running.routes.demand(Duration::from_secs(1)), []);
    for _ in 0..3 {
        assert_eq!(running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await.status, 200);
    }
    // The client may have the answer before the request has left.
    let mut seen = 0;
    until("three are counted", || {
        seen += running.routes.demand(Duration::from_secs(1)).iter().map(|d| d.answered).sum::<u64>();
        let done = seen == 3;
        async move { done }
    })
    .await;
    assert_eq!(running.routes.demand(Duration::from_secs(1)), [], "what was told is not told again");
    assert_eq!(running.client().get("/v2/models/iris").await.status, 200);
    assert_eq!(running.routes.demand(Duration::from_secs(1)), [], "a look at the model is no use of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_under_way_count_while_they_last() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let client = running.client();
            tokio::spawn(async move { client.send("POST", "/v2/models/iris/infer", &[], "{}").await.status })
        })
        .collect();
    until("four are under way", || async { local.arrived() == 4 }).await;
    let demand = only(&running.routes.demand(Duration::from_millis(1)));
    assert_eq!((demand.in_flight_milli, demand.answered, demand.waiting), (4000, 0, false));
    local.gate.add_permits(4);
    for one in asking {
        assert_eq!(one.await.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_wakes_a_model_and_waits_for_it() {
    let local = FakeLocal::new();
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    running.route(asleep("no replica is wanted"));
    // Looking does not wake it.
    assert_eq!(running.client().get("/v2/models/iris/ready").await.status, 503);
    assert_eq!(running.routes.demand(Duration::from_secs(1)), []);
    let client = running.client();
    let asking =
        tokio::spawn(async move { client.send("POST", "/v2/models/iris/infer", &[], "{}").await.status });
    running.routes.wanted().await;
    assert!(only(&running.routes.demand(Duration::from_secs(1))).waiting);
    // It is loaded now: there is still no replica, and the request still waits.
    running.route(Route { sleeps: false, ..asleep("loading") });
    running.routes.wanted().await;
    assert!(!asking.is_finished());
    running.route(route("iris", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    assert_eq!(asking.await.unwrap(), 200);
    until("nobody waits", || async { running.routes.demand(Duration::from_secs(1)).is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_does_not_wake_in_time_is_told_why() {
    let config = gantry_gateway::Config { request_timeout: Duration::from_millis(50), ..config() };
    let running = Running::start(config, |_| {});
    running.route(asleep("no replica is wanted"));
    let answer = running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("no replica is wanted"), "{answer:?}");
    assert_eq!(running.routes.demand(Duration::from_secs(1)), [], "whoever gave up does not count");
    // A model that is gone is not waited for.
    running.route(Route { sleeps: false, ..asleep("no server offers onnx") });
    let answer = running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await;
    assert!(answer.status == 503 && answer.text().contains("no server offers onnx"), "{answer:?}");
}
