//! Ambiguous and abusive requests.

use crate::support::{FakeLocal, Running, TEST_TIMEOUT};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sends raw bytes and returns everything up to the end of the connection.
async fn raw(running: &Running, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await.expect("it must end");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_requests_are_rejected() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let post = "POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\n";
    let table = [
        ("two lengths", format!("{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}x")),
        ("two lengths in one", format!("{post}content-length: 2, 3\r\n\r\n{{}}x")),
        ("a signed length", format!("{post}content-length: +2\r\n\r\n{{}}")),
        ("a negative length", format!("{post}content-length: -2\r\n\r\n{{}}")),
        ("a folded header", format!("{post}x-a: 1\r\n 2\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("a space before the colon", format!("{post}content-length : 2\r\n\r\n{{}}")),
        (
            "a chunk that is no number",
            format!("{post}transfer-encoding: chunked\r\n\r\nzz\r\n{{}}\r\n0\r\n\r\n"),
        ),
        ("chunked not last", format!("{post}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n")),
        (
            "two hosts",
            "POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\nhost: y\r\ncontent-length: 2\r\n\r\n{}"
                .to_owned(),
        ),
        ("no host", "POST /v2/models/iris/infer HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}".to_owned()),
        ("a null in a header", format!("{post}x-a: a\0b\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("no version", "POST /v2/models/iris/infer\r\n\r\n".to_owned()),
        ("another version", "POST /v2/models/iris/infer HTTP/3.7\r\nhost: x\r\n\r\n".to_owned()),
        ("no HTTP at all", "\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03 hello".to_owned()),
        ("a header bomb", format!("{post}{}\r\n", "x-a: b\r\n".repeat(20_000))),
        ("one huge header", format!("{post}x-a: {}\r\n\r\n", "b".repeat(200_000))),
    ];
    for (what, bytes) in table {
        let answer = raw(&running, bytes.as_bytes()).await;
        let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(refused, "{what}: {answer}");
        assert_eq!(local.arrived(), 0, "{what} reached the model");
    }

    for codings in ["gzip, chunked", "gzip\r\ntransfer-encoding: chunked"] {
        let compressed = format!("{post}transfer-encoding: {codings}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n");
        let answer = raw(&running, compressed.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 501"), "{codings}: {answer}");
        assert_eq!(local.arrived(), 0);
    }

    // Content-Length beside chunked encoding: chunks win, and no request is hidden behind them.
    let both = format!(
        "{post}connection: close\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
    );
    let answer = raw(&running, both.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 4") || (answer.starts_with("HTTP/1.1 200") && local.arrived() == 1),
        "{answer}"
    );
    if let Some(seen) = local.seen.lock().unwrap().pop() {
        assert!(!(seen.contains_key("content-length") && seen.contains_key("transfer-encoding")), "{seen:?}");
    }

    // Bare LF is either rejected or treated as a line end.
    let answer = raw(&running, b"GET /v2/health/live HTTP/1.1\nhost: x\nconnection: close\n\n").await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 200"),
        "{answer}"
    );
    assert_eq!(running.client().infer("iris").await.status, 200, "the gateway still serves");
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let one = "POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    let two = "GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(&running, format!("{one}{two}").as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rapid_stream_resets_close_the_connection() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // :method POST, :scheme http, :path /v2/models/iris/infer, literal and not indexed.
    let mut block = vec![0x83, 0x86, 0x04, 21];
    block.extend_from_slice(b"/v2/models/iris/infer");
    for stream in (1u32..40_000).step_by(2) {
        bytes.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 4]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(&block);
        bytes.extend_from_slice(&[0, 0, 4, 3, 0]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(&8u32.to_be_bytes());
    }
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown().await;
    let mut received = Vec::new();
    let _ = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut received))
        .await
        .expect("the connection must end");
    running.routes.drained("iris", 1).await;
    local.gate.add_permits(1);
    assert_eq!(running.client().infer("iris").await.status, 200, "others are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_frame_floods_close_the_connection() {
    let running = Running::with_iris(&FakeLocal::new());
    let window_update = [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let priority = [0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
    for (what, frame) in [("WINDOW_UPDATE", &window_update[..]), ("PRIORITY", &priority)] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
        stream.write_all(&preface).await.unwrap();
        let _ = stream.write_all(&frame.repeat(50_000)).await;
        let mut received = Vec::new();
        let ended = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut received)).await;
        assert!(ended.is_ok(), "{what}: the connection must end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_closed_connection_gets_its_response() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let request = b"POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(request).await.unwrap();
    stream.shutdown().await.unwrap();
    crate::support::until("it arrives", || async { local.arrived() == 1 }).await;
    local.gate.add_permits(1);
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    tokio::time::timeout(TEST_TIMEOUT, reading).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
