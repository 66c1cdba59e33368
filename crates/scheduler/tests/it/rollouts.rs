//! Rollouts over gRPC: policies, weights of routes, statistics of gateways, commands, durability.

use crate::harness::{Agent, Gateway, client, model, pipeline, scheduler, within};
use gantry_proto::gantry::{
    DeletePolicyRequest, ListPoliciesRequest, ModelTraffic, PipelineRoute, RolloutPolicy, RolloutStatus,
    Route, SteerRolloutRequest, TrafficReport, VersionTraffic, WatchPoliciesRequest, WatchRolloutsRequest,
    policy_event, rollout_event, rollouts_client::RolloutsClient, route_event, steer_rollout_request::Action,
};
use gantry_scheduler::Running;
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::path::Path;
use tonic::{Code, Request, transport::Channel};

type Rollouts = RolloutsClient<Channel>;

fn policy(name: &str, models: &[&str]) -> RolloutPolicy {
    let spec = r#"{"targetRef":{"kind":"Model","name":"m"},"strategy":{"canary":{"steps":[{"weight":20}]}}}"#;
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    RolloutPolicy { name: name.into(), models, spec: spec.into(), ..RolloutPolicy::default() }
}

fn steer(action: Action) -> SteerRolloutRequest {
    SteerRolloutRequest { model: "m".into(), action: action.into(), ..Default::default() }
}

/// Models first.
async fn statuses(rollouts: &mut Rollouts) -> Vec<RolloutStatus> {
    let request = WatchRolloutsRequest { subscriber: "test".into() };
    let mut events = rollouts.watch_rollouts(request).await.unwrap().into_inner();
    let mut found = Vec::new();
    loop {
        match within(events.message()).await.unwrap().unwrap().event.unwrap() {
            rollout_event::Event::Upsert(status) => found.push(status),
            rollout_event::Event::Synced(_) => return found,
            _ => {}
        }
    }
}

/// Model `m` with version 1 under policy `p`; agent and gateway are tasks of the test.
struct Setup {
    running: Running,
    rollouts: Rollouts,
    agent: Agent,
    gateway: Gateway,
    /// The last route that the gateway applied.
    route: Route,
    sequence: u64,
    /// Of the gateway.
    instance: u64,
}

impl Setup {
    async fn start(dir: &Path) -> Self {
        let running = scheduler(dir).await;
        let rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
        let agent = Agent::join(&running).await;
        let (gateway, _) = Gateway::sync(&running).await;
        let mut setup =
            Self { running, rollouts, agent, gateway, route: Route::default(), sequence: 0, instance: 7 };
        setup.rollouts.put_policy(policy("p", &["m"])).await.unwrap();
        setup.load("/a").await;
        setup.until(|status| status.phase == "Running").await;
        setup
    }

    async fn load(&mut self, uri: &str) {
        client(&self.running).await.load_model(model("m", uri)).await.unwrap();
        self.agent.execute(None).await;
    }

    async fn status(&mut self) -> Option<RolloutStatus> {
        statuses(&mut self.rollouts).await.pop()
    }

    /// Applies routes until that of a pipeline is as wanted.
    async fn pipeline_route(&mut self, wanted: impl Fn(&PipelineRoute) -> bool) -> PipelineRoute {
        loop {
            if let route_event::Event::UpsertPipeline(route) = self.gateway.apply().await
                && wanted(&route)
            {
                return route;
            }
        }
    }

    /// Applies routes until the status is as wanted.
    async fn until(&mut self, wanted: impl Fn(&RolloutStatus) -> bool) -> RolloutStatus {
        loop {
            let status = self.status().await.expect("the model has a policy");
            if wanted(&status) {
                return status;
            }
            self.apply_route().await;
        }
    }

    /// Requests of the new version, once they are at least `requests`.
    async fn until_candidate_requests(&mut self, requests: u64) -> u64 {
        loop {
            let counted = self.status().await.unwrap().candidate.unwrap().requests;
            if counted >= requests {
                return counted;
            }
        }
    }

