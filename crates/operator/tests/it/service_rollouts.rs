//! InferenceServices under a rollout policy: the scheduler decides by the statistics of the gateway, the operator deploys.

use crate::{
    harness::{Harness, NAMESPACE},
    inference_services::add_pod,
    scenario::{Scenario, serving_runtime},
};
use gantry_proto::gantry::steer_rollout_request::Action;
use serde_json::{Value, json};

const KIND: &str = "InferenceService";
const SERVICE: &str = "ml/iris";
const STABLE: &str = "iris-predictor";
const CANARY: &str = "iris-predictor-canary";
pub(crate) const STEPS: usize = 8;

fn predictor(uri: &str) -> Value {
    let model = json!({ "modelFormat": { "name": "onnx" }, "storageUri": uri });
    json!({ "predictor": { "model": model, "minReplicas": 2 } })
}

/// Without requests and without a progress deadline, its rollouts hold.
fn policy(bake: &str) -> Value {
    json!({
        "selector": { "kind": KIND, "matchLabels": { "delivery": "careful" } },
        "strategy": { "canary": { "steps": [{ "weight": 20 }] } },
        "progressDeadline": "30d", "bake": bake,
    })
}

async fn create(harness: &Harness, bake: &str) {
    harness.set_gateway(true);
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    // The simulated Deployments report ready pods, and have none.
    for (deployment, address) in [(STABLE, "10.0.0.1"), (CANARY, "10.0.0.2")] {
        add_pod(harness, deployment, &format!("{deployment}-1"), address).await;
    }
    harness.create(NAMESPACE, "RolloutPolicy", "careful", policy(bake)).await;
    let metadata = json!({ "name": "iris", "labels": { "delivery": "careful" } });
    harness.create_with(NAMESPACE, KIND, metadata, predictor("s3://models/1")).await;
}

async fn change(harness: &Harness, number: u32) {
    harness.change(KIND, "iris", predictor(&format!("s3://models/{number}"))).await;
}

pub(crate) async fn step(harness: &Harness, number: usize) {
    match number {
        0 => create(harness, "0s").await,
        1 => change(harness, 2).await,
        2 => harness.steer(SERVICE, Action::PromoteFull).await,
        3 => change(harness, 3).await,
        4 => harness.steer(SERVICE, Action::Abort).await,
        5 => change(harness, 4).await,
        6 => harness.delete("RolloutPolicy", "careful").await,
        7 => harness.delete(KIND, "iris").await,
        _ => unreachable!("no such step"),
    }
}

/// What the pods of a Deployment download.
fn uri(harness: &Harness, deployment: &str) -> Option<String> {
    let uri = harness.field("deployments.apps", deployment, "/spec/template/spec/initContainers/0/args/1")?;
    uri.as_str().and_then(|uri| uri.strip_prefix("s3://models/")).map(str::to_owned)
}

fn uris(harness: &Harness) -> (Option<String>, Option<String>) {
    (uri(harness, STABLE), uri(harness, CANARY))
}

fn runs(stable: &str, canary: Option<&str>) -> (Option<String>, Option<String>) {
    (Some(stable.into()), canary.map(str::to_owned))
}

async fn ready(harness: &Harness) -> (String, String) {
    harness.ready(KIND, "iris").await
}

