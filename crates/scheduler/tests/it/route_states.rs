//! States of replicas and loads that routes carry to gateways.

use crate::harness::{Agent, Gateway, client, model, scheduler};
use gantry_proto::{
    gantry::{Route, route_event::Event},
    scheduler::DeploymentSpec,
};

/// The next route that satisfies a condition; every event is acknowledged.
async fn route_where(gateway: &mut Gateway, condition: impl Fn(&Route) -> bool) -> Route {
    loop {
        let event = gateway.next().await;
        gateway.acknowledge(event.epoch, event.sequence, event.sequence).await;
        if let Some(Event::Upsert(route)) = event.event
            && condition(&route)
        {
            return route;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn route_marks_failed_loads_and_disconnected_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut agent = Agent::join(&running).await;
    let (mut gateway, _) = Gateway::join(&running).await;
    let mut c = client(&running).await;
    c.load_model(model("broken", "/a")).await.unwrap();
    let loading = route_where(&mut gateway, |r| r.model == "broken").await;
    assert!(!loading.failed, "{loading:?}");
    agent.execute(Some("no such file")).await;
    let failed = route_where(&mut gateway, |r| r.failed).await;
    assert!(failed.reason.contains("no such file"), "{failed:?}");

    let mut second = Agent::join_as(&running, 1, &[]).await;
    let mut iris = model("iris", "/a");
    let deployment = DeploymentSpec { replicas: 2, ..Default::default() };
    iris.model.as_mut().unwrap().deployment_spec = Some(deployment);
    c.load_model(iris).await.unwrap();
    second.execute(None).await;
    while agent.execute(None).await.0 != "iris" {}
    let disconnected = |route: &Route| -> Vec<bool> {
        route.versions.iter().flat_map(|v| &v.endpoints).map(|e| e.disconnected).collect()
    };
    route_where(&mut gateway, |r| r.model == "iris" && disconnected(r) == [false, false]).await;
    drop(second);
    route_where(&mut gateway, |r| r.model == "iris" && disconnected(r) == [false, true]).await;
    let _second = Agent::join_as(&running, 1, &[("iris", 1)]).await;
    route_where(&mut gateway, |r| r.model == "iris" && disconnected(r) == [false, false]).await;
    running.stop().await;
}
