//! gRPC API: every method returns the documented code.

use crate::harness::{
    Agent, client, control, model, scheduler, status_of, subscribe_request, unload, within,
};
use gantry_proto::{
    agent::{
        AgentDrainRequest, AgentSubscribeRequest, ModelEventMessage, ModelScalingTriggerMessage,
        agent_service_client::AgentServiceClient,
    },
    chainer,
    gantry::{
        AdoptRequest, DemandReport, ExplainRequest, ModelDemand, PlanRequest, RouteAcknowledgement,
        WatchRoutesRequest, routing_client::RoutingClient,
    },
    health::{HealthCheckRequest, health_check_service_client::HealthCheckServiceClient},
    scheduler::{self as pb, LoadModelRequest, ServerNotify, ServerNotifyRequest},
};
use tonic::{Code, Status, transport::Channel};
use tonic_health::pb as grpc_health;

fn code<T>(result: Result<tonic::Response<T>, Status>) -> (Code, String) {
    match result {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

fn scaled(replicas: u32, min_replicas: u32, max_replicas: u32) -> LoadModelRequest {
    let mut request = model("m", "/a");
    request.model.as_mut().unwrap().deployment_spec =
        Some(pb::DeploymentSpec { replicas, min_replicas, max_replicas, log_payloads: false });
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_models_are_rejected_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let long = "x".repeat(300);
    let mut no_requirement = model("m", "/a");
    let spec = no_requirement.model.as_mut().unwrap().model_spec.as_mut().unwrap();
    spec.requirements.push(" ".into());
    for (request, expected) in [
        (LoadModelRequest { model: None }, "model is missing"),
        (LoadModelRequest { model: Some(pb::Model::default()) }, "model.meta is missing"),
        (model("", "/a"), "model name is empty"),
        (model("a.b", "/a"), "contains '.'"),
        (model("../x", "/a"), "contains '.'"),
        (model(&long, "/a"), "model name"),
        (model("m", " "), "modelSpec.uri is empty"),
        (no_requirement, "a requirement is empty"),
        (scaled(1, 3, 2), "minReplicas 3 is more than maxReplicas 2"),
        (scaled(1, 2, 0), "replicas 1 is fewer than minReplicas 2"),
        (scaled(3, 0, 2), "replicas 3 is more than maxReplicas 2"),
    ] {
        let (code, message) = code(client.load_model(request).await);
        assert_eq!(code, Code::FailedPrecondition, "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let empty = client.model_status(pb::ModelStatusRequest::default()).await.unwrap();
    assert!(crate::harness::all(empty).await.is_empty(), "nothing of it is kept");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_service_returns_documented_codes() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let ok = (Code::Ok, String::new());
    assert_eq!(code(c.load_model(model("iris", "/a")).await), ok);
    let server = ServerNotify { name: "big".into(), expected_replicas: 1, ..Default::default() };
    let notify = |name: &str| ServerNotifyRequest {
        servers: vec![ServerNotify { name: name.into(), ..server.clone() }],
        is_first_sync: true,
    };
    assert_eq!(code(c.server_notify(notify("big")).await), ok);
    assert_eq!(code(c.server_notify(ServerNotifyRequest::default()).await), ok);
    assert_eq!(code(c.server_notify(notify("b.g")).await).0, Code::FailedPrecondition);
    assert_eq!(code(c.model_status(status_of("iris")).await), ok);
    let unknown = code(c.model_status(status_of("unknown")).await);
    assert_eq!(unknown, (Code::FailedPrecondition, "model unknown not found".into()));
    let server_status =
        |name: &str| pb::ServerStatusRequest { name: Some(name.into()), ..Default::default() };
    assert_eq!(code(c.server_status(server_status("big")).await), ok);
    let unknown = code(c.server_status(server_status("unknown")).await);
    assert_eq!(unknown, (Code::FailedPrecondition, "server unknown not found".into()));
    let version = c.scheduler_status(pb::SchedulerStatusRequest::default()).await.unwrap().into_inner();
    assert_eq!(version.application_version, env!("CARGO_PKG_VERSION"));
    assert_eq!(code(c.subscribe_model_status(pb::ModelSubscriptionRequest::default()).await), ok);
    assert_eq!(code(c.subscribe_server_status(pb::ServerSubscriptionRequest::default()).await), ok);
    assert_eq!(code(c.subscribe_control_plane(pb::ControlPlaneSubscriptionRequest::default()).await), ok);
    assert_eq!(code(c.model_status_event(pb::ModelUpdateStatusMessage::default()).await), ok);
    assert_eq!(code(c.unload_model(unload("iris")).await), ok);
    let unknown = code(c.unload_model(unload("unknown")).await);
    assert_eq!(unknown.0, Code::FailedPrecondition);
    assert!(unknown.1.contains("model unknown not found"), "{}", unknown.1);
    assert_eq!(code(c.unload_model(pb::UnloadModelRequest::default()).await).0, Code::FailedPrecondition);
    for ((code, message), expected) in [
        (code(c.load_pipeline(pb::LoadPipelineRequest::default()).await), "pipeline is missing"),
        (code(c.unload_pipeline(pb::UnloadPipelineRequest::default()).await), "not found"),
        (code(c.start_experiment(pb::StartExperimentRequest::default()).await), "experiment is missing"),
        (code(c.stop_experiment(pb::StopExperimentRequest::default()).await), "not found"),
    ] {
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.contains(expected), "{message}");
    }
    let report = chainer::PipelineUpdateStatusMessage::default();
    assert_eq!(code(c.pipeline_status_event(report).await), ok);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_and_experiment_statuses_are_empty_lists_and_idle_streams() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let pipelines = c.pipeline_status(pb::PipelineStatusRequest::default()).await.unwrap();
    assert!(crate::harness::all(pipelines).await.is_empty());
    let experiments = c.experiment_status(pb::ExperimentStatusRequest::default()).await.unwrap();
    assert!(crate::harness::all(experiments).await.is_empty());
    let unknown = pb::PipelineStatusRequest { name: Some("p".into()), ..Default::default() };
    assert_eq!(
        code(c.pipeline_status(unknown).await),
        (Code::FailedPrecondition, "pipeline p not found".into())
    );
    let unknown = pb::ExperimentStatusRequest { name: Some("e".into()), ..Default::default() };
    assert_eq!(code(c.experiment_status(unknown).await).0, Code::FailedPrecondition);
    let mut pipelines =
        c.subscribe_pipeline_status(pb::PipelineSubscriptionRequest::default()).await.unwrap().into_inner();
    let mut experiments = c
        .subscribe_experiment_status(pb::ExperimentSubscriptionRequest::default())
        .await
        .unwrap()
        .into_inner();
    // They end with the scheduler, not before.
    let ended = tokio::spawn(async move { tokio::join!(pipelines.message(), experiments.message()) });
    c.load_model(model("iris", "/a")).await.unwrap();
    assert!(!ended.is_finished());
    running.stop().await;
    drop(within(ended).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn status_contains_no_credentials_and_agents_receive_them() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut agent = Agent::join(&running).await;
    let mut c = client(&running).await;
    let mut statuses = crate::harness::subscribe(&mut c).await;
    let mut request = model("iris", "https://host/m.onnx?sig=secret");
    let config = pb::storage_config::Config::StorageRcloneConfig("{\"key\":\"secret\"}".into());
    request.model.as_mut().unwrap().model_spec.as_mut().unwrap().storage_config =
        Some(pb::StorageConfig { config: Some(config) });
    c.load_model(request.clone()).await.unwrap();
    let status = crate::harness::status(&mut c, "iris").await;
    let received = within(statuses.message()).await.unwrap().unwrap();
    for status in [status, received] {
        assert!(!format!("{status:?}").contains("secret"), "{status:?}");
        let spec = status.versions[0].model_defn.clone().unwrap().model_spec.unwrap();
        assert_eq!(spec.uri, "https://host/m.onnx?redacted");
    }
    let order = within(agent.orders.message()).await.unwrap().unwrap();
    let ordered = order.model_version.unwrap().model.unwrap().model_spec;
    assert_eq!(ordered, request.model.clone().unwrap().model_spec);
    // The same definition again is no change.
    c.load_model(request).await.unwrap();
    assert_eq!(crate::harness::status(&mut c, "iris").await.versions[0].version, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_service_returns_documented_codes() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = AgentServiceClient::connect(format!("http://{}", running.agents)).await.unwrap();
    for (request, expected) in [
        (AgentSubscribeRequest::default(), "serverName is empty"),
        (AgentSubscribeRequest { server_name: "a.b".into(), ..subscribe_request(0, &[]) }, "contains '.'"),
        (
            AgentSubscribeRequest { replica_config: None, ..subscribe_request(0, &[]) },
            "replicaConfig is missing",
        ),
        (
            {
                let mut request = subscribe_request(0, &[]);
                request.replica_config.as_mut().unwrap().inference_http_port = 70_000;
                request
            },
            "inferenceHttpPort 70000 is not a port",
        ),
    ] {
        let (code, message) = code(c.subscribe(request).await);
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.contains(expected), "{message}");
    }
    let _agent = Agent::join(&running).await;
    for event in 0..=9 {
        let report = ModelEventMessage {
            server_name: "builtin".into(),
            model_name: "unknown".into(),
            model_version: 1,
            event,
            ..Default::default()
        };
        assert_eq!(code(c.agent_event(report).await).0, Code::Ok, "event {event} of an unknown model");
    }
    assert_eq!(code(c.agent_event(ModelEventMessage::default()).await).0, Code::Ok);
    let triggers = vec![ModelScalingTriggerMessage { amount: u32::MAX, ..Default::default() }];
    assert_eq!(code(c.model_scaling_trigger(tokio_stream::iter(triggers)).await).0, Code::Ok);
    let nothing_there = AgentDrainRequest { server_name: "unknown".into(), replica_idx: 7 };
    assert!(within(c.agent_drain(nothing_there)).await.unwrap().into_inner().success);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_and_routing_services_return_documented_codes() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    client(&running).await.load_model(model("iris", "/a")).await.unwrap();
    let mut c = control(&running).await;
    let explain = |kind: &str, name: &str| ExplainRequest { kind: kind.into(), name: name.into() };
    let why = c.explain(explain("model", "iris")).await.unwrap().into_inner();
    assert!(why.headline.contains("iris"), "{}", why.headline);
    for request in [explain("model", "unknown"), explain("server", "unknown"), explain("ship", "iris")] {
        let (code, message) = code(c.explain(request).await);
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.contains("not found") || message.contains("unknown kind"), "{message}");
    }
    let plan = PlanRequest { models: vec![model("x", "/a").model.unwrap()], ..Default::default() };
    assert_eq!(code(c.plan(plan).await).0, Code::Ok);
    let bad = PlanRequest { models: vec![pb::Model::default()], ..Default::default() };
    assert_eq!(code(c.plan(bad).await).0, Code::FailedPrecondition);
    let many = PlanRequest { unload: vec!["x".into(); 10_001], ..Default::default() };
    assert!(code(c.plan(many).await).1.contains("too many"));
    let unknown = AdoptRequest { kind: "model".into(), name: "unknown".into() };
    assert_eq!(code(c.adopt(unknown).await).0, Code::FailedPrecondition);

    let mut r = RoutingClient::connect(format!("http://{}", running.clients)).await.unwrap();
    let nameless = code(r.watch_routes(WatchRoutesRequest::default()).await);
    assert_eq!(nameless.0, Code::FailedPrecondition);
    let earlier_epoch = RouteAcknowledgement { epoch: 77, applied: 1 << 40, ..Default::default() };
    assert_eq!(code(r.acknowledge_routes(earlier_epoch).await).0, Code::Ok);
    let demand = ModelDemand { model: "unknown".into(), in_flight_milli: u64::MAX, ..Default::default() };
    let report = DemandReport { subscriber: "g".into(), models: vec![demand.clone(), demand] };
    assert_eq!(code(r.report_demand(report).await).0, Code::Ok);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_listeners_serve_health_and_reflection() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    for (at, service) in [
        (running.clients, "seldon.mlops.scheduler.Scheduler"),
        (running.agents, "seldon.mlops.agent.AgentService"),
    ] {
        let channel = Channel::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap();
        let mut plain = HealthCheckServiceClient::new(channel.clone());
        assert!(plain.health_check(HealthCheckRequest {}).await.unwrap().into_inner().ok);
        let mut health = grpc_health::health_client::HealthClient::new(channel.clone());
        let ask = |service: &str| grpc_health::HealthCheckRequest { service: service.into() };
        for service in ["", service] {
            let answer = health.check(ask(service)).await.unwrap().into_inner();
            assert_eq!(answer.status(), grpc_health::health_check_response::ServingStatus::Serving);
        }
        assert_eq!(code(health.check(ask("unknown")).await).0, Code::NotFound);
        let mut watched = health.watch(ask("")).await.unwrap().into_inner();
        assert_eq!(within(watched.message()).await.unwrap().unwrap().status, 1);
        assert!(services(channel.clone()).await.contains(&service.to_owned()));
        assert!(services_alpha(channel).await.contains(&service.to_owned()));
    }
    assert!(running.scheduler().liveness().is_live());
    running.stop().await;
}

async fn services(channel: Channel) -> Vec<String> {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    match within(answers.message()).await.unwrap().unwrap().message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => list.service.into_iter().map(|s| s.name).collect(),
        other => panic!("{other:?} is no list"),
    }
}

async fn services_alpha(channel: Channel) -> Vec<String> {
    use tonic_reflection::pb::v1alpha::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    match within(answers.message()).await.unwrap().unwrap().message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => list.service.into_iter().map(|s| s.name).collect(),
        other => panic!("{other:?} is no list"),
    }
}

/// The only blocking thread is occupied, so that a dry run cannot start, and the writer answers meanwhile.
#[test]
fn dry_run_does_not_occupy_the_writer() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let running = scheduler(dir.path()).await;
        let (mut loads, mut control) = (client(&running).await, control(&running).await);
        let (release, occupied) = std::sync::mpsc::channel::<()>();
        let blocking = tokio::task::spawn_blocking(move || occupied.recv().is_err());
        let plan = PlanRequest { models: vec![model("planned", "/a").model.unwrap()], ..Default::default() };
        let planned = tokio::spawn(async move { control.plan(plan).await });
        for i in 0..50 {
            within(loads.load_model(model(&format!("m{i}"), "/a"))).await.unwrap();
        }
        assert!(!planned.is_finished());
        drop(release);
        assert!(blocking.await.unwrap());
        let changes = within(planned).await.unwrap().unwrap().into_inner().changes;
        assert_eq!(changes.len(), 1);
        running.stop().await;
    });
}
