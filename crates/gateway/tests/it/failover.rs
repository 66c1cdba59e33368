//! Replicas that lack a model, lost their server, or do not respond.

use crate::support::{Answer, FakeLocal, FakeRemote, Running, config, remote_endpoint, route, until};
use gantry_gateway::{Config, policy::breaker};
use gantry_oip::{
    Error,
    server::{NO_MODEL, NO_SERVER, Reply, UNPROCESSED, grpc_error, rest_error},
};
use gantry_proto::inference::{ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient};
use http::{HeaderValue, Response, StatusCode};
use std::{sync::Arc, time::Duration};

const BREAKER_OPEN: &str = "gantry_gateway_breaker_open{server=\"s\",server_replica=\"0\"}";

/// What a replica without the model responds: Gantry's agent, Seldon's agent, each over REST and gRPC.
fn missing(seldon: bool, grpc: bool) -> Response<Reply> {
    let error = Error::not_found("model m_1 is not on this replica");
    if grpc {
        // Both send a status in the headers.
        return grpc_error(&error);
    }
    if seldon {
        let mut page = Response::new(Reply::new("404 page not found\n".into()));
        *page.status_mut() = StatusCode::NOT_FOUND;
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        page.headers_mut().insert("content-type", kind);
        return page;
    }
    let mut response = rest_error(&error);
    response.headers_mut().insert(UNPROCESSED, HeaderValue::from_static(NO_MODEL));
    response
}

/// A gateway with the model `m` on these replicas of the server `s`.
async fn gateway(config: Config, replicas: &[&Arc<FakeLocal>]) -> (Running, Vec<FakeRemote>) {
    let running = Running::start(config, |_| {});
    let mut remotes = Vec::new();
    for replica in replicas {
        remotes.push(FakeRemote::start(Arc::clone(replica)).await);
    }
    let endpoints: Vec<_> = (0..).zip(&remotes).map(|(i, r)| remote_endpoint("s", i, r.address)).collect();
    running.route(route("m", &[(1, 1, &endpoints)]));
    (running, remotes)
}

async fn grpc_infer(running: &Running) -> Result<String, tonic::Status> {
    let mut client =
        GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    let request = ModelInferRequest { model_name: "m".into(), ..Default::default() };
    client.model_infer(request).await.map(|r| r.into_inner().model_name)
}

