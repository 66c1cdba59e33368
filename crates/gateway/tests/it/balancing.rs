//! Replica selection, circuit breakers, retries and deadlines.

use crate::support::{
    FakeLocal, FakeRemote, Running, config, local_endpoint, remote_endpoint, route, until, unused_address,
};
use gantry_gateway::policy::breaker;
use gantry_proto::inference::{ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread")]
async fn least_loaded_replica_is_selected() {
    let replicas = [FakeLocal::held(), FakeLocal::held(), FakeLocal::held()];
    let running = Running::start(config(), |g| {
        for (i, replica) in (0..).zip(&replicas) {
            g.register_local("s", i, Arc::clone(replica) as _);
        }
    });
    let endpoints: Vec<_> = (0..3).map(|i| local_endpoint("s", i)).collect();
    running.route(route("m", &[(1, 1, &endpoints)]));
    let client = running.client();
    let mut held = Vec::new();
    for sent in 1..=9 {
        held.push(tokio::spawn(async move { client.infer("m").await }));
        until("the request arrives", || async {
            replicas.iter().map(|r| r.arrived()).sum::<usize>() == sent
        })
        .await;
    }
    assert_eq!(replicas.each_ref().map(|r| r.arrived()), [3, 3, 3]);
    assert_eq!(running.routes.in_flight("m", 1, "s", 2), 3);
    for replica in &replicas {
        replica.gate.add_permits(3);
    }
    for answer in held {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    until("all have left", || async { running.routes.in_flight("m", 1, "s", 2) == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_follows_version_weights() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let here = [local_endpoint("builtin", 0)];
    running.route(route("m", &[(1, 90, &here), (2, 10, &here), (3, 50, &[])]));
    let mut second = 0;
    let mut connection = running.client().connect().await;
    for _ in 0..1000 {
        let answer = crate::support::send(&mut connection, "POST", "/v2/models/m/infer", &[], "{}").await;
        assert_eq!(answer.status, 200, "a version without replicas gets nothing");
        second += u32::from(answer.header("x-seldon-route") == ":m_2:");
    }
    assert!((60..=140).contains(&second), "{second} of 1000 for a tenth");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_replica_fails_no_request() {
    let alive = FakeRemote::start(FakeLocal::new()).await;
    let running = Running::start(config(), |_| {});
    let endpoints = [remote_endpoint("s", 0, unused_address()), remote_endpoint("s", 1, alive.address)];
    running.route(route("m", &[(1, 1, &endpoints)]));
    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    for _ in 0..20 {
        assert_eq!(running.client().infer("m").await.status, 200);
        let request = ModelInferRequest { model_name: "m".into(), ..Default::default() };
        assert_eq!(grpc.model_infer(request).await.unwrap().into_inner().model_name, "m_1");
    }
    let retries = running.metric("gantry_gateway_retries_total");
    assert!(retries >= 1);
    assert!(retries < 20, "the breaker stops requests to a dead replica: {retries} retries");
    assert_eq!(running.metric("gantry_gateway_breaker_open{server=\"s\",server_replica=\"0\"}"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn breaker_opens_after_failures_and_closes_after_recovery() {
    let address = unused_address();
    let running = Running::start(config(), |_| {});
    running.route(route("m", &[(1, 1, &[remote_endpoint("s", 0, address)])]));
    for _ in 0..breaker::FAILURE_THRESHOLD {
        let answer = running.client().infer("m").await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.text(), "{\"error\":\"replica 0 of server s (model m) is unreachable\"}");
    }
    let answer = running.client().infer("m").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.text(), "{\"error\":\"all replicas of model m (1) are failing: retry in 1 s\"}");

    let _alive = FakeRemote::start_at(address, FakeLocal::new()).await;
    until("the breaker lets a request try", || async { running.client().infer("m").await.status == 200 })
        .await;
    assert_eq!(running.metric("gantry_gateway_breaker_open{server=\"s\",server_replica=\"0\"}"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sent_request_is_not_retried() {
    let (first, second) = (FakeLocal::held(), FakeLocal::held());
    let remotes = [FakeRemote::start(Arc::clone(&first)).await, FakeRemote::start(Arc::clone(&second)).await];
    let running = Running::start(config(), |_| {});
    let endpoints: Vec<_> = (0..).zip(&remotes).map(|(i, r)| remote_endpoint("s", i, r.address)).collect();
    running.route(route("m", &[(1, 1, &endpoints)]));
    let client = running.client();
    let pending = tokio::spawn(async move { client.infer("m").await });
    until("it arrives", || async { first.arrived() + second.arrived() == 1 }).await;
    for remote in &remotes {
        remote.stop.cancel();
    }
    let answer = pending.await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("closed the connection before it responded"), "{answer:?}");
    assert_eq!(first.arrived() + second.arrived(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_connections_are_pooled_and_replaced() {
    let local = FakeLocal::new();
    let remote = FakeRemote::start(Arc::clone(&local)).await;
    let running = Running::start(gantry_gateway::Config { workers: 1, ..config() }, |_| {});
    running.route(route("m", &[(1, 1, &[remote_endpoint("s", 0, remote.address)])]));
    for _ in 0..50 {
        assert_eq!(running.client().infer("m").await.status, 200);
    }
    assert_eq!(remote.connections.load(Ordering::SeqCst), 1, "sequential requests share one connection");

    // The replica restarts on its address: the pooled connection is closed and replaced.
    remote.stop.cancel();
    let address = remote.address;
    drop(remote);
    let restarted = loop {
        match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => {
                drop(listener);
                break FakeRemote::start_at(address, Arc::clone(&local)).await;
            }
            Err(_) => tokio::task::yield_now().await,
        }
    };
    until("it is served again", || async { running.client().infer("m").await.status == 200 }).await;
    assert!(restarted.connections.load(Ordering::SeqCst) >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn client_disconnect_cancels_the_request() {
    let (here, there) = (FakeLocal::held(), FakeLocal::held());
    let remote = FakeRemote::start(Arc::clone(&there)).await;
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&here) as _));
    running.route(route("here", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running.route(route("there", &[(1, 1, &[remote_endpoint("s", 0, remote.address)])]));
    let client = running.client();
    for (model, fake) in [("here", &here), ("there", &there)] {
        let pending = tokio::spawn(async move { client.infer(model).await });
        until("it arrives", || async { fake.arrived() == 1 }).await;
        pending.abort();
        until("it is dropped", || async { fake.dropped.load(Ordering::SeqCst) == 1 }).await;
        running.routes.drained(model, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_time_out_at_their_deadline() {
    let (here, there) = (FakeLocal::held(), FakeLocal::held());
    let remote = FakeRemote::start(Arc::clone(&there)).await;
    let config = gantry_gateway::Config { request_timeout: Duration::from_millis(200), ..config() };
    let running = Running::start(config, |g| g.register_local("builtin", 0, Arc::clone(&here) as _));
    running.route(route("here", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running.route(route("there", &[(1, 1, &[remote_endpoint("s", 0, remote.address)])]));
    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    for model in ["here", "there"] {
        let answer = running.client().infer(model).await;
        assert_eq!(answer.status, 504);
        assert_eq!(answer.text(), format!("{{\"error\":\"model {model} did not respond within 0.2 s\"}}"));

        let request = ModelInferRequest { model_name: model.into(), ..Default::default() };
        let status = grpc.model_infer(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status:?}");

        // A client deadline that only the gateway enforces.
        let started = Instant::now();
        let stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
        let (executor, io) = (hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream));
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post("http://test/inference.GRPCInferenceService/ModelInfer")
            .header("content-type", "application/grpc")
            .header("grpc-timeout", "20m")
            .body(http_body_util::Full::new(gantry_oip::grpc::encode_frame(&request)))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "4");
        assert!(started.elapsed() < Duration::from_millis(190), "{:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_version_falls_back_to_another() {
    let running = Running::start(config(), |g| g.register_local("builtin", 0, FakeLocal::new() as _));
    let (here, away) = ([local_endpoint("builtin", 0)], [remote_endpoint("s", 0, unused_address())]);
    running.route(route("m", &[(1, 50, &here), (2, 50, &away)]));
    for _ in 0..40 {
        let answer = running.client().infer("m").await;
        assert_eq!((answer.status.as_u16(), answer.header("x-seldon-route")), (200, ":m_1:"));
    }
}
