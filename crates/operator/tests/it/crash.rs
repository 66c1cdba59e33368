//! A crash after any write converges to the same state, without creating or deleting any object twice.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario::{self, Scenario},
};

fn yes() -> String {
    "True".into()
}

#[tokio::test(start_paused = true)]
async fn model_scenario_reaches_the_expected_states() {
    let harness = Harness::started().await;
    let case = Scenario::Models;
    for number in 0..case.steps() {
        case.step(&harness, number).await;
        harness.settle().await;
        match number {
            0 => {
                assert_eq!(harness.ready("Model", "wine").await, (yes(), "ModelAvailable".into()));
                let held = harness.get("Model", "wine").await.unwrap()["metadata"]["finalizers"].clone();
                assert_eq!(held, serde_json::json!(["seldon.model.finalizer"]));
            }
            1 => assert_eq!(harness.ready("Model", "lost").await.0, "False"),
            2 => assert_eq!(harness.scheduler_models().await["iris"], "gs://models/better"),
            3 => assert_eq!(harness.ready("Model", "wine").await.0, "True"),
            4 => assert!(
                harness.get("Model", "iris").await.is_none()
                    && !harness.scheduler_models().await.contains_key("iris")
            ),
            _ => assert_eq!(harness.ready("Model", "iris").await.0, "True"),
        }
    }
    assert!(harness.get("Model", "lost").await.is_none());
    let scheduler_models = harness.scheduler_models().await;
    let models: Vec<(&str, &str)> =
        scheduler_models.iter().map(|(name, uri)| (name.as_str(), uri.as_str())).collect();
    assert_eq!(models, [("iris", "gs://models/again"), ("wine", "gs://models/wine")]);
}