#[tokio::test(flavor = "multi_thread")]
async fn request_goes_on_from_a_replica_without_the_model() {
    for seldon in [false, true] {
        let (without, with) = (FakeLocal::new(), FakeLocal::new());
        without.respond_by(move |r| Some(missing(seldon, r.uri().path().starts_with("/inference."))));
        let (running, _remotes) = gateway(config(), &[&without, &with]).await;
        for _ in 0..20 {
            assert_eq!(running.client().infer("m").await.status, 200);
            assert_eq!(running.client().get("/v2/models/m").await.status, 200);
            assert_eq!(grpc_infer(&running).await.unwrap(), "m_1");
        }
        let tried = without.arrived();
        assert!((1..20).contains(&tried), "it is avoided for a while: {tried}");
        assert_eq!(running.metric(BREAKER_OPEN), 0, "the replica serves other models");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_model_on_the_only_replica_is_unavailable() {
    for seldon in [false, true] {
        let without = FakeLocal::new();
        without.respond_by(move |r| Some(missing(seldon, r.uri().path().starts_with("/inference."))));
        let (running, _remotes) = gateway(config(), &[&without]).await;
        let answer = running.client().infer("m").await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "1"));
        assert_eq!(
            answer.text(),
            "{\"error\":\"replica 0 of server s (model m) does not have the model loaded\"}"
        );
        assert_eq!(grpc_infer(&running).await.unwrap_err().code(), tonic::Code::Unavailable);
        // A large body is forwarded while it arrives, so that it cannot be sent again.
        let large = vec![b' '; 200_000];
        let answer = running.client().send("POST", "/v2/models/m/infer", &[], large).await;
        assert_eq!(answer.status, 503);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn not_found_of_a_model_is_passed_on() {
    let (one, other) = (FakeLocal::new(), FakeLocal::new());
    for replica in [&one, &other] {
        replica.respond_by(|_| Some(rest_error(&Error::not_found("there is no user 7"))));
    }
    let (running, _remotes) = gateway(config(), &[&one, &other]).await;
    let answer = running.client().infer("m").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (404, "{\"error\":\"there is no user 7\"}"));
    assert_eq!(one.arrived() + other.arrived(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_with_an_unreachable_server_fails_no_request() {
    let (dead, alive) = (FakeLocal::new(), FakeLocal::new());
    dead.respond_by(|request| {
        let error = Error::unavailable("the inference server is unreachable", 1);
        let is_grpc = request.uri().path().starts_with("/inference.");
        let mut response = if is_grpc { grpc_error(&error) } else { rest_error(&error) };
        response.headers_mut().insert(UNPROCESSED, HeaderValue::from_static(NO_SERVER));
        Some(response)
    });
    let (running, _remotes) = gateway(config(), &[&dead, &alive]).await;
    for _ in 0..20 {
        assert_eq!(running.client().infer("m").await.status, 200);
        assert_eq!(grpc_infer(&running).await.unwrap(), "m_1");
    }
    assert!(dead.arrived() >= 5, "{}", dead.arrived());
    assert_eq!(running.metric(BREAKER_OPEN), 1);
}

fn bad_gateway() -> Response<Reply> {
    let mut response = Response::new(Reply::default());
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_gateway_counts_for_the_breaker() {
    let (dead, alive) = (FakeLocal::new(), FakeLocal::new());
    dead.respond_by(|_| Some(bad_gateway()));
    let (running, _remotes) = gateway(config(), &[&dead, &alive]).await;
    let mut failed = 0;
    for _ in 0..60 {
        let Answer { status, .. } = running.client().infer("m").await;
        failed += u32::from(status == StatusCode::BAD_GATEWAY);
        if running.metric(BREAKER_OPEN) == 1 {
            break;
        }
    }
    // The server may have seen the request, so it is not sent again.
    assert_eq!(failed, breaker::FAILURE_THRESHOLD);
    assert_eq!(running.metric(BREAKER_OPEN), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_replica_opens_its_breaker() {
    let silent = FakeLocal::held();
    let config = Config { request_timeout: Duration::from_millis(1100), ..config() };
    let (running, _remotes) = gateway(config, &[&silent]).await;
    let client = running.client();
    let asking: Vec<_> = (0..breaker::FAILURE_THRESHOLD)
        .map(|_| tokio::spawn(async move { client.infer("m").await.status.as_u16() }))
        .collect();
    for one in asking {
        assert_eq!(one.await.unwrap(), 504);
    }
    until("the breaker is open", || async { running.metric(BREAKER_OPEN) == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_model_on_a_responding_replica_leaves_the_breaker_closed() {
    let replica = FakeLocal::held();
    replica.respond_by(|r| r.uri().path().contains("fast").then(Response::default));
    let config = Config { request_timeout: Duration::from_millis(1500), ..config() };
    let (running, remotes) = gateway(config, &[&replica]).await;
    running.route(route("fast", &[(1, 1, &[remote_endpoint("s", 0, remotes[0].address)])]));
    let client = running.client();
    let asking: Vec<_> = (0..breaker::FAILURE_THRESHOLD)
        .map(|_| tokio::spawn(async move { client.infer("m").await.status.as_u16() }))
        .collect();
    until("all are sent", || async { replica.arrived() == breaker::FAILURE_THRESHOLD as usize }).await;
    assert_eq!(client.infer("fast").await.status, 200);
    for one in asking {
        assert_eq!(one.await.unwrap(), 504);
    }
    assert_eq!(client.infer("fast").await.status, 200);
    assert_eq!(running.metric(BREAKER_OPEN), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_replica_serves_only_alone() {
    let (one, other) = (FakeLocal::new(), FakeLocal::new());
    let (running, remotes) = gateway(config(), &[&one, &other]).await;
    let endpoints = |disconnected: bool| {
        let first = remote_endpoint("s", 0, remotes[0].address);
        [
            gantry_proto::gantry::Endpoint { disconnected, ..first },
            remote_endpoint("s", 1, remotes[1].address),
        ]
    };
    running.route(route("m", &[(1, 1, &endpoints(true))]));
    for _ in 0..20 {
        assert_eq!(running.client().infer("m").await.status, 200);
    }
    assert_eq!((one.arrived(), other.arrived()), (0, 20));
    running.route(route("m", &[(1, 1, &endpoints(true)[..1])]));
    assert_eq!(running.client().infer("m").await.status, 200);
    assert_eq!(one.arrived(), 1);
    running.route(route("m", &[(1, 1, &endpoints(false))]));
    until("it takes its share again", || async {
        running.client().infer("m").await.status == 200 && one.arrived() > 5
    })
    .await;
}
