//! Rollout policies: targets, progress, events, and the status of models during a rollout.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario::{self, Scenario, create_selected, policy},
};
use gantry_proto::gantry::steer_rollout_request::Action;
use serde_json::{Value, json};
use std::time::Duration;

const KIND: &str = "RolloutPolicy";

/// A model under a policy, and a gateway.
async fn under_policy() -> Harness {
    let harness = Harness::started().await;
    harness.set_gateway(true);
    create_selected(&harness, "iris").await;
    harness.create(NAMESPACE, KIND, "careful", policy(20)).await;
    harness.settle().await;
    harness
}

async fn new_version(harness: &Harness, name: &str) {
    let uri = format!("gs://models/{name}");
    harness.change("Model", "iris", json!({ "storageUri": uri })).await;
    harness.settle().await;
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

/// The rollout of model iris in the status of the policy.
async fn rollout(harness: &Harness) -> Value {
    let status = harness.get(KIND, "careful").await.unwrap()["status"].clone();
    assert_eq!(status["rollouts"][0]["name"], "iris", "{status:#}");
    status["rollouts"][0].clone()
}

async fn counts(harness: &Harness) -> [Value; 3] {
    let status = harness.get(KIND, "careful").await.unwrap()["status"].clone();
    ["targets", "progressing", "rolledBack"].map(|field| status[field].clone())
}

#[tokio::test(start_paused = true)]
async fn scenario_reaches_the_expected_states() {
    let harness = Harness::started().await;
    let ready = async |name: &str| harness.ready(KIND, name).await;
    for number in 0..Scenario::Rollouts.steps() {
        Scenario::Rollouts.step(&harness, number).await;
        harness.settle().await;
        let policies = harness.scheduler_policies().await;
        match number {
            0 => {
                assert_eq!(ready("careful").await, is("True", "PolicyReady"));
                assert_eq!(harness.condition(KIND, "careful", "Accepted").await.0, "True");
                assert_eq!(policies["careful"], "iris for operator:ml");
                let held = harness.get(KIND, "careful").await.unwrap()["metadata"]["finalizers"].clone();
                assert_eq!(held, json!(["gantry.dev/rollout-policy"]));
                assert_eq!(counts(&harness).await, [json!(1), json!(0), json!(0)]);
            }
            1 => {
                assert_eq!(harness.ready("Model", "iris").await, is("False", "RollingOut"));
                let (_, message) = harness.condition("Model", "iris", "Ready").await;
                let expected = "version 2 is rolled out to 20 % of the requests; version 1 serves the others";
                assert_eq!(message, expected);
                let rollout = rollout(&harness).await;
                assert_eq!(rollout["phase"], "Progressing", "{rollout:#}");
                assert_eq!(rollout["candidate"], json!({ "version": 2, "weight": 20 }));
                assert_eq!(rollout["stable"], json!({ "version": 1, "weight": 80 }));
                assert_eq!((&rollout["step"], &rollout["steps"]), (&json!(1), &json!(1)));
                assert_eq!(counts(&harness).await, [json!(1), json!(1), json!(0)]);
            }
            2 => {
                assert_eq!(ready("younger").await, is("False", "Conflict"));
                let (_, message) = harness.condition(KIND, "younger", "Ready").await;
                assert!(message.contains("Model iris is selected by RolloutPolicy careful"), "{message}");
                assert_eq!(policies["younger"], " for operator:ml");
                assert_eq!(ready("careful").await, is("True", "PolicyReady"));
                let phase = rollout(&harness).await["phase"].clone();
                assert_eq!(phase, "Progressing", "other steps are no new rollout");
            }
            3 => {
                assert!(harness.get(KIND, "younger").await.is_none() && !policies.contains_key("younger"));
                assert_eq!(rollout(&harness).await["phase"], "Progressing");
            }
            4 => assert_eq!(ready("careful").await, is("False", "NoTarget")),
            _ => {
                assert_eq!(ready("later").await, is("True", "PolicyReady"));
                assert_eq!(policies.keys().collect::<Vec<_>>(), ["later"]);
                assert_eq!(harness.ready("Model", "iris").await.0, "True");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn promotion_rollback_and_pause_are_reported_on_policy_and_model() {
    let harness = under_policy().await;
    let available = async || {
        let model = harness.get("Model", "iris").await.unwrap();
        model["status"]["availableReplicas"].clone()
    };
    assert_eq!(harness.ready("Model", "iris").await, is("True", "ModelAvailable"));
    new_version(&harness, "better").await;
    assert_eq!(available().await, 2, "one replica of either version");

    harness.steer("iris", Action::Pause).await;
    harness.settle().await;
    assert_eq!(rollout(&harness).await["paused"], "Command");
    assert_eq!(harness.events("RolloutPaused").len(), 1);
    harness.steer("iris", Action::PromoteFull).await;
    harness.settle().await;
    assert_eq!(rollout(&harness).await["last"]["outcome"], "Promoted");
    assert_eq!(harness.ready("Model", "iris").await, is("True", "ModelAvailable"));
    let promoted = harness.events("RolloutPromoted");
    assert_eq!(promoted.len(), 1, "{promoted:#?}");
    assert_eq!(promoted[0]["regarding"]["kind"], KIND);
    assert_eq!(promoted[0]["note"], "Model iris: version 2 has all requests");

    new_version(&harness, "worse").await;
    harness.steer("iris", Action::Abort).await;
    harness.settle().await;
    // The latest spec does not serve, and will not by itself.
    assert_eq!(harness.ready("Model", "iris").await, is("False", "RolledBack"));
    let (stalled, message) = harness.condition("Model", "iris", "Stalled").await;
    assert_eq!(stalled, "True");
    assert!(message.starts_with("version 3 was rolled back: "), "{message}");
    assert!(message.contains("; version 2 serves: change the Model"), "{message}");
    assert_eq!(available().await, 1, "the replica of version 2");
    assert_eq!(counts(&harness).await, [json!(1), json!(0), json!(1)]);
    assert_eq!(rollout(&harness).await["last"]["outcome"], "RolledBack");
    assert_eq!(harness.events("RolloutRolledBack").len(), 1);
    assert_eq!(harness.ready(KIND, "careful").await.0, "True", "the policy itself is in effect");

    // With its old spec the model is ready again.
    new_version(&harness, "better").await;
    assert_eq!(harness.ready("Model", "iris").await, is("True", "ModelAvailable"));
    // Events are not repeated by a new operator.
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert_eq!(harness.events("RolloutPromoted").len() + harness.events("RolloutRolledBack").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn bad_answers_of_the_gateway_roll_back_the_model() {
    let harness = under_policy().await;
    new_version(&harness, "worse").await;
    for sequence in 1..20 {
        harness.report_traffic("iris", sequence, &[(1, 40, 0), (2, 10, 10)]).await;
    }
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await, is("False", "RolledBack"));
    let rolled_back = harness.events("RolloutRolledBack");
    assert_eq!(rolled_back.len(), 1);
    let note = rolled_back[0]["note"].as_str().unwrap();
    assert!(note.contains("5xx") && note.ends_with("; version 1 has all requests"), "{note}");
}

/// Evidence changes ten times a second, the status every ten seconds.
#[tokio::test(start_paused = true)]
async fn evidence_is_coalesced_into_few_writes() {
    let harness = under_policy().await;
    new_version(&harness, "better").await;
    let before = harness.writes();
    let messages = async || rollout(&harness).await["message"].clone();
    let first = messages().await;
    for sequence in 1..=600 {
        harness.report_traffic("iris", sequence, &[(2, 1, u64::from(sequence % 100 == 50))]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let writes = harness.writes() - before;
    let requests = harness.write_requests();
    assert!((1..=7).contains(&writes), "{writes} writes in a minute: {requests:#?}");
    assert_ne!(messages().await, first);
}

#[tokio::test(start_paused = true)]
async fn rollout_that_holds_causes_no_writes() {
    let harness = under_policy().await;
    new_version(&harness, "better").await;
    let before = harness.write_requests().len();
    tokio::time::sleep(Duration::from_hours(1)).await;
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    let requests = harness.write_requests();
    assert_eq!(requests.len(), before, "{:#?}", &requests[before..]);
}

/// The new version must not get all requests because the model reached the scheduler first.
#[tokio::test(start_paused = true)]
async fn model_and_policy_that_change_together_start_a_rollout() {
    let harness = Harness::started().await;
    create_selected(&harness, "iris").await;
    harness.settle().await;
    harness.kill_operator();
    harness.change("Model", "iris", json!({ "storageUri": "gs://models/better" })).await;
    harness.create(NAMESPACE, KIND, "careful", policy(20)).await;
    harness.start_operator();
    harness.settle().await;
    assert_eq!(rollout(&harness).await["phase"], "Progressing");
    assert_eq!(harness.ready("Model", "iris").await, is("False", "RollingOut"));
}

#[tokio::test(start_paused = true)]
async fn policy_follows_the_labels_of_models() {
    let harness = under_policy().await;
    create_selected(&harness, "wine").await;
    harness.settle().await;
    assert_eq!(harness.scheduler_policies().await["careful"], "iris wine for operator:ml");
    let unlabelled = json!({ "metadata": { "labels": { "delivery": null } } });
    harness.patch_custom(NAMESPACE, "Model", "iris", unlabelled).await;
    harness.settle().await;
    assert_eq!(harness.scheduler_policies().await["careful"], "wine for operator:ml");
    assert_eq!(counts(&harness).await[0], 1);
}

#[tokio::test(start_paused = true)]
async fn policy_is_unknown_while_its_scheduler_is_away() {
    let harness = under_policy().await;
    new_version(&harness, "better").await;
    harness.kill_scheduler();
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "careful").await, is("Unknown", "SchedulerUnreachable"));
    assert_eq!(rollout(&harness).await["phase"], "Progressing", "the last known state");
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "careful").await, is("True", "PolicyReady"));
    assert_eq!(rollout(&harness).await["phase"], "Progressing");
    // Deleted without its scheduler: it ends after the reconnect.
    harness.kill_scheduler();
    harness.delete(KIND, "careful").await;
    harness.settle().await;
    assert!(harness.get(KIND, "careful").await.is_none());
    harness.start_scheduler();
    harness.settle().await;
    assert!(harness.scheduler_policies().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn empty_scheduler_gets_the_policies_again() {
    let harness = under_policy().await;
    harness.kill_scheduler();
    harness.lose_scheduler_state();
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(harness.scheduler_policies().await["careful"], "iris for operator:ml");
    assert_eq!(harness.ready(KIND, "careful").await.0, "True");
}

/// An operator of this version on a cluster that was installed by an earlier one.
#[tokio::test(start_paused = true)]
async fn missing_crd_is_discovered_later() {
    let (policies, others): (Vec<_>, Vec<_>) =
        gantry_api::resources().into_iter().partition(|resource| resource.kind == KIND);
    let harness = Harness::prepared_with_crds(&others).await;
    harness.start_operator();
    harness.create(NAMESPACE, "Model", "wine", scenario::model("wine")).await;
    harness.settle().await;
    assert_eq!(harness.ready("Model", "wine").await.0, "True");
    harness.create_crd(&policies[0]).await;
    create_selected(&harness, "iris").await;
    harness.create(NAMESPACE, KIND, "careful", policy(20)).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "careful").await, is("True", "PolicyReady"));
}