#[tokio::test(start_paused = true)]
async fn pipeline_scenario_reaches_the_expected_states() {
    let harness = Harness::started().await;
    let case = Scenario::Pipelines;
    let no = |reason: &str| ("False".to_owned(), reason.to_owned());
    for number in 0..case.steps() {
        case.step(&harness, number).await;
        harness.settle().await;
        let (pipelines, experiments) =
            (harness.scheduler_pipelines().await, harness.scheduler_experiments().await);
        match number {
            0 | 2 => {
                for (kind, name, own, finalizer) in [
                    (
                        "Pipeline",
                        "chain",
                        ["PipelineReady", "PipelineGwReady", "ModelsReady"],
                        "seldon.pipeline.finalizer",
                    ),
                    (
                        "Experiment",
                        "split",
                        ["ExperimentReady", "CandidatesReady", "MirrorReady"],
                        "seldon.experiment.finalizer",
                    ),
                ] {
                    assert_eq!(harness.ready(kind, name).await, (yes(), format!("{kind}Ready")));
                    for condition in own {
                        assert_eq!(harness.condition(kind, name, condition).await.0, "True", "{condition}");
                    }
                    let held = harness.get(kind, name).await.unwrap()["metadata"]["finalizers"].clone();
                    assert_eq!(held, serde_json::json!([finalizer]));
                }
                let (steps, weights) = if number == 0 {
                    ("iris wine", "iris 50, wine 50")
                } else {
                    ("wine", "iris 90, wine 10")
                };
                assert_eq!(pipelines["chain"], format!("{steps} for operator:ml"));
                assert_eq!(experiments["split"], format!("{weights} for operator:ml"));
            }
            1 => {
                assert_eq!(harness.ready("Pipeline", "lost").await, no("ModelsNotReady"));
                assert_eq!(harness.ready("Experiment", "idle").await, no("CandidatesNotReady"));
                for (kind, name) in [("Pipeline", "lost"), ("Experiment", "idle")] {
                    let (_, message) = harness.condition(kind, name, "Ready").await;
                    assert!(message.contains("nowhere"), "{message}");
                }
            }
            3 => {
                assert!(harness.get("Pipeline", "chain").await.is_none() && !pipelines.contains_key("chain"));
                assert!(
                    harness.get("Experiment", "split").await.is_none() && !experiments.contains_key("split")
                );
            }
            _ => {
                assert_eq!(harness.ready("Pipeline", "chain").await.0, "True");
                assert_eq!(harness.ready("Experiment", "split").await.0, "True");
                assert_eq!(pipelines.keys().collect::<Vec<_>>(), ["chain"]);
                assert_eq!(pipelines["chain"], "wine iris for operator:ml");
                assert_eq!(experiments.keys().collect::<Vec<_>>(), ["split"]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn workload_scenario_reaches_the_expected_states() {
    let harness = Harness::started().await;
    let case = Scenario::Workloads;
    let mut settings = None;
    for number in 0..case.steps() {
        case.step(&harness, number).await;
        harness.settle().await;
        let set = |pointer: &str| harness.field("statefulsets.apps", "gantry", pointer);
        let gateway = |pointer: &str| harness.field("deployments.apps", "seldon-gateway", pointer);
        let is_there = |kind: &str, name: &str| harness.live(kind, name).is_some();
        let first = "/spec/template/spec/containers/0";
        let reads = "/spec/template/metadata/annotations/gantry.dev~1config-maps";
        match number {
            0 => {
                assert_eq!(harness.ready("SeldonRuntime", "seldon").await, (yes(), "RuntimeReady".into()));
                assert!(is_there("statefulsets.apps", "seldon-scheduler"));
                settings = gateway(reads);
                assert!(settings.is_some(), "the gateway references a ConfigMap");
            }
            1 => {
                assert_eq!(set("/spec/replicas"), Some(2.into()));
                assert_eq!(set("/spec/template/spec/nodeSelector/disk"), Some("ssd".into()));
                assert_eq!(
                    set(&format!("{first}/lifecycle/preStop/httpGet/path")),
                    Some("/terminate".into())
                );
                assert!(is_there("services", "gantry-1"));
                assert_eq!(harness.scheduler_servers().await["gantry"], "2 for \"operator:ml\"");
                // One of two agents is connected.
                assert_eq!(
                    harness.ready("Server", "gantry").await,
                    ("False".into(), "ReplicasJoining".into())
                );
            }
            2 => {
                assert!(!is_there("services", "gantry-1"));
                assert_eq!(harness.ready("Server", "gantry").await, (yes(), "ServerReady".into()));
            }
            3 => {
                assert_eq!(set(&format!("{first}/image")), Some("gantry:2".into()));
                assert_eq!(set(&format!("{first}/env")), None, "removed from the configuration");
            }
            4 => assert!(
                !is_there("deployments.apps", "seldon-gateway") && !is_there("services", "seldon-mesh")
            ),
            5 => {
                assert_eq!(gateway("/spec/replicas"), Some(2.into()));
                assert_ne!(gateway(reads), settings, "a changed ConfigMap restarts its pods");
            }
            6 => {
                assert_eq!(harness.ready("Server", "gantry").await, (yes(), "ServerReady".into()));
                assert_eq!(set("/spec/template/spec/nodeSelector"), None);
            }
            7 => {
                assert!(!is_there("statefulsets.apps", "gantry") && !is_there("services", "gantry-0"));
                assert!(
                    harness.scheduler_servers().await["gantry"].starts_with("0 "),
                    "{:?}",
                    harness.scheduler_servers().await
                );
            }
            _ => assert!(harness.get("SeldonRuntime", "seldon").await.is_none()),
        }
    }
}

async fn assert_crash_after_any_write_converges(case: Scenario) {
    let reference = case.started().await;
    let recording = case.record(&reference).await;
    drop(reference);
    assert!(recording.writes > 10, "only {} writes: the scenario is too small", recording.writes);
    for nth in 1..=recording.writes {
        let harness = case.started().await;
        harness.crash_after(nth as u64);
        case.replay(&harness, &recording, &format!("a crash at write {nth}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_model_write_converges() {
    assert_crash_after_any_write_converges(Scenario::Models).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_pipeline_write_converges() {
    assert_crash_after_any_write_converges(Scenario::Pipelines).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_rollout_policy_write_converges() {
    assert_crash_after_any_write_converges(Scenario::Rollouts).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_workload_write_converges() {
    assert_crash_after_any_write_converges(Scenario::Workloads).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_inference_service_write_converges() {
    assert_crash_after_any_write_converges(Scenario::InferenceServices).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_in_other_service_modes_converges() {
    assert_crash_after_any_write_converges(Scenario::ServiceModes).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_of_scale_to_zero_converges() {
    assert_crash_after_any_write_converges(Scenario::ScaleToZero).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_of_a_service_rollout_converges() {
    assert_crash_after_any_write_converges(Scenario::ServiceRollouts).await;
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_of_trained_models_converges() {
    assert_crash_after_any_write_converges(Scenario::TrainedModels).await;
}

#[tokio::test(start_paused = true)]
async fn scheduler_crash_at_any_step_converges() {
    for case in Scenario::ALL {
        let reference = case.started().await;
        let recording = case.record(&reference).await;
        drop(reference);
        for at in 0..case.steps() {
            let harness = case.started().await;
            let what = format!("the scheduler died at step {at}");
            for number in 0..case.steps() {
                if number == at {
                    harness.kill_scheduler();
                }
                case.step(&harness, number).await;
                harness.settle().await;
                if number == at {
                    harness.start_scheduler();
                    harness.settle().await;
                }
                case.compare(&harness, &recording, number, &what).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn objects_changed_while_the_operator_is_down_are_reconciled() {
    let harness = Harness::started().await;
    Scenario::Models.record(&harness).await;
    assert_eq!(harness.scheduler_models().await["iris"], "gs://models/again");
    harness.kill_operator();
    for name in ["iris", "wine"] {
        harness.set_finalizers("Model", name, &[]).await;
        harness.delete("Model", name).await;
    }
    // Same name and generation, another model.
    harness.create(NAMESPACE, "Model", "iris", scenario::model("another")).await;
    harness.start_operator();
    harness.settle().await;
    let scheduler_models = harness.scheduler_models().await;
    assert_eq!(scheduler_models.get("iris").map(String::as_str), Some("gs://models/another"));
    assert_eq!(scheduler_models.get("wine"), None);
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn pipelines_and_experiments_changed_while_the_operator_is_down_are_reconciled() {
    let harness = Harness::started().await;
    Scenario::Pipelines.record(&harness).await;
    harness.create(NAMESPACE, "Pipeline", "other", scenario::chain(&["iris"])).await;
    harness.create(NAMESPACE, "Experiment", "other", scenario::split(&[("iris", 1), ("wine", 1)])).await;
    harness.settle().await;
    harness.kill_operator();
    for (kind, name) in
        [("Pipeline", "chain"), ("Pipeline", "other"), ("Experiment", "split"), ("Experiment", "other")]
    {
        harness.set_finalizers(kind, name, &[]).await;
        harness.delete(kind, name).await;
    }
    // Same name and generation, another definition.
    harness.create(NAMESPACE, "Pipeline", "chain", scenario::chain(&["iris"])).await;
    harness.create(NAMESPACE, "Experiment", "split", scenario::split(&[("wine", 5), ("iris", 5)])).await;
    harness.start_operator();
    harness.settle().await;
    let only = |name: &str, definition: &str| {
        [(name.to_owned(), format!("{definition} for operator:ml"))].into_iter().collect()
    };
    assert_eq!(harness.scheduler_pipelines().await, only("chain", "iris"));
    assert_eq!(harness.scheduler_experiments().await, only("split", "wine 5, iris 5"));
    assert_eq!(harness.ready("Pipeline", "chain").await.0, "True");
    assert_eq!(harness.ready("Experiment", "split").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn scheduler_receives_the_latest_generation() {
    let harness = Harness::started().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    assert_eq!(harness.generation("iris").await, Some(1));
    // A change and its revert.
    harness.kill_operator();
    harness.change("Model", "iris", scenario::model("another")).await;
    harness.change("Model", "iris", scenario::model("iris")).await;
    harness.start_operator();
    harness.settle().await;
    assert_eq!(harness.generation("iris").await, Some(3));
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn reconnected_scheduler_receives_missed_changes() {
    let harness = Harness::started().await;
    harness.kill_scheduler();
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await, ("Unknown".into(), "SchedulerUnreachable".into()));
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn server_deleted_while_the_operator_is_down_is_deregistered() {
    let harness = scenario::settled(1).await;
    assert_eq!(harness.scheduler_servers().await["gantry"], "1 for \"operator:ml\"");
    harness.kill_operator();
    harness.delete("Server", "gantry").await;
    harness.settle().await;
    harness.start_operator();
    harness.settle().await;
    assert!(
        harness.scheduler_servers().await["gantry"].starts_with("0 "),
        "{:?}",
        harness.scheduler_servers().await
    );
}

/// A write response contains changes of others; the watch event that follows is no longer new.
#[tokio::test(start_paused = true)]
async fn changes_in_write_responses_are_reconciled() {
    let harness = Harness::started().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    harness.kube.freeze("models.mlops.seldon.io");
    harness.delete("Model", "iris").await;
    // The response to a status write contains the deletion.
    harness.set_agent(false);
    harness.settle().await;
    harness.kube.release("models.mlops.seldon.io");
    harness.settle().await;
    assert!(!harness.scheduler_models().await.contains_key("iris"), "{:#?}", harness.write_requests());
    harness.set_agent(true);
    harness.settle().await;
    assert!(harness.get("Model", "iris").await.is_none(), "{:#?}", harness.write_requests());
}

#[tokio::test(start_paused = true)]
async fn deleted_pipeline_and_experiment_are_released_without_scheduler() {
    let harness = Harness::started().await;
    Scenario::Pipelines.record(&harness).await;
    harness.kill_scheduler();
    let all = [("Pipeline", "chain"), ("Experiment", "split")];
    for (kind, name) in all {
        harness.delete(kind, name).await;
    }
    harness.settle().await;
    for (kind, name) in all {
        assert!(harness.get(kind, name).await.is_none(), "{kind} {name}");
    }
    // They end after reconnect.
    harness.start_scheduler();
    harness.settle().await;
    assert!(
        harness.scheduler_pipelines().await.is_empty() && harness.scheduler_experiments().await.is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn deleted_model_is_released_without_scheduler() {
    let harness = Harness::started().await;
    Scenario::Models.record(&harness).await;
    harness.kill_scheduler();
    harness.delete("Model", "iris").await;
    harness.settle().await;
    assert!(harness.get("Model", "iris").await.is_none());
    // The unload happens after reconnect.
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(harness.scheduler_models().await.keys().collect::<Vec<_>>(), ["wine"]);
}
