//! Load reports, and scale-up from zero.

use crate::support::{FakeLocal, Running, config, local_endpoint, route, until};
use gantry_gateway::Demand;
use gantry_proto::gantry::Route;
use std::{sync::Arc, time::Duration};

fn scaled_to_zero(reason: &str) -> Route {
    Route { model: "iris".into(), reason: reason.into(), sleeps: true, ..Route::default() }
}

fn only(demands: &[Demand]) -> Demand {
    assert_eq!(demands.len(), 1, "{demands:?}");
    demands[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn answered_requests_are_reported_once() {
    let running = Running::with_iris(&FakeLocal::new());
    assert_eq!(running.routes.demand(Duration::from_secs(1)), []);
    for _ in 0..3 {
        assert_eq!(running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await.status, 200);
    }
    // The client may see the response before the request is recorded.
    let mut seen = 0;
    until("three are counted", || {
        seen += running.routes.demand(Duration::from_secs(1)).iter().map(|d| d.answered).sum::<u64>();
        let done = seen == 3;
        async move { done }
    })
    .await;
    assert_eq!(running.routes.demand(Duration::from_secs(1)), [], "load is reported once");
    assert_eq!(running.client().get("/v2/models/iris").await.status, 200);
    assert_eq!(running.routes.demand(Duration::from_secs(1)), [], "metadata requests are not counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_flight_requests_are_reported() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let client = running.client();
            tokio::spawn(async move { client.send("POST", "/v2/models/iris/infer", &[], "{}").await.status })
        })
        .collect();
    until("four are in flight", || async { local.arrived() == 4 }).await;
    let demand = only(&running.routes.demand(Duration::from_millis(1)));
    assert_eq!((demand.in_flight_milli, demand.answered, demand.waiting), (4000, 0, false));
    local.gate.add_permits(4);
    for one in asking {
        assert_eq!(one.await.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_scales_up_from_zero_and_waits() {
    let local = FakeLocal::new();
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    running.route(scaled_to_zero("scaled to zero"));
    // Metadata requests do not trigger a scale-up.
    assert_eq!(running.client().get("/v2/models/iris/ready").await.status, 503);
    assert_eq!(running.routes.demand(Duration::from_secs(1)), []);
    let client = running.client();
    let asking =
        tokio::spawn(async move { client.send("POST", "/v2/models/iris/infer", &[], "{}").await.status });
    running.routes.scale_up_requested().await;
    assert!(only(&running.routes.demand(Duration::from_secs(1))).waiting);
    // Loading: still no replica, so the request keeps waiting.
    running.route(Route { sleeps: false, ..scaled_to_zero("loading") });
    running.routes.scale_up_requested().await;
    assert!(!asking.is_finished());
    running.route(route("iris", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    assert_eq!(asking.await.unwrap(), 200);
    until("no request waits", || async { running.routes.demand(Duration::from_secs(1)).is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_up_timeout_returns_the_route_reason() {
    let config = gantry_gateway::Config { request_timeout: Duration::from_millis(50), ..config() };
    let running = Running::start(config, |_| {});
    running.route(scaled_to_zero("scaled to zero"));
    let answer = running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("scaled to zero"), "{answer:?}");
    assert_eq!(running.routes.demand(Duration::from_secs(1)), [], "timed-out requests are not counted");
    // Without scale-to-zero the request fails at once.
    running.route(Route { sleeps: false, ..scaled_to_zero("no server offers onnx") });
    let answer = running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await;
    assert!(answer.status == 503 && answer.text().contains("no server offers onnx"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_load_ends_the_wait() {
    let running = Running::start(config(), |_| {});
    running.route(scaled_to_zero("scaled to zero"));
    let client = running.client();
    let asking = tokio::spawn(async move { client.infer("iris").await });
    running.routes.scale_up_requested().await;
    running.route(Route { sleeps: false, ..scaled_to_zero("") });
    running.routes.scale_up_requested().await;
    assert!(!asking.is_finished(), "it is loading");
    running.route(Route { sleeps: false, failed: true, ..scaled_to_zero("s-0: no such file") });
    let answer = asking.await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("s-0: no such file"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_are_bounded_and_leave_room_for_other_models() {
    let limits = gantry_gateway::Config { max_in_flight: 3, max_in_flight_per_replica: 2, ..config() };
    let local = FakeLocal::new();
    let running = Running::start(limits, |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    running.route(route("awake", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    for model in ["iris", "other"] {
        running.route(Route { model: model.into(), ..scaled_to_zero("scaled to zero") });
    }
    let client = running.client();
    let waiting = |models: &[&str]| {
        let demand = running.routes.demand(Duration::from_secs(1));
        demand.iter().filter(|d| models.contains(&&*d.model)).map(|d| d.in_flight_milli).sum::<u64>() / 1000
    };
    let mut asking: Vec<_> =
        (0..2).map(|_| tokio::spawn(async move { client.infer("iris").await })).collect();
    until("two wait", || async { waiting(&["iris"]) == 2 }).await;
    let refused = client.infer("iris").await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, "1"));
    assert!(refused.text().contains("too many requests wait for model iris"), "{refused:?}");
    asking.push(tokio::spawn(async move { client.infer("other").await }));
    until("three wait", || async { waiting(&["iris", "other"]) == 3 }).await;
    assert_eq!(client.infer("other").await.status, 429, "all that may wait do");
    for _ in 0..5 {
        assert_eq!(client.infer("awake").await.status, 200);
    }
    for model in ["iris", "other"] {
        running.route(route(model, &[(1, 1, &[local_endpoint("builtin", 0)])]));
    }
    for one in asking {
        let status = one.await.unwrap().status.as_u16();
        assert!([200, 429].contains(&status), "{status}: a replica takes two at a time");
    }
    until("no request is in flight", || async { running.metric("gantry_gateway_in_flight ") == 0 }).await;
}
