//! Events of requests and responses.

use super::*;
use std::collections::BTreeSet;

const REQUEST: &str = "org.kubeflow.serving.inference.request";
const RESPONSE: &str = "org.kubeflow.serving.inference.response";

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map_or_else(|| "-".into(), |value| value.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn mode_selects_the_events() {
    for (mode, expected) in [
        (LogMode::All, vec![REQUEST, RESPONSE]),
        (LogMode::Request, vec![REQUEST]),
        (LogMode::Response, vec![RESPONSE]),
    ] {
        let harness = Harness::new(|settings, sink| {
            settings.logger = Some(LoggerSettings { mode, ..logger(&sink.to_string()) });
        })
        .await;
        let (status, body) = harness.post(INFER, "{}").await;
        assert_eq!((status, &*body), (StatusCode::OK, b"{}".as_slice()));
        harness.wait_for_events("delivered", expected.len() as u64).await;
        let Harness { running, sink, .. } = harness;
        running.stop().await;
        let kinds: BTreeSet<String> =
            sink.lock().unwrap().iter().map(|(_, headers, _)| text(headers, "ce-type")).collect();
        assert_eq!(kinds, expected.into_iter().map(str::to_owned).collect(), "{mode:?}");
    }
}

#[tokio::test]
async fn events_have_the_attributes_of_the_exchange() {
    let harness = Harness::new(|settings, sink| {
        settings.logger = Some(LoggerSettings {
            metadata_headers: vec!["X-Tenant".into(), "X-Absent".into()],
            annotations: vec![("team".into(), "blue \"1\"".into())],
            ..logger(&sink.to_string())
        });
    })
    .await;
    let request = Request::post(harness.url(PREDICT))
        .header("content-type", "application/json; charset=utf-8")
        .header("ce-id", "event-7")
        .header("x-request-id", "request-7")
        .header("x-tenant", "a")
        .header("x-tenant", "b");
    let body = r#"{"instances":[1,2]}"#;
    harness.send(request, body).await;
    harness.wait_for_events("delivered", 2).await;
    let events = harness.sink.lock().unwrap().clone();
    for (path, headers, _) in &events {
        assert_eq!(path, "/events");
        for (name, value) in [
            ("ce-id", "event-7"),
            ("ce-specversion", "1.0"),
            ("ce-source", "pod-1"),
            ("ce-inferenceservicename", "iris"),
            ("ce-namespace", "ml"),
            ("ce-component", "predictor"),
            ("ce-endpoint", ""),
            ("ce-metadata", r#"{"X-Tenant":["a","b"]}"#),
            ("ce-annotations", r#"{"team":"blue \"1\""}"#),
        ] {
            assert_eq!(text(headers, name), value, "{name}");
        }
        for name in ["ce-time", "ce-recordedtime"] {
            text(headers, name).parse::<jiff::Timestamp>().unwrap();
        }
    }
    let of = |kind: &str| events.iter().find(|(_, headers, _)| text(headers, "ce-type") == kind).unwrap();
    let (request, response) = (of(REQUEST), of(RESPONSE));
    assert_eq!(&*request.2, body.as_bytes());
    assert_eq!(text(&request.1, "content-type"), "application/json; charset=utf-8");
    assert_eq!(&*response.2, br#"{"predictions":[1,2]}"#);
    assert_eq!(text(&response.1, "content-type"), "application/json");
    assert_eq!(text(&harness.model.lock().unwrap()[0].1, "x-tenant"), "a", "headers reach the model");
}

#[tokio::test]
async fn id_is_that_of_the_request_or_a_new_one() {
    let harness = Harness::new(|settings, sink| settings.logger = Some(logger(&sink.to_string()))).await;
    let request = Request::post(harness.url(INFER)).header("x-request-id", "request-7").header("ce-id", "");
    harness.send(request, "1").await;
    harness.wait_for_events("delivered", 2).await;
    harness.post(INFER, "2").await;
    harness.wait_for_events("delivered", 4).await;
    let ids: Vec<String> =
        harness.sink.lock().unwrap().iter().map(|(_, headers, _)| text(headers, "ce-id")).collect();
    assert_eq!(ids[..2], ["request-7", "request-7"]);
    assert!(ids[2] == ids[3] && ids[2].len() == 20, "{ids:?}");
}

#[tokio::test]
async fn metadata_failures_and_probes_are_not_logged() {
    let harness = Harness::new(|settings, sink| settings.logger = Some(logger(&sink.to_string()))).await;
    harness.send(Request::get(harness.url("/v1/models/m")), "").await;
    harness.send(Request::get(harness.url("/")).header("user-agent", "kube-probe/1.30"), "").await;
    harness.post("/v2/repository/index", "{}").await;
    let (status, body) = harness.post("/unready", "{}").await;
    assert_eq!((status, body.len()), (StatusCode::SERVICE_UNAVAILABLE, 0));
    harness.post(INFER, "{}").await;
    harness.wait_for_events("delivered", 3).await;
    let Harness { running, sink, .. } = harness;
    running.stop().await;
    let sink = sink.lock().unwrap();
    let kinds: Vec<String> = sink.iter().map(|(_, headers, _)| text(headers, "ce-type")).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == REQUEST).count(), 2, "the failed one, too");
    assert_eq!(kinds.len(), 3);
}

#[tokio::test]
async fn large_bodies_are_streamed_and_logged_completely() {
    let harness = Harness::new(|settings, sink| settings.logger = Some(logger(&sink.to_string()))).await;
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (status, echoed) = harness.post(INFER, body.clone()).await;
    assert!(status == StatusCode::OK && *echoed == *body);
    harness.wait_for_events("delivered", 2).await;
    assert!(harness.sink.lock().unwrap().iter().all(|(_, _, event)| **event == *body));
}

#[tokio::test]
async fn sink_that_hangs_affects_no_request() {
    let hanging = fake(|_, _| std::future::pending()).await;
    let harness = Harness::with_sink(hanging, |settings, sink| {
        settings.logger = Some(LoggerSettings {
            mode: LogMode::Request,
            workers: 1,
            queue: 2,
            memory: 5000,
            ..logger(&sink.to_string())
        });
    })
    .await;
    for _ in 0..20 {
        assert_eq!(harness.post(INFER, "0123456789").await.0, StatusCode::OK);
    }
    // One is being delivered, two wait.
    harness.wait_for_events("dropped_queue", 17).await;
    assert_eq!(harness.post(INFER, vec![b'x'; 4990]).await.0, StatusCode::OK);
    harness.wait_for_events("dropped_memory", 1).await;
    assert_eq!(harness.events("delivered").await, 0);
}

#[tokio::test]
async fn sink_that_is_down_is_counted() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let harness = Harness::with_sink((closed, Received::default()), |settings, sink| {
        settings.logger = Some(logger(&sink.to_string()));
    })
    .await;
    for _ in 0..3 {
        assert_eq!(harness.predict(json!([1])).await.0, StatusCode::OK);
    }
    harness.wait_for_events("failed", 6).await;
    let refusing = fake(|_, _| async { whole(StatusCode::FORBIDDEN, "") }).await;
    let harness =
        Harness::with_sink(refusing, |settings, sink| settings.logger = Some(logger(&sink.to_string())))
            .await;
    assert_eq!(harness.predict(json!([1])).await.0, StatusCode::OK);
    harness.wait_for_events("failed", 2).await;
}

#[tokio::test]
async fn delivery_has_a_deadline() {
    let hanging = fake(|_, _| std::future::pending()).await;
    let harness = Harness::with_sink(hanging, |settings, sink| {
        settings.logger =
            Some(LoggerSettings { timeout: Duration::from_millis(50), ..logger(&sink.to_string()) });
    })
    .await;
    assert_eq!(harness.predict(json!([1])).await.0, StatusCode::OK);
    harness.wait_for_events("failed", 2).await;
}

#[tokio::test]
async fn response_of_a_client_that_disconnects_is_incomplete() {
    let harness = Harness::new(|settings, sink| settings.logger = Some(logger(&sink.to_string()))).await;
    let request = Request::post(harness.url("/endless")).body(Full::default()).unwrap();
    let mut response = harness.client.request(request).await.unwrap();
    let first = response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "first");
    assert_eq!(harness.events("dropped_incomplete").await, 0);
    drop(response);
    harness.wait_for_events("dropped_incomplete", 1).await;
    assert_eq!(harness.events("delivered").await, 1, "the request");
}

#[tokio::test]
async fn stop_delivers_queued_events() {
    let harness = Harness::new(|settings, sink| {
        settings.logger = Some(LoggerSettings { workers: 1, ..logger(&sink.to_string()) });
    })
    .await;
    for _ in 0..10 {
        harness.post(INFER, "{}").await;
    }
    let Harness { running, sink, .. } = harness;
    running.stop().await;
    assert_eq!(sink.lock().unwrap().len(), 20);
}

#[tokio::test]
async fn wrong_settings_are_an_error() {
    for url in ["sink", "ftp://sink", "http://", "http://a b"] {
        let mut settings = settings(SocketAddr::from(([127, 0, 0, 1], 1)));
        settings.logger = Some(LoggerSettings { url: url.into(), ..logger("x") });
        let error = start(settings).await.map(|_| ()).unwrap_err();
        assert!(error.contains("use http:// or https://"), "{url}: {error}");
    }
    let mut settings = settings(SocketAddr::from(([127, 0, 0, 1], 1)));
    settings.logger = Some(LoggerSettings { source: "a\nb".into(), ..logger("x") });
    assert!(start(settings).await.is_err());
}
