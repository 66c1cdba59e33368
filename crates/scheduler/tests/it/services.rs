//! Routes of services over gRPC: validation, gateways' streams, admission, demand, durability.

use crate::harness::{Gateway, scheduler, within};
use gantry_proto::gantry::{
    AlgorithmRoute, DemandReport, ModelDemand, ModelTraffic, PodEndpoint, ServiceBackend, ServiceComponent,
    ServiceDelivery, ServiceEvent, ServiceName, ServiceRoute, ServiceState, ServiceTraffic,
    ServiceTrafficRequest, TrafficReport, VersionTraffic, WatchServicesRequest,
    route_event::Event as RouteEvent, service_component::Role, service_event::Event,
    services_client::ServicesClient,
};
use gantry_scheduler::Running;
use tonic::{Code, Streaming, transport::Channel};

async fn client(running: &Running) -> ServicesClient<Channel> {
    ServicesClient::connect(format!("http://{}", running.clients)).await.unwrap()
}

fn route(name: &str, pods: &[&str]) -> ServiceRoute {
    let pod = |name: &&str| PodEndpoint {
        name: (*name).into(),
        host: "10.0.0.1".into(),
        http_port: 8080,
        ..Default::default()
    };
    let pods: Vec<_> = pods.iter().map(pod).collect();
    let component = ServiceComponent {
        role: Role::Predictor.into(),
        sleeps: pods.is_empty(),
        backends: vec![ServiceBackend {
            name: format!("{name}-predictor"),
            weight: 100,
            pods,
            ..Default::default()
        }],
        ..Default::default()
    };
    ServiceRoute {
        namespace: "ns".into(),
        name: name.into(),
        hosts: vec![format!("{name}-ns.example.com")],
        components: vec![component],
        ..Default::default()
    }
}

fn name(name: &str) -> ServiceName {
    ServiceName { namespace: "ns".into(), name: name.into() }
}

async fn watch(client: &mut ServicesClient<Channel>) -> Streaming<ServiceEvent> {
    client.watch_services(WatchServicesRequest { subscriber: "operator".into() }).await.unwrap().into_inner()
}

async fn next(events: &mut Streaming<ServiceEvent>) -> Event {
    within(events.message()).await.unwrap().expect("the stream is open").event.unwrap()
}

/// The states between Reset and Synced.
async fn listed(events: &mut Streaming<ServiceEvent>) -> Vec<ServiceState> {
    assert!(matches!(next(events).await, Event::Reset(_)));
    let mut states = Vec::new();
    loop {
        match next(events).await {
            Event::Upsert(state) => states.push(state),
            Event::Synced(_) => return states,
            other => panic!("{other:?} comes not before Synced"),
        }
    }
}