    async fn apply_route(&mut self) {
        if let route_event::Event::Upsert(route) = self.gateway.apply().await {
            self.route = route;
        }
    }

    async fn until_shares(&mut self, expected: &[(u32, u32)]) {
        loop {
            let total: u32 = self.route.versions.iter().map(|v| v.weight).sum();
            let share = |weight: u32| weight * 100 / total;
            let shares: Vec<_> = self.route.versions.iter().map(|v| (v.version, share(v.weight))).collect();
            if shares == expected {
                return;
            }
            self.apply_route().await;
        }
    }

    /// One report with these requests and server errors by version.
    async fn report(&mut self, versions: &[(u32, u64, u64)]) {
        self.sequence += 1;
        self.repeat(versions).await;
    }

    async fn repeat(&mut self, versions: &[(u32, u64, u64)]) {
        let version = |(version, requests, server_errors): &(u32, u64, u64)| VersionTraffic {
            version: *version,
            requests: *requests,
            server_errors: *server_errors,
            latency: vec![0, 0, *requests],
            ..Default::default()
        };
        let traffic = ModelTraffic {
            model: "m".into(),
            generation: self.route.rollout_generation,
            versions: versions.iter().map(version).collect(),
            ..Default::default()
        };
        let report = TrafficReport {
            subscriber: "g".into(),
            sequence: self.sequence,
            models: vec![traffic],
            instance: self.instance,
        };
        self.gateway.client.report_traffic(report).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_version_is_rolled_back_by_the_statistics_of_gateways() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    setup.load("/b").await;
    setup.until_shares(&[(1, 80), (2, 20)]).await;
    assert!(setup.route.rollout_generation > 0);
    setup.report(&[(1, 40, 0), (2, 10, 1)]).await;
    for _ in 0..50 {
        setup.repeat(&[(1, 40, 0), (2, 10, 10)]).await;
    }
    // The scheduler counts reports in their order, after the response.
    setup.report(&[(1, 12, 0), (2, 3, 0)]).await;
    let counted = within(setup.until_candidate_requests(13)).await;
    assert_eq!(counted, 13, "a repeated report counts once");
    for _ in 0..10 {
        setup.report(&[(1, 40, 0), (2, 10, 10)]).await;
    }
    setup.until_shares(&[(1, 100)]).await;
    let status = setup.until(|status| status.phase == "Running").await;
    assert_eq!((status.stable.unwrap().version, status.candidate), (1, None));
    assert_eq!(status.failed.len(), 1);
    assert!(status.failed[0].message.contains("5xx"), "{:?}", status.failed);
    assert_eq!(status.history.last().unwrap().outcome, "RolledBack");
    let model = crate::harness::status(&mut client(&setup.running).await, "m").await;
    let state = model.versions[0].state.clone().unwrap();
    assert!(state.reason.starts_with("rolled back: "), "{state:?}");
    setup.running.stop().await;
}

/// Each event once, with the versions and the spec of the policy, after it was stored.
#[tokio::test(flavor = "multi_thread")]
async fn notices_follow_a_rollout() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    let mut notices = setup.running.scheduler().rollout_notices();
    setup.load("/b").await;
    setup.until_shares(&[(1, 80), (2, 20)]).await;
    setup.rollouts.steer_rollout(steer(Action::Pause)).await.unwrap();
    // The caller of a rejected command has the reason: there is no notice.
    setup.rollouts.steer_rollout(steer(Action::Retry)).await.unwrap_err();
    setup.rollouts.steer_rollout(steer(Action::Abort)).await.unwrap();
    setup.until(|status| status.phase == "Running").await;
    let mut events = Vec::new();
    while events.len() < 4 {
        let notice = within(notices.recv()).await.unwrap();
        // The first version may become ready before or after the subscription.
        if notice.event == "Deployed" {
            continue;
        }
        assert_eq!((notice.kind, &*notice.name, &*notice.policy), ("Model", "m", "p"));
        assert!(serde_json::from_slice::<serde_json::Value>(&notice.spec).unwrap()["strategy"].is_object());
        events.push((notice.event, notice.version, notice.to, notice.percent, notice.message));
    }
    let message = |text: &str| text.to_owned();
    let expected = [
        ("Started", Some(2), None, None, message("model m: the rollout of version 2 started")),
        ("StageEntered", Some(2), None, Some(20), message("model m: version 2 gets 20 % of the requests")),
        ("Paused", Some(2), None, None, message("model m: the rollout of version 2 is paused")),
    ];
    assert_eq!(events[..3], expected);
    let (event, version, to, _, text) = &events[3];
    assert_eq!((*event, *version, *to), ("RolledBack", Some(2), Some(1)));
    assert!(text.starts_with("model m: version 2 is rolled back to version 1: "), "{text}");
    assert!(notices.try_recv().is_err());
    setup.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_rollouts_and_name_candidates() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    let mut registry = Registry::default();
    setup.running.scheduler().register_metrics(&mut registry);
    let text = || {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    };
    setup.load("/b").await;
    setup.until_shares(&[(1, 80), (2, 20)]).await;
    let weight = "gantry_scheduler_rollout_candidate_weight{kind=\"Model\",name=\"m\",policy=\"p\"} 20";
    for line in [
        weight,
        "gantry_scheduler_rollouts{kind=\"Model\",phase=\"Progressing\"} 1",
        "gantry_scheduler_rollouts{kind=\"Model\",phase=\"Running\"} 0",
        "gantry_scheduler_rollout_events_total{kind=\"Model\",event=\"Started\"} 1",
        "gantry_scheduler_rollout_events_total{kind=\"Model\",event=\"StageEntered\"} 1",
        "gantry_scheduler_rollout_events_total{kind=\"Model\",event=\"RolledBack\"} 0",
    ] {
        assert!(text().lines().any(|l| l == line), "{line} is not in\n{}", text());
    }
    setup.rollouts.steer_rollout(steer(Action::Abort)).await.unwrap();
    setup.until(|status| status.phase == "Running").await;
    let ended = text();
    for line in [
        "gantry_scheduler_rollouts{kind=\"Model\",phase=\"Running\"} 1",
        "gantry_scheduler_rollout_events_total{kind=\"Model\",event=\"RolledBack\"} 1",
    ] {
        assert!(ended.lines().any(|l| l == line), "{line} is not in\n{ended}");
    }
    assert!(!ended.contains("name=\"m\""), "the series ends with the rollout:\n{ended}");
    setup.rollouts.delete_policy(DeletePolicyRequest { name: "p".into() }).await.unwrap();
    let none = "gantry_scheduler_rollouts{kind=\"Model\",phase=\"Running\"} 0";
    assert!(text().lines().any(|l| l == none), "{}", text());
    setup.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn good_version_is_promoted_and_undone() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    setup.load("/b").await;
    setup.until_shares(&[(1, 80), (2, 20)]).await;
    for _ in 0..400 {
        setup.report(&[(1, 40, 0), (2, 20, 0)]).await;
    }
    setup.until_shares(&[(2, 100)]).await;
    let status = setup.until(|status| status.phase == "Running").await;
    assert_eq!((status.stable.unwrap().version, &*status.watch), (2, "Baking"));
    setup.rollouts.steer_rollout(steer(Action::Undo)).await.unwrap();
    setup.until_shares(&[(1, 100)]).await;
    setup.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_policy_weights_and_failures() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    setup.load("/b").await;
    setup.until_shares(&[(1, 80), (2, 20)]).await;
    setup.rollouts.steer_rollout(steer(Action::Pause)).await.unwrap();
    setup.running.stop().await;

