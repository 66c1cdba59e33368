//! Rollouts of services over gRPC: the policy comes with the route, and gateways get the weights.

use crate::harness::{Gateway, scheduler, within};
use gantry_proto::gantry::{
    ModelTraffic, PodEndpoint, RolloutStatus, ServiceBackend, ServiceComponent, ServiceDelivery,
    ServiceRoute, SteerRolloutRequest, TrafficReport, VersionTraffic, WatchRolloutsRequest,
    WatchServicesRequest, rollout_event, rollouts_client::RolloutsClient, route_event::Event,
    service_backend::Readiness, service_event, services_client::ServicesClient,
    steer_rollout_request::Action,
};
use gantry_scheduler::Running;
use tonic::Code;

const SPEC: &str = r#"{"targetRef":{"kind":"InferenceService","name":"iris"},"strategy":{"canary":{"steps":[{"weight":20}]}}}"#;

fn backend(version: u32, weight: u32) -> ServiceBackend {
    let name = format!("iris-{version}");
    let pod = PodEndpoint {
        name: format!("{name}-0"),
        host: "10.0.0.1".into(),
        http_port: 8080,
        ..Default::default()
    };
    ServiceBackend {
        revision: format!("r{version}"),
        version,
        readiness: Readiness::Ready.into(),
        pods: vec![pod],
        weight,
        name,
    }
}

/// A route as the operator puts it: all requests go to the first version.
fn route(desired: u32, versions: &[u32]) -> ServiceRoute {
    let weight = |index: usize| if index == 0 { 100 } else { 0 };
    let backends = versions.iter().enumerate().map(|(i, version)| backend(*version, weight(i))).collect();
    let delivery = ServiceDelivery {
        policy: "careful".into(),
        spec: SPEC.into(),
        desired_revision: format!("r{desired}"),
    };
    ServiceRoute {
        namespace: "ml".into(),
        name: "iris".into(),
        components: vec![ServiceComponent { backends, ..Default::default() }],
        delivery: Some(delivery),
        ..Default::default()
    }
}

async fn put(running: &Running, route: ServiceRoute) -> Result<(), tonic::Status> {
    let mut client = ServicesClient::connect(format!("http://{}", running.clients)).await.unwrap();
    client.put_service(route).await.map(drop)
}

async fn status(running: &Running) -> Option<RolloutStatus> {
    let mut rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
    let request = WatchRolloutsRequest { subscriber: "test".into() };
    let mut events = rollouts.watch_rollouts(request).await.unwrap().into_inner();
    let mut found = None;
    loop {
        match within(events.message()).await.unwrap().unwrap().event.unwrap() {
            rollout_event::Event::Upsert(status) => found = Some(status),
            rollout_event::Event::Synced(_) => return found,
            _ => {}
        }
    }
}

async fn steer(running: &Running, action: Action) -> Result<(), tonic::Status> {
    let mut rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
    let service = "ml/iris".into();
    let request = SteerRolloutRequest { service, action: action.into(), ..Default::default() };
    rollouts.steer_rollout(request).await.map(drop)
}

/// Applies routes until versions have these weights; returns the generation.
async fn until_weights(gateway: &mut Gateway, expected: &[(u32, u32)]) -> u64 {
    loop {
        let Event::UpsertService(route) = gateway.apply().await else { continue };
        let weights: Vec<_> = route.components[0].backends.iter().map(|b| (b.version, b.weight)).collect();
        if weights == expected {
            assert_eq!(route.delivery, None, "gateways need no policy");
            return route.rollout_generation;
        }
    }
}

async fn report(gateway: &mut Gateway, generation: u64, sequence: u64, versions: &[(u32, u64, u64)]) {
    let version = |(version, requests, server_errors): &(u32, u64, u64)| VersionTraffic {
        version: *version,
        requests: *requests,
        server_errors: *server_errors,
        latency: vec![0, 0, *requests],
        ..Default::default()
    };
    let versions = versions.iter().map(version).collect();
    let traffic = ModelTraffic { service: "ml/iris".into(), generation, versions, ..Default::default() };
    let report = TrafficReport { subscriber: "g".into(), sequence, models: vec![traffic], instance: 7 };
    gateway.client.report_traffic(report).await.unwrap();
}