async fn until(events: &mut Streaming<ServiceEvent>, wanted: impl Fn(&ServiceState) -> bool) -> ServiceState {
    loop {
        if let Event::Upsert(state) = next(events).await
            && wanted(&state)
        {
            return state;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn route_reaches_gateways_and_is_admitted_when_all_have_it() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut events = watch(&mut c).await;
    assert_eq!(listed(&mut events).await, []);
    c.put_service(route("a", &["p0"])).await.unwrap();
    let state = until(&mut events, |_| true).await;
    assert_eq!((state.admitted, &*state.reason), (false, "no gateway is connected"));
    assert_eq!(state.route, Some(route("a", &["p0"])));

    let (mut gateway, routes) = Gateway::sync(&running).await;
    assert_eq!(routes, [RouteEvent::UpsertService(route("a", &["p0"]))], "between Reset and Synced");
    until(&mut events, |state| state.admitted).await;

    c.put_service(route("a", &["p0", "p1"])).await.unwrap();
    let state = until(&mut events, |state| !state.admitted).await;
    assert_eq!(state.reason, "a gateway has not acknowledged the route");
    assert_eq!(gateway.apply().await, RouteEvent::UpsertService(route("a", &["p0", "p1"])));
    let state = until(&mut events, |state| state.admitted).await;
    assert_eq!((state.route, &*state.reason), (Some(route("a", &["p0", "p1"])), ""));

    // An equal route is neither sent nor reported.
    c.put_service(route("a", &["p0", "p1"])).await.unwrap();
    c.delete_service(name("a")).await.unwrap();
    assert_eq!(gateway.apply().await, RouteEvent::DeleteService(name("a")));
    assert_eq!(next(&mut events).await, Event::Delete(name("a")));
    c.delete_service(name("a")).await.unwrap();
    c.put_service(route("b", &["p0"])).await.unwrap();
    assert_eq!(gateway.apply().await, RouteEvent::UpsertService(route("b", &["p0"])));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_services() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    for service in ["a", "b", "c"] {
        c.put_service(route(service, &["p0"])).await.unwrap();
    }
    c.put_service(route("b", &[])).await.unwrap();
    c.delete_service(name("c")).await.unwrap();
    running.stop().await;

    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut events = watch(&mut c).await;
    let states = listed(&mut events).await;
    let routes: Vec<_> = states.iter().map(|state| state.route.clone().unwrap()).collect();
    assert_eq!(routes, [route("a", &["p0"]), route("b", &[])]);
    let (_gateway, sent) = Gateway::sync(&running).await;
    assert_eq!(sent, routes.into_iter().map(RouteEvent::UpsertService).collect::<Vec<_>>());
    for _ in 0..2 {
        until(&mut events, |state| state.admitted).await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_are_reported_until_they_do_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut events = watch(&mut c).await;
    listed(&mut events).await;
    let (mut gateway, _) = Gateway::sync(&running).await;
    c.put_service(route("a", &[])).await.unwrap();
    gateway.apply().await;
    let demand = |models: &[&str]| DemandReport {
        subscriber: "g".into(),
        models: models
            .iter()
            .map(|model| ModelDemand { model: (*model).into(), waiting: true, ..Default::default() })
            .collect(),
    };
    gateway
        .client
        .report_demand(demand(&["ns/a/predictor", "ns/gone/predictor", "x/y/z/predictor"]))
        .await
        .unwrap();
    until(&mut events, |state| state.waiting).await;
    gateway.client.report_demand(demand(&[])).await.unwrap();
    until(&mut events, |state| !state.waiting).await;
    gateway.client.report_demand(demand(&["ns/a/predictor"])).await.unwrap();
    until(&mut events, |state| state.waiting).await;
    c.put_service(route("a", &["p0"])).await.unwrap();
    let state = until(&mut events, |state| !state.waiting).await;
    assert_eq!(state.route, Some(route("a", &["p0"])));
    running.stop().await;
}

type Change = fn(&mut ServiceRoute);

fn backend(route: &mut ServiceRoute) -> &mut ServiceBackend {
    &mut route.components[0].backends[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_routes_are_refused_with_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let cases: [(Change, &str); 19] = [
        (|r| r.namespace.clear(), "namespace: "),
        (|r| r.name = "a/b".into(), "name: "),
        (|r| r.name = "a".repeat(64), "name: "),
        (|r| r.hosts.push("Upper.example.com".into()), "hosts[1]: "),
        (|r| r.hosts.push("a.example.com:80".into()), "hosts[1]: "),
        (|r| r.hosts = vec!["a".into(); 65], "hosts: 65 hosts"),
        (|r| r.components.clear(), "components: "),
        (|r| r.graph = b"{}".to_vec(), "components: "),
        (|r| r.components.push(r.components[0].clone()), "components[1].role: "),
        (|r| r.components[0].role = 7, "components[0].role: "),
        (|r| r.components[0].reason = "x".repeat(5000), "components[0].reason: "),
        (|r| backend(r).name = "a b".into(), "components[0].backends[0].name: "),
        (|r| backend(r).weight = 101, "components[0].backends[0].weight: "),
        (
            |r| {
                let other = ServiceBackend { name: "other".into(), weight: 1, ..Default::default() };
                r.components[0].backends.push(other);
            },
            "components[0].backends: the weights sum up to 101",
        ),
        (|r| r.components[0].backends = vec![backend(r).clone(); 2], "components[0].backends[1].name: "),
        (|r| backend(r).pods[0].host = "a_b".into(), "pods[0].host: "),
        (|r| backend(r).pods[0].http_port = 65536, "pods[0].http_port: "),
        (|r| backend(r).pods[0].http_port = 0, "pods[0].http_port: "),
        (|r| backend(r).pods = vec![backend(r).pods[0].clone(); 5001], "5001 pods, at most 5000"),
    ];
    for (change, expected) in cases {
        let mut invalid = route("a", &["p0"]);
        change(&mut invalid);
        let status = c.put_service(invalid).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{expected}");
        assert!(status.message().contains(expected), "{} does not contain {expected}", status.message());
    }
    assert_eq!(listed(&mut watch(&mut c).await).await, [], "nothing of it is kept");
    running.stop().await;
}

/// An Algorithm: two revisions, weights of the operator.
fn algorithm(generation: u64) -> ServiceRoute {
    let mut route = route("reco", &["p0"]);
    let backend = |name: &str, version, weight| ServiceBackend {
        name: name.into(),
        weight,
        pods: route.components[0].backends[0].pods.clone(),
        revision: format!("r{version}"),
        version,
        ..Default::default()
    };
    let backends = vec![backend("reco-stable", 1, 80), backend("reco-canary", 2, 20)];
    route.components[0] = ServiceComponent { backends, ..Default::default() };
    ServiceRoute { algorithm: Some(AlgorithmRoute { generation }), ..route }
}

async fn report(gateway: &mut Gateway, sequence: u64, generation: u64, versions: &[(u32, u64, u64)]) {
    let version = |(version, requests, server_errors): &(u32, u64, u64)| VersionTraffic {
        version: *version,
        requests: *requests,
        server_errors: *server_errors,
        latency: vec![0, 0, *requests],
        ..Default::default()
    };
    let versions = versions.iter().map(version).collect();
    let traffic = ModelTraffic { service: "ns/reco".into(), generation, versions, ..Default::default() };
    let report = TrafficReport { subscriber: "g".into(), sequence, models: vec![traffic], instance: 7 };
    gateway.client.report_traffic(report).await.unwrap();
}

async fn traffic(
    c: &mut ServicesClient<Channel>,
    name: &str,
    generation: u64,
) -> Result<ServiceTraffic, tonic::Status> {
    let request = ServiceTrafficRequest { namespace: "ns".into(), name: name.into(), generation };
    c.get_service_traffic(request).await.map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_of_an_algorithm_are_the_operators_and_statistics_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    c.put_service(algorithm(3)).await.unwrap();
    c.put_service(route("iris", &["p0"])).await.unwrap();
    let (mut gateway, _) = Gateway::sync(&running).await;
    c.put_service(algorithm(4)).await.unwrap();
    let RouteEvent::UpsertService(routed) = gateway.apply().await else { panic!("no route") };
    assert_eq!(routed.rollout_generation, 4, "gateways report under it");
    let weights: Vec<_> = routed.components[0].backends.iter().map(|b| b.weight).collect();
    assert_eq!((weights, routed.algorithm), (vec![80, 20], None));

    assert_eq!(traffic(&mut c, "reco", 4).await.unwrap().versions, []);
    report(&mut gateway, 1, 4, &[(1, 40, 0), (2, 10, 4)]).await;
    report(&mut gateway, 2, 4, &[(1, 40, 1)]).await;
    report(&mut gateway, 2, 4, &[(1, 40, 1)]).await;
    report(&mut gateway, 3, 3, &[(1, 1, 0)]).await;
    // Reports have no reply of the engine.
    let counted = within(async {
        loop {
            let counted = traffic(&mut c, "reco", 4).await.unwrap();
            if counted.versions.iter().map(|version| version.requests).sum::<u64>() == 90 {
                return counted;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    let errors: Vec<_> = counted.versions.iter().map(|v| (v.version, v.requests, v.server_errors)).collect();
    assert_eq!(errors, [(1, 80, 1), (2, 10, 4)], "a repeated report counts once");
    assert_eq!(counted.versions[1].latency, [0, 0, 10]);

    for (name, why) in [("iris", "an InferenceService"), ("gone", "no route")] {
        assert_eq!(traffic(&mut c, name, 4).await.unwrap_err().code(), Code::NotFound, "{why}");
    }
    let mut both = algorithm(5);
    both.delivery = Some(ServiceDelivery::default());
    let refused = c.put_service(both).await.unwrap_err();
    assert!(refused.message().contains("a route of an Algorithm has no delivery"), "{refused}");
    running.stop().await;

    let running = scheduler(dir.path()).await;
    let after = traffic(&mut client(&running).await, "reco", 4).await.unwrap();
    assert_eq!(after.versions, [], "counts are not stored");
    assert_ne!((after.state_id, after.epoch), (counted.state_id, counted.epoch), "and readers see it");
    running.stop().await;
}
