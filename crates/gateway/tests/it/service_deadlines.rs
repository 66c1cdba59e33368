//! Streaming, deadlines and scale-up of InferenceServices in pods of their own.

use crate::support::{FakePod, Http2, Running, TEST_TIMEOUT, backend, component, config, service, until};
use gantry_proto::gantry::{PodEndpoint, ServiceComponent, ServiceRoute, service_component::Role};
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
};

const HOST: (&str, &str) = ("host", "iris-default.example.com");

/// A pod that sends a first event, and a second one on request.
async fn streaming_pod(go_on: Arc<Notify>) -> PodEndpoint {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let go_on = Arc::clone(&go_on);
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let first = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
                             9\r\ndata: 1\n\n\r\n";
                let _ = stream.write_all(first.as_bytes()).await;
                go_on.notified().await;
                let _ = stream.write_all(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n").await;
            });
        }
    });
    PodEndpoint {
        name: "llm-0".into(),
        host: address.ip().to_string(),
        http_port: address.port().into(),
        grpc_port: 0,
    }
}

async fn stream(running: &Running) -> http::Response<hyper::body::Incoming> {
    let mut connection = running.client().connect().await;
    let request = http::Request::post("/v2/models/llm/generate_stream")
        .header(HOST.0, HOST.1)
        .body(http_body_util::Full::new("{}".into()))
        .unwrap();
    let response = tokio::time::timeout(TEST_TIMEOUT, connection.send_request(request));
    response.await.expect("headers before the end").unwrap()
}

fn streaming(pod: PodEndpoint, timeout_ms: u64) -> ServiceRoute {
    let mut llm = backend("llm", 1, &[]);
    llm.pods = vec![pod];
    ServiceRoute { timeout_ms, ..service("iris", vec![component(Role::Predictor, vec![llm])]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_as_they_are_sent() {
    let go_on = Arc::new(Notify::new());
    let running = Running::start(config(), |_| {});
    running.service(streaming(streaming_pod(Arc::clone(&go_on)).await, 0));
    let response = stream(&running).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let first = tokio::time::timeout(TEST_TIMEOUT, body.frame()).await.expect("an event before the end");
    assert_eq!(first.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");
    assert_eq!(running.metric("gantry_gateway_in_flight"), 1, "in flight until the end of the stream");
    go_on.notify_one();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "data: 2\n\n");
    until("not in flight", || async { running.metric("gantry_gateway_in_flight") == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_of_the_service_ends_requests_and_streams() {
    let held = FakePod::held("held").await;
    let running = Running::start(config(), |_| {});
    let backends = vec![backend("held", 1, &[&held])];
    let route = service("iris", vec![component(Role::Predictor, backends)]);
    running.service(ServiceRoute { timeout_ms: 200, ..route });
    let answer = running.client().send("POST", "/v1/models/iris:predict", &[HOST], "{}").await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (504, "{\"error\":\"the predictor of InferenceService default/iris did not respond within 0.2 s\"}")
    );
    running.service(streaming(streaming_pod(Arc::new(Notify::new())).await, 200));
    let response = stream(&running).await;
    let status = response.status().as_u16();
    let ended =
        tokio::time::timeout(TEST_TIMEOUT, response.into_body().collect()).await.expect("the deadline");
    assert!(status == 504 || ended.is_err(), "the stream is cut, not ended");
}

/// A gRPC pod that sends back what it receives.
async fn echoing_pod() -> PodEndpoint {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let echo = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| async {
                let response = http::Response::builder().header("content-type", "application/grpc");
                Ok::<_, std::convert::Infallible>(response.body(request.into_body()).unwrap())
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), echo);
            tokio::spawn(serving);
        }
    });
    PodEndpoint {
        name: "chat-0".into(),
        host: address.ip().to_string(),
        http_port: 0,
        grpc_port: address.port().into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_messages_pass_in_both_directions_of_a_stream() {
    let running = Running::start(config(), |_| {});
    let route = streaming(echoing_pod().await, 0);
    running.service(ServiceRoute { hosts: vec!["test".into()], ..route });
    let mut client = Http2::connect(running.address, 1 << 20).await;
    let (messages, answering) = client.start("/chat.Chat/Talk", "application/grpc", "first").await;
    let response = tokio::time::timeout(TEST_TIMEOUT, answering).await.expect("headers").unwrap();
    assert_eq!(response.headers()["x-seldon-route"], ":llm:");
    let mut body = response.into_body();
    for next in ["first", "second", "third"] {
        let frame = tokio::time::timeout(TEST_TIMEOUT, body.frame()).await.expect("before the stream ends");
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), next);
        let following = if next == "first" { "second" } else { "third" };
        if next != "third" {
            messages.send(Ok(http_body::Frame::data(following.into()))).await.unwrap();
        }
    }
    drop(messages);
    let end = tokio::time::timeout(TEST_TIMEOUT, body.collect()).await.expect("the end").unwrap();
    assert!(end.to_bytes().is_empty());
    // A pod without a port for HTTP.
    let answer = running.client().send("GET", "/", &[HOST], "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (
            501,
            "{\"error\":\"InferenceService default/iris serves gRPC only: its containers declare no port for HTTP\"}"
        )
    );
}

