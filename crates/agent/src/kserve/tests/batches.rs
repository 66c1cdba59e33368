//! Batches of requests.

use super::*;

/// A latency that no test waits for.
const NEVER: Duration = Duration::from_hours(1);

fn batcher(max_size: usize, max_latency: Duration) -> BatcherSettings {
    BatcherSettings { max_size, max_latency, timeout: TEST_TIMEOUT }
}

async fn harness(max_size: usize, max_latency: Duration) -> Harness {
    Harness::new(|settings, _| settings.batcher = Some(batcher(max_size, max_latency))).await
}

#[tokio::test]
async fn batch_is_sent_when_it_is_full() {
    let harness = harness(4, NEVER).await;
    let (one, two, three) = tokio::join!(
        harness.predict(json!([1])),
        harness.predict(json!([[2, 3], 4])),
        harness.predict(json!(["5"]))
    );
    let ids: Vec<&Value> = [&one, &two, &three].map(|(_, body)| &body["batchId"]).to_vec();
    assert!(ids[0].as_str().unwrap().len() == 20 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    for ((status, body), predictions) in [(one, json!([1])), (two, json!([[2, 3], 4])), (three, json!(["5"]))]
    {
        assert_eq!(
            (status, &body["predictions"], &body["message"]),
            (StatusCode::OK, &predictions, &json!(""))
        );
    }
    let calls = harness.model.lock().unwrap().clone();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].1["content-type"], "application/json");
    assert_eq!(harness.metric("gantry_batches_total").await, 1);
    assert_eq!(harness.metric("gantry_batch_requests_total").await, 3);
}

#[tokio::test]
async fn batch_is_sent_after_its_latency() {
    let harness = harness(100, Duration::from_millis(20)).await;
    let (status, body) = harness.predict(json!([1, 2])).await;
    assert_eq!((status, &body["predictions"]), (StatusCode::OK, &json!([1, 2])));
}

#[tokio::test]
async fn failure_of_a_batch_reaches_every_member() {
    for (instance, status, message) in [
        ("fail", StatusCode::IM_A_TEAPOT, "the model failed"),
        ("short", StatusCode::BAD_GATEWAY, "has 1 predictions for 2 instances"),
        ("text", StatusCode::BAD_GATEWAY, "must be a JSON object"),
    ] {
        let harness = harness(2, NEVER).await;
        let (one, two) = tokio::join!(harness.predict(json!([1])), harness.predict(json!([instance])));
        for (got, body) in [one, two] {
            assert_eq!((got, &body["predictions"]), (status, &Value::Null), "{instance}");
            assert!(body["message"].as_str().unwrap().contains(message), "{body}");
        }
        assert_eq!(harness.metric("gantry_batches_failed_total").await, 1);
    }
}

#[tokio::test]
async fn unreachable_model_is_an_error_of_the_batch() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let harness = Harness::new(|settings, _| {
        settings.component = closed.to_string();
        settings.batcher = Some(batcher(1, NEVER));
    })
    .await;
    let (status, body) = harness.predict(json!([1])).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body["message"].as_str().unwrap().contains("is unreachable"), "{body}");
}

#[tokio::test]
async fn requests_to_different_paths_are_not_mixed() {
    let harness = harness(2, Duration::from_millis(50)).await;
    let body = r#"{"instances":[1]}"#;
    let signature = r#"{"instances":[1],"signature_name":"x"}"#;
    let all = tokio::join!(
        harness.post("/v1/models/a:predict", body),
        harness.post("/v1/models/b:predict", body),
        harness.post("/v1/models/a:predict?x=1", body),
        harness.post("/v1/models/a:predict", signature),
    );
    for (status, _) in [all.0, all.1, all.2, all.3] {
        assert_eq!(status, StatusCode::OK);
    }
    let mut calls: Vec<(String, Bytes)> =
        harness.model.lock().unwrap().iter().map(|(path, _, body)| (path.clone(), body.clone())).collect();
    calls.sort();
    let expected = [
        ("/v1/models/a:predict", signature),
        ("/v1/models/a:predict", body),
        ("/v1/models/a:predict?x=1", body),
        ("/v1/models/b:predict", body),
    ];
    assert_eq!(calls, expected.map(|(path, body)| (path.to_owned(), Bytes::from(body))));
}

