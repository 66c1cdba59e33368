//! Pipelines over gRPC: contract, lifecycle, routes, durability.

use crate::harness::{
    Agent, Gateway, all, by, client, control, model, pipeline, pipeline_status, scheduler, serve_models,
    unload, unload_pipeline, within,
};
use gantry_proto::{
    chainer,
    gantry::{AdoptRequest, ExplainRequest, PipelineRoute, PlanRequest, route_event::Event},
    scheduler::{
        self as pb, PipelineStatusResponse, PipelineVersionState,
        pipeline_status_response::PipelineOperation, pipeline_version_state::PipelineStatus,
    },
};
use std::path::Path;
use tonic::{Code, Streaming};

fn state(status: &PipelineStatusResponse) -> &PipelineVersionState {
    status.versions[0].state.as_ref().unwrap()
}

/// Waits until the latest version is in the state.
async fn until(
    statuses: &mut Streaming<PipelineStatusResponse>,
    wanted: impl Fn(&PipelineVersionState) -> bool,
) -> PipelineStatusResponse {
    loop {
        let status = within(statuses.message()).await.unwrap().expect("the subscription is open");
        if wanted(state(&status)) {
            return status;
        }
    }
}

async fn subscribe(client: &mut crate::harness::Client) -> Streaming<PipelineStatusResponse> {
    let request = pb::PipelineSubscriptionRequest::default();
    client.subscribe_pipeline_status(request).await.unwrap().into_inner()
}

fn route(event: Event) -> PipelineRoute {
    match event {
        Event::UpsertPipeline(route) => route,
        other => panic!("{other:?} is no pipeline"),
    }
}

