//! InferenceServices by host and by path.

use crate::support::{FakeLocal, Running, config, local_endpoint, route};
use gantry_proto::gantry::Route;
use std::sync::Arc;

/// `iris` and `my-iris` are InferenceServices in `default` and `ml-team`, `plain` is a model.
fn start() -> Running {
    let fake = FakeLocal::new();
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&fake) as _));
    let endpoint = local_endpoint("builtin", 0);
    running.route(route("plain", &[(1, 1, std::slice::from_ref(&endpoint))]));
    for (name, namespace) in [("iris", "default"), ("my-iris", "ml-team")] {
        let wanted = route(name, &[(1, 1, std::slice::from_ref(&endpoint))]);
        running.route(Route { service_namespace: namespace.into(), ..wanted });
    }
    running.route(Route { service_namespace: "default".into(), ..route("loading", &[]) });
    running
}

async fn ask(running: &Running, host: &str, method: &str, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.get(9..12).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_paths_select_the_service() {
    let running = start();
    let iris = "{\"model\":\"iris_1\",\"path\":\"/v2/models/iris_1/infer\"}";
    let my = "{\"model\":\"my-iris_1\",\"path\":\"/v2/models/my-iris_1/infer\"}";
    let plain = "{\"model\":\"plain_1\",\"path\":\"/v2/models/plain_1/infer\"}";
    let gone = |what: &str| {
        format!(
            "{{\"error\":\"there is no InferenceService {what}: hosts are {{name}}-{{namespace}}.{{domain}}\"}}"
        )
    };
    let gone_path = |what: &str| {
        format!(
            "{{\"error\":\"there is no InferenceService {what}: use /serving/{{namespace}}/{{name}}/…\"}}"
        )
    };
    let other = |model: &str| {
        format!("{{\"error\":\"InferenceService iris has no model \\\"{model}\\\", only \\\"iris\\\"\"}}")
    };
    for (host, method, path, status, expected) in [
        ("iris-default.example.com", "POST", "/v2/models/iris/infer", 200, iris.to_owned()),
        ("iris-default.example.com:9000", "POST", "/v2/models/iris/infer", 200, iris.to_owned()),
        ("iris-default.EXAMPLE.com", "POST", "/v2/models/iris/infer", 200, iris.to_owned()),
        ("iris-predictor-default.example.com", "POST", "/v2/models/iris/infer", 200, iris.to_owned()),
        ("my-iris-ml-team.example.com", "POST", "/v2/models/my-iris/infer", 200, my.to_owned()),
        ("iris.default.svc.cluster.local", "POST", "/v2/models/iris/infer", 200, iris.to_owned()),
        ("iris-predictor.default.svc", "POST", "/v2/models/iris/infer", 200, iris.to_owned()),
        ("x", "POST", "/serving/default/iris/v2/models/iris/infer", 200, iris.to_owned()),
        ("x", "POST", "/serving/ml-team/my-iris/v2/models/my-iris/infer", 200, my.to_owned()),
        ("iris-default.example.com", "GET", "/", 200, "{\"status\":\"alive\"}".into()),
        ("iris-default.example.com", "GET", "/v1/models", 200, "{\"models\":[\"iris\"]}".into()),
        (
            "iris-default.example.com",
            "GET",
            "/v1/models/iris",
            200,
            "{\"name\":\"iris\",\"ready\":true}".into(),
        ),
        ("x", "GET", "/serving/default/iris", 200, "{\"status\":\"alive\"}".into()),
        ("x", "GET", "/serving/default/iris/v2/health/live", 200, "{\"live\":true}".into()),
        (
            "x",
            "GET",
            "/serving/default/loading/v2/health/ready",
            503,
            "{\"error\":\"no routes received from the scheduler yet\"}".into(),
        ),
        // Other models and services.
        ("iris-default.example.com", "POST", "/v2/models/plain/infer", 404, other("plain")),
        ("iris-default.example.com", "POST", "/v1/models/plain:predict", 404, other("plain")),
        (
            "iris-default.example.com",
            "POST",
            "/v2/repository/index",
            404,
            "{\"error\":\"this path belongs to the gateway, not to an InferenceService\"}".into(),
        ),
        ("iris-other.example.com", "POST", "/v2/models/iris/infer", 404, gone("iris-other.example.com")),
        (
            "plain-default.example.com",
            "POST",
            "/v2/models/plain/infer",
            404,
            gone("plain-default.example.com"),
        ),
        ("a.example.com", "GET", "/v2", 404, gone("a.example.com")),
        ("x", "GET", "/serving/default/none/v1/models/none", 404, gone_path("default/none")),
        ("x", "GET", "/serving/default/plain/v1/models/plain", 404, gone_path("default/plain")),
        // Hosts of the gateway.
        ("127.0.0.1:9000", "POST", "/v2/models/plain/infer", 200, plain.to_owned()),
        ("localhost", "POST", "/v2/models/iris/infer", 200, iris.to_owned()),
        ("example.com", "POST", "/v2/models/plain/infer", 200, plain.to_owned()),
        ("xexample.com", "POST", "/v2/models/plain/infer", 200, plain.to_owned()),
        ("gateway.gantry.svc.cluster.local", "POST", "/v2/models/plain/infer", 200, plain.to_owned()),
        ("[::1]:9000", "POST", "/v2/models/plain/infer", 200, plain.to_owned()),
    ] {
        assert_eq!(ask(&running, host, method, path).await, (status, expected), "{host} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_is_ready_when_its_model_is() {
    let running = start();
    running.routes.apply(crate::support::reset());
    let ready = Route {
        service_namespace: "default".into(),
        ..route("iris", &[(1, 1, &[local_endpoint("builtin", 0)])])
    };
    let loading = Route { service_namespace: "default".into(), ..route("loading", &[]) };
    running.route(ready);
    running.route(loading);
    running.routes.apply(crate::support::synced());
    let ask = |host: &'static str| ask(&running, host, "GET", "/v2/health/ready");
    assert_eq!(ask("iris-default.example.com").await, (200, "{\"ready\":true}".into()));
    let (status, body) = ask("loading-default.example.com").await;
    assert_eq!((status, body.as_str()), (503, "{\"error\":\"model loading has no ready replica\"}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_free_without_services() {
    let running = start();
    assert_eq!(ask(&running, "a-b.example.com", "GET", "/v2").await.0, 404);
    let endpoint = local_endpoint("builtin", 0);
    running.routes.apply(crate::support::reset());
    running.route(route("plain", &[(1, 1, &[endpoint])]));
    running.routes.apply(crate::support::synced());
    assert_eq!(ask(&running, "a-b.example.com", "GET", "/v2").await.0, 200, "the services are gone");
}