/// Version 1 serves, version 2 has 20 %. Returns the generation of the weights.
async fn rolling_out(running: &Running, gateway: &mut Gateway) -> u64 {
    put(running, route(1, &[1])).await.unwrap();
    until_weights(gateway, &[(1, 100)]).await;
    put(running, route(2, &[1])).await.unwrap();
    put(running, route(2, &[1, 2])).await.unwrap();
    until_weights(gateway, &[(1, 80), (2, 20)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_version_of_a_service_is_rolled_back_also_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut gateway, _) = Gateway::sync(&running).await;
    rolling_out(&running, &mut gateway).await;
    running.stop().await;

    let running = scheduler(dir.path()).await;
    let (mut gateway, routes) = Gateway::sync(&running).await;
    let [Event::UpsertService(route_after)] = routes.as_slice() else { panic!("{routes:?}") };
    let weights = route_after.components[0].backends.iter().map(|b| b.weight);
    assert_eq!(weights.collect::<Vec<_>>(), [80, 20], "the step and its weights are durable");
    for sequence in 1..30 {
        let versions = [(1, 40, 0), (2, 10, 10)];
        report(&mut gateway, route_after.rollout_generation, sequence, &versions).await;
    }
    until_weights(&mut gateway, &[(1, 100), (2, 0)]).await;
    let found = loop {
        let found = status(&running).await.unwrap();
        if found.phase == "Running" {
            break found;
        }
    };
    assert_eq!((found.service.as_str(), found.policy.as_str()), ("ml/iris", "careful"));
    assert_eq!(found.stable.unwrap().version, 1);
    assert!(found.failed[0].message.contains("5xx"), "{:?}", found.failed);
    running.stop().await;

    let running = scheduler(dir.path()).await;
    let failed = status(&running).await.unwrap().failed;
    assert_eq!(failed.iter().map(|f| f.revision.as_str()).collect::<Vec<_>>(), ["r2"]);
    steer(&running, Action::Retry).await.unwrap();
    let error = steer(&running, Action::Resume).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn good_version_of_a_service_is_promoted_and_the_operator_sees_what_it_put() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut gateway, _) = Gateway::sync(&running).await;
    let generation = rolling_out(&running, &mut gateway).await;
    for sequence in 1..400 {
        report(&mut gateway, generation, sequence, &[(1, 40, 0), (2, 20, 0)]).await;
    }
    until_weights(&mut gateway, &[(1, 0), (2, 100)]).await;
    let mut client = ServicesClient::connect(format!("http://{}", running.clients)).await.unwrap();
    let watch = client.watch_services(WatchServicesRequest { subscriber: "operator".into() }).await;
    let mut events = watch.unwrap().into_inner();
    let state = loop {
        if let service_event::Event::Upsert(state) =
            within(events.message()).await.unwrap().unwrap().event.unwrap()
        {
            break state;
        }
    };
    assert_eq!(state.route, Some(route(2, &[1, 2])), "without the weights of the rollout");
    // Without the policy the weights of the route apply, and the rollout is gone.
    put(&running, ServiceRoute { delivery: None, ..route(2, &[2]) }).await.unwrap();
    until_weights(&mut gateway, &[(2, 100)]).await;
    assert_eq!(status(&running).await, None);
    let error = steer(&running, Action::Pause).await.unwrap_err();
    assert!(error.message().contains("apply a RolloutPolicy with targetRef"), "{error}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_deliveries_are_refused_with_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let delivery = |change: fn(&mut ServiceDelivery)| {
        let mut changed = route(2, &[1, 2]);
        change(changed.delivery.as_mut().unwrap());
        changed
    };
    let mut same = route(2, &[1, 2]);
    same.components[0].backends[1].revision = "r1".into();
    for (route, expected) in [
        (delivery(|d| d.desired_revision.clear()), "delivery.desired_revision"),
        (delivery(|d| d.policy = "No Name".into()), "delivery"),
        (delivery(|d| d.spec = b"{}".to_vec()), "strategy"),
        (same, "another backend has the revision r1"),
        (ServiceRoute { rollout_generation: 1, ..route(2, &[1]) }, "rollout: is the scheduler's own"),
    ] {
        let error = put(&running, route).await.unwrap_err();
        let is_named = error.code() == Code::InvalidArgument && error.message().contains(expected);
        assert!(is_named, "{expected}: {error}");
    }
    assert_eq!(status(&running).await, None);
    running.stop().await;
}