/// Applies changes until one of a pipeline.
async fn next_route(gateway: &mut Gateway) -> PipelineRoute {
    loop {
        if let Event::UpsertPipeline(route) = gateway.apply().await {
            return route;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_pipelines_are_rejected_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut unknown_join = pipeline("p", &["a"]);
    unknown_join.pipeline.as_mut().unwrap().steps[0].inputs_join = 9;
    for (request, expected) in [
        (pipeline("p", &[]), "pipeline p has no steps defined"),
        (pipeline("a.b", &["a"]), "a.b"),
        (unknown_join, "unknown join 9"),
    ] {
        let status = c.load_pipeline(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(expected), "{}", status.message());
    }
    let empty = c.pipeline_status(pb::PipelineStatusRequest::default()).await.unwrap();
    assert!(all(empty).await.is_empty(), "nothing of it is kept");
    let by_gateway = c.load_pipeline(by("owner", pipeline("p", &["a"]))).await.unwrap_err();
    assert_eq!(by_gateway.code(), Code::FailedPrecondition);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriber_sees_every_state_until_the_pipeline_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut agent, mut c) = (Agent::join(&running).await, client(&running).await);
    let (mut gateway, _) = Gateway::sync(&running).await;
    let mut statuses = subscribe(&mut c).await;
    c.load_pipeline(pipeline("p", &["a"])).await.unwrap();
    let status = until(&mut statuses, |s| s.status() == PipelineStatus::PipelineCreating).await;
    assert_eq!(status.operation(), PipelineOperation::PipelineCreate);
    assert_eq!((status.pipeline_name.as_str(), status.manager.as_str()), ("p", "cli"));
    let created = next_route(&mut gateway).await;
    assert_eq!((created.pipeline.as_str(), created.definition.is_none(), created.ready), ("p", true, false));
    assert_eq!(created.reason, "step a: model a does not exist");
    let status = until(&mut statuses, |s| s.status() == PipelineStatus::PipelineReady).await;
    assert!(!state(&status).models_ready);
    assert_eq!(state(&status).reason, "step a: model a does not exist");

    c.load_model(model("a", "/a")).await.unwrap();
    agent.execute(None).await;
    let ready = loop {
        let route = next_route(&mut gateway).await;
        if route.ready {
            break route;
        }
    };
    let status = until(&mut statuses, |s| s.models_ready).await;
    assert_eq!(state(&status).reason, "created pipeline");
    assert_eq!(state(&status).pipeline_gw_status(), PipelineStatus::PipelineReady);
    let definition = status.versions[0].pipeline.clone().unwrap();
    assert_eq!((definition.version, definition.uid.len()), (1, 20));
    assert_eq!(ready.definition, Some(definition));

    c.unload_pipeline(unload_pipeline("p")).await.unwrap();
    until(&mut statuses, |s| s.status() == PipelineStatus::PipelineTerminating).await;
    loop {
        if let Event::DeletePipeline(name) = gateway.apply().await {
            assert_eq!(name, "p");
            break;
        }
    }
    let status = until(&mut statuses, |s| s.status() == PipelineStatus::PipelineTerminated).await;
    assert_eq!(status.operation(), PipelineOperation::PipelineDelete);
    assert_eq!(pipeline_status(&mut c, "p").await, status, "it stays queryable");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn older_version_stays_routed_until_the_newer_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut agent, mut c) = (Agent::join(&running).await, client(&running).await);
    serve_models(&mut c, &mut agent, &["a"]).await;
    c.load_pipeline(pipeline("p", &["a"])).await.unwrap();
    let (mut gateway, events) = Gateway::sync(&running).await;
    let first = events.into_iter().find_map(|e| match e {
        Event::UpsertPipeline(route) => route.definition,
        _ => None,
    });
    let first = first.unwrap();
    assert_eq!(first.version, 1);
    c.load_pipeline(pipeline("p", &["a", "b"])).await.unwrap();
    let both = pipeline_status(&mut c, "p").await.versions;
    let shown: Vec<_> = both.iter().map(|v| v.state.as_ref().unwrap().status()).collect();
    assert_eq!(shown, [PipelineStatus::PipelineCreating, PipelineStatus::PipelineReady]);
    assert_ne!(both[0].pipeline.as_ref().unwrap().uid, first.uid);
    // A gateway that joins now executes the older one.
    drop(gateway);
    let (mut gateway2, events) = Gateway::sync(&running).await;
    let routed: Vec<_> =
        events.into_iter().filter(|e| matches!(e, Event::UpsertPipeline(_))).map(route).collect();
    assert_eq!(routed[0].definition.as_ref(), Some(&first));
    let mut statuses = subscribe(&mut c).await;
    c.load_model(model("b", "/b")).await.unwrap();
    agent.execute(None).await;
    let second = loop {
        let route = next_route(&mut gateway2).await;
        if route.definition.as_ref().unwrap().version == 2 {
            break route;
        }
    };
    assert!(second.ready);
    until(&mut statuses, |s| s.pipeline_version == 2 && s.models_ready).await;
    assert_eq!(pipeline_status(&mut c, "p").await.versions.len(), 1);
    c.unload_model(unload("b")).await.unwrap();
    let unready = next_route(&mut gateway2).await;
    assert_eq!((unready.ready, unready.definition.unwrap().version), (false, 2), "it stays routed");
    gateway = gateway2;
    drop(gateway);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn report_of_a_gateway_fails_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    c.load_pipeline(pipeline("p", &["a"])).await.unwrap();
    let uid = pipeline_status(&mut c, "p").await.versions[0].pipeline.clone().unwrap().uid;
    let report = |uid: &str, success| chainer::PipelineUpdateStatusMessage {
        update: Some(chainer::PipelineUpdateMessage {
            pipeline: "p".into(),
            uid: uid.into(),
            version: 1,
            ..Default::default()
        }),
        success,
        reason: "unknown join".into(),
    };
    c.pipeline_status_event(report("another", false)).await.unwrap();
    assert_eq!(state(&pipeline_status(&mut c, "p").await).status(), PipelineStatus::PipelineReady);
    c.pipeline_status_event(report(&uid, false)).await.unwrap();
    let failed = pipeline_status(&mut c, "p").await;
    assert_eq!(state(&failed).status(), PipelineStatus::PipelineFailed);
    assert_eq!(state(&failed).reason, "unknown join");
    c.pipeline_status_event(report(&uid, true)).await.unwrap();
    assert_eq!(state(&pipeline_status(&mut c, "p").await).status(), PipelineStatus::PipelineReady);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ownership_explain_and_plan_cover_pipelines() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let (mut c, mut control) = (client(&running).await, control(&running).await);
    c.load_pipeline(by("file:/p.yaml", pipeline("p", &["a"]))).await.unwrap();
    let refused = c.unload_pipeline(unload_pipeline("p")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().starts_with("p belongs to the file /p.yaml: remove it there."));
    let object = |name: &str| (String::from("pipeline"), name.to_owned());
    let (kind, name) = object("p");
    let why = control.explain(ExplainRequest { kind, name }).await.unwrap().into_inner();
    assert_eq!(why.headline, "p is not ready: step a: model a does not exist.");
    assert_eq!(
        (why.reason.as_str(), why.next.as_str()),
        ("UnknownModel", "apply a Model named a, or remove the step")
    );
    let plan = PlanRequest {
        pipelines: vec![pipeline("q", &["a"]).pipeline.unwrap()],
        unload_pipelines: vec!["p".into()],
        ..Default::default()
    };
    let planned = control.plan(plan).await.unwrap().into_inner().changes;
    let shown: Vec<_> = planned.iter().map(|p| (p.kind.as_str(), p.name.as_str(), p.action)).collect();
    assert_eq!(shown, [("pipeline", "q", 1), ("pipeline", "p", 5)]);
    assert_eq!(planned[0].effects, ["would wait: step a: model a does not exist"]);
    let (kind, name) = object("p");
    let previous = control.adopt(AdoptRequest { kind, name }).await.unwrap().into_inner().previous;
    assert_eq!(previous, "file:/p.yaml");
    c.unload_pipeline(unload_pipeline("p")).await.unwrap();
    let unknown = c.unload_pipeline(unload_pipeline("x")).await.unwrap_err();
    assert!(unknown.message().starts_with("pipeline x not found"));
    running.stop().await;
}