#[tokio::test]
async fn bodies_without_instances_are_refused() {
    let harness = harness(1, NEVER).await;
    for body in ["", "nothing", "{}", r#"{"instances":[]}"#, r#"{"instances":7}"#, "[1]"] {
        let (status, answer) = harness.post(PREDICT, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer:?}");
    }
    assert!(harness.model.lock().unwrap().is_empty());
    assert_eq!(harness.post(INFER, "anything").await.0, StatusCode::OK, "not batched");
    assert_eq!(harness.post("/v1/models/m:explain", "anything").await.0, StatusCode::OK, "not batched");
}

#[tokio::test]
async fn oversized_bodies_are_refused() {
    let harness = Harness::new(|settings, _| {
        settings.requests.max_body = 100_000;
        settings.batcher = Some(batcher(1, NEVER));
    })
    .await;
    let body = format!("{{\"instances\":[{}]}}", vec!["1"; 60_000].join(","));
    for path in [PREDICT, INFER] {
        assert_eq!(harness.post(path, body.clone()).await.0, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
    }
}

#[tokio::test]
async fn client_that_disconnects_leaves_its_batch() {
    let harness = harness(3, NEVER).await;
    let request = |instance: &str| {
        let body = format!("{{\"instances\":[\"{instance}\"]}}");
        Request::post(harness.url(PREDICT)).body(Full::new(Bytes::from(body))).unwrap()
    };
    let mut stream = tokio::net::TcpStream::connect(harness.running.address).await.unwrap();
    let body = r#"{"instances":["fail"]}"#;
    let head = format!("POST {PREDICT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    tokio::io::AsyncWriteExt::write_all(&mut stream, (head + body).as_bytes()).await.unwrap();
    // A reset, so that the agent does not wait for a client that may read on.
    stream.set_zero_linger().unwrap();
    let slots = || harness.running.slots.available_permits();
    let all = RequestLimits::default().max_in_flight;
    eventually(async || slots() == all - 1).await;
    drop(stream);
    eventually(async || slots() == all).await;
    let (one, two) = tokio::join!(harness.client.request(request("1")), harness.client.request(request("2")));
    assert_eq!([one.unwrap().status(), two.unwrap().status()], [StatusCode::OK; 2]);
    assert_eq!(&*harness.model.lock().unwrap()[0].2, br#"{"instances":["1","2"]}"#);
}

#[tokio::test]
async fn stop_sends_incomplete_batches_after_their_latency() {
    let harness = Arc::new(harness(100, Duration::from_millis(300)).await);
    let waiting = tokio::spawn({
        let harness = Arc::clone(&harness);
        async move { harness.predict(json!([1])).await }
    });
    let all = RequestLimits::default().max_in_flight;
    eventually(async || harness.running.slots.available_permits() == all - 1).await;
    harness.running.stop_serving.cancel();
    let (status, body) = waiting.await.unwrap();
    assert_eq!((status, &body["predictions"]), (StatusCode::OK, &json!([1])));
}

#[tokio::test]
async fn members_of_a_batch_are_logged_one_by_one() {
    let harness = Harness::new(|settings, sink| {
        settings.batcher = Some(batcher(2, NEVER));
        settings.logger = Some(LoggerSettings { mode: LogMode::Response, ..logger(&sink.to_string()) });
    })
    .await;
    tokio::join!(harness.predict(json!([1])), harness.predict(json!([2])));
    harness.wait_for_events("delivered", 2).await;
    let events = harness.sink.lock().unwrap();
    let mut logged: Vec<Value> = events
        .iter()
        .map(|(_, _, body)| serde_json::from_slice::<Value>(body).unwrap()["predictions"].clone())
        .collect();
    logged.sort_by_key(Value::to_string);
    assert_eq!(logged, [json!([1]), json!([2])]);
}