async fn message(harness: &Harness) -> String {
    harness.condition(KIND, "iris", "Ready").await.1
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

/// The rollout of the service in the status of the policy.
async fn rollout(harness: &Harness) -> Value {
    harness.get("RolloutPolicy", "careful").await.unwrap()["status"]["rollouts"][0].clone()
}

async fn started(bake: &str) -> Harness {
    let harness = Harness::started().await;
    create(&harness, bake).await;
    harness.settle().await;
    assert_eq!(ready(&harness).await.0, "True", "{}", message(&harness).await);
    harness
}

/// Reports of the gateway, until the version has another weight or is gone.
async fn observe(harness: &Harness, first: u64, versions: &[(u32, u64, u64)]) {
    for number in first..first + 400 {
        harness.report_traffic(SERVICE, number, versions).await;
    }
    harness.settle().await;
}

#[tokio::test(start_paused = true)]
async fn service_rollout_scenario_reaches_the_expected_states() {
    let harness = Harness::started().await;
    for number in 0..STEPS {
        Scenario::ServiceRollouts.step(&harness, number).await;
        harness.settle().await;
        match number {
            0 => {
                assert_eq!((ready(&harness).await.0.as_str(), uris(&harness)), ("True", runs("1", None)));
                assert_eq!(harness.ready("RolloutPolicy", "careful").await, is("True", "PolicyReady"));
                assert_eq!(harness.condition(KIND, "iris", "RolloutPolicyAccepted").await.0, "True");
            }
            1 => {
                assert_eq!(ready(&harness).await, is("False", "RollingOut"));
                let expected = "version 2 is rolled out to 20 % of the requests; version 1 serves the others";
                assert_eq!(message(&harness).await, expected);
                assert_eq!(uris(&harness), runs("1", Some("2")));
                let pods = harness.field("deployments.apps", CANARY, "/spec/replicas");
                assert_eq!(pods, Some(json!(2)), "as many as the stable version has");
                let rollout = rollout(&harness).await;
                assert_eq!(rollout["candidate"], json!({ "version": 2, "weight": 20 }), "{rollout:#}");
                assert_eq!(rollout["name"], "iris");
                let status = harness.get(KIND, "iris").await.unwrap()["status"].clone();
                assert_eq!(status["components"]["predictor"]["traffic"][0]["percent"], 20, "{status:#}");
            }
            2 => {
                assert_eq!((ready(&harness).await.0.as_str(), uris(&harness)), ("True", runs("2", None)));
                assert_eq!(rollout(&harness).await["last"]["outcome"], "Promoted");
                assert_eq!(harness.events("RolloutPromoted").len(), 1);
            }
            3 => assert_eq!(uris(&harness), runs("2", Some("3"))),
            4 => {
                assert_eq!(ready(&harness).await, is("False", "RolledBack"));
                let message = message(&harness).await;
                assert!(
                    message.starts_with("version 3 was rolled back: ")
                        && message.ends_with("; version 2 serves"),
                    "{message}"
                );
                assert_eq!(uris(&harness), runs("2", None), "the previous version has never stopped");
                assert_eq!(harness.events("RolloutRolledBack").len(), 1);
            }
            5 => assert_eq!(uris(&harness), runs("2", Some("4"))),
            6 => {
                assert_eq!((ready(&harness).await.0.as_str(), uris(&harness)), ("True", runs("4", None)));
                let version =
                    harness.field("deployments.apps", STABLE, "/metadata/annotations/gantry.dev~1version");
                assert_eq!(version, None);
            }
            _ => assert_eq!(uris(&harness), (None, None)),
        }
        let writes = harness.writes();
        tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        assert_eq!(harness.writes(), writes, "step {number} at rest");
    }
}

#[tokio::test(start_paused = true)]
async fn statistics_decide_and_a_killed_operator_or_scheduler_changes_nothing() {
    let harness = started("10m").await;
    change(&harness, 2).await;
    harness.settle().await;
    harness.kill_operator();
    // The scheduler needs no operator to move the weights.
    observe(&harness, 1, &[(1, 40, 0), (2, 10, 10)]).await;
    assert_eq!(uris(&harness), runs("1", Some("2")), "there is no operator");
    harness.start_operator();
    harness.settle().await;
    assert_eq!(ready(&harness).await, is("False", "RolledBack"));
    assert!(message(&harness).await.contains("5xx"), "{}", message(&harness).await);
    assert_eq!(uris(&harness), runs("1", None));

    harness.kill_scheduler();
    change(&harness, 3).await;
    harness.settle().await;
    assert_eq!(uris(&harness), runs("1", None), "no version runs without its rollout");
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(uris(&harness), runs("1", Some("3")), "{}", message(&harness).await);
    observe(&harness, 1_000, &[(1, 40, 0), (3, 20, 0)]).await;
    assert_eq!(ready(&harness).await.0, "True", "{}", message(&harness).await);
    assert_eq!(uris(&harness), runs("1", Some("3")), "the previous version stays during the bake");
    harness.steer(SERVICE, Action::Undo).await;
    harness.settle().await;
    assert_eq!(ready(&harness).await, is("False", "RolledBack"));
    assert_eq!(uris(&harness), runs("1", None));
    // The failed version is not tried again, also by a new operator, until a command.
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert_eq!(uris(&harness), runs("1", None));
    harness.steer(SERVICE, Action::Retry).await;
    harness.settle().await;
    assert_eq!(uris(&harness), runs("1", Some("3")));
    observe(&harness, 2_000, &[(1, 40, 0), (3, 20, 0)]).await;
    tokio::time::sleep(std::time::Duration::from_mins(11)).await;
    harness.settle().await;
    assert_eq!((ready(&harness).await.0.as_str(), uris(&harness)), ("True", runs("3", None)));
}

#[tokio::test(start_paused = true)]
async fn spec_that_changes_during_the_bake_is_rolled_out_and_the_stable_version_is_kept() {
    let harness = started("10m").await;
    change(&harness, 2).await;
    harness.settle().await;
    harness.steer(SERVICE, Action::PromoteFull).await;
    harness.settle().await;
    assert_eq!(uris(&harness), runs("1", Some("2")), "version 2 serves");
    change(&harness, 3).await;
    harness.settle().await;
    assert_eq!(uris(&harness), runs("3", Some("2")));
    assert_eq!(
        message(&harness).await,
        "version 3 is rolled out to 20 % of the requests; version 2 serves the others"
    );
    harness.steer(SERVICE, Action::Abort).await;
    harness.settle().await;
    assert_eq!(ready(&harness).await, is("False", "RolledBack"));
    assert_eq!(uris(&harness), runs("2", None), "the stable version has moved");
    let app = harness.field("deployments.apps", STABLE, "/spec/template/metadata/labels/app");
    assert_eq!(app, Some(json!("isvc.iris-predictor")));
    // Its spec again: it serves.
    change(&harness, 2).await;
    harness.settle().await;
    assert_eq!((ready(&harness).await.0.as_str(), uris(&harness)), ("True", runs("2", None)));
}

#[tokio::test(start_paused = true)]
async fn service_that_a_policy_does_not_support_is_named_with_the_reason() {
    let harness = started("0s").await;
    for (spec, expected) in [
        (
            json!({ "predictor": { "canaryTrafficPercent": 10 } }),
            "spec.predictor.canaryTrafficPercent: remove it",
        ),
        (
            json!({ "predictor": { "canaryTrafficPercent": null }, "transformer": { "containers": [{ "name": "t", "image": "t:1" }] } }),
            "a transformer",
        ),
    ] {
        harness.change(KIND, "iris", spec).await;
        harness.settle().await;
        let (status, message) = harness.condition(KIND, "iris", "RolloutPolicyAccepted").await;
        assert!(status == "False" && message.contains(expected), "{status} {message}");
        assert_eq!(harness.ready("RolloutPolicy", "careful").await, is("False", "UnsupportedTarget"));
        let (_, message) = harness.condition("RolloutPolicy", "careful", "Ready").await;
        assert!(message.starts_with("InferenceService iris: ") && message.contains(expected), "{message}");
        assert_eq!(ready(&harness).await.0, "True", "it runs as without a policy");
    }
    harness.change(KIND, "iris", json!({ "transformer": null })).await;
    harness.settle().await;
    assert_eq!(harness.ready("RolloutPolicy", "careful").await, is("True", "PolicyReady"));
    harness
        .change(KIND, "iris", json!({ "predictor": { "model": { "storageUri": "s3://models/2" } } }))
        .await;
    harness.settle().await;
    assert_eq!(uris(&harness), runs("1", Some("2")));
}