fn asleep(reason: &str, sleeps: bool) -> ServiceRoute {
    let predictor = ServiceComponent { reason: reason.into(), sleeps, ..component(Role::Predictor, vec![]) };
    service("iris", vec![predictor])
}

#[tokio::test(flavor = "multi_thread")]
async fn service_without_ready_pods_says_why() {
    let running = Running::start(config(), |_| {});
    for (reason, error) in [
        ("", "the predictor of InferenceService default/iris has no ready pod"),
        (
            "pod iris-0: ImagePullBackOff",
            "the predictor of InferenceService default/iris is not served: pod iris-0: ImagePullBackOff",
        ),
    ] {
        running.service(asleep(reason, false));
        let answer = running.client().send("GET", "/", &[HOST], "").await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "1"));
        assert_eq!(answer.text(), format!("{{\"error\":\"{error}\"}}"));
    }
    running.service(service("iris", vec![]));
    let answer = running.client().send("GET", "/", &[HOST], "").await;
    assert_eq!(answer.text(), "{\"error\":\"InferenceService default/iris has no predictor\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_wakes_a_service_and_waits() {
    let pod = FakePod::start("iris-0").await;
    let running = Running::start(config(), |_| {});
    running.service(asleep("scaled to zero", true));
    let client = running.client();
    let asking = tokio::spawn(async move { client.send("POST", "/", &[HOST], "{}").await });
    let woken = tokio::time::timeout(TEST_TIMEOUT, running.routes.scale_up_requested()).await;
    assert!(woken.is_ok(), "the request waits for a pod");
    let demand = running.routes.demand(Duration::from_secs(1));
    assert_eq!((&*demand[0].model, demand[0].waiting), ("default/iris/predictor", true));
    running.service(asleep("the first pod starts", false));
    let is_waiting =
        || async { running.routes.demand(Duration::from_secs(1)).iter().any(|demand| demand.waiting) };
    until("waiting for the pod", is_waiting).await;
    running.predictor("iris", &[&pod]);
    let answer = asking.await.unwrap();
    assert!(answer.text().contains("\"pod\":\"iris-0\""), "{answer:?}");

    // Deleted while a request waits.
    running.service(asleep("scaled to zero", true));
    let client = running.client();
    let asking = tokio::spawn(async move { client.send("POST", "/", &[HOST], "{}").await });
    until("waiting", is_waiting).await;
    running.delete_service("iris");
    let answer = asking.await.unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (404, "{\"error\":\"InferenceService default/iris was deleted\"}")
    );
}
