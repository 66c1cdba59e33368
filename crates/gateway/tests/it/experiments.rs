//! Experiments: splits, takeover, sticky routes and mirrors, for models and pipelines.

use crate::support::{
    Answer, FakeModels, Pipelined, Placement, grpc_request, outputs, pipeline, request, send, step, until,
};
use gantry_oip::Code;
use gantry_proto::{
    gantry::{ExperimentRoute, route_event::Event},
    inference::grpc_inference_service_client::GrpcInferenceServiceClient,
    scheduler::{Experiment, ExperimentCandidate, ExperimentMirror, ResourceType},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};
use tokio_util::sync::CancellationToken;

fn experiment(name: &str, default: Option<&str>, candidates: &[(&str, u32)]) -> Experiment {
    let candidate =
        |(name, weight): &(&str, u32)| ExperimentCandidate { name: (*name).into(), weight: *weight };
    Experiment {
        name: name.into(),
        default: default.map(Into::into),
        candidates: candidates.iter().map(candidate).collect(),
        ..Default::default()
    }
}

fn active(definition: Experiment) -> Event {
    let route = ExperimentRoute { definition: Some(definition), active: true, reason: String::new() };
    Event::UpsertExperiment(route)
}

fn mirrored(name: &str, percent: u32, definition: Experiment) -> Experiment {
    Experiment { mirror: Some(ExperimentMirror { name: name.into(), percent }), ..definition }
}

fn of_pipelines(definition: Experiment) -> Experiment {
    Experiment { resource_type: ResourceType::Pipeline.into(), ..definition }
}

async fn ask(pipelined: &Pipelined, model: &str, headers: &[(&str, &str)]) -> Answer {
    let path = format!("/v2/models/{model}/infer");
    pipelined.running.client().send("POST", &path, headers, request(&["x"])).await
}

