//! Pipelines over REST and gRPC, with models in process and on remote servers.

use crate::support::{
    Pipelined, Placement, grpc_outputs, grpc_request, outputs, pipeline, pipeline_route, request, step, until,
};
use gantry_api::PipelineSpec;
use gantry_oip::Code;
use gantry_proto::{
    gantry::{PipelineRoute, route_event::Event},
    inference::{self as pb, grpc_inference_service_client::GrpcInferenceServiceClient},
    scheduler::{Pipeline, PipelineStep},
};
use http::StatusCode;
use std::{collections::HashMap, sync::atomic::Ordering};
use tonic::{Request, transport::Channel};

async fn grpc(pipelined: &Pipelined) -> GrpcInferenceServiceClient<Channel> {
    GrpcInferenceServiceClient::connect(format!("http://{}", pipelined.running.address)).await.unwrap()
}

fn named<M>(message: M, name: &str) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("seldon-model", name.parse().unwrap());
    request
}

fn any(step: PipelineStep) -> PipelineStep {
    PipelineStep { inputs_join: 2, ..step }
}

fn triggered(step: PipelineStep, triggers: &[&str]) -> PipelineStep {
    PipelineStep { triggers: triggers.iter().map(|&t| t.to_owned()).collect(), ..step }
}

/// A line of `testdata/pipelines.jsonl`; core has the description.
#[derive(serde::Deserialize)]
pub(crate) struct Case {
    pub(crate) about: String,
    pub(crate) spec: PipelineSpec,
    pub(crate) request: String,
    #[serde(default)]
    pub(crate) models: HashMap<String, Vec<String>>,
    pub(crate) response: Option<String>,
    pub(crate) or: Option<String>,
    pub(crate) error: Option<String>,
    /// Pipelines that read `p`, and the inputs of the model `seen`, the step of the last of them.
    #[serde(default)]
    pub(crate) readers: HashMap<String, PipelineSpec>,
    pub(crate) seen: Option<String>,
}

impl Case {
    pub(crate) fn table() -> impl Iterator<Item = Self> {
        let table = include_str!("../../../../testdata/pipelines.jsonl");
        table.lines().map(|line| serde_json::from_str(line).expect(line))
    }

    /// Sends the request in a protocol, by `send`, and checks the result. An error has to contain the expected one.
    pub(crate) async fn check<F>(&self, pipelined: &Pipelined, send: impl FnOnce(Vec<String>) -> F)
    where
        F: Future<Output = Result<String, String>>,
    {
        pipelined.models.start_over(&self.models);
        let inputs = self.request.split_whitespace().map(str::to_owned).collect();
        let (about, placement) = (&self.about, pipelined.placement);
        match send(inputs).await {
            Ok(found) => {
                let expected = [&self.response, &self.or];
                assert!(expected.contains(&&Some(found.clone())), "{about} {placement:?}: {found}");
            }
            Err(found) => {
                let expected = self.error.as_deref();
                assert!(expected.is_some_and(|e| found.contains(e)), "{about} {placement:?}: {found}");
            }
        }
        if let Some(seen) = &self.seen {
            until("the last pipeline runs", || async { pipelined.models.calls("seen_1") == 1 }).await;
            assert_eq!(pipelined.models.inputs("seen_1"), [&**seen], "{about} {placement:?}");
        }
    }
}

