//! Limits on bodies, requests and connections; shutdown.

use crate::support::{FakeLocal, FakeRemote, Running, config, local_endpoint, remote_endpoint, route, until};
use gantry_gateway::{BindError, Config, Gateway};
use std::{io::Read as _, sync::Arc, time::Duration};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test(flavor = "multi_thread")]
async fn oversized_body_is_rejected() {
    let local = FakeLocal::new();
    let remote = FakeRemote::start(Arc::clone(&local)).await;
    let limit = 100_000;
    let running = Running::start(Config { max_body: limit, ..config() }, |g| {
        g.register_local("builtin", 0, Arc::clone(&local) as _);
    });
    running.route(route("here", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running.route(route("there", &[(1, 1, &[remote_endpoint("s", 0, remote.address)])]));
    for model in ["here", "there"] {
        let path = format!("/v2/models/{model}/infer?echo");
        let fits = running.client().send("POST", &path, &[], vec![b'x'; limit]).await;
        assert_eq!(fits.status, 200);
        let announced = running.client().send("POST", &path, &[], vec![b'x'; limit + 1]).await;
        assert_eq!(announced.status, 413);
        assert_eq!(announced.text(), "{\"error\":\"the body is larger than the 100000 bytes allowed\"}");

        // Chunked, without an announced length.
        let mut stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let chunk = [b"1000\r\n".as_slice(), &[b'x'; 4096], b"\r\n"].concat();
        let mut answer = vec![0; 12];
        let writing = async {
            for _ in 0..30 {
                if stream.write_all(&chunk).await.is_err() {
                    break;
                }
            }
            stream.read_exact(&mut answer).await.unwrap();
        };
        tokio::time::timeout(crate::support::TEST_TIMEOUT, writing).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 413", "{model}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_limit_are_shed() {
    for (config, status, message) in [
        (
            Config { max_in_flight: 2, ..config() },
            503,
            "{\"error\":\"the gateway is at its request limit: retry in 1 s\"}",
        ),
        (
            Config { max_in_flight_per_replica: 2, ..config() },
            429,
            "{\"error\":\"all replicas of model m (1) are at their request limit: retry in 1 s\"}",
        ),
    ] {
        let local = FakeLocal::held();
        let running = Running::start(config, |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
        running.route(route("m", &[(1, 1, &[local_endpoint("builtin", 0)])]));
        let client = running.client();
        let held: Vec<_> = (0..2).map(|_| tokio::spawn(async move { client.infer("m").await })).collect();
        until("both arrive", || async { local.arrived() == 2 }).await;
        let refused = client.infer("m").await;
        assert_eq!((refused.status.as_u16(), refused.text()), (status, message));
        assert_eq!(refused.header("retry-after"), "1");
        assert_eq!(running.metric("gantry_gateway_shed_total"), 1);
        assert_eq!(client.get("/v2/health/live").await.status, 200, "health is answered under load");
        local.gate.add_permits(3);
        for answer in held {
            assert_eq!(answer.await.unwrap().status, 200);
        }
        assert_eq!(client.infer("m").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn excess_connections_are_rejected() {
    let running = Running::start(Config { max_connections: 2, ..config() }, |_| {});
    let _held = [running.client().connect().await, running.client().connect().await];
    until("both are open", || async { running.metric("gantry_gateway_connections") == 2 }).await;
    let address = running.address;
    let refusal = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        let _ = std::net::TcpStream::connect(address).unwrap().read_to_string(&mut text);
        text
    });
    let refusal = refusal.await.unwrap();
    assert!(refusal.starts_with("HTTP/1.1 503 "), "{refusal}");
    assert!(refusal.ends_with("\r\n\r\n{\"error\":\"too many open connections\"}"), "{refusal}");
}

#[test]
fn bind_error_names_the_port_in_use() {
    let first = Gateway::bind(config()).unwrap();
    let listen = first.local_addr();
    let error = Gateway::bind(Config { listen, ..config() }).err().unwrap();
    assert!(matches!(error, BindError::InUse(_)));
    let port = listen.port();
    assert_eq!(
        error.to_string(),
        format!(
            "port {port} is in use on 127.0.0.1: choose another with --inference-port, 0 for any free one"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_drains_requests() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let client = running.client();
    let pending = tokio::spawn(async move { client.infer("iris").await });
    until("it arrives", || async { local.arrived() == 1 }).await;
    running.shutdown.cancel();
    until("the port is closed", || async { tokio::net::TcpStream::connect(running.address).await.is_err() })
        .await;
    local.gate.add_permits(1);
    assert_eq!(pending.await.unwrap().status, 200);
    tokio::time::timeout(crate::support::TEST_TIMEOUT, running.serving).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alive_connection_serves_one_more_request_during_linger() {
    let (local, config) = (FakeLocal::new(), Config { linger: crate::support::TEST_TIMEOUT, ..config() });
    let running = Running::start(config, |g| g.register_local("builtin", 0, local as _));
    running.route(route("iris", &[(1, 100, &[local_endpoint("builtin", 0)])]));
    let request = b"POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    let mut stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
    let mut buffer = vec![0; 4096];
    stream.write_all(request).await.unwrap();
    let read = stream.read(&mut buffer).await.unwrap();
    let first = String::from_utf8_lossy(&buffer[..read]).to_lowercase();
    assert!(first.starts_with("http/1.1 200") && !first.contains("connection: close"), "{first}");

    running.shutdown.cancel();
    until("the port is closed", || async { tokio::net::TcpStream::connect(running.address).await.is_err() })
        .await;
    stream.write_all(request).await.unwrap();
    let mut last = Vec::new();
    tokio::time::timeout(crate::support::TEST_TIMEOUT, stream.read_to_end(&mut last)).await.unwrap().unwrap();
    let last = String::from_utf8_lossy(&last).to_lowercase();
    assert!(last.starts_with("http/1.1 200") && last.contains("connection: close"), "{last}");
    tokio::time::timeout(crate::support::TEST_TIMEOUT, running.serving).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connection_is_closed_after_linger() {
    let config = Config { linger: Duration::from_millis(50), ..config() };
    let running = Running::start(config, |_| {});
    let mut idle = tokio::net::TcpStream::connect(running.address).await.unwrap();
    until("it is taken", || async { running.metric("gantry_gateway_connections") == 1 }).await;
    running.shutdown.cancel();
    let ended = tokio::time::timeout(crate::support::TEST_TIMEOUT, idle.read(&mut [0])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    tokio::time::timeout(crate::support::TEST_TIMEOUT, running.serving).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn server_panic_fails_only_its_request() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    running.route(route("panic", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    let answer = running.client().infer("panic").await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.text(), "{\"error\":\"the server of model panic panicked\"}");
    let line = "seldon_model_infer_total{server=\"builtin\",server_replica=\"0\",model=\"panic\",model_internal=\"panic_1\",method_type=\"rest\",code=\"500\"}";
    assert_eq!(running.metric(line), 1);
    assert_eq!(running.client().infer("iris").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_headers_close_the_connection() {
    let config = Config { header_timeout: Duration::from_millis(100), ..config() };
    let running = Running::start(config, |_| {});
    let mut stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET /v2 HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
    let mut rest = Vec::new();
    let reading = stream.read_to_end(&mut rest);
    let ended = tokio::time::timeout(crate::support::TEST_TIMEOUT, reading).await;
    assert!(ended.is_ok(), "the connection must be closed");
}
