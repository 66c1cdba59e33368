//! The memory budget of request bodies and responses.

use crate::support::{FakeLocal, Http2, LARGE, Running, TEST_TIMEOUT, config, local_endpoint, route, until};
use bytes::Bytes;
use gantry_gateway::Config;
use std::{sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

const KIB: usize = 1 << 10;

fn start(max_memory: usize, max_body: usize) -> Running {
    let never = Duration::from_mins(10);
    let config = Config {
        max_memory,
        max_body,
        header_timeout: never,
        body_timeout: never,
        unread_timeout: never,
        ..config()
    };
    let fake = FakeLocal::new();
    let running = Running::start(config, |g| g.register_local("builtin", 0, Arc::clone(&fake) as _));
    running.route(route("m", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running
}

fn used(running: &Running) -> usize {
    usize::try_from(running.metric("gantry_gateway_memory_used_bytes")).unwrap()
}

async fn send(running: &Running, head: &str, body: usize) -> TcpStream {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(format!("POST {head}\r\nhost: x\r\n").as_bytes()).await.unwrap();
    stream.write_all(b"content-length: 600000\r\n\r\n").await.unwrap();
    stream.write_all(&vec![b'x'; body]).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_over_the_budget_are_rejected() {
    let running = start(1300 * KIB, 600 * KIB);
    let infer = "/v2/models/m/infer HTTP/1.1";
    let mut held = Vec::new();
    for count in 1..=2 {
        held.push(send(&running, infer, 500 * KIB).await);
        until("the body is charged", || async { used(&running) >= count * 500 * KIB }).await;
    }
    let path = "/v2/models/m/infer?echo";
    let refused = running.client().send("POST", path, &[], vec![b'x'; 500 * KIB]).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.text(), "{\"error\":\"the gateway is at its memory limit: retry in 1 s\"}");
    assert_eq!(refused.header("retry-after"), "1");
    assert!(running.metric("gantry_gateway_memory_refused_total") >= 1);
    assert_eq!(running.client().infer("m").await.status, 200, "small requests are served");
    drop(held);
    until("the memory is released", || async { used(&running) == 0 }).await;
    let fits = running.client().send("POST", path, &[], vec![b'x'; 500 * KIB]).await;
    assert_eq!(fits.status, 200);
    until("the memory is released", || async { used(&running) == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_has_a_share_of_the_budget() {
    let running = start(4096 * KIB, 1024 * KIB);
    let mut client = Http2::connect(running.address, 1 << 20).await;
    let path = "/v2/models/m/infer";
    let (_open, _answer) = client.start(path, "application/json", vec![b'x'; 900 * KIB]).await;
    until("the body is charged", || async { used(&running) >= 900 * KIB }).await;
    let (end, answer) = client.start(path, "application/json", vec![b'x'; 900 * KIB]).await;
    drop(end);
    assert_eq!(tokio::time::timeout(TEST_TIMEOUT, answer).await.unwrap().unwrap().status(), 503);
    let other = running.client().send("POST", path, &[], vec![b'x'; 900 * KIB]).await;
    assert_eq!(other.status, 200, "other connections have their own share");
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_count_against_the_budget() {
    let running = start(LARGE + LARGE / 2, 1024 * KIB);
    let mut unread = Vec::new();
    for count in 1..=2 {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let head = b"POST /v2/models/m/infer?large HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(head).await.unwrap();
        unread.push(stream);
        until("the response is charged", || async { used(&running) >= count * LARGE }).await;
    }
    let refused = running.client().infer("m").await;
    assert_eq!(refused.status, 503, "no further response is computed");
    drop(unread);
    until("the memory is released", || async { used(&running) == 0 }).await;
    assert_eq!(running.client().infer("m").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_messages_are_charged_before_they_are_buffered() {
    let running = start(1024 * KIB, 900 * KIB);
    let stream = "/inference.GRPCInferenceService/ModelStreamInfer";
    let part = |length: usize| {
        let mut bytes = vec![0; length];
        bytes[1..5].copy_from_slice(&u32::try_from(850 * KIB).unwrap().to_be_bytes());
        Bytes::from(bytes)
    };
    let mut first = Http2::connect(running.address, 1 << 20).await;
    let (_open, _answer) = first.start(stream, "application/grpc", part(800 * KIB)).await;
    until("the part is charged", || async { used(&running) >= 800 * KIB }).await;
    assert_eq!(running.metric("gantry_gateway_incomplete_bodies"), 1);
    let mut second = Http2::connect(running.address, 1 << 20).await;
    let (_open, answer) = second.start(stream, "application/grpc", part(800 * KIB)).await;
    let answer = tokio::time::timeout(TEST_TIMEOUT, answer).await.unwrap().unwrap();
    let collecting = http_body_util::BodyExt::collect(answer.into_body());
    let collected = tokio::time::timeout(TEST_TIMEOUT, collecting).await.unwrap().unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "8");
}
