//! Requests through graphs with a fake client.

use super::*;
use futures::future::join_all;
use gantry_api::kserve::InferenceGraphSpec;
use gantry_transport::memory::MemoryBudget;
use http::{HeaderValue, Response, header};
use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tokio::sync::{Barrier, Notify};

const SOON: Duration = Duration::from_millis(50);

/// What a service does.
enum Behaviour {
    Responds(u16, &'static str),
    Echoes,
    Large(usize),
    Fails(&'static str),
    /// Waits until all services with it are called.
    Meets(Arc<Barrier>),
    /// Fails with 500 when this number of calls is open.
    FailsBeside(usize),
    Never,
}

#[derive(Default)]
struct FakeClient {
    services: HashMap<&'static str, Behaviour>,
    calls: Mutex<Vec<StepRequest>>,
    open: AtomicUsize,
    called: Notify,
}

/// A call that has not ended.
struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn name(target: &CallTarget) -> &str {
    match target {
        CallTarget::Service(name) | CallTarget::Url(name) => name,
    }
}

impl StepClient for FakeClient {
    async fn call(&self, request: StepRequest) -> Result<StepResponse, String> {
        self.open.fetch_add(1, SeqCst);
        let _open = Open(&self.open);
        let respond = |status: u16, body: Bytes| {
            let status = StatusCode::from_u16(status).unwrap();
            Ok(StepResponse { status, headers: HeaderMap::new(), body })
        };
        let body = request.body.clone();
        let service = self.services.get(name(&request.target));
        self.calls.lock().unwrap().push(request.clone());
        self.called.notify_one();
        match service {
            None => Err("no such service".into()),
            Some(Behaviour::Responds(status, body)) => respond(*status, Bytes::from_static(body.as_bytes())),
            Some(Behaviour::Echoes) => respond(200, body),
            Some(Behaviour::Large(bytes)) => respond(200, format!("\"{}\"", "x".repeat(*bytes)).into()),
            Some(Behaviour::Fails(reason)) => Err((*reason).into()),
            Some(Behaviour::Meets(all)) => {
                all.wait().await;
                respond(200, Bytes::from_static(b"{}"))
            }
            Some(Behaviour::FailsBeside(calls)) => {
                while self.open.load(SeqCst) < *calls {
                    tokio::task::yield_now().await;
                }
                respond(500, Bytes::from_static(b"{}"))
            }
            Some(Behaviour::Never) => std::future::pending().await,
        }
    }
}

impl FakeClient {
    fn new(services: impl IntoIterator<Item = (&'static str, Behaviour)>) -> Self {
        Self { services: services.into_iter().collect(), ..Self::default() }
    }

    fn calls(&self) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls.iter().map(|c| format!("{} {}", name(&c.target), String::from_utf8_lossy(&c.body))).collect()
    }
}

fn graph(nodes: &serde_json::Value) -> InferenceGraph {
    let spec: InferenceGraphSpec = serde_json::from_value(serde_json::json!({ "nodes": nodes })).unwrap();
    let graph = Graph::compile(&spec.definition()).unwrap();
    InferenceGraph {
        name: "ml/pets".into(),
        graph: Arc::new(graph),
        timeout: None,
        step_timeout: None,
        propagated: HeaderPatterns::default(),
    }
}

fn sequence(services: &[&str]) -> InferenceGraph {
    let steps: Vec<_> = services.iter().map(|name| serde_json::json!({ "serviceName": name })).collect();
    graph(&serde_json::json!({ "root": { "routerType": "Sequence", "steps": steps } }))
}

fn ensemble(services: &[&str]) -> InferenceGraph {
    let steps: Vec<_> = services.iter().map(|name| serde_json::json!({ "serviceName": name })).collect();
    graph(&serde_json::json!({ "root": { "routerType": "Ensemble", "steps": steps } }))
}

fn budget(bytes: usize) -> Arc<ConnectionMemory> {
    ConnectionMemory::new(&Arc::new(MemoryBudget::new(bytes, bytes)))
}

async fn run_with(
    graph: &InferenceGraph,
    client: &FakeClient,
    headers: &HeaderMap,
    body: &str,
    memory: &Arc<ConnectionMemory>,
) -> Response<Bytes> {
    let deadline = Instant::now() + Duration::from_mins(1);
    let body = Bytes::copy_from_slice(body.as_bytes());
    execute(graph, client, GraphRequest { headers, body, deadline, memory: Arc::clone(memory) }).await
}

async fn run(graph: &InferenceGraph, client: &FakeClient, body: &str) -> String {
    let response = run_with(graph, client, &HeaderMap::new(), body, &budget(1 << 20)).await;
    format!("{} {}", response.status().as_u16(), String::from_utf8_lossy(response.body()))
}

#[tokio::test]
async fn graphs_respond_as_the_reference() {
    let client = FakeClient::new([
        ("classify", Behaviour::Responds(200, r#"{"predictions":["dog"]}"#)),
        ("breed", Behaviour::Echoes),
        ("down", Behaviour::Responds(503, r#"{"error":"starting"}"#)),
        ("text", Behaviour::Responds(200, "hello")),
        ("gone", Behaviour::Fails("connection refused")),
    ]);
    let pets = serde_json::json!({
        "root": { "routerType": "Sequence", "steps": [
            { "serviceName": "classify" },
            { "nodeName": "dogs", "data": "$response", "mapPredictionsToInstances": true, "condition": "[@this].#(predictions.0==\"dog\")" },
        ] },
        "dogs": { "routerType": "Splitter", "steps": [
            { "serviceName": "gone", "weight": 0 }, { "serviceUrl": "breed", "weight": 100 },
        ] },
    });
    let switch = serde_json::json!({ "root": { "routerType": "Switch", "steps": [
        { "serviceName": "breed", "condition": "breed" }, { "serviceName": "text", "condition": "text" },
    ] } });
    let hard = serde_json::json!({ "root": { "routerType": "Sequence", "steps": [
        { "serviceName": "down", "dependency": "Hard" }, { "serviceName": "breed" },
    ] } });
    for (graph, request, expected) in [
        (graph(&pets), r#"{"instances":[1]}"#, r#"200 {"instances":["dog"]}"#),
        (graph(&switch), r#"{"breed":1}"#, r#"200 {"breed":1}"#),
        (graph(&switch), r#"{"text":1}"#, "200 hello"),
        (
            graph(&switch),
            "{}",
            r#"404 {"error":"the inference graph failed","cause":"no condition of switch root matches the request"}"#,
        ),
        (graph(&hard), "{}", r#"503 {"error":"starting"}"#),
        (sequence(&["down", "breed"]), "{}", "200 {}"),
        (ensemble(&["breed", "down"]), "1", r#"200 {"0":1,"1":{"error":"starting"}}"#),
        (
            sequence(&["gone"]),
            "{}",
            r#"500 {"error":"the inference graph failed","cause":"step 0 of node root: connection refused"}"#,
        ),
    ] {
        assert_eq!(run(&graph, &client, request).await, expected, "{graph:?}");
    }
}

#[tokio::test]
async fn json_responses_have_a_content_type() {
    let client =
        FakeClient::new([("json", Behaviour::Responds(200, "{}")), ("text", Behaviour::Responds(201, "a"))]);
    for (service, status, expected) in [
        ("json", 200, Some("application/json")),
        ("text", 201, None),
        ("missing", 500, Some("application/json")),
    ] {
        let response =
            run_with(&sequence(&[service]), &client, &HeaderMap::new(), "", &budget(1 << 20)).await;
        let content_type = response.headers().get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap());
        assert_eq!((response.status().as_u16(), content_type), (status, expected), "{service}");
    }
}

#[tokio::test]
async fn steps_of_an_ensemble_run_in_parallel() {
    let barrier = Arc::new(Barrier::new(3));
    let client = FakeClient::new(["a", "b", "c"].map(|name| (name, Behaviour::Meets(Arc::clone(&barrier)))));
    assert_eq!(run(&ensemble(&["a", "b", "c"]), &client, "{}").await, r#"200 {"0":{},"1":{},"2":{}}"#);
}

#[tokio::test]
async fn failed_hard_step_cancels_the_others() {
    let steps = serde_json::json!([
        { "serviceName": "bad", "dependency": "Hard" }, { "serviceName": "never" }, { "nodeName": "inner" },
    ]);
    let graph = graph(&serde_json::json!({
        "root": { "routerType": "Sequence", "steps": [{ "nodeName": "both" }, { "serviceName": "after" }] },
        "both": { "routerType": "Ensemble", "steps": steps },
        "inner": { "routerType": "Sequence", "steps": [{ "serviceName": "never" }] },
    }));
    let client = FakeClient::new([
        ("bad", Behaviour::FailsBeside(3)),
        ("never", Behaviour::Never),
        ("after", Behaviour::Responds(200, "1")),
    ]);
    assert_eq!(run(&graph, &client, "{}").await, "200 1");
    assert_eq!((client.calls().len(), client.open.load(SeqCst)), (4, 0));
}

#[tokio::test]
async fn one_deadline_holds_for_the_request_and_cancels_its_calls() {
    let client = FakeClient::new([("fast", Behaviour::Responds(200, "{}")), ("never", Behaviour::Never)]);
    let mut graph = sequence(&["fast", "never"]);
    graph.timeout = Some(SOON);
    // Longer than the rest of the request.
    graph.step_timeout = Some(Duration::from_secs(30));
    let expected = r#"504 {"error":"the inference graph failed","cause":"graph ml/pets did not respond within 0.1 s: it waits for step 1 of node root"}"#;
    assert_eq!(run(&graph, &client, "{}").await, expected);
    assert_eq!(client.open.load(SeqCst), 0);
    let calls = client.calls.lock().unwrap();
    assert!(calls[1].deadline <= calls[0].deadline);
}

#[tokio::test]
async fn timeout_of_a_step_ends_the_request() {
    let client = FakeClient::new([("never", Behaviour::Never)]);
    let mut graph = ensemble(&["never"]);
    graph.step_timeout = Some(SOON);
    let expected = r#"500 {"error":"the inference graph failed","cause":"step 0 of node root: no response within 0.1 s (routerTimeouts.serviceClient)"}"#;
    assert_eq!(run(&graph, &client, "{}").await, expected);
    assert_eq!(client.open.load(SeqCst), 0);
}

#[tokio::test]
async fn dropped_request_cancels_its_calls() {
    let client = FakeClient::new([("never", Behaviour::Never)]);
    let graph = ensemble(&["never", "never"]);
    tokio::select! {
        response = run(&graph, &client, "{}") => panic!("{response}"),
        () = async {
            while client.open.load(SeqCst) < 2 {
                client.called.notified().await;
            }
        } => {}
    }
    assert_eq!(client.open.load(SeqCst), 0);
}

#[tokio::test]
async fn number_of_parallel_calls_is_bounded() {
    let client = FakeClient::new([("never", Behaviour::Never)]);
    let mut graph = ensemble(&["never"; 128]);
    graph.timeout = Some(SOON);
    assert!(run(&graph, &client, "{}").await.starts_with("504 "));
    assert_eq!(client.calls().len(), 64);
    let client = FakeClient::new([("one", Behaviour::Responds(200, "1"))]);
    assert!(run(&ensemble(&["one"; 128]), &client, "{}").await.starts_with("200 "));
    assert_eq!(client.calls().len(), 128);
}

#[tokio::test]
async fn bodies_are_charged_until_the_response_is_dropped() {
    let client =
        FakeClient::new([("large", Behaviour::Large(100 << 10)), ("small", Behaviour::Responds(200, "1"))]);
    let memory = budget(1 << 20);
    let response = run_with(&ensemble(&["large", "large"]), &client, &HeaderMap::new(), "", &memory).await;
    assert_eq!(response.status(), StatusCode::OK);
    // The response is still charged.
    assert!(memory.hold((1 << 20) - (100 << 10)).is_err());
    drop(response);
    assert!(memory.hold(1 << 20).is_ok());
    // Beyond the budget the next call is refused.
    let memory = budget(64 << 10);
    let steps =
        serde_json::json!([{ "serviceName": "large" }, { "serviceName": "small", "data": "$response" }]);
    let graph = graph(&serde_json::json!({ "root": { "routerType": "Sequence", "steps": steps } }));
    let response = run_with(&graph, &client, &HeaderMap::new(), "", &memory).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    assert!(memory.hold(64 << 10).is_ok());
}

#[tokio::test]
async fn large_bodies_are_evaluated() {
    let client = FakeClient::new([("large", Behaviour::Large(1 << 20)), ("echo", Behaviour::Echoes)]);
    let steps = serde_json::json!([
        { "serviceName": "large" }, { "serviceName": "echo", "data": "$response", "condition": "missing" },
    ]);
    let graph = graph(&serde_json::json!({ "root": { "routerType": "Sequence", "steps": steps } }));
    let response = run_with(&graph, &client, &HeaderMap::new(), "", &budget(16 << 20)).await;
    assert_eq!((response.status(), response.body().len()), (StatusCode::OK, (1 << 20) + 2));
}

#[test]
fn headers_are_propagated_by_patterns() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-request-id", "1"),
        ("x-tag", "a"),
        ("x-tag", "b"),
        ("authorization", "token"),
        ("host", "h"),
        ("content-length", "3"),
        ("connection", "x-private"),
        ("x-private", "1"),
        ("accept-encoding", "gzip"),
        ("transfer-encoding", "chunked"),
    ] {
        headers.append(name, HeaderValue::from_static(value));
    }
    for (patterns, expected) in [
        (vec![], "content-type"),
        (vec!["^Authorization$"], "authorization, content-type"),
        (vec!["^X-Request-Id$", "^x-tag$", "request"], "content-type, x-request-id, x-tag, x-tag"),
        (vec![".*"], "authorization, content-type, x-request-id, x-tag, x-tag"),
        (vec!["(", "Auth"], "authorization, content-type"),
    ] {
        let (compiled, errors) = HeaderPatterns::new(patterns.iter().copied());
        assert_eq!(errors.len(), usize::from(patterns.contains(&"(")), "{errors:?}");
        let selected = compiled.select(&headers);
        let mut names: Vec<&str> = selected.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names.join(", "), expected, "{patterns:?}");
    }
    let mut own = HeaderMap::new();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/cloudevents+json"));
    let (compiled, _) = HeaderPatterns::new(["Content-Type"]);
    assert_eq!(compiled.select(&own)[header::CONTENT_TYPE], "application/cloudevents+json");
    let (_, errors) = HeaderPatterns::new(["a{1000}{1000}"]);
    assert_eq!(errors.len(), 1, "a pattern has bounded memory");
}

#[tokio::test]
async fn every_step_gets_the_propagated_headers() {
    let mut graph = sequence(&["a", "b"]);
    graph.propagated = HeaderPatterns::new(["^X-"]).0;
    let client = FakeClient::new([("a", Behaviour::Echoes), ("b", Behaviour::Echoes)]);
    let mut headers = HeaderMap::new();
    headers.insert("x-user", HeaderValue::from_static("7"));
    headers.insert("cookie", HeaderValue::from_static("secret"));
    run_with(&graph, &client, &headers, "{}", &budget(1 << 20)).await;
    for call in client.calls.lock().unwrap().iter() {
        assert_eq!((call.headers.len(), &call.headers["x-user"]), (2, &HeaderValue::from_static("7")));
    }
}

/// The gateway serves requests on tasks.
#[tokio::test]
async fn requests_run_on_tasks_side_by_side() {
    let graph = Arc::new(ensemble(&["a", "a"]));
    let client = Arc::new(FakeClient::new([("a", Behaviour::Echoes)]));
    let tasks = (0..8).map(|i| {
        let (graph, client) = (Arc::clone(&graph), Arc::clone(&client));
        tokio::spawn(async move { run(&graph, &client, &i.to_string()).await })
    });
    for (i, response) in join_all(tasks).await.into_iter().enumerate() {
        assert_eq!(response.unwrap(), format!("200 {{\"0\":{i},\"1\":{i}}}"));
    }
}
