//! Route subscription and demand reports against a fake scheduler.

use crate::support::{
    FakeLocal, FakeScheduler, Running, TEST_TIMEOUT, local_endpoint, route, send_event as send, until,
};
use gantry_gateway::control;
use gantry_proto::gantry::{Reset, Synced, route_event::Event};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

#[tokio::test(flavor = "multi_thread")]
async fn routes_survive_scheduler_restart() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let here = [local_endpoint("builtin", 0)];
    let scheduler = FakeScheduler::default();
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let shutdown = CancellationToken::new();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let following = tokio::spawn(control::subscribe_routes(
        endpoint,
        "gw".into(),
        running.routes.clone(),
        shutdown.clone(),
    ));

    let events = scheduler.watcher().await;
    send(&events, 7, 0, Event::Reset(Reset {})).await;
    send(&events, 7, 3, Event::Upsert(route("m", &[(1, 1, &here)]))).await;
    send(&events, 7, 9, Event::Synced(Synced {})).await;
    scheduler.acknowledged(7, 9, 9).await;
    assert_eq!(running.routes.models(), ["m"]);

    // A removed version is acknowledged as drained once its last request has ended.
    let client = running.client();
    let pending = tokio::spawn(async move { client.infer("m").await });
    until("it arrives", || async { local.arrived() == 1 }).await;
    send(&events, 7, 10, Event::Upsert(route("m", &[(2, 1, &here)]))).await;
    scheduler.acknowledged(7, 10, 9).await;
    send(&events, 7, 11, Event::Upsert(route("n", &[(1, 1, &here)]))).await;
    scheduler.acknowledged(7, 11, 9).await;
    local.gate.add_permits(1);
    assert_eq!(pending.await.unwrap().header("x-seldon-route"), ":m_1:");
    scheduler.acknowledged(7, 11, 11).await;

    // Requests are served while the scheduler is down. It restarts with a new epoch and other routes; earlier
    // in-flight requests still count.
    let pending = tokio::spawn(async move { client.infer("n").await });
    until("it arrives", || async { local.arrived() == 2 }).await;
    stop.cancel();
    drop(events);
    scheduler.watchers.lock().unwrap().clear();
    assert_eq!(running.routes.models(), ["m", "n"]);
    let (_, stop) = scheduler.start(address).await;
    let events = scheduler.watcher().await;
    send(&events, 8, 0, Event::Reset(Reset {})).await;
    send(&events, 8, 1, Event::Upsert(route("m", &[(3, 1, &here)]))).await;
    assert_eq!(running.routes.models(), ["m", "n"]);
    send(&events, 8, 1, Event::Synced(Synced {})).await;
    scheduler.acknowledged(8, 1, 0).await;
    local.gate.add_permits(1);
    assert_eq!(pending.await.unwrap().header("x-seldon-route"), ":n_1:");
    scheduler.acknowledged(8, 1, 1).await;
    assert_eq!(running.routes.models(), ["m"]);
    local.gate.add_permits(1);
    assert_eq!(client.infer("m").await.header("x-seldon-route"), ":m_3:");

    shutdown.cancel();
    tokio::time::timeout(TEST_TIMEOUT, following).await.unwrap().unwrap();
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn demand_is_reported_to_the_scheduler() {
    let scheduler = FakeScheduler::default();
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let running = Running::with_iris(&FakeLocal::new());
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let shutdown = CancellationToken::new();
    let acknowledger = tokio::spawn(control::report_demand(
        channel,
        "gateway-1".into(),
        running.routes.clone(),
        shutdown.clone(),
    ));
    assert_eq!(running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await.status, 200);
    until("the demand is reported", || async { !scheduler.reports.lock().unwrap().is_empty() }).await;
    let report = scheduler.reports.lock().unwrap()[0].clone();
    assert_eq!(report.subscriber, "gateway-1");
    assert!(report.models[0].model == "iris" && report.models[0].answered == 1, "{report:?}");
    shutdown.cancel();
    acknowledger.await.unwrap();
    stop.cancel();
}