/// Routes of this many responses, on one connection.
async fn routes(
    pipelined: &Pipelined,
    model: &str,
    headers: &[(&str, &str)],
    n: u32,
) -> BTreeMap<String, u32> {
    let mut connection = pipelined.running.client().connect().await;
    let mut counts = BTreeMap::new();
    for _ in 0..n {
        let path = format!("/v2/models/{model}/infer");
        let answer = send(&mut connection, "POST", &path, headers, request(&["x"])).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        *counts.entry(answer.header("x-seldon-route").to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn split_follows_the_weights_within_three_sigma() {
    let pipelined = Pipelined::local().await;
    for model in ["iris", "b"] {
        pipelined.model(model);
    }
    let mut sent = 0;
    for (first, second, n) in [(50, 50, 10_000), (90, 10, 2000), (1, 99, 2000), (0, 7, 100)] {
        pipelined.apply(active(experiment("e", Some("iris"), &[("iris", first), ("b", second)])));
        let share = f64::from(first) / f64::from(first + second);
        let sigma = (f64::from(n) * share * (1.0 - share)).sqrt();
        // An exact split exceeds three sigma once in 370 times, and three times in a row once in 50 million.
        let mut seen = Vec::new();
        loop {
            sent += n;
            let counts = routes(&pipelined, "iris", &[], n).await;
            let got = f64::from(counts.get(":iris_1:").copied().unwrap_or(0));
            seen.push(counts);
            if (got - f64::from(n) * share).abs() <= 3.0 * sigma {
                break;
            }
            assert!(seen.len() < 3, "{first}/{second}: {seen:?}");
        }
    }
    let line =
        |candidate| format!("gantry_experiment_requests_total{{experiment=\"e\",candidate=\"{candidate}\"}}");
    let total = pipelined.running.metric(&line("iris")) + pipelined.running.metric(&line("b"));
    assert_eq!(total, u64::from(sent));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_latency_are_counted_by_candidate() {
    for placement in [Placement::Local, Placement::Rest] {
        let pipelined = Pipelined::start(placement).await;
        for model in ["iris", "b"] {
            pipelined.model(model);
            pipelined.pipeline(pipeline(&format!("p-{model}"), vec![step(model, &[])], &[model]));
        }
        pipelined.models.fails("b", Code::Internal, "broken");
        pipelined.apply(active(experiment("e", None, &[("iris", 1), ("b", 1)])));
        let candidates = [("p-iris", 1), ("p-b", 1)];
        pipelined.apply(active(of_pipelines(experiment("of-pipelines", None, &candidates))));
        for (name, candidates) in [("e", ["iris", "b"]), ("of-pipelines", ["p-iris", "p-b"])] {
            let header = format!("{name}.experiment");
            let metric = |what: &str, candidate: &str| {
                let labels = format!("{{experiment=\"{name}\",candidate=\"{candidate}\"}}");
                pipelined.running.metric(&format!("gantry_experiment_{what}{labels}"))
            };
            for _ in 0..40 {
                ask(&pipelined, "iris", &[("seldon-model", &header)]).await;
            }
            let [good, bad] = candidates;
            let is_recorded =
                |candidate: &str| metric("seconds_count", candidate) == metric("requests_total", candidate);
            until("all calls are recorded", async || is_recorded(good) && is_recorded(bad)).await;
            assert_eq!(metric("requests_total", good) + metric("requests_total", bad), 40, "{placement:?}");
            assert_eq!(metric("errors_total", good), 0, "{placement:?}");
            assert_eq!(metric("errors_total", bad), metric("requests_total", bad), "{placement:?}");
            assert!(metric("requests_total", bad) > 0, "{placement:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inactive_experiment_takes_over_no_name() {
    let pipelined = Pipelined::local().await;
    for model in ["iris", "b"] {
        pipelined.model(model);
    }
    let route = ExperimentRoute {
        definition: Some(experiment("e", Some("iris"), &[("iris", 0), ("b", 1)])),
        active: false,
        reason: "candidate b is not ready".into(),
    };
    pipelined.apply(Event::UpsertExperiment(route.clone()));
    assert_eq!(ask(&pipelined, "iris", &[]).await.header("x-seldon-route"), ":iris_1:");
    let direct = [("seldon-model", "e.experiment")];
    let answer = ask(&pipelined, "iris", &direct).await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("candidate b is not ready"), "{answer:?}");

    pipelined.apply(Event::UpsertExperiment(ExperimentRoute { active: true, ..route }));
    assert_eq!(ask(&pipelined, "iris", &[]).await.header("x-seldon-route"), ":b_1:");
    assert_eq!(ask(&pipelined, "iris", &direct).await.header("x-seldon-route"), ":b_1:");
    assert_eq!(
        ask(&pipelined, "iris/versions/1", &[]).await.header("x-seldon-route"),
        ":iris_1:",
        "a client that names a version means this model"
    );
    // A new route of the default does not end the takeover.
    pipelined.model("iris");
    assert_eq!(ask(&pipelined, "iris", &[]).await.header("x-seldon-route"), ":b_1:");

    pipelined.apply(Event::DeleteExperiment("e".into()));
    assert_eq!(ask(&pipelined, "iris", &[]).await.header("x-seldon-route"), ":iris_1:");
    assert_eq!(ask(&pipelined, "iris", &direct).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn experiment_is_requested_over_grpc() {
    let pipelined = Pipelined::local().await;
    pipelined.model("b");
    pipelined.apply(active(experiment("e", None, &[("b", 1)])));
    let address = format!("http://{}", pipelined.running.address);
    let mut client = GrpcInferenceServiceClient::connect(address).await.unwrap();
    let mut request = tonic::Request::new(grpc_request(&["x"]));
    request.metadata_mut().insert("seldon-model", "e.experiment".parse().unwrap());
    let response = client.model_infer(request).await.unwrap();
    assert_eq!(response.metadata().get("x-seldon-route").unwrap(), ":b_1:");
}

#[tokio::test(flavor = "multi_thread")]
async fn sticky_route_wins_over_weights() {
    let pipelined = Pipelined::local().await;
    for model in ["iris", "b"] {
        pipelined.model(model);
    }
    pipelined.apply(active(experiment("e", Some("iris"), &[("iris", 1), ("b", 1)])));
    for route in [":iris_1:", ":b_1:"] {
        for sent in [route.to_owned(), format!(":other_1:{route}:p.pipeline:")] {
            let counts = routes(&pipelined, "iris", &[("x-seldon-route", &sent)], 50).await;
            assert_eq!(counts, [(route.to_owned(), 50)].into(), "{sent}");
        }
        // As clients return several values.
        let values = [("x-seldon-route", ":other_1:"), ("x-seldon-route", route)];
        assert_eq!(routes(&pipelined, "iris", &values, 50).await, [(route.to_owned(), 50)].into());
    }
    let counts = routes(&pipelined, "iris", &[("x-seldon-route", ":iris2_1:")], 100).await;
    assert_eq!(counts.len(), 2, "a longer name is another model: {counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_changed_under_load_fail_no_request() {
    let pipelined = Arc::new(Pipelined::local().await);
    for model in ["iris", "b", "c"] {
        pipelined.model(model);
    }
    let stop = CancellationToken::new();
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (pipelined, stop) = (Arc::clone(&pipelined), stop.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    routes(&pipelined, "iris", &[], 10).await;
                }
            })
        })
        .collect();
    let called = |models: &FakeModels| models.called.lock().unwrap().len();
    for round in 0..100 {
        let before = called(&pipelined.models);
        until("requests run", || async { called(&pipelined.models) > before + 4 }).await;
        match round % 4 {
            3 => pipelined.apply(Event::DeleteExperiment("e".into())),
            2 => pipelined.apply(active(experiment("e", Some("iris"), &[("iris", 1), ("c", 9)]))),
            _ => pipelined.apply(active(experiment("e", Some("iris"), &[("iris", round), ("b", 5)]))),
        }
    }
    stop.cancel();
    for client in load {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn experiment_of_pipelines_splits_and_is_sticky() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[])], &["a"]));
    pipelined.pipeline(pipeline("q", vec![step("b", &[])], &["b"]));
    pipelined.apply(active(of_pipelines(experiment("e", Some("p"), &[("p", 0), ("q", 1)]))));
    let routes = |answer: &Answer| -> Vec<String> {
        let values = answer.headers.get_all("x-seldon-route").iter();
        values.map(|v| v.to_str().unwrap().to_owned()).collect()
    };
    let answer = pipelined.infer("p", &["x"]).await;
    assert_eq!(
        (&*outputs(&answer), routes(&answer)),
        ("y=b(x=1)", vec![":b_1:".into(), ":q.pipeline:".into()])
    );
    let direct = ask(&pipelined, "any", &[("seldon-model", "e.experiment")]).await;
    assert_eq!(outputs(&direct), "y=b(x=1)");
    let sticky =
        pipelined.send("p", &[("x-seldon-route", ":a_1:"), ("x-seldon-route", ":p.pipeline:")], &["x"]);
    assert_eq!(outputs(&sticky.await), "y=a(x=1)");
    pipelined.apply(Event::DeleteExperiment("e".into()));
    assert_eq!(outputs(&pipelined.infer("p", &["x"]).await), "y=a(x=1)");
}

#[tokio::test(flavor = "multi_thread")]
async fn experiment_takes_over_the_model_of_a_step() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]));
    pipelined.model("a2");
    pipelined.model("copy");
    let definition = experiment("e", Some("a"), &[("a", 0), ("a2", 1)]);
    pipelined.apply(active(mirrored("copy", 100, definition)));
    let answer = pipelined.infer("p", &["x"]).await;
    assert_eq!(outputs(&answer), "y=b(y=a2(x=1))");
    until("the mirror gets a copy", || async { pipelined.models.calls("copy_1") == 1 }).await;
    let sticky = pipelined.send("p", &[("x-seldon-route", ":a_1::p.pipeline:")], &["x"]).await;
    assert_eq!(outputs(&sticky), "y=b(y=a(x=1))");
}

