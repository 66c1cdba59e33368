//! Authentication and authorisation of REST requests.

use crate::support::{
    FakeLocal, FakePod, Keys, Running, local_endpoint, remote_endpoint, reset, route, service, synced,
};
use gantry_proto::gantry::{Route, ServiceRoute};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Models `iris`, `fraud-eu` and `other`, an InferenceService `flowers` of `iris` in `prod`, and one in pods in `default` that
/// has the model `adapter`.
async fn start(keys: &Keys) -> (Running, Arc<FakeLocal>, FakePod) {
    let local = FakeLocal::new();
    let running = Running::start(keys.config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    let endpoint = local_endpoint("builtin", 0);
    running.routes.apply(reset());
    for name in ["iris", "fraud-eu", "other", "adapter"] {
        running.route(route(name, &[(1, 1, std::slice::from_ref(&endpoint))]));
    }
    let flowers = route("flowers", &[(1, 1, &[endpoint])]);
    running.route(Route { service_namespace: "prod".into(), ..flowers });
    running.routes.apply(synced());
    let pod = FakePod::start("pod").await;
    running.predictor("pods", &[&pod]);
    let components = vec![crate::support::component(
        gantry_proto::gantry::service_component::Role::Predictor,
        vec![crate::support::backend("llm-predictor", 100, &[&pod])],
    )];
    running.service(ServiceRoute { models: vec!["adapter".into()], ..service("llm", components) });
    (running, local, pod)
}

fn keys() -> Keys {
    Keys::new(&[
        ("iris", "{models: [iris, fraud-*], pipelines: [join], experiments: [half]}"),
        ("infer", "{models: [iris], rights: [infer]}"),
        ("look", "{models: ['*'], rights: [metadata]}"),
        ("load", "{models: [iris], rights: [repository]}"),
        ("prod", "{namespaces: [prod]}"),
        ("default", "{namespaces: [default]}"),
    ])
}

/// 401 and 403 are refusals; anything else is the response to a permitted request.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_permitted_by_credential_right_and_object() {
    let keys = keys();
    let (running, _, _pod) = start(&keys).await;
    let model = |name: &str, tail: &str| format!("/v2/models/{name}{tail}");
    let infer = |name: &str| model(name, "/infer");
    let header = |name: &'static str| Some(("seldon-model", name));
    let host = |name: &'static str| Some(("host", name));
    for (method, path, extra, key, expected) in [
        // Health is open, also with a wrong credential.
        ("GET", "/".to_owned(), None, "", 200),
        ("GET", "/v2/health/live".into(), None, "", 200),
        ("GET", "/v2/health/ready/".into(), None, "", 200),
        ("GET", "/v2/health/ready".into(), None, "unknown", 200),
        ("HEAD", "/v2/health/live".into(), None, "", 200),
        // Everything else needs a credential.
        ("GET", "/v2".into(), None, "", 401),
        ("GET", "/v2".into(), None, "unknown", 401),
        ("GET", "/v2".into(), None, "load", 200),
        ("GET", "/v1/models".into(), None, "", 401),
        ("GET", "/no/such/path".into(), None, "", 401),
        ("GET", "/no/such/path".into(), None, "iris", 404),
        ("POST", "/v2/repository/index".into(), None, "", 401),
        ("POST", infer("iris"), None, "", 401),
        ("POST", infer("iris"), None, "unknown", 401),
        ("POST", infer("unknown"), None, "", 401),
        ("DELETE", infer("iris"), None, "", 401),
        ("GET", "/v2/health/live".into(), host("pods-default.example.com"), "", 401),
        ("GET", "/serving/default/pods/v2/health/live".into(), None, "", 401),
        // Names and rights.
        ("POST", infer("iris"), None, "iris", 200),
        ("POST", infer("iris"), None, "infer", 200),
        ("POST", infer("iris"), None, "look", 403),
        ("POST", infer("iris"), None, "load", 403),
        ("POST", infer("iris"), None, "prod", 403),
        ("POST", infer("fraud-eu"), None, "iris", 200),
        ("POST", infer("other"), None, "iris", 403),
        ("POST", infer("missing"), None, "iris", 403),
        ("POST", infer("fraud-missing"), None, "iris", 404),
        ("POST", model("iris", "/versions/1/infer"), None, "infer", 200),
        ("POST", model("other", "/versions/1/infer"), None, "infer", 403),
        ("POST", model("other", "/infer_stream"), None, "infer", 403),
        ("POST", model("other", "/infer/chat"), None, "infer", 403),
        ("POST", "/v1/models/iris:predict".into(), None, "look", 403),
        ("POST", "/v1/models/other:predict".into(), None, "iris", 403),
        ("POST", "/v1/models/other:explain".into(), None, "iris", 403),
        ("GET", model("iris", ""), None, "iris", 200),
        ("GET", model("iris", ""), None, "infer", 403),
        ("GET", model("iris", "/stats"), None, "infer", 403),
        ("GET", model("other", ""), None, "look", 200),
        ("GET", model("iris", "/ready"), None, "infer", 200),
        ("GET", "/v1/models/iris".into(), None, "infer", 200),
        ("GET", model("other", "/ready"), None, "infer", 403),
        ("GET", model("iris", "/ready"), None, "load", 403),
        ("GET", "/v2/models/stats".into(), None, "look", 200),
        ("GET", "/v2/models/stats".into(), None, "iris", 403),
        ("GET", "/v1/models".into(), None, "infer", 403),
        // The header names the object.
        ("POST", infer("iris"), header("other"), "iris", 403),
        ("POST", infer("other"), header("iris"), "iris", 200),
        ("POST", infer("iris"), header("join.pipeline"), "infer", 403),
        ("POST", infer("iris"), header("join.pipeline"), "iris", 404),
        ("POST", infer("iris"), header("half.experiment"), "iris", 404),
        ("POST", infer("iris"), header("iris.experiment"), "iris", 403),
        ("POST", "/v2/pipelines/join/infer".into(), None, "iris", 404),
        ("POST", "/v2/pipelines/other/infer".into(), None, "iris", 403),
        ("POST", "/v2/pipelines/join/infer".into(), header("other.pipeline"), "iris", 403),
        ("POST", "/v2/pipelines/iris/infer".into(), None, "infer", 403),
        // The repository: 501 without a scheduler.
        ("POST", "/v2/repository/models/iris/load".into(), None, "iris", 403),
        ("POST", "/v2/repository/models/iris/load".into(), None, "load", 501),
        ("POST", "/v2/repository/models/iris/unload".into(), None, "load", 501),
        ("POST", "/v2/repository/models/other/unload".into(), None, "load", 403),
        ("POST", "/v2/repository/models/other/load".into(), header("iris"), "load", 403),
        ("POST", "/v2/repository/index".into(), None, "load", 403),
        // An InferenceService of a model, by path and host.
        ("POST", "/serving/prod/flowers/v2/models/flowers/infer".into(), None, "prod", 200),
        ("POST", infer("flowers"), host("flowers-prod.example.com"), "prod", 200),
        ("POST", infer("flowers"), None, "prod", 403),
        ("POST", "/serving/prod/flowers/v2/models/flowers/infer".into(), None, "default", 403),
        ("POST", "/serving/prod/flowers/v2/models/flowers/infer".into(), header("other"), "prod", 403),
        ("POST", "/serving/prod/flowers/v2/models/other/infer".into(), None, "prod", 404),
        ("GET", "/serving/prod/flowers/v2/health/ready".into(), None, "prod", 200),
        ("GET", "/serving/prod/flowers/v2/health/ready".into(), None, "iris", 403),
        // One in pods, whose paths are its own.
        ("POST", "/serving/default/pods/anything".into(), None, "default", 200),
        ("POST", "/serving/default/pods/anything".into(), None, "prod", 403),
        ("GET", "/serving/default/pods/anything".into(), None, "iris", 403),
        ("GET", "/".into(), host("pods-default.example.com"), "default", 200),
        ("POST", "/serving/default/llm/v2/models/adapter/infer".into(), None, "default", 200),
        ("POST", "/serving/default/llm/v2/models/adapter/infer".into(), None, "prod", 403),
        ("POST", "/serving/default/llm/v2/models/adapter/infer".into(), header("other"), "default", 403),
        ("POST", infer("adapter"), None, "default", 403),
    ] {
        let bearer = format!("Bearer {}", keys.key(key));
        let mut headers: Vec<(&str, &str)> = extra.into_iter().collect();
        if !key.is_empty() {
            headers.push(("authorization", &bearer));
        }
        let answer = running.client().send(method, &path, &headers, "{}").await;
        let about = format!("{method} {path} {extra:?} as {key:?}: {answer:?}");
        assert_eq!(answer.status.as_u16(), expected, "{about}");
        if matches!(expected, 401 | 403) && method != "HEAD" {
            let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert!(body["error"].as_str().is_some_and(|error| error.len() > 20), "{about}");
            assert!(!answer.text().contains("gantry_"), "{about}");
        }
        assert_eq!(answer.header("www-authenticate").starts_with("Bearer"), expected == 401, "{about}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_read_from_both_headers_and_wrong_ones_refused() {
    let keys = keys();
    let (running, local, _pod) = start(&keys).await;
    let key = keys.key("iris").to_owned();
    let (bearer, cut, huge) = (format!("Bearer {key}"), &key[..key.len() - 1], "a".repeat(20_000));
    let cases: &[(&[(&str, &str)], u16)] = &[
        (&[("authorization", &bearer)], 200),
        (&[("x-api-key", &key)], 200),
        (&[("authorization", &key)], 401),
        (&[("authorization", "Basic aXJpczppcmlz")], 401),
        (&[("x-api-key", cut)], 401),
        (&[("x-api-key", "")], 401),
        (&[("x-api-key", &huge)], 401),
        (&[("x-api-key", "eyJhbGciOiJub25lIn0.e30.")], 401),
        (&[("x-api-key", &key), ("x-api-key", &key)], 401),
        (&[("authorization", &bearer), ("x-api-key", &key)], 401),
        (&[("authorization", &bearer), ("authorization", "Bearer x")], 401),
    ];
    for (headers, expected) in cases {
        let answer = running.client().send("POST", "/v2/models/iris/infer", headers, "{}").await;
        assert_eq!(answer.status.as_u16(), *expected, "{headers:?} {answer:?}");
        assert!(!answer.text().contains(cut), "{}", answer.text());
    }
    assert_eq!(local.arrived.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_reach_no_server_metric_or_header() {
    let keys = keys();
    let (running, local, pod) = start(&keys).await;
    let remote = FakeLocal::new();
    let server = crate::support::FakeRemote::start(Arc::clone(&remote)).await;
    running.route(route("fraud-far", &[(1, 1, &[remote_endpoint("mlserver", 0, server.address)])]));
    let key = keys.key("iris");
    for (name, value) in [("authorization", format!("Bearer {key}")), ("x-api-key", key.to_owned())] {
        for path in ["/v2/models/iris/infer", "/v2/models/fraud-far/infer", "/v2/models/other/infer"] {
            let answer = running.client().send("POST", path, &[(name, &value)], "{}").await;
            assert!(!format!("{answer:?}").contains(key));
        }
    }
    let bearer = format!("Bearer {}", keys.key("default"));
    let answer =
        running.client().send("POST", "/serving/default/pods/x", &[("authorization", &bearer)], "").await;
    assert_eq!(answer.status.as_u16(), 200);
    // A credential that is not needed is taken too.
    running.client().send("GET", "/v2/health/live", &[("authorization", &bearer)], "").await;
    let mut count = 0;
    for seen in [&local.seen, &remote.seen, &pod.local.seen] {
        for headers in seen.lock().unwrap().iter() {
            count += 1;
            assert!(
                !headers.contains_key("authorization") && !headers.contains_key("x-api-key"),
                "{headers:?}"
            );
        }
    }
    assert_eq!(count, 5);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &running.metrics).unwrap();
    assert!(!text.contains("gantry_unknown") && !text.contains(&key[..12]), "{text}");
    assert_eq!(running.metric("gantry_auth_requests_total{key=\"iris\",result=\"accepted\"}"), 6);
    assert_eq!(running.metric("gantry_auth_requests_total{key=\"iris\",result=\"forbidden\"}"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_show_permitted_models_only() {
    let keys = keys();
    let (running, _, _pod) = start(&keys).await;
    for (key, expected) in [
        ("iris", "{\"models\":[\"fraud-eu\",\"iris\"]}"),
        ("look", "{\"models\":[\"adapter\",\"flowers\",\"fraud-eu\",\"iris\",\"other\"]}"),
        ("prod", "{\"models\":[]}"),
    ] {
        let answer = running.client().send("GET", "/v1/models", &[("x-api-key", keys.key(key))], "").await;
        assert_eq!(answer.text(), expected, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_does_not_wait_for_the_body() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let keys = keys();
    let (running, local, _pod) = start(&keys).await;
    for (credential, expected) in [
        ("x-api-key: wrong\r\n".to_owned(), "401"),
        (String::new(), "401"),
        (format!("x-api-key: {}\r\n", keys.key("look")), "403"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
        let request = format!(
            "POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\n{credential}expect: 100-continue\r\n\
             content-length: 60000000\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        tokio::time::timeout(Duration::from_secs(20), reading).await.expect("no answer").unwrap();
        let text = String::from_utf8(answer).unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {expected}")), "{text}");
    }
    assert_eq!(local.arrived.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_answer_429_with_retry_after() {
    let keys = Keys::new(&[("slow", "{models: [iris]}\n  rate: {perSecond: 0.1, burst: 2}")]);
    let (running, local, _pod) = start(&keys).await;
    let key = keys.key("slow");
    let send =
        async || running.client().send("POST", "/v2/models/iris/infer", &[("x-api-key", key)], "{}").await;
    assert_eq!((send().await.status.as_u16(), send().await.status.as_u16()), (200, 200));
    let refused = send().await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, "10"));
    assert_eq!(refused.text(), "{\"error\":\"the rate limit of slow is exceeded: retry in 10 s\"}");
    keys.clock.advance(Duration::from_secs(10));
    assert_eq!(send().await.status.as_u16(), 200);
    assert_eq!(local.arrived.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_key_is_refused_after_a_reload() {
    let keys = keys();
    let (running, _, _pod) = start(&keys).await;
    let key = keys.key("iris");
    let send =
        async || running.client().send("POST", "/v2/models/iris/infer", &[("x-api-key", key)], "{}").await;
    assert_eq!(send().await.status.as_u16(), 200);
    let other = gantry_auth::generate().unwrap().sha256;
    std::fs::write(&keys.path, "keys: broken").unwrap();
    assert!(keys.auth.reload().is_err());
    assert_eq!(send().await.status.as_u16(), 200);
    let next = format!("keys:\n- name: new\n  sha256: {other}\n  allow: {{models: [iris]}}\n");
    std::fs::write(&keys.path, next).unwrap();
    crate::support::until("the gateway reads the change itself", || async {
        send().await.status.as_u16() == 401
    })
    .await;
}
