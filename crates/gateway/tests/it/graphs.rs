//! InferenceGraphs over HTTP.

use crate::{
    support::{
        Answer, FakePod, Running, backend, component, config, graph, local_endpoint, route, send, service,
        until,
    },
    v1::Adder,
};
use gantry_proto::gantry::{Route, ServiceRoute, service_component::Role};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

const HOST: (&str, &str) = ("host", "pets-default.example.com");

struct Pets {
    running: Running,
    pods: Vec<FakePod>,
}

impl Pets {
    /// The services `a`, `b` and `c`, and `failing`, which responds with 500.
    async fn start() -> Self {
        let running = Running::start(config(), |_| {});
        let mut pods = Vec::new();
        for (name, status) in [("a", 200), ("b", 200), ("c", 200), ("failing", 500)] {
            let pod = FakePod::responding(name, status).await;
            running.predictor(name, &[&pod]);
            pods.push(pod);
        }
        Self { running, pods }
    }

    fn graph(&self, nodes: &Value) {
        self.running.service(graph("pets", &json!({ "nodes": nodes })));
    }

    fn root(&self, router: &str, steps: &Value) {
        self.graph(&json!({ "root": { "routerType": router, "steps": steps } }));
    }

    async fn post(&self, body: &Value) -> (u16, Value) {
        answered(&self.running.client().send("POST", "/", &[HOST], body.to_string()).await)
    }
}

fn answered(answer: &Answer) -> (u16, Value) {
    (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap())
}

fn of(pod: &str, got: &Value) -> Value {
    json!({ "pod": pod, "got": got, "predictions": [pod] })
}

#[tokio::test(flavor = "multi_thread")]
async fn sequence_passes_responses_on() {
    let pets = Pets::start().await;
    pets.root(
        "Sequence",
        &json!([
            { "serviceName": "a" },
            { "serviceName": "b", "data": "$response", "mapPredictionsToInstances": true },
        ]),
    );
    let expected = of("b", &json!({ "pod": "a", "got": { "x": 1 }, "instances": ["a"] }));
    for (host, path) in [
        (HOST.1, "/"),
        (HOST.1, "/any/path"),
        ("pets.default.svc", "/"),
        ("pets.default.svc.cluster.local:80", "/v1/models/pets:predict"),
        ("x", "/serving/default/pets"),
        ("x", "/serving/default/pets/v1/x?y"),
    ] {
        let answer = pets.running.client().send("POST", path, &[("host", host)], "{\"x\":1}").await;
        assert_eq!(answered(&answer), (200, expected.clone()), "{host} {path}");
        assert_eq!(answer.header("content-type"), "application/json");
    }
    // The condition is evaluated on the previous response.
    let steps = |condition: &str| json!([{ "serviceName": "a" }, { "serviceName": "b", "data": "$response", "condition": condition }]);
    pets.root("Sequence", &steps("got.x"));
    assert_eq!(pets.post(&json!({ "x": 1 })).await, (200, of("b", &of("a", &json!({ "x": 1 })))));
    assert_eq!(pets.post(&json!({ "y": 1 })).await, (200, of("a", &json!({ "y": 1 }))));
}