#[tokio::test(flavor = "multi_thread")]
async fn mirror_gets_its_percentage_and_its_response_is_dropped() {
    const N: u32 = 2000;
    let pipelined = Pipelined::local().await;
    for model in ["iris", "copy"] {
        pipelined.model(model);
    }
    pipelined.models.fails("copy", gantry_oip::Code::Internal, "broken");
    let definition = experiment("e", Some("iris"), &[("iris", 1)]);
    pipelined.apply(active(mirrored("copy", 30, definition)));
    let counts = routes(&pipelined, "iris", &[], N).await;
    assert_eq!(counts, [(":iris_1:".to_owned(), N)].into());
    let line = |what| format!("gantry_experiment_{what}_total{{experiment=\"e\",candidate=\"copy\"}}");
    let sent = pipelined.running.metric(&line("mirrored"));
    let sigma = (f64::from(N) * 0.3 * 0.7).sqrt();
    assert!((sent as f64 - f64::from(N) * 0.3).abs() <= 6.0 * sigma, "{sent}");
    let calls = || pipelined.models.calls("copy_1") as u64;
    until("all copies arrive", || async { calls() == sent }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mirror_that_hangs_costs_the_requests_nothing() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[])], &["a"]));
    pipelined.pipeline(pipeline("q", vec![step("copy", &[])], &["copy"]));
    pipelined.models.waits("copy");
    let of_model = experiment("e", Some("a"), &[("a", 1)]);
    pipelined.apply(active(mirrored("copy", 100, of_model)));
    let counts = routes(&pipelined, "a", &[], 1000).await;
    assert_eq!(counts, [(":a_1:".to_owned(), 1000)].into());
    let of_pipeline = of_pipelines(experiment("f", Some("p"), &[("p", 1)]));
    pipelined.apply(active(mirrored("q", 100, of_pipeline)));
    for _ in 0..100 {
        assert_eq!(outputs(&pipelined.infer("p", &["x"]).await), "y=a(x=1)");
    }
    let line = |what, experiment, candidate| {
        format!("gantry_experiment_{what}_total{{experiment=\"{experiment}\",candidate=\"{candidate}\"}}")
    };
    let metric = |line: String| pipelined.running.metric(&line);
    let (sent, dropped) =
        (metric(line("mirrored", "e", "copy")), metric(line("mirror_dropped", "e", "copy")));
    assert!(sent <= 256 && sent + dropped >= 1000, "bounded and counted: {sent} {dropped}");
    assert!(metric(line("mirror_dropped", "f", "q")) > 0);
    assert_eq!(pipelined.running.metric("gantry_gateway_in_flight "), 0);
    assert_eq!(pipelined.running.metric("gantry_gateway_memory_used_bytes "), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn mirror_of_large_tensors_takes_no_memory_of_the_client() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("p", vec![step("a", &[])], &["a"]));
    pipelined.pipeline(pipeline("q", vec![step("copy", &[])], &["copy"]));
    pipelined.models.waits("copy");
    let of_pipeline = of_pipelines(experiment("e", Some("p"), &[("p", 1)]));
    pipelined.apply(active(mirrored("q", 100, of_pipeline)));
    pipelined.apply(active(mirrored("copy", 100, experiment("f", Some("a"), &[("a", 1)]))));
    let body = {
        let data = vec![1; 1 << 17];
        let input = serde_json::json!({ "name": "x", "shape": [1 << 17], "datatype": "FP64", "data": data });
        serde_json::json!({ "inputs": [input] }).to_string()
    };
    let client = pipelined.running.client();
    for (path, copies) in [("/v2/models/a/infer", 1), ("/v2/pipelines/p/infer", 3)] {
        let answer = client.send("POST", path, &[], body.clone()).await;
        assert_eq!(answer.status, 200, "{path}");
        until("the mirror has its copies", || async { pipelined.models.calls("copy_1") == copies }).await;
        let used = || pipelined.running.metric("gantry_gateway_memory_used_bytes ");
        until("the memory is free", || async { used() == 0 }).await;
        assert_eq!(pipelined.models.cancelled.load(Ordering::SeqCst), 0, "the mirror still hangs");
    }
}
