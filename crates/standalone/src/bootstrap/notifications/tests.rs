//! Delivery to real endpoints on loopback.

use super::*;
use serde_json::{Value, json};
use std::{collections::VecDeque, net::SocketAddr};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::timeout,
};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);
const QUICK: RetryPolicy =
    RetryPolicy { retries: 3, base: Duration::from_millis(5), max: Duration::from_millis(20) };

fn notice(event: &'static str, version: u32, webhooks: &Value) -> RolloutNotice {
    let spec = json!({ "strategy": { "blueGreen": {} }, "notifications": { "webhooks": webhooks } });
    RolloutNotice {
        event,
        at: 1_700_000_000_000,
        kind: "Model",
        name: "iris".into(),
        namespace: "ml".into(),
        policy: "careful".into(),
        version: Some(version),
        to: Some(1),
        percent: None,
        reason: Some("HigherFailureRatio".into()),
        message: format!("model iris: version {version} is rolled back to version 1: it fails"),
        spec: serde_json::to_vec(&spec).unwrap(),
    }
}

/// Answers each request with the next status, then with 200; sends head and body of each request.
async fn endpoint(statuses: &[&'static str]) -> (SocketAddr, UnboundedReceiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = unbounded_channel();
    let statuses = Arc::new(Mutex::new(statuses.iter().copied().collect()));
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer(connection, statuses.clone(), sender.clone()));
        }
    });
    (address, receiver)
}

async fn answer(
    mut connection: TcpStream,
    statuses: Arc<Mutex<VecDeque<&'static str>>>,
    requests: UnboundedSender<(String, Value)>,
) {
    let mut bytes = Vec::new();
    loop {
        if connection.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let Ok(document) = serde_json::from_str(body) else { continue };
        requests.send((head.to_owned(), document)).unwrap();
        bytes.clear();
        let status = statuses.lock().unwrap().pop_front().unwrap_or("200 OK");
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        connection.write_all(answer.as_bytes()).await.unwrap();
    }
}

async fn next(requests: &mut UnboundedReceiver<(String, Value)>) -> (String, Value) {
    timeout(TEST_TIMEOUT, requests.recv()).await.unwrap().unwrap()
}

async fn wait_for(notifier: &Notifier, result: &'static str, expected: u64) {
    let reached = async {
        while notifier.sent.get_or_create(&Labels { result }).get() != expected {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(TEST_TIMEOUT, reached).await.unwrap_or_else(|_| panic!("{result} is not {expected}"));
}

fn notifier() -> Notifier {
    Notifier::with_retries(&[], true, QUICK).unwrap()
}

#[tokio::test]
async fn event_reaches_the_webhooks_that_report_it() {
    let (address, mut requests) = endpoint(&[]).await;
    let notifier = notifier();
    let webhooks = json!([
        { "url": format!("http://{address}/promotions"), "events": ["Promoted"] },
        { "url": format!("http://{address}/hook?token=abc") },
    ]);
    notifier.notify(&notice("RolledBack", 2, &webhooks), "7-1");
    notifier.notify(&notice("StageEntered", 2, &webhooks), "7-2");
    let (head, document) = next(&mut requests).await;
    assert!(head.starts_with("POST /hook?token=abc HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("\r\nidempotency-key: 7-1"), "{head}");
    assert_eq!(
        document,
        json!({
            "id": "7-1",
            "event": "RolledBack",
            "time": "2023-11-14T22:13:20Z",
            "kind": "Model",
            "namespace": "ml",
            "name": "iris",
            "policy": "careful",
            "version": 2,
            "to": 1,
            "reason": "HigherFailureRatio",
            "text": "model iris: version 2 is rolled back to version 1: it fails",
        })
    );
    wait_for(&notifier, "delivered", 1).await;
    assert!(requests.try_recv().is_err());
    assert!(notifier.endpoints.lock().unwrap().is_empty());
}

#[tokio::test]
async fn transient_failures_are_repeated_and_events_stay_in_order() {
    let (address, mut requests) = endpoint(&["429 Too Many Requests", "503 Service Unavailable"]).await;
    let notifier = notifier();
    let webhooks = json!([{ "url": format!("http://{address}/") }]);
    for version in [2, 3] {
        notifier.notify(&notice("Promoted", version, &webhooks), &format!("1-{version}"));
    }
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(next(&mut requests).await.1["id"].clone());
    }
    assert_eq!(ids, ["1-2", "1-2", "1-2", "1-3"]);
    wait_for(&notifier, "delivered", 2).await;
}

#[tokio::test]
async fn permanent_failure_is_not_repeated() {
    let (address, mut requests) = endpoint(&["404 Not Found"]).await;
    let notifier = notifier();
    let webhooks = json!([{ "url": format!("http://{address}/") }]);
    notifier.notify(&notice("Promoted", 2, &webhooks), "1");
    wait_for(&notifier, "failed", 1).await;
    notifier.notify(&notice("Promoted", 3, &webhooks), "2");
    wait_for(&notifier, "delivered", 1).await;
    assert_eq!(
        [next(&mut requests).await.1["id"].clone(), next(&mut requests).await.1["id"].clone()],
        ["1", "2"]
    );
}

#[tokio::test]
async fn private_addresses_are_notified_only_if_allowed() {
    let (address, mut requests) = endpoint(&[]).await;
    let webhooks = json!([{ "url": format!("http://{address}/") }]);
    let closed = Notifier::with_retries(&[], false, QUICK).unwrap();
    closed.notify(&notice("Promoted", 2, &webhooks), "1");
    wait_for(&closed, "failed", 1).await;
    assert!(requests.try_recv().is_err());
    let open = Notifier::with_retries(&["127.0.0.0/8".parse().unwrap()], false, QUICK).unwrap();
    open.notify(&notice("Promoted", 2, &webhooks), "2");
    wait_for(&open, "delivered", 1).await;
}

/// Of an endpoint that accepts connections and never answers, some notifications wait and the others are dropped.
#[tokio::test]
async fn silent_endpoint_delays_no_other_and_holds_a_bounded_number() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, mut requests) = endpoint(&[]).await;
    let notifier = notifier();
    let url = |address: SocketAddr| json!([{ "url": format!("http://{address}/") }]);
    let of_silent = url(silent.local_addr().unwrap());
    for n in 0..200 {
        notifier.notify(&notice("Promoted", 2, &of_silent), &n.to_string());
    }
    let dropped = notifier.sent.get_or_create(&Labels { result: "dropped" }).get();
    assert!(dropped >= 199 - MAX_WAITING as u64, "{dropped}");
    notifier.notify(&notice("Promoted", 3, &url(address)), "other");
    assert_eq!(next(&mut requests).await.1["id"], "other");
}
