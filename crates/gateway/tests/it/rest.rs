//! REST paths and headers.

use crate::support::{
    FakeLocal, FakeRemote, Running, config, local_endpoint, remote_endpoint, reset, route, synced,
};
use bytes::Bytes;
use std::sync::Arc;

type Headers = &'static [(&'static str, &'static str)];

#[tokio::test(flavor = "multi_thread")]
async fn model_paths_are_forwarded() {
    for remote in [false, true] {
        let local = FakeLocal::new();
        let running = if remote {
            let server = FakeRemote::start(Arc::clone(&local)).await;
            let running = Running::start(config(), |_| {});
            running.route(route("iris", &[(1, 100, &[remote_endpoint("mlserver", 0, server.address)])]));
            running
        } else {
            Running::with_iris(&local)
        };
        for (method, path, upstream_path) in [
            ("POST", "/v2/models/iris/infer", "/v2/models/iris_1/infer"),
            ("POST", "/v2/models/iris/versions/1/infer", "/v2/models/iris_1/infer"),
            ("GET", "/v2/models/iris", "/v2/models/iris_1"),
            ("GET", "/v2/models/iris/ready", "/v2/models/iris_1/ready"),
            ("GET", "/v2/models/iris/versions/1/ready", "/v2/models/iris_1/ready"),
            ("GET", "/v2/models/iris/stats", "/v2/models/iris_1/stats"),
            (
                "POST",
                "/v2/models/iris/infer/chat/completions?a=b",
                "/v2/models/iris_1/infer/chat/completions",
            ),
        ] {
            let answer = running.client().send(method, path, &[], "{}").await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            // Readiness has one form, whatever the server's body.
            let expected = if upstream_path.ends_with("/ready") {
                "{\"name\":\"iris\",\"ready\":true}".to_owned()
            } else {
                format!("{{\"model\":\"iris_1\",\"path\":\"{upstream_path}\"}}")
            };
            assert_eq!(answer.text(), expected);
            assert_eq!(answer.header("x-seldon-route"), ":iris_1:");
            assert_eq!(answer.header("x-request-id").len(), 20);
        }
        let line = |code: u16| {
            let server = if remote { "mlserver" } else { "builtin" };
            format!(
                "seldon_model_infer_total{{server=\"{server}\",server_replica=\"0\",model=\"iris\",model_internal=\"iris_1\",method_type=\"rest\",code=\"{code}\"}}"
            )
        };
        assert_eq!(running.metric(&line(200)), 3, "only inferences are recorded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn builtin_endpoints_are_served() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let client = running.client();
    assert_eq!(client.get("/v2/health/live").await.text(), "{\"live\":true}");
    let early = client.get("/v2/health/ready").await;
    assert_eq!((early.status.as_u16(), early.header("retry-after")), (503, "1"));
    running.routes.apply(reset());
    running.routes.apply(gantry_proto::gantry::RouteEvent {
        epoch: 1,
        event: Some(gantry_proto::gantry::route_event::Event::Upsert(route(
            "iris",
            &[(1, 1, &[local_endpoint("builtin", 0)])],
        ))),
        ..Default::default()
    });
    running.routes.apply(synced());
    assert_eq!(client.get("/v2/health/ready").await.text(), "{\"ready\":true}");
    let about = client.get("/v2").await;
    assert!(about.text().starts_with("{\"name\":\"gantry\",\"version\":"), "{about:?}");
    assert_eq!(client.get("/v2/models/stats").await.text(), "{\"model_stats\":[{\"name\":\"iris_1\"}]}");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_responses_state_the_cause() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let mut waiting = route("waiting", &[]);
    waiting.reason = "no server offers lightgbm".into();
    running.route(waiting);
    running.route(route("new", &[(1, 100, &[])]));
    let table = [
        ("POST", "/v2/models/irsi/infer", 404, "there is no model \"irsi\": did you mean \"iris\"?"),
        ("POST", "/v2/models/other/infer", 404, "there is no model \"other\""),
        ("POST", "/v2/models/waiting/infer", 503, "model waiting is not served: no server offers lightgbm"),
        ("GET", "/v2/models/waiting/ready", 503, "model waiting is not served: no server offers lightgbm"),
        ("POST", "/v2/models/new/infer", 503, "model new has no ready replica"),
        ("GET", "/v2/models/iris/infer", 405, "method GET not allowed: use POST"),
        ("POST", "/v2/models/iris/ready", 405, "method POST not allowed: use GET"),
        (
            "GET",
            "/v2/models/iris/infr",
            404,
            "there is no path /v2/models/iris/infr: the nearest is /v2/models/{model}/infer",
        ),
        ("GET", "/v3", 404, "there is no path /v3: the nearest is /v2"),
        ("POST", "/v2/pipelines/p/infer", 404, "there is no pipeline \"p\""),
        ("POST", "/v2/repository/index", 501, "no scheduler is configured"),
        ("POST", "/v2/models/iris%2F..%2Fx/infer", 404, "there is no model \"iris%2F..%2Fx\""),
    ];
    for (method, path, status, message) in table {
        let answer = running.client().send(method, path, &[], "{}").await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("content-type"), "application/json");
        let quoted = message.replace('"', "\\\"");
        assert_eq!(answer.text(), format!("{{\"error\":\"{quoted}\"}}"));
        assert_eq!(answer.header("retry-after"), if status == 503 { "1" } else { "" });
        if status == 405 {
            assert_eq!(answer.header("allow"), if method == "GET" { "POST" } else { "GET" });
        }
    }
    assert_eq!(local.arrived(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_select_model_and_version() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let here = [local_endpoint("builtin", 0)];
    running.route(route("other", &[(1, u32::MAX, &here), (2, 1, &here), (3, 0, &here)]));

    let table: [(Headers, u16, &str); 9] = [
        (&[("seldon-model", "other")], 200, ":other_1:"),
        (&[("seldon-model", "other"), ("x-seldon-route", ":other_3:")], 200, ":other_1:"),
        (&[("seldon-model", "other"), ("x-seldon-route", ":other_2:")], 200, ":other_2:"),
        (&[("seldon-model", "other"), ("x-seldon-route", ":a_1::other_2:")], 200, ":other_2:"),
        (&[("seldon-model", "other"), ("x-seldon-route", ":other_22:")], 200, ":other_1:"),
        (&[("x-seldon-route", ":other_2:")], 200, ":iris_1:"),
        (&[("seldon-model", "missing")], 404, ""),
        (&[("seldon-model", "iris.pipeline")], 404, ""),
        (&[("seldon-model", "iris.experiment")], 404, ""),
    ];
    for (headers, status, tag) in table {
        let answer = running.client().send("POST", "/v2/models/iris/infer", headers, "{}").await;
        assert_eq!((answer.status.as_u16(), answer.header("x-seldon-route")), (status, tag), "{headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn end_to_end_headers_are_forwarded() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        ("x-request-id", "mine-1"),
        ("traceparent", trace),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("seldon-internal-model", "forged_9"),
    ];
    let answer = running.client().send("POST", "/v2/models/iris/infer", &headers, "{}").await;
    assert_eq!(answer.header("x-request-id"), "mine-1");
    assert_eq!(answer.text(), "{\"model\":\"iris_1\",\"path\":\"/v2/models/iris_1/infer\"}");
    let seen = local.seen.lock().unwrap().pop().unwrap();
    assert_eq!(seen["x-request-id"], "mine-1");
    assert_eq!(seen["traceparent"], trace);
    assert_eq!(seen["seldon-internal-model"], "iris_1");
    assert!(!seen.contains_key("x-hop"));

    let odd = running.client().send("POST", "/v2/models/iris/infer", &[("x-request-id", "a b")], "{}").await;
    assert_eq!(odd.header("x-request-id").len(), 20, "an unsafe id is replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_are_forwarded_unchanged() {
    let local = FakeLocal::new();
    let server = FakeRemote::start(Arc::clone(&local)).await;
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    running.route(route("here", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running.route(route("there", &[(1, 1, &[remote_endpoint("mlserver", 0, server.address)])]));
    for size in [0, 1, 65_536, 65_537, 1 << 20, 16 << 20] {
        let body: Bytes = (0..size).map(|i: usize| (i * 31 % 251) as u8).collect();
        for model in ["here", "there"] {
            let path = format!("/v2/models/{model}/infer?echo");
            let answer = running.client().send("POST", &path, &[], body.clone()).await;
            assert_eq!(answer.status, 200, "{model} {size}");
            assert!(answer.body == body, "{model} {size}: {} bytes came back", answer.body.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_requests_keep_the_connection() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let running = Running::with_iris(&FakeLocal::new());
    let mut stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for (path, status) in [("models/missing/infer", "404"), ("nowhere", "404"), ("models/iris/ready", "405")]
    {
        for index in 0..70 {
            let head = format!("POST /v2/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(b"0123456789").await.expect("the connection is open");
            let mut answer = Vec::new();
            while !answer.ends_with(b"}") {
                let read = stream.read_buf(&mut answer).await.unwrap();
                assert!(read > 0, "{path}: closed at request {index}");
            }
            let answer = String::from_utf8(answer).unwrap().to_lowercase();
            assert!(answer.starts_with(&format!("http/1.1 {status}")), "{answer}");
            assert!(!answer.contains("connection: close"), "{answer}");
        }
    }
    // A large body is not read: the response announces the end of the connection.
    let head = b"POST /v2/models/missing/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    stream.write_all(&vec![b'x'; 100_000]).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    let answer = String::from_utf8(answer).unwrap().to_lowercase();
    assert!(answer.starts_with("http/1.1 404") && answer.contains("connection: close"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_answers_head() {
    let running = Running::with_iris(&FakeLocal::new());
    let answer = running.client().send("HEAD", "/v2/health/live", &[], Bytes::new()).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-length")), (200, "13"));
    assert!(answer.body.is_empty());
    let early = running.client().send("HEAD", "/v2/health/ready", &[], Bytes::new()).await;
    assert_eq!((early.status.as_u16(), early.header("retry-after")), (503, "1"));
    let infer = running.client().send("HEAD", "/v2/models/iris/infer", &[], Bytes::new()).await;
    assert_eq!(infer.status, 405);
}