async fn restarted(
    dir: &Path,
    request: pb::LoadPipelineRequest,
) -> (PipelineStatusResponse, PipelineStatusResponse) {
    let running = scheduler(dir).await;
    let mut c = client(&running).await;
    c.load_pipeline(request).await.unwrap();
    let before = pipeline_status(&mut c, "p").await;
    running.stop().await;
    let running = scheduler(dir).await;
    let after = pipeline_status(&mut client(&running).await, "p").await;
    running.stop().await;
    (before, after)
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_every_field_uid_and_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut request = pipeline("p", &["a", "b"]);
    let definition = request.pipeline.as_mut().unwrap();
    definition.dataflow_spec = Some(pb::DataflowSpec { clean_topics_on_delete: true });
    definition.allow_cycles = true;
    definition.max_step_revisits = 7;
    definition.steps[1].inputs = vec!["a".into()];
    definition.steps[1].batch = Some(pb::Batch { size: Some(3), window_ms: None, rolling: true });
    definition.kubernetes_meta = Some(pb::KubernetesMeta { namespace: "ml".into(), generation: 4 });
    definition.output = Some(pb::PipelineOutput { steps: vec!["b".into()], ..Default::default() });
    let (before, after) = restarted(dir.path(), request).await;
    assert_eq!(before.versions[0].pipeline, after.versions[0].pipeline);
    assert_eq!(after.manager, "operator:ml");
    let kept = after.versions[0].pipeline.clone().unwrap();
    assert_eq!((kept.allow_cycles, kept.max_step_revisits), (true, 7));
    assert!(kept.dataflow_spec.unwrap().clean_topics_on_delete);
    assert_eq!(kept.steps[1].inputs, ["a.outputs"]);
    let (mut before, mut after) = (state(&before).clone(), state(&after).clone());
    (before.last_change_timestamp, after.last_change_timestamp) = (None, None);
    assert_eq!(before, after);
}