pub(crate) fn versioned(spec: &PipelineSpec, name: &str, uid: &str) -> Pipeline {
    Pipeline { uid: uid.to_owned(), version: 1, ..spec.to_proto(name, None, None) }
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_return_the_same_over_rest_and_grpc_from_all_servers() {
    for placement in [Placement::Local, Placement::Grpc, Placement::Rest] {
        let pipelined = Pipelined::start(placement).await;
        let (grpc, client) = (grpc(&pipelined).await, pipelined.running.client());
        for case in Case::table() {
            for (name, reader) in &case.readers {
                pipelined.pipeline(versioned(reader, name, &case.about));
            }
            pipelined.pipeline(versioned(&case.spec, "p", &case.about));
            let rest = |path: &'static str, headers: &'static [(&str, &str)]| {
                async move |inputs: Vec<String>| {
                    let inputs: Vec<&str> = inputs.iter().map(|name| &**name).collect();
                    let answer = client.send("POST", path, headers, request(&inputs)).await;
                    if answer.status != StatusCode::OK {
                        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
                        return Err(body["error"].as_str().unwrap().to_owned());
                    }
                    assert_eq!(answer.header("x-pipeline-version"), "1");
                    let fields: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
                    assert_eq!((&fields["model_name"], &fields["id"]), (&"".into(), &"7".into()));
                    Ok(outputs(&answer))
                }
            };
            case.check(&pipelined, rest("/v2/pipelines/p/infer", &[])).await;
            let by_header = rest("/v2/models/other/infer", &[("seldon-model", "p.pipeline")]);
            case.check(&pipelined, by_header).await;
            let mut grpc = grpc.clone();
            let over_grpc = async move |inputs: Vec<String>| {
                let inputs: Vec<&str> = inputs.iter().map(|name| &**name).collect();
                match grpc.model_infer(named(grpc_request(&inputs), "p.pipeline")).await {
                    Ok(response) => {
                        assert_eq!(response.metadata().get("x-pipeline-version").unwrap(), "1");
                        let response = response.into_inner();
                        assert_eq!((&*response.model_name, &*response.id), ("", "7"));
                        Ok(grpc_outputs(response))
                    }
                    Err(status) => {
                        assert_eq!(status.code(), tonic::Code::Unknown);
                        Err(status.message().to_owned())
                    }
                }
            };
            case.check(&pipelined, over_grpc).await;
            for name in case.readers.keys() {
                pipelined.apply(Event::DeletePipeline(name.clone()));
            }
        }
        let typed = pipelined.models.typed.load(Ordering::SeqCst);
        assert_eq!(typed > 0, placement == Placement::Local, "tensors are encoded for remote servers only");
    }
}

/// Join type by source that is present or absent by trigger: a pipeline, and its possible outputs; none if it has no output.
/// The models `l` and `r` return the tensors `m` and `n`.
pub(crate) fn joins() -> Vec<(Pipeline, Vec<String>)> {
    let mut cases = Vec::new();
    for join in 0..3 {
        for present in [[true, true], [true, false], [false, true], [false, false]] {
            for trigger in [None, Some(true), Some(false)] {
                let [left, right] = present;
                let sources = [
                    if left { "l.outputs.m" } else { "l.outputs.none" },
                    if right { "r.outputs.n" } else { "r.outputs.none" },
                ];
                let relay = step("relay", &[if trigger == Some(false) { "l.outputs.none" } else { "l" }]);
                let triggers: &[&str] = if trigger.is_some() { &["relay"] } else { &[] };
                let joined = triggered(PipelineStep { inputs_join: join, ..step("d", &sources) }, triggers);
                let steps = vec![step("l", &[]), step("r", &[]), relay, joined];
                let pipeline = pipeline(&format!("p{}", cases.len()), steps, &["d"]);

                let arrived: Vec<&str> = [(left, "m=l(x=1)"), (right, "n=r(x=1)")]
                    .into_iter()
                    .filter_map(|(is_there, tensor)| is_there.then_some(tensor))
                    .collect();
                let inputs: Vec<String> = match join {
                    // Inner: all. Outer: those that arrive. Any: the first of them.
                    0 if arrived.len() < 2 => Vec::new(),
                    0 | 1 => vec![arrived.join(",")],
                    _ => arrived.iter().map(|&one| one.to_owned()).collect(),
                };
                let runs = trigger != Some(false) && inputs.iter().any(|inputs| !inputs.is_empty());
                let expected =
                    inputs.iter().filter(|_| runs).map(|inputs| format!("y=d({inputs})")).collect();
                cases.push((pipeline, expected));
            }
        }
    }
    assert_eq!(cases.len(), 36);
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_and_triggers_decide_whether_a_step_runs() {
    let pipelined = Pipelined::local().await;
    pipelined.models.returns("l", &["m"]);
    pipelined.models.returns("r", &["n"]);
    let mut grpc = grpc(&pipelined).await;
    for (definition, expected) in joins() {
        let (name, what) = (definition.name.clone(), format!("{:?}", definition.steps.last()));
        pipelined.pipeline(definition);
        let answer = pipelined.infer(&name, &["x"]).await;
        let request = named(grpc_request(&["x"]), &format!("{name}.pipeline"));
        let response = grpc.model_infer(request).await;
        if expected.is_empty() {
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{what}: {answer:?}");
            assert!(answer.text().contains("no output"), "{what}: {answer:?}");
            assert_eq!(response.unwrap_err().code(), tonic::Code::Unknown, "{what}");
        } else {
            assert!(expected.contains(&outputs(&answer)), "{what}: {answer:?}");
            let over_grpc = grpc_outputs(response.unwrap().into_inner());
            assert!(expected.contains(&over_grpc), "{what}: {over_grpc}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn response_names_the_routes_of_its_steps() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]));
    let headers = [("x-request-id", "mine"), ("x-user", "ada"), ("authorization", "secret")];
    let answer = pipelined.send("p", &headers, &["x"]).await;
    let routes: Vec<_> = answer.headers.get_all("x-seldon-route").iter().collect();
    assert_eq!(routes, [":a_1:", ":b_1:", ":p.pipeline:"]);
    assert_eq!(answer.header("x-request-id"), "mine");
    for headers in &*pipelined.models.headers.lock().unwrap() {
        assert_eq!(headers.get("x-user").unwrap(), "ada", "x-… headers reach the models");
        assert_eq!(headers.get("authorization"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_names_steps_replicas_and_skipped_steps() {
    let pipelined = Pipelined::local().await;
    let steps = vec![step("a", &[]), step("b", &["a"]), step("c", &["a.outputs.none"])];
    pipelined.pipeline(pipeline("p", steps, &["b"]));
    assert_eq!(pipelined.infer("p", &["x"]).await.header("x-gantry-trace"), "");
    let answer = pipelined.send("p", &[("x-gantry-trace", "true")], &["x"]).await;
    let trace: serde_json::Value = serde_json::from_str(answer.header("x-gantry-trace")).unwrap();
    assert_eq!((&trace["pipeline"], &trace["version"]), (&"p".into(), &1.into()));
    let steps = trace["steps"].as_array().unwrap();
    let fields: Vec<_> = steps.iter().map(|s| (&s["step"], &s["replica"], &s["model"])).collect();
    let text = |s: &str| serde_json::Value::from(s);
    assert_eq!(
        fields,
        [(&text("a"), &text("builtin-0"), &text("a_1")), (&text("b"), &text("builtin-0"), &text("b_1"))]
    );
    assert_eq!(steps[1]["inputs"], serde_json::json!(["y"]));
    assert_eq!(trace["skipped"][0]["step"], "c");
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_and_metadata_of_pipelines() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[])], &["a"]));
    let client = pipelined.running.client();
    assert_eq!(client.get("/v2/pipelines/p/ready").await.status, StatusCode::OK);
    assert_eq!(client.get("/v2/pipelines/q/ready").await.status, StatusCode::NOT_FOUND);
    let metadata: serde_json::Value =
        serde_json::from_slice(&client.get("/v2/pipelines/p").await.body).unwrap();
    assert_eq!((&metadata["name"], &metadata["versions"]), (&"p".into(), &serde_json::json!(["1"])));
    let mut grpc = grpc(&pipelined).await;
    let ready = |name: &str| named(pb::ModelReadyRequest::default(), name);
    assert!(grpc.model_ready(ready("p.pipeline")).await.unwrap().into_inner().ready);

    let definition = pipeline("p", vec![step("a", &[])], &["a"]);
    let reason = "model a of step a is not available".to_owned();
    let route = PipelineRoute { ready: false, reason, ..pipeline_route(definition) };
    pipelined.apply(Event::UpsertPipeline(route));
    let answer = client.get("/v2/pipelines/p/ready").await;
    assert_eq!(answer.status.as_u16(), 424);
    assert!(answer.text().contains("model a of step a is not available"), "{answer:?}");
    assert!(!grpc.model_ready(ready("p.pipeline")).await.unwrap().into_inner().ready);
    assert!(!grpc.model_ready(ready("q.pipeline")).await.unwrap().into_inner().ready);
    assert_eq!(outputs(&pipelined.infer("p", &["x"]).await), "y=a(x=1)", "requests still run");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_pipeline_names_the_nearest() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("checkout", vec![step("a", &[])], &["a"]));
    let answer = pipelined.infer("chekout", &["x"]).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert!(answer.text().contains("did you mean \\\"checkout\\\"?"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn definition_that_does_not_compile_is_a_route_with_the_reason() {
    let pipelined = Pipelined::local().await;
    let definition = pipeline("p", vec![step("a", &["missing"])], &["a"]);
    pipelined.apply(Event::UpsertPipeline(pipeline_route(definition)));
    let answer = pipelined.infer("p", &["x"]).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.text().contains("missing"), "{answer:?}");
    assert_eq!(pipelined.running.client().get("/v2/pipelines/p/ready").await.status.as_u16(), 424);
    assert_eq!(pipelined.running.routes.pipelines(), ["p"]);
    pipelined.apply(Event::DeletePipeline("p".into()));
    assert_eq!(pipelined.infer("p", &["x"]).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_outputs_and_metrics_follow_the_request() {
    let pipelined = Pipelined::local().await;
    pipelined.models.returns("a", &["y", "z"]);
    pipelined.pipeline(pipeline("p", vec![step("a", &[])], &["a"]));
    let mut body: serde_json::Value = serde_json::from_str(&request(&["x"])).unwrap();
    body["outputs"] = serde_json::json!([{ "name": "z" }, { "name": "none" }]);
    let client = pipelined.running.client();
    let answer = client.send("POST", "/v2/pipelines/p/infer", &[], body.to_string()).await;
    assert_eq!(outputs(&answer), "z=a(x=1)");
    let answer = client.send("POST", "/v2/pipelines/p/infer", &[], "{\"inputs\":").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    let line = |code: u16| {
        format!(
            "seldon_pipeline_infer_total{{server=\"pipeline-gateway\",pipeline=\"p\",method_type=\"rest\",code=\"{code}\"}}"
        )
    };
    let metric = |code| pipelined.running.metric(&line(code));
    until("both are recorded", || async { (metric(200), metric(400)) == (1, 1) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn step_that_the_response_does_not_need_runs_after_it() {
    let pipelined = Pipelined::local().await;
    pipelined.models.waits("slow");
    let steps = vec![step("a", &[]), step("slow", &["a"]), step("after", &["slow"])];
    pipelined.pipeline(pipeline("p", steps, &["a"]));
    assert_eq!(outputs(&pipelined.infer("p", &["x"]).await), "y=a(x=1)");
    assert_eq!(pipelined.models.calls("after_1"), 0);
    pipelined.models.release();
    until("the last step runs", || async { pipelined.models.calls("after_1") == 1 }).await;

    pipelined.models.waits("slow");
    let steps = vec![step("a", &[]), step("slow", &["a"]), step("after", &["slow"])];
    pipelined.pipeline(pipeline("q", steps, &["a.outputs.none"]));
    let answer = pipelined.infer("q", &["x"]).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.text().contains("q : no output for this request"), "{answer:?}");
    pipelined.models.release();
    until("the last step runs", || async { pipelined.models.calls("after_1") == 2 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_tensors_pass_through_all_servers() {
    for placement in [Placement::Local, Placement::Grpc, Placement::Rest] {
        let pipelined = Pipelined::start(placement).await;
        pipelined.models.by_row("a");
        pipelined.models.by_row("b");
        pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]));
        let row = "x".repeat(1000);
        let body = crate::support::rows(&vec![&*row; 1000]);
        let client = pipelined.running.client();
        let answer = client.send("POST", "/v2/pipelines/p/infer", &[], body).await;
        assert_eq!(answer.status, StatusCode::OK);
        let expected = vec![format!("b(a({row}))"); 1000].join("+");
        assert_eq!(outputs(&answer), format!("y={expected}"), "{placement:?}");
        let request = pb::ModelInferRequest { ..grpc_request(&["x"]) };
        assert!(grpc(&pipelined).await.model_infer(named(request, "p.pipeline")).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_resync_with_the_models() {
    let pipelined = Pipelined::local().await;
    let definition = |name| pipeline_route(pipeline(name, vec![step("a", &[])], &["a"]));
    pipelined.apply(Event::UpsertPipeline(definition("old")));
    let routes = &pipelined.running.routes;
    routes.apply(crate::support::reset());
    pipelined.apply(Event::UpsertPipeline(definition("new")));
    pipelined.apply(Event::UpsertPipeline(definition("gone")));
    pipelined.apply(Event::DeletePipeline("gone".into()));
    assert_eq!(routes.pipelines(), ["old"], "no change before Synced");
    routes.apply(crate::support::synced());
    assert_eq!(routes.pipelines(), ["new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn update_under_load_fails_no_request_and_mixes_no_versions() {
    let pipelined = std::sync::Arc::new(Pipelined::local().await);
    let version = |n: u32| {
        let (first, second) = (format!("first-{n}"), format!("second-{n}"));
        Pipeline {
            version: n,
            uid: format!("p-{n}"),
            ..pipeline("p", vec![step(&first, &[]), step(&second, &[&first])], &[&second])
        }
    };
    pipelined.pipeline(version(1));
    let stop = tokio_util::sync::CancellationToken::new();
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (pipelined, stop) = (std::sync::Arc::clone(&pipelined), stop.clone());
            tokio::spawn(async move {
                let mut answered = 0;
                while !stop.is_cancelled() {
                    let answer = pipelined.infer("p", &["x"]).await;
                    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
                    let n = answer.header("x-pipeline-version").to_owned();
                    assert_eq!(outputs(&answer), format!("y=second-{n}(y=first-{n}(x=1))"));
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    for n in 2..=30 {
        let before = pipelined.models.called.lock().unwrap().len();
        until("requests run", || async { pipelined.models.called.lock().unwrap().len() > before + 8 }).await;
        pipelined.pipeline(version(n));
    }
    stop.cancel();
    for client in load {
        assert!(client.await.unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cycle_ends_at_its_limit_with_the_references_error() {
    let pipelined = Pipelined::local().await;
    let definition = Pipeline {
        allow_cycles: true,
        max_step_revisits: 3,
        ..pipeline("p", vec![any(step("a", &["p.inputs", "b"])), step("b", &["a"])], &["b.outputs.none"])
    };
    pipelined.pipeline(definition);
    let answer = pipelined.infer("p", &["x"]).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    assert!(answer.text().contains("ERROR: Max step revisits (3) exceeded"), "{answer:?}");
    assert_eq!(Code::StepFailed.grpc(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn last_runs_are_kept_with_tensors_only_if_configured() {
    for (keep_pipeline_payloads, keep_payloads) in [(false, false), (true, false), (false, true)] {
        let config = gantry_gateway::Config { keep_pipeline_payloads, ..crate::support::config() };
        let pipelined = Pipelined::start_with(Placement::Local, config).await;
        let definition = pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]);
        pipelined.pipeline(Pipeline { keep_payloads, ..definition });
        for n in 0..20 {
            pipelined.send("p", &[("x-request-id", &format!("r{n}"))], &["x"]).await;
        }
        pipelined.models.fails("b", Code::Internal, "broken");
        pipelined.infer("p", &["x"]).await;
        assert_eq!(pipelined.running.routes.recent_runs("q"), None);
        let kept = pipelined.running.routes.recent_runs("p").unwrap();
        let runs = kept["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 16);
        assert_eq!(runs[0]["error"], "b : broken");
        assert_eq!((&runs[1]["request_id"], &runs[15]["request_id"]), (&"r19".into(), &"r5".into()));
        let [first, second] = runs[1]["steps"].as_array().unwrap().as_slice() else { panic!("{kept}") };
        assert_eq!((&first["step"], &second["inputs"]), (&"a".into(), &serde_json::json!(["y"])));
        let tensor = |name: &str, value: &str| serde_json::json!([{ "name": name, "shape": [1], "datatype": "BYTES", "data": [value] }]);
        let keeps = keep_pipeline_payloads || keep_payloads;
        let expected = |tensor| if keeps { tensor } else { serde_json::Value::Null };
        assert_eq!(runs[1]["input_tensors"], expected(tensor("x", "1")));
        assert_eq!(runs[1]["output_tensors"], expected(tensor("y", "b(y=a(x=1))")));
        assert_eq!(second["input_tensors"], expected(tensor("y", "a(x=1)")));
        assert_eq!(second["output_tensors"], expected(tensor("y", "b(y=a(x=1))")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_kept_from_the_moment_a_version_is_to_keep_them() {
    let pipelined = Pipelined::local().await;
    let definition = pipeline("p", vec![step("a", &[])], &["a"]);
    for keep_payloads in [false, true, false] {
        pipelined.pipeline(Pipeline { keep_payloads, ..definition.clone() });
        pipelined.pipeline(pipeline("q", vec![step("a", &[])], &["a"]));
        for name in ["p", "q"] {
            pipelined.infer(name, &["x"]).await;
            let kept = pipelined.running.routes.recent_runs(name).unwrap();
            let has_tensors = !kept["runs"][0]["input_tensors"].is_null();
            assert_eq!(has_tensors, keep_payloads && name == "p", "{name} {kept}");
        }
    }
}
