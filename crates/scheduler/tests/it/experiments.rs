//! Experiments over gRPC: contract, lifecycle, routes, durability.

use crate::harness::{
    Agent, Gateway, all, by, client, control, experiment, experiment_status, pipeline, scheduler,
    serve_models, unload, within,
};
use gantry_proto::{
    gantry::{AdoptRequest, ExperimentRoute, ExplainRequest, PlanRequest, route_event::Event},
    scheduler::{self as pb, ExperimentStatusResponse},
};
use tonic::{Code, Streaming};

async fn until(
    statuses: &mut Streaming<ExperimentStatusResponse>,
    wanted: impl Fn(&ExperimentStatusResponse) -> bool,
) -> ExperimentStatusResponse {
    loop {
        let status = within(statuses.message()).await.unwrap().expect("the subscription is open");
        if wanted(&status) {
            return status;
        }
    }
}

/// Applies changes until one of an experiment.
async fn next_route(gateway: &mut Gateway) -> ExperimentRoute {
    loop {
        if let Event::UpsertExperiment(route) = gateway.apply().await {
            return route;
        }
    }
}

type Change = fn(&mut pb::Experiment);

fn stop(name: &str) -> pb::StopExperimentRequest {
    pb::StopExperimentRequest { name: name.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_experiments_are_rejected_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    c.start_experiment(experiment("taken", &["a"])).await.unwrap();
    let cases: [(Change, &str); 8] = [
        (|e| e.name = "a.b".into(), "contains '.'"),
        (|e| (e.default, e.candidates) = (None, Vec::new()), "has no candidates or mirror"),
        (|e| e.default = Some("z".into()), "default model/pipeline z not found in experiment e candidates"),
        (|e| e.candidates.push(e.candidates[0].clone()), "duplicated"),
        (|e| e.default = Some("a".into()), "a is already the default of experiment taken"),
        (|e| e.resource_type = 9, "unknown resource type 9"),
        (|e| e.mirror = Some(pb::ExperimentMirror { name: "m".into(), percent: 101 }), "at most 100"),
        (|e| e.candidates[1].name.clear(), "has no name"),
    ];
    for (change, expected) in cases {
        let mut request = experiment("e", &["b", "a"]);
        change(request.experiment.as_mut().unwrap());
        let status = c.start_experiment(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(expected), "{}", status.message());
    }
    let known = c.experiment_status(pb::ExperimentStatusRequest::default()).await.unwrap();
    assert_eq!(all(known).await.len(), 1, "nothing of it is kept");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn experiment_is_active_while_its_candidates_are_routed() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut agent, mut c) = (Agent::join(&running).await, client(&running).await);
    serve_models(&mut c, &mut agent, &["a"]).await;
    let (mut gateway, _) = Gateway::sync(&running).await;
    let request = pb::ExperimentSubscriptionRequest::default();
    let mut statuses = c.subscribe_experiment_status(request).await.unwrap().into_inner();
    c.start_experiment(experiment("e", &["a", "b"])).await.unwrap();
    let status = until(&mut statuses, |_| true).await;
    assert_eq!((status.active, status.candidates_ready, status.mirror_ready), (false, false, true));
    assert_eq!(status.status_description, "candidate b: model b does not exist");
    let inactive = next_route(&mut gateway).await;
    assert_eq!((inactive.active, inactive.reason.as_str()), (false, "candidate b: model b does not exist"));

    c.load_model(crate::harness::model("b", "/b")).await.unwrap();
    agent.execute(None).await;
    let route = loop {
        let route = next_route(&mut gateway).await;
        if route.active {
            break route;
        }
    };
    assert_eq!(route.definition, experiment("e", &["a", "b"]).experiment);
    let status = until(&mut statuses, |s| s.active).await;
    assert_eq!(status.status_description, "experiment active");

    c.unload_model(unload("b")).await.unwrap();
    until(&mut statuses, |s| !s.active).await;
    assert!(!next_route(&mut gateway).await.active);
    c.stop_experiment(stop("e")).await.unwrap();
    loop {
        if let Event::DeleteExperiment(name) = gateway.apply().await {
            assert_eq!(name, "e");
            break;
        }
    }
    let status = until(&mut statuses, |s| s.deleted).await;
    assert_eq!((status.active, status.manager.as_str()), (false, ""));
    assert_eq!(experiment_status(&mut c, "e").await, status, "it stays queryable");
    let unknown = c.stop_experiment(stop("x")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::FailedPrecondition);
    assert!(unknown.message().starts_with("experiment x not found"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_experiments_of_pipelines_and_their_owner() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut agent, mut c) = (Agent::join(&running).await, client(&running).await);
    serve_models(&mut c, &mut agent, &["a"]).await;
    c.load_pipeline(pipeline("p", &["a"])).await.unwrap();
    let mut request = experiment("e", &["p"]);
    let definition = request.experiment.as_mut().unwrap();
    definition.resource_type = pb::ResourceType::Pipeline as i32;
    definition.config = Some(pb::ExperimentConfig { sticky_sessions: true });
    c.start_experiment(by("file:/e.yaml", request)).await.unwrap();
    c.start_experiment(experiment("gone", &["x"])).await.unwrap();
    c.stop_experiment(stop("gone")).await.unwrap();
    let before = experiment_status(&mut c, "e").await;
    assert!(before.active, "{}", before.status_description);
    running.stop().await;
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    assert_eq!(experiment_status(&mut c, "e").await, before, "routes survive a restart");
    assert!(experiment_status(&mut c, "gone").await.deleted);
    let (_, events) = Gateway::sync(&running).await;
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| match event {
            Event::Upsert(_) => "model",
            Event::UpsertPipeline(_) => "pipeline",
            Event::UpsertExperiment(_) => "experiment",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["model", "pipeline", "experiment"], "what a route needs comes before it");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ownership_explain_and_plan_cover_experiments() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut c, mut control) = (client(&running).await, control(&running).await);
    let mut request = experiment("e", &["p"]);
    request.experiment.as_mut().unwrap().resource_type = pb::ResourceType::Pipeline as i32;
    c.load_pipeline(pipeline("p", &["a"])).await.unwrap();
    c.start_experiment(by("file:/e.yaml", request)).await.unwrap();
    let refused = c.stop_experiment(stop("e")).await.unwrap_err();
    assert!(refused.message().starts_with("e belongs to the file /e.yaml: remove it there."));
    let object = || (String::from("experiment"), String::from("e"));
    let (kind, name) = object();
    let why = control.explain(ExplainRequest { kind, name }).await.unwrap().into_inner();
    assert_eq!(why.headline, "e is not active: candidate p: step a: model a does not exist.");
    assert_eq!(why.reason, "UnknownModel");
    let plan = PlanRequest {
        experiments: vec![experiment("f", &["a"]).experiment.unwrap()],
        stop_experiments: vec!["e".into()],
        ..Default::default()
    };
    let planned = control.plan(plan).await.unwrap().into_inner().changes;
    let shown: Vec<_> = planned.iter().map(|p| (p.kind.as_str(), p.name.as_str(), p.action)).collect();
    assert_eq!(shown, [("experiment", "f", 1), ("experiment", "e", 5)]);
    assert_eq!(planned[0].effects, ["would not be active: candidate a: model a does not exist"]);
    let (kind, name) = object();
    assert_eq!(
        control.adopt(AdoptRequest { kind, name }).await.unwrap().into_inner().previous,
        "file:/e.yaml"
    );
    c.stop_experiment(stop("e")).await.unwrap();
    running.stop().await;
}
