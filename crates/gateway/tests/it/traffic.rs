//! Statistics per version of models and pipelines with a rollout.

use crate::{
    support::{
        FakeLocal, FakeModels, FakeRemote, Figures, Pipelined, Placement, Running, Tally, config,
        grpc_request, local_endpoint, pipeline, pipeline_route, remote_endpoint, request, rolled_out, route,
        step, until, unused_address,
    },
    v1::Adder,
};
use gantry_gateway::Config;
use gantry_oip::{
    Code, Error,
    server::{grpc_error, rest_error},
};
use gantry_proto::{
    gantry::{ExperimentRoute, Mirror, ObservedTensor, PipelineRoute, Route, route_event::Event},
    inference::{ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient},
    scheduler::{Experiment, ExperimentCandidate, Pipeline},
};
use std::{sync::Arc, time::Duration};

/// A server that fails with this error.
fn failing(error: Error) -> Arc<FakeLocal> {
    let server = FakeLocal::new();
    server.respond_by(move |request| {
        let is_grpc = request.uri().path().starts_with("/inference.");
        Some(if is_grpc { grpc_error(&error) } else { rest_error(&error) })
    });
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_counted_by_version_and_class() {
    let one = Figures { requests: 2, latencies: 2, ..Figures::default() };
    let cases = [
        (FakeLocal::new(), one),
        (failing(Error::invalid("the shape is wrong")), Figures { client_errors: 2, ..one }),
        (failing(Error::internal("out of memory")), Figures { server_errors: 2, ..one }),
        (failing(Error::unavailable("overloaded", 1)), Figures { server_errors: 2, ..one }),
        (FakeLocal::held(), Figures { timeouts: 2, ..one }),
        (failing(Error::new(Code::DeadlineExceeded, "too slow")), Figures { timeouts: 2, ..one }),
    ];
    for is_remote in [false, true] {
        let config = Config { request_timeout: Duration::from_secs(1), ..config() };
        let running = Running::start(config, |gateway| {
            for (version, (server, _)) in (1..).zip(&cases) {
                gateway.register_local("here", version, Arc::clone(server) as _);
            }
        });
        let mut remotes = Vec::new();
        for (server, _) in &cases {
            remotes.push(FakeRemote::start(Arc::clone(server)).await);
        }
        let endpoint = |version: u32| {
            let address = remotes[version as usize - 1].address;
            [if is_remote { remote_endpoint("s", version, address) } else { local_endpoint("here", version) }]
        };
        let endpoints: Vec<_> =
            (1..=cases.len() as u32).map(|version| (version, endpoint(version))).collect();
        let mut versions: Vec<_> = endpoints.iter().map(|(version, e)| (*version, 1, e.as_slice())).collect();
        let refused = [remote_endpoint("gone", 0, unused_address())];
        versions.push((99, 1, &refused));
        running.route(rolled_out(3, route("m", &versions)));
        let mut grpc =
            GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
        for (version, ..) in &versions {
            running.client().send("POST", &format!("/v2/models/m/versions/{version}/infer"), &[], "{}").await;
            let model_version = version.to_string();
            let request = ModelInferRequest { model_name: "m".into(), model_version, ..Default::default() };
            let _ = grpc.model_infer(request).await;
        }
        let tally = Tally::taken(&running, 2 * versions.len() as u64).await;
        for (version, (_, expected)) in (1..).zip(&cases) {
            assert_eq!(tally.of("m", 3, version), *expected, "version {version}, remote: {is_remote}");
        }
        let refused = Figures { requests: 2, connection_errors: 2, ..Figures::default() };
        assert_eq!(tally.of("m", 3, 99), refused, "a refused connection has no latency");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_refused_by_the_gateway_are_not_counted() {
    let adder = Adder::new();
    let limits = Config { max_in_flight_per_replica: 1, ..config() };
    let held = FakeLocal::held();
    let running = Running::start(limits, |gateway| {
        gateway.register_local("adder", 0, Arc::clone(&adder.server) as _);
        gateway.register_local("held", 0, Arc::clone(&held) as _);
    });
    running.route(rolled_out(1, route("sum", &[(1, 1, &[local_endpoint("adder", 0)])])));
    running.route(rolled_out(1, route("busy", &[(1, 1, &[local_endpoint("held", 0)])])));
    let client = running.client();
    let waiting = tokio::spawn(async move { client.infer("busy").await.status.as_u16() });
    until("it arrives", || async { held.arrived() == 1 }).await;
    for (method, path, body, status) in [
        ("POST", "/v2/models/busy/infer", "{}", 429),
        ("POST", "/v2/models/unknown/infer", "{}", 404),
        ("POST", "/v2/models/sum/versions/9/infer", "{}", 404),
        ("POST", "/v1/models/sum:predict", "{", 400),
        ("GET", "/v2/models/sum", "", 200),
        ("GET", "/v2/models/sum/ready", "", 200),
        // The only one that a version gets.
        ("POST", "/v1/models/sum:predict", r#"{"instances":[[1,2]]}"#, 200),
    ] {
        let answer = client.send(method, path, &[], body).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
    }
    held.gate.add_permits(1);
    assert_eq!(waiting.await.unwrap(), 200);
    let tally = Tally::taken(&running, 2).await;
    assert_eq!(tally.of("sum", 1, 1), Figures::successes(1));
    assert_eq!(tally.of("busy", 1, 1), Figures::successes(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_on_another_replica_of_the_version_counts_once() {
    let alive = FakeRemote::start(FakeLocal::new()).await;
    let running = Running::start(config(), |_| {});
    let canary = [remote_endpoint("s", 0, unused_address()), remote_endpoint("s", 1, alive.address)];
    let stable = [remote_endpoint("s", 2, alive.address)];
    running.route(rolled_out(1, route("m", &[(1, 1, &stable), (2, 1, &canary)])));
    let mut answered = 0;
    for _ in 0..60 {
        let answer = running.client().infer("m").await;
        assert_eq!(answer.status, 200);
        answered += u64::from(answer.header("x-seldon-route") == ":m_2:");
    }
    assert!(running.metric("gantry_gateway_retries_total") > 0);
    let tally = Tally::taken(&running, 60).await;
    assert_eq!(tally.of("m", 1, 1), Figures::successes(60 - answered));
    assert_eq!(tally.of("m", 1, 2), Figures::successes(answered));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_version_has_a_connection_error_for_each_request_of_its_share() {
    let running = Running::start(config(), |g| g.register_local("builtin", 0, FakeLocal::new() as _));
    let (here, away) = ([local_endpoint("builtin", 0)], [remote_endpoint("s", 0, unused_address())]);
    running.route(rolled_out(1, route("m", &[(1, 50, &here), (2, 50, &away)])));
    for _ in 0..100 {
        assert_eq!(running.client().infer("m").await.status, 200, "the other version takes its requests");
    }
    let mut tally = Tally::default();
    until("all are counted", || {
        tally.add(&running.routes.take_traffic().1);
        let is_complete = tally.of("m", 1, 1).requests == 100;
        async move { is_complete }
    })
    .await;
    assert_eq!(tally.of("m", 1, 1), Figures::successes(100));
    let Figures { requests, connection_errors, .. } = tally.of("m", 1, 2);
    assert_eq!(requests, connection_errors);
    // More than those that opened the circuit: of 100 requests, 50 with a standard deviation of 5.
    assert!((25..=75).contains(&requests), "{requests}");
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_pipelines_and_candidates_of_experiments_are_counted() {
    for placement in [Placement::Local, Placement::Grpc, Placement::Rest] {
        let pipelined = Pipelined::start(placement).await;
        pipelined.pipeline(pipeline("p", vec![step("a", &[]), step("b", &["a"])], &["b"]));
        let (there, here) = ([pipelined.endpoint()], [local_endpoint("builtin", 0)]);
        let running = &pipelined.running;
        for (model, endpoint) in [("a", &there), ("b", &there), ("c", &here)] {
            running.route(rolled_out(5, route(model, &[(1, 1, endpoint)])));
        }
        pipelined.models.fails("b", Code::Internal, "broken");
        for _ in 0..3 {
            assert_ne!(pipelined.infer("p", &["x"]).await.status, 200);
        }
        // The experiment takes over the name of a model without a rollout.
        running.route(route("d", &[(1, 1, &here)]));
        let candidate = ExperimentCandidate { name: "c".into(), weight: 1 };
        pipelined.apply(Event::UpsertExperiment(ExperimentRoute {
            definition: Some(Experiment {
                name: "e".into(),
                default: Some("d".into()),
                candidates: vec![candidate],
                ..Default::default()
            }),
            active: true,
            reason: String::new(),
        }));
        let answer = running.client().send("POST", "/v2/models/d/infer", &[], request(&["x"])).await;
        assert_eq!(answer.header("x-seldon-route"), ":c_1:");
        let tally = Tally::taken(running, 7).await;
        assert_eq!(tally.of("a", 5, 1), Figures::successes(3), "{placement:?}");
        assert_eq!(tally.of("b", 5, 1), Figures { server_errors: 3, ..Figures::successes(3) });
        assert_eq!(tally.of("c", 5, 1), Figures::successes(1));
    }
}

/// Version 1 with step `a`, and version 2 with step `b` for a part of the requests.
fn split(pipelined: &Pipelined, generation: u64, candidate_percent: u32) {
    for model in ["a", "b"] {
        pipelined.model(model);
    }
    let first = pipeline("p", vec![step("a", &[])], &["a"]);
    let second = Pipeline { uid: "p-2".into(), version: 2, ..pipeline("p", vec![step("b", &[])], &["b"]) };
    let candidate = (candidate_percent > 0).then_some(second);
    pipelined.apply(Event::UpsertPipeline(PipelineRoute {
        rollout_generation: generation,
        candidate,
        candidate_percent,
        ..pipeline_route(first)
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_of_a_pipeline_share_its_requests_and_are_counted_by_the_class_of_the_error() {
    let one = Figures { requests: 1, latencies: 1, ..Figures::default() };
    let causes = [
        (Code::InvalidArgument, Figures { client_errors: 1, ..one }),
        (Code::Internal, Figures { server_errors: 1, ..one }),
        (Code::Unavailable, Figures { server_errors: 1, ..one }),
        (Code::DeadlineExceeded, Figures { timeouts: 1, ..one }),
    ];
    for placement in [Placement::Local, Placement::Grpc, Placement::Rest] {
        let pipelined = Pipelined::start(placement).await;
        split(&pipelined, 3, 30);
        let mut candidates = 0;
        for _ in 0..200 {
            let answer = pipelined.infer("p", &["x"]).await;
            assert_eq!(answer.status, 200);
            candidates += u64::from(answer.header("x-pipeline-version") == "2");
        }
        // 60 with a standard deviation of 6.5.
        assert!((25..=95).contains(&candidates), "{candidates}");
        let tally = Tally::taken(&pipelined.running, 200).await;
        assert_eq!(tally.of("p.pipeline", 3, 2), Figures::successes(candidates));
        assert_eq!(tally.of("p.pipeline", 3, 1), Figures::successes(200 - candidates));
        split(&pipelined, 4, 100);
        for (code, expected) in causes {
            pipelined.models.fails("b", code, "broken");
            assert_ne!(pipelined.infer("p", &["x"]).await.status, 200);
            let tally = Tally::taken(&pipelined.running, 1).await;
            assert_eq!(tally.of("p.pipeline", 4, 2), expected, "{code:?} {placement:?}");
        }
        pipelined.models.returns("b", &[]);
        assert_eq!(pipelined.infer("p", &["x"]).await.status, 400);
        let tally = Tally::taken(&pipelined.running, 1).await;
        let no_output = Figures { server_errors: 1, ..one };
        assert_eq!(tally.of("p.pipeline", 4, 2), no_output, "{placement:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ends_on_the_version_of_the_pipeline_that_it_started_on() {
    let pipelined = Pipelined::start(Placement::Local).await;
    split(&pipelined, 1, 100);
    pipelined.models.waits("b");
    let client = pipelined.running.client();
    let started =
        tokio::spawn(async move { client.send("POST", "/v2/pipelines/p/infer", &[], request(&["x"])).await });
    until("it arrives", || async { pipelined.models.calls("b_1") == 1 }).await;
    split(&pipelined, 2, 0);
    assert_eq!(pipelined.infer("p", &["x"]).await.header("x-pipeline-version"), "1");
    pipelined.models.release();
    assert_eq!(started.await.unwrap().header("x-pipeline-version"), "2");
    let tally = Tally::taken(&pipelined.running, 2).await;
    assert_eq!(tally.of("p.pipeline", 1, 2), Figures::successes(1), "under the weights that chose it");
    assert_eq!(tally.of("p.pipeline", 2, 1), Figures::successes(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_the_observed_tensor_are_counted_in_every_protocol() {
    for placement in [Placement::Local, Placement::Grpc, Placement::Rest] {
        let pipelined = Pipelined::start(placement).await;
        pipelined.pipeline(pipeline("p", vec![step("a", &[])], &["a"]));
        let (running, there) = (&pipelined.running, [pipelined.endpoint()]);
        let mut grpc =
            GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
        let (is_rest, is_grpc) = (placement != Placement::Grpc, placement != Placement::Rest);
        // As a step of the pipeline, too.
        let requests = 1 + u64::from(is_rest) + u64::from(is_grpc);
        for (generation, name, input, is_counted) in [
            (1, "y", false, true),
            (2, "x", true, true),
            (3, "other", false, false),
            (4, "other", true, false),
        ] {
            let counted = if is_counted { requests } else { 0 };
            let observed = Some(ObservedTensor { name: name.into(), input });
            let model = Route { observed: observed.clone(), ..route("a", &[(1, 1, &there)]) };
            running.route(rolled_out(generation, model));
            pipelined.apply(Event::UpsertPipeline(PipelineRoute {
                rollout_generation: generation,
                observed,
                ..pipeline_route(pipeline("p", vec![step("a", &[])], &["a"]))
            }));
            if is_rest {
                let answer = running.client().send("POST", "/v2/models/a/infer", &[], request(&["x"])).await;
                assert_eq!(answer.status, 200);
            }
            if is_grpc {
                let over_grpc = ModelInferRequest { model_name: "a".into(), ..grpc_request(&["x"]) };
                grpc.model_infer(over_grpc).await.unwrap();
            }
            assert_eq!(pipelined.infer("p", &["x"]).await.status, 200);
            let mut tally = Tally::default();
            until(&format!("{counted} values of {name} {placement:?}"), || {
                tally.add(&running.routes.take_traffic().1);
                let of_model = tally.of("a", generation, 1);
                let is_complete = of_model.requests == requests && of_model.values == counted;
                async move { is_complete }
            })
            .await;
            let of_pipeline = tally.of("p.pipeline", generation, 1);
            let expected = (1, u64::from(is_counted));
            assert_eq!((of_pipeline.requests, of_pipeline.values), expected, "{name} {placement:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrored_version_gets_copies_whose_answers_are_compared() {
    let (stable, equal, other) = (FakeModels::new(), FakeModels::new(), FakeModels::new());
    other.returns("m", &["z"]);
    let broken = failing(Error::internal("out of memory"));
    let hanging = FakeLocal::held();
    let running = Running::start(config(), |gateway| {
        gateway.register_local("stable", 0, Arc::clone(&stable) as _);
        gateway.register_local("equal", 0, Arc::clone(&equal) as _);
        gateway.register_local("other", 0, Arc::clone(&other) as _);
        gateway.register_local("broken", 0, Arc::clone(&broken) as _);
        gateway.register_local("hanging", 0, Arc::clone(&hanging) as _);
    });
    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    let copies = Figures::successes(2);
    for (generation, candidate, tolerance, expected) in [
        (1, "equal", Some(0), Figures { compared: 2, ..copies }),
        (2, "other", Some(0), Figures { compared: 2, differing: 2, ..copies }),
        (3, "other", None, copies),
        (4, "broken", Some(0), Figures { server_errors: 2, ..copies }),
        (5, "hanging", Some(0), Figures::default()),
    ] {
        let (first, second) = ([local_endpoint("stable", 0)], [local_endpoint(candidate, 0)]);
        let mirror = Some(Mirror { version: 2, percent: 100, tolerance });
        let versions = route("m", &[(1, 100, &first), (2, 0, &second)]);
        running.route(rolled_out(generation, Route { mirror, ..versions }));
        // A copy delays nothing, even one that hangs.
        let answer = running.client().send("POST", "/v2/models/m/infer", &[], request(&["x"])).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-seldon-route")), (200, ":m_1:"));
        grpc.model_infer(ModelInferRequest { model_name: "m".into(), ..grpc_request(&["x"]) }).await.unwrap();
        let mut tally = Tally::default();
        until(&format!("copies for {candidate}: {expected:?}"), || {
            tally.add(&running.routes.take_traffic().1);
            let is_complete = tally.of("m", generation, 1) == Figures::successes(2)
                && tally.of("m", generation, 2) == expected;
            async move { is_complete }
        })
        .await;
    }
    let (first, second) = ([local_endpoint("stable", 0)], [local_endpoint("equal", 0)]);
    let mirror = Some(Mirror { version: 2, percent: 30, tolerance: None });
    running.route(rolled_out(6, Route { mirror, ..route("m", &[(1, 100, &first), (2, 0, &second)]) }));
    let before = equal.calls("m_2");
    for _ in 0..100 {
        assert_eq!(
            running.client().send("POST", "/v2/models/m/infer", &[], request(&["x"])).await.status,
            200
        );
    }
    // 30 with a standard deviation of 4.6.
    until("the copies arrive", || async { (10..=60).contains(&(equal.calls("m_2") - before)) }).await;
}