#[tokio::test(flavor = "multi_thread")]
async fn step_calls_the_predict_path_with_its_headers() {
    let pets = Pets::start().await;
    let pod = FakePod::start("echo").await;
    for (name, predict_path) in [("v1", ""), ("v2", "/v2/models/m/infer")] {
        let backends = vec![backend(name, 1, &[&pod])];
        let predictor = component(Role::Predictor, backends);
        let route = service(name, vec![predictor]);
        pets.running.service(ServiceRoute { predict_path: predict_path.into(), ..route });
    }
    let steps = json!([
        { "name": "v1", "serviceName": "v1" },
        { "name": "v2", "serviceName": "v2" },
        { "name": "url", "serviceUrl": "http://v1-predictor.default.svc.cluster.local/own?path" },
        { "name": "domain", "serviceUrl": "http://v1-default.example.com" },
        { "name": "outside", "serviceUrl": format!("http://{}/a?b", pod.remote.address) },
    ]);
    let spec = json!({ "nodes": { "root": { "routerType": "Ensemble", "steps": steps } } });
    let propagated_headers = vec!["^X-(Kept|Request-Id)$".into(), "(".into()];
    pets.running.service(ServiceRoute { propagated_headers, ..graph("pets", &spec) });
    let headers = [HOST, ("x-kept", "1"), ("x-other", "1"), ("x-request-id", "mine")];
    let (status, body) = answered(&pets.running.client().send("POST", "/", &headers, "{}").await);
    assert_eq!(status, 200, "{body}");
    for (step, request) in [
        ("v1", "POST /v1/models/v1:predict"),
        ("v2", "POST /v2/models/m/infer"),
        ("url", "POST /own?path"),
        ("domain", "POST /"),
        ("outside", "POST /a?b"),
    ] {
        assert_eq!(body[step]["request"], request);
        let sent = body[step]["headers"].as_str().unwrap();
        assert!(sent.contains("x-kept x-request-id") && !sent.contains("x-other"), "{step}: {sent}");
    }
    assert_eq!(body["outside"]["host"], pod.remote.address.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn splitter_follows_weights() {
    let pets = Pets::start().await;
    for (a, b) in [(100, 0), (0, 100), (50, 50)] {
        pets.root(
            "Splitter",
            &json!([{ "serviceName": "a", "weight": a }, { "serviceName": "b", "weight": b }]),
        );
        let mut counts = BTreeMap::new();
        for _ in 0..100 {
            let (status, body) = pets.post(&json!({})).await;
            assert_eq!(status, 200);
            *counts.entry(body["pod"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
        let share = |pod: &str| counts.get(pod).copied().unwrap_or(0);
        // Of 100 with even weights, fewer than 10 have a chance below one in a quadrillion.
        assert!(share("a") >= a / 5 && share("b") >= b / 5 && share("a") + share("b") == 100, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ensemble_merges_responses() {
    let pets = Pets::start().await;
    pets.root("Ensemble", &json!([{ "name": "first", "serviceName": "a" }, { "serviceName": "b" }]));
    let body = json!({ "x": 1 });
    let expected = json!({ "first": of("a", &body), "1": of("b", &body) });
    assert_eq!(pets.post(&body).await, (200, expected));
    // A soft step that fails is a part of the response, a hard one is the response.
    let steps = |dependency: &str| json!([{ "name": "a", "serviceName": "a" }, { "name": "f", "serviceName": "failing", "dependency": dependency }]);
    pets.root("Ensemble", &steps("Soft"));
    let expected = json!({ "a": of("a", &body), "f": of("failing", &body) });
    assert_eq!(pets.post(&body).await, (200, expected));
    pets.root("Ensemble", &steps("Hard"));
    assert_eq!(pets.post(&body).await, (500, of("failing", &body)));
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_step_ends_a_sequence() {
    let pets = Pets::start().await;
    let steps = |dependency: &str| json!([{ "serviceName": "failing", "dependency": dependency }, { "serviceName": "b", "data": "$response" }]);
    let body = json!({ "x": 1 });
    pets.root("Sequence", &steps("Soft"));
    assert_eq!(pets.post(&body).await, (200, of("b", &of("failing", &body))));
    pets.root("Sequence", &steps("Hard"));
    assert_eq!(pets.post(&body).await, (500, of("failing", &body)));
}

#[tokio::test(flavor = "multi_thread")]
async fn switch_takes_the_first_condition() {
    let pets = Pets::start().await;
    pets.graph(&json!({
        "root": { "routerType": "Switch", "steps": [
            { "serviceName": "a", "condition": "animal.cat" },
            { "nodeName": "dogs", "condition": "animal.dog" },
        ] },
        "dogs": { "routerType": "Sequence", "steps": [{ "serviceName": "c" }] },
    }));
    let cat = json!({ "animal": { "cat": 1, "dog": 2 } });
    assert_eq!(pets.post(&cat).await, (200, of("a", &cat)));
    let dog = json!({ "animal": { "dog": 2 } });
    assert_eq!(pets.post(&dog).await, (200, of("c", &dog)));
    let (status, body) = pets.post(&json!({})).await;
    assert_eq!(status, 404, "{body}");
    assert!(body["error"].is_string(), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn step_may_be_a_model_of_the_scheduler_or_a_graph() {
    let adder = Adder::new();
    let running =
        Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&adder.server) as _));
    let sum = route("sum", &[(1, 1, &[local_endpoint("builtin", 0)])]);
    running.route(Route { service_namespace: "default".into(), ..sum });
    let sequence =
        |steps: Value| json!({ "nodes": { "root": { "routerType": "Sequence", "steps": steps } } });
    running.service(graph("inner", &sequence(json!([{ "serviceName": "sum" }]))));
    running.service(graph("pets", &sequence(json!([{ "serviceUrl": "http://inner.default.svc" }]))));
    let post = |graph: &'static str, body: &'static str| {
        let client = running.client();
        async move { answered(&client.send("POST", &format!("/serving/default/{graph}/"), &[], body).await) }
    };
    let instances = "{\"instances\":[[1,2],[3,4]]}";
    for graph in ["inner", "pets"] {
        assert_eq!(post(graph, instances).await, (200, json!({ "predictions": [3.0, 7.0] })));
    }
    let (status, body) = post("inner", "{}").await;
    assert_eq!((status, body["error"].is_string()), (400, true), "{body}");
    // In the protocol of the URL.
    for (url, request) in [
        ("http://sum.default.svc/v1/models/sum:predict", instances),
        (
            "http://sum-default.example.com/v2/models/sum/infer",
            "{\"inputs\":[{\"name\":\"x\",\"shape\":[1,2],\"datatype\":\"FP64\",\"data\":[1,2]}]}",
        ),
    ] {
        running.service(graph("pets", &sequence(json!([{ "serviceUrl": url }]))));
        let (status, body) = post("pets", request).await;
        assert_eq!(status, 200, "{url} {body}");
    }
    running.service(graph("pets", &sequence(json!([{ "serviceUrl": "http://sum.default.svc/" }]))));
    let (status, body) = post("pets", instances).await;
    assert_eq!(
        (status, body["error"].as_str().unwrap()),
        (
            404,
            "InferenceService sum is a model of the scheduler: call /v1/models/sum:predict or /v2/models/sum/infer"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_changes_without_a_failed_request() {
    let pets = Pets::start().await;
    pets.root("Sequence", &json!([{ "serviceName": "a" }]));
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop, sent) = (pets.running.client(), Arc::clone(&stop), Arc::clone(&sent));
            tokio::spawn(async move {
                let mut connection = client.connect().await;
                while !stop.load(Ordering::SeqCst) {
                    let answer = send(&mut connection, "POST", "/", &[HOST], "{}").await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for round in 0..20 {
        let name = ["a", "b", "c"][round % 3];
        let router = ["Sequence", "Ensemble"][round % 2];
        pets.root(router, &json!([{ "serviceName": name }, { "serviceName": "a" }]));
        let before = sent.load(Ordering::SeqCst);
        until("requests with this graph", || async { sent.load(Ordering::SeqCst) >= before + 8 }).await;
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    pets.running.delete_service("pets");
    assert_eq!(pets.post(&json!({})).await.0, 404);
    assert!(pets.pods[0].local.arrived() > 0);
}
