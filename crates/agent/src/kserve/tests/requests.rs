//! Forwarded requests, limits and readiness.

use super::*;

#[tokio::test]
async fn requests_are_forwarded_unchanged() {
    let harness = Harness::new(|_, _| {}).await;
    let request =
        Request::put(harness.url("/any/path?a=1%202&b")).header("x-own", "1").header("connection", "x-own");
    let (status, headers, body) = harness.send(request, "body").await;
    assert_eq!((status, &*body), (StatusCode::OK, b"body".as_slice()));
    assert_eq!(headers["content-type"], "application/json");
    let calls = harness.model.lock().unwrap();
    assert_eq!(calls[0].0, "/any/path?a=1%202&b");
    assert!(!calls[0].1.contains_key("x-own"), "hop by hop");
}

#[tokio::test]
async fn grpc_is_forwarded_over_http2() {
    let harness = Harness::new(|settings, sink| settings.logger = Some(logger(&sink.to_string()))).await;
    let client: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
    let request = Request::post(harness.url("/inference.GRPCInferenceService/ModelInfer"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from("framed"))
        .unwrap();
    let response = client.request(request).await.unwrap();
    assert_eq!(response.version(), http::Version::HTTP_2);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "framed");
    harness.wait_for_events("delivered", 2).await;
}

#[tokio::test]
async fn every_request_has_a_deadline() {
    let harness = Harness::new(|settings, _| {
        settings.requests.timeout = Duration::from_millis(50);
        settings.batcher =
            Some(BatcherSettings { max_size: 9, max_latency: TEST_TIMEOUT, timeout: TEST_TIMEOUT });
    })
    .await;
    for path in ["/slow", PREDICT] {
        let (status, _) = harness.post(path, r#"{"instances":[1]}"#).await;
        assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{path}");
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused() {
    let harness = Harness::new(|settings, _| settings.requests.max_in_flight = 1).await;
    let request = Request::post(harness.url("/endless")).body(Full::default()).unwrap();
    let first = harness.client.request(request).await.unwrap();
    let (status, headers, _) = harness.send(Request::post(harness.url(INFER)), "{}").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["retry-after"], "1");
    drop(first);
    eventually(async || harness.post(INFER, "{}").await.0 == StatusCode::OK).await;
}

#[tokio::test]
async fn unreachable_model_server_is_unavailable() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let harness = Harness::new(|settings, sink| {
        settings.component = closed.to_string();
        settings.logger = Some(logger(&sink.to_string()));
    })
    .await;
    assert_eq!(harness.post(INFER, "{}").await.0, StatusCode::SERVICE_UNAVAILABLE);
    harness.wait_for_events("delivered", 1).await;
}

#[tokio::test]
async fn readiness_is_that_of_the_model_server_until_a_stop() {
    for (path, status) in [("/ready", StatusCode::OK), ("/unready", StatusCode::SERVICE_UNAVAILABLE)] {
        let (component, _) = fake(model).await;
        let mut settings = settings(component);
        let probe = json!({ "httpGet": { "path": path, "port": component.port() } });
        settings.probe = Probe::parse(&probe.to_string(), 1).unwrap();
        let harness = Harness::new(|own, _| *own = settings).await;
        let probe = || Request::get(harness.url("/")).header("k-network-probe", "queue");
        let (got, _, body) = harness.send(probe(), "").await;
        assert_eq!(got, status);
        if status == StatusCode::OK {
            assert_eq!(body, "queue");
            harness.running.is_draining.store(true, Relaxed);
            assert_eq!(harness.send(probe(), "").await.0, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(harness.post(INFER, "{}").await.0, StatusCode::OK, "requests are still served");
        }
    }
}

#[tokio::test]
async fn model_server_without_an_open_port_is_not_ready() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let probe = json!({ "tcpSocket": { "port": closed.port() } }).to_string();
    let harness = Harness::new(|settings, _| settings.probe = Probe::parse(&probe, 1).unwrap()).await;
    let kubelet = Request::get(harness.url("/")).header("user-agent", "kube-probe/1.30");
    assert_eq!(harness.send(kubelet, "").await.0, StatusCode::SERVICE_UNAVAILABLE);
}
