//! Clients that send or read slowly, or not at all: each wait has a limit.

use crate::support::{
    FakeLocal, FakeRemote, Http2, Running, TEST_TIMEOUT, config, local_endpoint, remote_endpoint, route,
    until,
};
use bytes::Bytes;
use gantry_gateway::Config;
use gantry_oip::grpc::encode_frame;
use gantry_proto::inference as pb;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const GRPC: &str = "application/grpc";
const SHORT: Duration = Duration::from_millis(100);
/// Longer than any test.
const NEVER: Duration = Duration::from_mins(10);

/// No limit of this configuration is reached during a test.
fn patient() -> Config {
    Config { header_timeout: NEVER, body_timeout: NEVER, unread_timeout: NEVER, ..config() }
}

fn infer(model: &str) -> Bytes {
    let raw_input_contents = vec![Bytes::from_static(&[7; 1000])];
    encode_frame(&pb::ModelInferRequest {
        model_name: model.into(),
        raw_input_contents,
        ..Default::default()
    })
}

async fn remote(config: Config) -> (Running, FakeRemote) {
    let server = FakeRemote::start(FakeLocal::new()).await;
    let running = Running::start(config, |_| {});
    running.route(route("m", &[(1, 1, &[remote_endpoint("s", 0, server.address)])]));
    (running, server)
}

