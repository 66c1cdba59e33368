//! InferenceGraphs that fail, wait, or are cancelled.

use crate::support::{
    FakePod, Running, TEST_TIMEOUT, component, config, graph, service, until, unused_address,
};
use gantry_gateway::Config;
use gantry_proto::{
    gantry::{ServiceRoute, service_component::Role},
    inference::{self as pb, grpc_inference_service_client::GrpcInferenceServiceClient},
};
use serde_json::{Value, json};
use std::{sync::atomic::Ordering, time::Duration};
use tonic::{Code, transport::Channel};

const PATH: &str = "/serving/default/pets/";

fn sequence(steps: &Value) -> Value {
    json!({ "nodes": { "root": { "routerType": "Sequence", "steps": steps } } })
}

fn running() -> Running {
    Running::start(config(), |_| {})
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_graph_says_why() {
    let running = running();
    let twice = json!({ "nodes": { "root": { "routerType": "Splitter", "steps": [{ "serviceName": "a", "weight": 1 }] } } });
    for (spec, expected) in [
        (json!({}), "spec.nodes has no node root, where requests enter: rename a node to root"),
        (twice, "spec.nodes.root.steps have weights that add up to 1: they must add up to 100"),
    ] {
        running.service(graph("pets", &spec));
        let answer = running.client().send("POST", PATH, &[], "{}").await;
        let error = format!("InferenceGraph default/pets cannot be executed: {expected}");
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "1"));
        assert_eq!(answer.text(), json!({ "error": error }).to_string());
        assert_eq!(running.client().get("/serving/default/pets/readyz").await.status, 503);
    }
    let mut bytes = graph("pets", &json!({}));
    bytes.graph = vec![0xff, 0];
    running.service(bytes);
    assert_eq!(running.client().send("POST", PATH, &[], "{}").await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_takes_posts_over_http() {
    let running = running();
    running.service(graph("pets", &sequence(&json!([{ "serviceName": "a" }]))));
    let answer = running.client().get(PATH).await;
    assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "POST"));
    assert_eq!(running.client().get("/serving/default/pets/readyz").await.status, 200);
    let endpoint = Channel::from_shared(format!("http://{}", running.address)).unwrap();
    let channel = endpoint.origin("http://pets.default.svc".parse().unwrap()).connect().await.unwrap();
    let status = GrpcInferenceServiceClient::new(channel)
        .model_infer(pb::ModelInferRequest::default())
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unimplemented, "InferenceGraph default/pets serves HTTP only")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn step_that_cannot_be_called_says_why() {
    let running = running();
    running.predictor("sleepy", &[]);
    for (step, status, expected) in [
        (json!({ "serviceName": "none" }), 503, "there is no InferenceService default/none"),
        (
            json!({ "serviceName": "sleepy" }),
            503,
            "the predictor of InferenceService default/sleepy has no ready pod",
        ),
        (
            json!({ "serviceUrl": "https://host/x" }),
            500,
            "serviceUrl https://host/x: the gateway calls http only",
        ),
        (json!({ "serviceUrl": "host/x" }), 500, "serviceUrl host/x is invalid: invalid format"),
        (json!({ "serviceUrl": format!("http://{}/", unused_address()) }), 500, "failed: Connection refused"),
    ] {
        running.service(graph("pets", &sequence(&json!([step]))));
        let answer = running.client().send("POST", PATH, &[], "{}").await;
        assert_eq!(answer.status.as_u16(), status, "{step} {answer:?}");
        assert!(answer.text().contains(expected), "{step} {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graph_that_calls_itself_ends() {
    let running = running();
    let url = json!({ "serviceUrl": "http://pets.default.svc" });
    for router in ["Sequence", "Ensemble"] {
        let spec = json!({ "nodes": { "root": { "routerType": router, "steps": [url, url] } } });
        running.service(graph("pets", &spec));
        let answer = running.client().send("POST", PATH, &[], "{}").await;
        assert!(answer.text().contains("more than 8 graphs call each other"), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_nested_graphs_are_bounded() {
    let running = running();
    let ensemble =
        |step: Value| json!({ "nodes": { "root": { "routerType": "Ensemble", "steps": vec![step; 40] } } });
    running.service(graph("inner", &ensemble(json!({ "serviceName": "none" }))));
    running.service(graph("pets", &ensemble(json!({ "serviceName": "inner" }))));
    let answer = running.client().send("POST", PATH, &[], "{}").await;
    assert!(answer.text().contains("the request makes more than 1024 calls"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_end_the_request() {
    let held = FakePod::held("held").await;
    let running = running();
    running.predictor("held", &[&held]);
    let steps = sequence(&json!([{ "name": "slow", "serviceName": "held" }]));
    running.service(ServiceRoute { timeout_ms: 200, ..graph("pets", &steps) });
    let answer = running.client().send("POST", PATH, &[], "{}").await;
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.text().contains("graph default/pets did not respond within 0.2 s"), "{answer:?}");
    assert!(answer.text().contains("step slow of node root"), "{answer:?}");
    // That of the spec is in seconds.
    let mut spec = steps.clone();
    spec["timeout"] = json!(1);
    running.service(graph("pets", &spec));
    let answer = running.client().send("POST", PATH, &[], "{}").await;
    assert!(answer.text().contains("graph default/pets did not respond within 1.0 s"), "{answer:?}");
    spec["routerTimeouts"] = json!({ "serviceClient": 1 });
    spec["timeout"] = json!(100);
    running.service(graph("pets", &spec));
    let answer = running.client().send("POST", PATH, &[], "{}").await;
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("within 1.0 s"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_leaves_cancels_the_calls() {
    let held = FakePod::held("held").await;
    let running = running();
    running.predictor("held", &[&held]);
    let both = json!([{ "serviceName": "held" }, { "serviceName": "held" }]);
    running
        .service(graph("pets", &json!({ "nodes": { "root": { "routerType": "Ensemble", "steps": both } } })));
    let client = running.client();
    let asking = tokio::spawn(async move { client.send("POST", PATH, &[], "{}").await });
    until("both calls are at the pod", || async { held.local.arrived() == 2 }).await;
    asking.abort();
    until("both are cancelled", || async { held.local.dropped.load(Ordering::SeqCst) == 2 }).await;
    until("nothing is in flight", || async { running.metric("gantry_gateway_in_flight") == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeping_service_is_woken_by_a_step() {
    let pod = FakePod::responding("a", 200).await;
    let running = running();
    let mut asleep = component(Role::Predictor, vec![]);
    asleep.sleeps = true;
    running.service(service("a", vec![asleep]));
    running.service(graph("pets", &sequence(&json!([{ "serviceName": "a" }]))));
    let client = running.client();
    let asking = tokio::spawn(async move { client.send("POST", PATH, &[], "{}").await });
    let woken = tokio::time::timeout(TEST_TIMEOUT, running.routes.scale_up_requested()).await;
    assert!(woken.is_ok(), "the request waits for a pod");
    assert_eq!(&*running.routes.demand(Duration::from_secs(1))[0].model, "default/a/predictor");
    assert_eq!(running.metric("gantry_gateway_in_flight"), 1, "the request of the graph keeps its slot");
    running.predictor("a", &[&pod]);
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_response_of_a_step_is_refused() {
    let pod = FakePod::start("large").await;
    pod.local.respond_by(|_| {
        Some(http::Response::new(gantry_oip::server::Reply::new(vec![b'x'; 2 << 20].into())))
    });
    let running = Running::start(Config { max_body: 1 << 20, ..config() }, |_| {});
    running.predictor("large", &[&pod]);
    running.service(graph("pets", &sequence(&json!([{ "serviceName": "large" }]))));
    let answer = running.client().send("POST", PATH, &[], "{}").await;
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.text().contains("larger than the 1048576 bytes"), "{answer:?}");
}