    let running = scheduler(dir.path()).await;
    let (_, routes) = Gateway::join(&running).await;
    let weights: Vec<_> = routes[0].versions.iter().map(|v| (v.version, v.weight)).collect();
    assert!(matches!(&weights[..], [(1, stable), (2, candidate)] if *stable == 4 * candidate), "{weights:?}");
    let mut rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
    let policies = rollouts.list_policies(ListPoliciesRequest {}).await.unwrap().into_inner().policies;
    assert_eq!(policies, [RolloutPolicy { manager: "cli".into(), ..policy("p", &["m"]) }]);
    rollouts.steer_rollout(steer(Action::Resume)).await.unwrap();
    rollouts.steer_rollout(steer(Action::Abort)).await.unwrap();
    running.stop().await;

    let running = scheduler(dir.path()).await;
    let (_, routes) = Gateway::join(&running).await;
    assert_eq!(routes[0].versions.iter().map(|v| v.version).collect::<Vec<_>>(), [1]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_calls_have_a_code_and_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    let rollouts = &mut setup.rollouts;
    for (action, model, expected) in [
        (Action::Promote, "m", "is not in progress"),
        (Action::Undo, "m", "there is no previous version"),
        (Action::Retry, "m", "there is nothing to retry"),
        (Action::Abort, "none", "model none not found"),
    ] {
        let request = SteerRolloutRequest { model: model.into(), ..steer(action) };
        let error = rollouts.steer_rollout(request).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains(expected), "{error}");
    }
    for invalid in [
        SteerRolloutRequest { action: 99, ..steer(Action::Abort) },
        SteerRolloutRequest { model: String::new(), ..steer(Action::Abort) },
        SteerRolloutRequest { pipeline: "p".into(), ..steer(Action::Abort) },
    ] {
        assert_eq!(rollouts.steer_rollout(invalid).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let of_pipeline =
        SteerRolloutRequest { model: String::new(), pipeline: "none".into(), ..steer(Action::Abort) };
    let error = rollouts.steer_rollout(of_pipeline).await.unwrap_err();
    assert!(error.message().contains("pipeline none not found"), "{error}");
    for invalid in [
        RolloutPolicy { name: "UPPER".into(), ..policy("p", &[]) },
        RolloutPolicy { spec: b"{".to_vec(), ..policy("p", &[]) },
        RolloutPolicy { spec: b"{}".to_vec(), ..policy("p", &[]) },
    ] {
        assert_eq!(rollouts.put_policy(invalid).await.unwrap_err().code(), Code::InvalidArgument);
    }
    rollouts.delete_policy(DeletePolicyRequest { name: "none".into() }).await.unwrap();
    rollouts.delete_policy(DeletePolicyRequest { name: "p".into() }).await.unwrap();
    let error = rollouts.steer_rollout(steer(Action::Pause)).await.unwrap_err();
    assert!(error.message().contains("has no rollout"), "{error}");
    assert_eq!(setup.status().await, None);
    setup.running.stop().await;
}

fn by<T>(manager: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("gantry-manager", manager.parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_of_an_operator_is_changed_by_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
    let delete = |name: &str| DeletePolicyRequest { name: name.into() };
    rollouts.put_policy(by("operator:ml", policy("theirs", &["m"]))).await.unwrap();
    rollouts.put_policy(by("cli", policy("ours", &["n"]))).await.unwrap();
    for (manager, name, remedy) in [
        ("cli", "theirs", "kubectl"),
        ("operator:other", "theirs", "ml"),
        ("operator:ml", "ours", "gantry delete"),
    ] {
        let put = rollouts.put_policy(by(manager, policy(name, &[]))).await.unwrap_err();
        let deletion = rollouts.delete_policy(by(manager, delete(name))).await.unwrap_err();
        for error in [put, deletion] {
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            assert!(error.message().contains(remedy), "{error}");
        }
    }
    // As before for those of files and of the CLI.
    rollouts.put_policy(by("file:/srv/p.yaml", policy("ours", &["n"]))).await.unwrap();
    rollouts.put_policy(by("operator:ml", policy("theirs", &["m", "n"]))).await.unwrap();
    running.stop().await;
    let running = scheduler(dir.path()).await;
    let mut rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
    let error = rollouts.delete_policy(by("cli", delete("theirs"))).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "the owner survives a restart");
    rollouts.delete_policy(by("operator:ml", delete("theirs"))).await.unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_watched() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
    rollouts.put_policy(policy("a", &["m"])).await.unwrap();
    let request = WatchPoliciesRequest { subscriber: "test".into() };
    let mut events = rollouts.watch_policies(request).await.unwrap().into_inner();
    let mut next = async || match within(events.message()).await.unwrap().unwrap().event.unwrap() {
        policy_event::Event::Reset(_) => "reset".to_owned(),
        policy_event::Event::Synced(_) => "synced".to_owned(),
        policy_event::Event::Upsert(policy) => format!("{} {:?}", policy.name, policy.models),
        policy_event::Event::Delete(name) => format!("no {name}"),
    };
    for expected in ["reset", "a [\"m\"]", "synced"] {
        assert_eq!(next().await, expected);
    }
    rollouts.put_policy(policy("b", &[])).await.unwrap();
    assert_eq!(next().await, "b []");
    rollouts.delete_policy(DeletePolicyRequest { name: "a".into() }).await.unwrap();
    assert_eq!(next().await, "no a");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn report_that_is_repeated_after_a_reconnect_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    setup.load("/b").await;
    setup.until_shares(&[(1, 80), (2, 20)]).await;
    setup.report(&[(1, 40, 0), (2, 10, 1)]).await;
    setup.gateway = Gateway::sync(&setup.running).await.0;
    setup.repeat(&[(1, 40, 0), (2, 10, 1)]).await;
    // A gateway that was started again begins with the same number.
    setup.instance += 1;
    setup.repeat(&[(1, 20, 0), (2, 5, 0)]).await;
    // The scheduler counts reports in their order, after the response.
    let counted = within(setup.until_candidate_requests(15)).await;
    assert_eq!(counted, 15, "the repeated report was counted");
    setup.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_is_rolled_out_beside_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::start(dir.path()).await;
    let of_pipeline = RolloutPolicy { pipelines: vec!["p".into()], ..policy("q", &[]) };
    setup.rollouts.put_policy(of_pipeline).await.unwrap();
    let mut clients = client(&setup.running).await;
    clients.load_pipeline(pipeline("p", &["m"])).await.unwrap();
    let first = setup.pipeline_route(|route| route.ready).await;
    assert!(first.candidate.is_none() && first.rollout_generation > 0, "{first:?}");
    let mut second = pipeline("p", &["m"]);
    second.pipeline.as_mut().unwrap().steps[0].batch =
        Some(gantry_proto::scheduler::Batch { size: Some(2), ..Default::default() });
    clients.load_pipeline(second).await.unwrap();
    let split = setup.pipeline_route(|route| route.candidate.is_some()).await;
    assert_eq!(split.definition.unwrap().version, 1);
    assert_eq!((split.candidate.unwrap().version, split.candidate_percent), (2, 20));
    let bad = ModelTraffic {
        pipeline: "p".into(),
        generation: split.rollout_generation,
        versions: vec![
            VersionTraffic { version: 1, requests: 400, latency: vec![400], ..Default::default() },
            VersionTraffic {
                version: 2,
                requests: 100,
                server_errors: 100,
                latency: vec![100],
                ..Default::default()
            },
        ],
        ..Default::default()
    };
    let report = TrafficReport { subscriber: "g".into(), sequence: 1, instance: 7, models: vec![bad] };
    setup.gateway.client.report_traffic(report).await.unwrap();
    setup.pipeline_route(|route| route.candidate.is_none()).await;
    let find = |statuses: Vec<RolloutStatus>| statuses.into_iter().find(|s| s.pipeline == "p").unwrap();
    let status = find(statuses(&mut setup.rollouts).await);
    assert_eq!((status.stable.unwrap().version, status.model.as_str()), (1, ""));
    assert_eq!(status.failed.len(), 1, "{:?}", status.failed);
    setup.running.stop().await;

    let running = scheduler(dir.path()).await;
    let mut rollouts = RolloutsClient::connect(format!("http://{}", running.clients)).await.unwrap();
    assert_eq!(find(statuses(&mut rollouts).await).failed, status.failed, "it is durable");
    rollouts.delete_policy(DeletePolicyRequest { name: "q".into() }).await.unwrap();
    assert!(statuses(&mut rollouts).await.iter().all(|status| status.pipeline.is_empty()));
    running.stop().await;
}