fn local(config: Config, local: &Arc<FakeLocal>) -> Running {
    let running = Running::start(config, |g| g.register_local("builtin", 0, Arc::clone(local) as _));
    running.route(route("m", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running
}

/// Requests a response that fills the buffers of the connection.
async fn unread_response(running: &Running) -> TcpStream {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = b"POST /v2/models/m/infer?large HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(head).await.unwrap();
    stream
}

fn inferences(running: &Running, protocol: &str, code: u16) -> u64 {
    let labels = "server=\"s\",server_replica=\"0\",model=\"m\",model_internal=\"m_1\"";
    running
        .metric(&format!("seldon_model_infer_total{{{labels},method_type=\"{protocol}\",code=\"{code}\"}}"))
}

async fn slots_are_free(running: &Running) {
    until("the slots are free", || async {
        running.routes.in_flight("m", 1, "s", 0) == 0 && running.metric("gantry_gateway_in_flight") == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_http2_response_frees_its_slot_at_the_deadline() {
    let (running, _server) = remote(Config { request_timeout: Duration::from_secs(1), ..patient() }).await;
    let mut client = Http2::connect(running.address, 0).await;
    let (end, answer) = client.start(INFER, GRPC, infer("m")).await;
    drop(end);
    let _unread = answer.await.unwrap();
    until("the deadline is recorded", || async { inferences(&running, "grpc", 4) == 1 }).await;
    slots_are_free(&running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_http1_response_frees_its_slot_at_the_deadline() {
    let (running, _server) = remote(Config { request_timeout: Duration::from_secs(1), ..patient() }).await;
    let _unread = unread_response(&running).await;
    until("the deadline is recorded", || async { inferences(&running, "rest", 504) == 1 }).await;
    slots_are_free(&running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn response_is_admitted_until_it_is_written() {
    for is_remote in [false, true] {
        let config = Config { max_in_flight: 1, ..patient() };
        let fake = FakeLocal::new();
        let (running, _server) = if is_remote {
            remote(config).await
        } else {
            (local(config, &fake), FakeRemote::start(fake).await)
        };
        let unread = unread_response(&running).await;
        unread.readable().await.unwrap();
        assert_eq!(running.client().infer("m").await.status, 503, "remote: {is_remote}");
        drop(unread);
        until("the slot is free", || async { running.client().infer("m").await.status == 200 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_response_closes_the_connection() {
    let fake = FakeLocal::new();
    let running = local(Config { unread_timeout: SHORT, ..patient() }, &fake);
    let _unread = unread_response(&running).await;
    until("the response has begun", || async { fake.answered.load(Ordering::SeqCst) == 1 }).await;
    until("the connection is closed", || async { running.metric("gantry_gateway_connections") == 0 }).await;
    assert_eq!(running.metric("gantry_gateway_in_flight"), 0);

    let mut client = Http2::connect(running.address, 0).await;
    let (end, answer) = client.start(INFER, GRPC, infer("m")).await;
    drop(end);
    let _unread = answer.await.unwrap();
    until("the HTTP/2 connection is closed", || async { running.metric("gantry_gateway_connections") == 0 })
        .await;
    assert_eq!(running.metric("gantry_gateway_in_flight"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_without_requests_is_closed() {
    let held = FakeLocal::held();
    let running = local(Config { header_timeout: SHORT, unread_timeout: SHORT, ..patient() }, &held);
    let client = running.client();
    let slow = tokio::spawn(async move { client.infer("m").await });
    until("the slow request arrives", || async { held.arrived() == 1 }).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for (what, sent) in [
        ("silent", &b""[..]),
        ("a part of the HTTP/2 preface", b"PRI * HT"),
        ("idle HTTP/2", preface),
        ("a part of the headers", b"GET /v2 HTTP/1.1\r\nhost: x\r\nx-slow: "),
    ] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{what}: the connection must be closed");
    }
    held.gate.add_permits(1);
    assert_eq!(slow.await.unwrap().status, 200, "a connection with a request in flight stays open");
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_never_ends_is_rejected_on_every_endpoint() {
    let fake = FakeLocal::new();
    let config = Config { body_timeout: SHORT, request_timeout: Duration::from_secs(1), ..patient() };
    let running = local(config, &fake);
    for path in ["/v2/models/m/infer", "/v2/models/m/generate", "/v2/repository/index"] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect(path).unwrap();
        let answer = answer.to_lowercase();
        assert!(
            answer.starts_with("http/1.1 504") && answer.contains("connection: close"),
            "{path}: {answer}"
        );
    }
    let mut client = Http2::connect(running.address, 1 << 20).await;
    for path in [
        INFER,
        "/inference.GRPCInferenceService/ModelStatistics",
        "/inference.GRPCInferenceService/ModelMetadata",
        "/inference.GRPCInferenceService/RepositoryIndex",
        "/inference.GRPCInferenceService/ModelStreamInfer",
        "/grpc.health.v1.Health/Check",
    ] {
        // A message of five bytes, of which one arrives.
        let (_open, answer) = client.start(path, GRPC, Bytes::from_static(b"\0\0\0\0\x05\x0a")).await;
        let answer = tokio::time::timeout(TEST_TIMEOUT, answer).await.expect(path).unwrap();
        let (head, body) = answer.into_parts();
        let collecting = http_body_util::BodyExt::collect(body);
        let collected = tokio::time::timeout(TEST_TIMEOUT, collecting).await.expect(path).unwrap();
        let trailers = collected.trailers().unwrap_or(&head.headers);
        assert_eq!(trailers["grpc-status"], "4", "{path}");
    }
    assert_eq!(fake.arrived(), 0);
    until("none is left", || async { running.metric("gantry_gateway_incomplete_bodies") == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_is_taken_after_the_body() {
    for (path, content_type, whole) in
        [("/v2/models/m/infer", "application/json", Bytes::from("{}")), (INFER, GRPC, infer("m"))]
    {
        let fake = FakeLocal::new();
        let config = Config { max_in_flight: 2, max_in_flight_per_replica: 2, ..patient() };
        let running = local(config, &fake);
        let mut client = Http2::connect(running.address, 1 << 20).await;
        let mut open = Vec::new();
        for _ in 0..20 {
            open.push(client.start(path, content_type, whole.slice(..1)).await);
        }
        until("all bodies are incomplete", || async {
            running.metric("gantry_gateway_incomplete_bodies") == 20
        })
        .await;
        assert_eq!(running.client().infer("m").await.status, 200, "others are served");
        assert_eq!(running.routes.in_flight("m", 1, "builtin", 0), 0);
        for (rest, answer) in open {
            rest.send(Ok(http_body::Frame::data(whole.slice(1..)))).await.unwrap();
            drop(rest);
            assert_eq!(tokio::time::timeout(TEST_TIMEOUT, answer).await.unwrap().unwrap().status(), 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_bodies_are_limited_per_connection() {
    let fake = FakeLocal::new();
    let config = Config { max_incomplete: 3, max_incomplete_per_connection: 2, ..patient() };
    let running = local(config, &fake);
    let path = "/v2/models/m/infer";
    let mut open = Vec::new();
    for connection in 0..2 {
        let mut client = Http2::connect(running.address, 1 << 20).await;
        for _ in 0..2 {
            open.push(client.start(path, "application/json", "{").await);
        }
        // The third of the first connection exceeds its own limit, the second of the other one the total.
        if connection == 0 {
            open.push(client.start(path, "application/json", "{").await);
        }
    }
    until("three are left", || async {
        running.metric("gantry_gateway_incomplete_bodies") == 3
            && running.metric("gantry_gateway_shed_total") == 2
    })
    .await;
    // One per connection is always read.
    let mut client = Http2::connect(running.address, 1 << 20).await;
    let (rest, answer) = client.start(path, "application/json", "{").await;
    until("it is read", || async { running.metric("gantry_gateway_incomplete_bodies") == 4 }).await;
    rest.send(Ok(http_body::Frame::data("}".into()))).await.unwrap();
    drop(rest);
    assert_eq!(tokio::time::timeout(TEST_TIMEOUT, answer).await.unwrap().unwrap().status(), 200);
}
