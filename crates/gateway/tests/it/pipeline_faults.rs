//! Failing, slow and missing steps of pipelines; cancellation, deadlines and limits.

use crate::support::{
    FakeModels, FakeRemote, Pipelined, Placement, config, grpc_request, outputs, pipeline, request, route,
    step, until, unused_address,
};
use gantry_gateway::Config;
use gantry_oip::Code;
use gantry_proto::{
    gantry::route_event::Event, inference::grpc_inference_service_client::GrpcInferenceServiceClient,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

async fn grpc_status(pipelined: &Pipelined, pipeline: &str) -> tonic::Status {
    let address = format!("http://{}", pipelined.running.address);
    let mut client = GrpcInferenceServiceClient::connect(address).await.unwrap();
    let mut request = tonic::Request::new(grpc_request(&["x"]));
    request.metadata_mut().insert("seldon-model", format!("{pipeline}.pipeline").parse().unwrap());
    client.model_infer(request).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_a_step_names_it_with_the_references_codes() {
    for placement in [Placement::Local, Placement::Grpc, Placement::Rest] {
        let pipelined = Pipelined::start(placement).await;
        pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"]), step("c", &["b"])], &["c"]));
        for (code, http, grpc) in [
            (Code::InvalidArgument, 400, tonic::Code::Unknown),
            (Code::Internal, 400, tonic::Code::Unknown),
            (Code::Unavailable, 503, tonic::Code::Unavailable),
            (Code::ResourceExhausted, 429, tonic::Code::ResourceExhausted),
        ] {
            pipelined.models.fails("b", code, "three columns are expected");
            let answer = pipelined.infer("p", &["x"]).await;
            assert_eq!(answer.status, http, "{placement:?} {answer:?}");
            assert_eq!(answer.text(), "{\"error\":\"b : three columns are expected\"}");
            assert_eq!(answer.header("x-pipeline-version"), "1");
            let status = grpc_status(&pipelined, "p").await;
            assert_eq!((status.code(), status.message()), (grpc, "b : three columns are expected"));
        }
        assert_eq!(pipelined.models.calls("c_1"), 0, "nothing runs after a failed step");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn step_without_a_route_is_unavailable() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]));
    pipelined.pipeline(pipeline("other", vec![step("a", &[])], &["a"]));
    pipelined.apply(Event::Delete("b".into()));
    let answer = pipelined.infer("p", &["x"]).await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("b : there is no model"), "{answer:?}");
    assert_eq!(pipelined.infer("other", &["x"]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn step_waits_for_a_model_that_is_scaled_to_zero() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]));
    pipelined.running.route(gantry_proto::gantry::Route { sleeps: true, ..route("b", &[]) });
    let (client, body) = (pipelined.running.client(), request(&["x"]));
    let pending = tokio::spawn(async move { client.send("POST", "/v2/pipelines/p/infer", &[], body).await });
    let is_waiting = || {
        let demand = pipelined.running.routes.demand(Duration::from_secs(1));
        demand.iter().any(|of| &*of.model == "b" && of.waiting)
    };
    until("the step waits", || async { is_waiting() }).await;
    assert_eq!(pipelined.running.metric("gantry_gateway_in_flight "), 1, "the request keeps its slot");
    pipelined.model("b");
    assert_eq!(outputs(&pending.await.unwrap()), "y=b(y=a(x=1))");
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_names_the_step_in_flight() {
    for placement in [Placement::Local, Placement::Grpc] {
        let timeout = Duration::from_millis(200);
        let pipelined =
            Pipelined::start_with(placement, Config { request_timeout: timeout, ..config() }).await;
        pipelined.models.waits("slow");
        let steps = vec![step("a", &[]), step("slow", &["a"]), step("b", &["a"])];
        pipelined.pipeline(pipeline("p", steps, &["slow", "b"]));
        let answer = pipelined.infer("p", &["x"]).await;
        assert_eq!(answer.status, 504);
        let expected = "pipeline p did not respond within 0.2 s: it waits for step slow";
        assert_eq!(answer.text(), format!("{{\"error\":\"{expected}\"}}"));
        let cancelled = &pipelined.models.cancelled;
        until("the step is cancelled", || async { cancelled.load(Ordering::SeqCst) == 1 }).await;
        assert_eq!(grpc_status(&pipelined, "p").await.code(), tonic::Code::DeadlineExceeded);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_disconnects_cancels_all_steps() {
    for placement in [Placement::Local, Placement::Grpc] {
        let pipelined = Pipelined::start(placement).await;
        pipelined.models.waits("b");
        pipelined.models.waits("c");
        let steps = vec![step("a", &[]), step("b", &["a"]), step("c", &["a"])];
        pipelined.pipeline(pipeline("p", steps, &["b", "c"]));
        let client = pipelined.running.client();
        let body = request(&["x"]);
        let pending =
            tokio::spawn(async move { client.send("POST", "/v2/pipelines/p/infer", &[], body).await });
        let called = |models: &FakeModels| models.called.lock().unwrap().len();
        until("both steps run", || async { called(&pipelined.models) == 3 }).await;
        pending.abort();
        let cancelled = &pipelined.models.cancelled;
        until("both are cancelled", || async { cancelled.load(Ordering::SeqCst) == 2 }).await;
        until("no request is in flight", || async {
            pipelined.running.metric("gantry_gateway_in_flight ") == 0
        })
        .await;
        for model in ["b", "c"] {
            let in_flight = || pipelined.running.routes.in_flight(model, 1, &pipelined.endpoint().server, 0);
            until("the replica is free", || async { in_flight() == 0 }).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn independent_steps_run_at_the_same_time() {
    let pipelined = Pipelined::local().await;
    let branches: Vec<String> = (0..5).map(|i| format!("b{i}")).collect();
    let mut steps = vec![step("a", &[])];
    for branch in &branches {
        pipelined.models.waits(branch);
        pipelined.models.returns(branch, &[branch]);
        pipelined.models.waits(branch);
        steps.push(step(branch, &["a"]));
    }
    let names: Vec<&str> = branches.iter().map(String::as_str).collect();
    steps.push(step("join", &names));
    pipelined.pipeline(pipeline("p", steps, &["join"]));
    let client = pipelined.running.client();
    let body = request(&["x"]);
    let pending = tokio::spawn(async move { client.send("POST", "/v2/pipelines/p/infer", &[], body).await });
    until("all branches run", || async {
        branches.iter().all(|b| pipelined.models.calls(&format!("{b}_1")) == 1)
    })
    .await;
    assert_eq!(pipelined.models.calls("join_1"), 0);
    pipelined.models.release();
    assert_eq!(pending.await.unwrap().status, 200);
    assert_eq!(pipelined.models.calls("join_1"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn step_is_retried_only_where_nothing_was_sent() {
    let pipelined = Pipelined::start(Placement::Grpc).await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[])], &["a"]));
    let dead = crate::support::remote_endpoint("mlserver", 1, unused_address());
    let dead = gantry_proto::gantry::Endpoint { http_port: 0, ..dead };
    pipelined.running.route(route("a", &[(1, 1, &[dead, pipelined.endpoint()])]));
    for sent in 1..=20 {
        assert_eq!(pipelined.infer("p", &["x"]).await.status, 200);
        assert_eq!(pipelined.models.calls("a_1"), sent, "each request runs once");
    }
    assert!(pipelined.running.metric("gantry_gateway_retries_total ") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tensors_of_a_run_count_in_the_memory_budget() {
    const BYTES: u64 = 2 << 20;
    let body = {
        let data = vec![1; 1 << 18];
        let input = serde_json::json!({ "name": "x", "shape": [1 << 18], "datatype": "FP64", "data": data });
        serde_json::json!({ "inputs": [input] }).to_string()
    };
    for (max_memory, expected) in [(16 << 20, 200), (4 << 20, 503)] {
        let limits = Config { max_memory, max_body: 1 << 20, ..config() };
        let pipelined = Pipelined::start_with(Placement::Local, limits).await;
        pipelined.models.waits("slow");
        pipelined.pipeline(pipeline("p", vec![step("slow", &[])], &["slow"]));
        let (client, sent) = (pipelined.running.client(), body.clone());
        let pending =
            tokio::spawn(async move { client.send("POST", "/v2/pipelines/p/infer", &[], sent).await });
        let used = || pipelined.running.metric("gantry_gateway_memory_used_bytes ");
        if expected == 200 {
            until("the step runs", || async { pipelined.models.calls("slow_1") == 1 }).await;
            assert_eq!(used(), BYTES, "the tensor, and no body");
        }
        pipelined.models.release();
        let answer = pending.await.unwrap();
        assert_eq!(answer.status, expected, "{answer:?}");
        if expected == 200 {
            assert_eq!(outputs(&answer), "y=slow(x=262144 elements)");
        }
        until("the memory is free", || async { used() == 0 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_of_a_step_that_is_killed_fails_its_step_and_recovers() {
    let pipelined = Pipelined::start(Placement::Grpc).await;
    let other = FakeModels::new();
    let killed = FakeRemote::start(Arc::clone(&other)).await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]));
    pipelined.pipeline(pipeline("q", vec![step("a", &[])], &["a"]));
    let here = crate::support::remote_endpoint("killed", 0, killed.address);
    pipelined.running.route(route("b", &[(1, 1, &[here])]));
    assert_eq!(pipelined.infer("p", &["x"]).await.status, 200);
    killed.stop.cancel();
    until("the server is gone", || async {
        let answer = pipelined.infer("p", &["x"]).await;
        answer.status == 503 && answer.text().contains("b : ")
    })
    .await;
    for _ in 0..20 {
        let answer = pipelined.infer("p", &["x"]).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.text().contains("b : "), "{answer:?}");
        assert_eq!(pipelined.infer("q", &["x"]).await.status, 200, "other pipelines are untouched");
    }
    let _again = FakeRemote::start_at(killed.address, other).await;
    until("it recovers", || async { pipelined.infer("p", &["x"]).await.status == 200 }).await;
}
