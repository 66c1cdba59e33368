//! Schedulers that are away, slow or stuck.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario::{self, Scenario},
};
use gantry_proto::scheduler as pb;
use serde_json::json;
use std::time::Duration;

async fn serving() -> Harness {
    let harness = Harness::started().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    harness
}

#[tokio::test(start_paused = true)]
async fn model_is_unknown_while_its_scheduler_is_away() {
    let harness = serving().await;
    harness.kill_scheduler();
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True", "restarts are shorter");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(harness.ready("Model", "iris").await, ("Unknown".into(), "SchedulerUnreachable".into()));
    let writes = harness.writes();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(harness.writes(), writes, "the status is written once");
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await, ("True".into(), "ModelAvailable".into()));
}

#[tokio::test(start_paused = true)]
async fn short_outage_of_the_scheduler_causes_no_status_write() {
    let harness = serving().await;
    let writes = harness.writes();
    for _ in 0..3 {
        harness.kill_scheduler();
        harness.kill_operator();
        harness.start_operator();
        tokio::time::sleep(Duration::from_secs(8)).await;
        harness.start_scheduler();
        harness.settle().await;
    }
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    let requests = harness.write_requests();
    assert_eq!(harness.writes(), writes, "{:#?}", &requests[writes..]);
}

#[tokio::test(start_paused = true)]
async fn deleted_model_does_not_wait_forever_for_a_replica_that_never_unloads() {
    let harness = serving().await;
    harness.set_unloads(false);
    harness.delete("Model", "iris").await;
    tokio::time::sleep(Duration::from_mins(4)).await;
    let model = harness.get("Model", "iris").await.expect("the scheduler has not unloaded it");
    let conditions = model["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
    assert_eq!(ready["reason"], "ModelTerminating");
    assert!(ready["message"].as_str().unwrap().contains("5 min"), "{ready}");
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(harness.get("Model", "iris").await.is_none());
    assert_eq!(harness.events("UnloadTimedOut").len(), 1);
}

/// A leader was paused while it sent generation 1; its successor has sent generation 2.
#[tokio::test(start_paused = true)]
async fn late_load_of_a_former_leader_is_rejected() {
    let harness = serving().await;
    harness.change("Model", "iris", json!({ "storageUri": "gs://models/better" })).await;
    harness.settle().await;
    let late = pb::Model {
        meta: Some(pb::MetaData {
            name: "iris".into(),
            kubernetes_meta: Some(pb::KubernetesMeta { namespace: NAMESPACE.into(), generation: 1 }),
            ..Default::default()
        }),
        model_spec: Some(pb::ModelSpec {
            uri: "gs://models/iris".into(),
            requirements: vec!["onnx".into()],
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut request = tonic::Request::new(pb::LoadModelRequest { model: Some(late) });
    request.metadata_mut().insert("gantry-replaces-generation", 0.into());
    let rejected = harness.scheduler_client().await.load_model(request).await.unwrap_err();
    assert_eq!(rejected.code(), tonic::Code::FailedPrecondition);
    assert!(
        rejected.message().contains("generation 1 of model iris is older than generation 2"),
        "{rejected}"
    );
    assert_eq!(harness.scheduler_models().await["iris"], "gs://models/better");
}

/// Its generation starts again at 1.
#[tokio::test(start_paused = true)]
async fn model_recreated_while_its_scheduler_is_away_is_loaded() {
    let harness = serving().await;
    harness.change("Model", "iris", json!({ "storageUri": "gs://models/better" })).await;
    harness.settle().await;
    harness.kill_scheduler();
    harness.delete("Model", "iris").await;
    harness.settle().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("again")).await;
    harness.settle().await;
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    assert_eq!(harness.scheduler_models().await["iris"], "gs://models/again");
    assert_eq!(harness.generation("iris").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn pipeline_and_experiment_are_unknown_while_their_scheduler_is_away() {
    let harness = Harness::started().await;
    Scenario::Pipelines.record(&harness).await;
    let all = [("Pipeline", "chain"), ("Experiment", "split")];
    harness.kill_scheduler();
    tokio::time::sleep(Duration::from_secs(25)).await;
    for (kind, name) in all {
        assert_eq!(harness.ready(kind, name).await.0, "True", "restarts are shorter");
    }
    tokio::time::sleep(Duration::from_secs(15)).await;
    for (kind, name) in all {
        assert_eq!(harness.ready(kind, name).await, ("Unknown".into(), "SchedulerUnreachable".into()));
    }
    let writes = harness.writes();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(harness.writes(), writes, "the status is written once");
    harness.start_scheduler();
    harness.settle().await;
    for (kind, name) in all {
        assert_eq!(harness.ready(kind, name).await, ("True".into(), format!("{kind}Ready")));
    }
}

/// A scheduler that lost its state gets every pipeline and experiment again.
#[tokio::test(start_paused = true)]
async fn empty_scheduler_gets_all_pipelines_and_experiments() {
    let harness = Harness::started().await;
    Scenario::Pipelines.record(&harness).await;
    let before = (harness.scheduler_pipelines().await, harness.scheduler_experiments().await);
    assert!(!before.0.is_empty() && !before.1.is_empty());
    harness.kill_scheduler();
    harness.lose_scheduler_state();
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!((harness.scheduler_pipelines().await, harness.scheduler_experiments().await), before);
    for (kind, name) in [("Pipeline", "chain"), ("Experiment", "split")] {
        assert_eq!(harness.ready(kind, name).await.0, "True", "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn status_names_the_model_that_is_deleted_until_it_is_back() {
    let harness = Harness::started().await;
    Scenario::Pipelines.record(&harness).await;
    harness.delete("Model", "wine").await;
    harness.settle().await;
    for (kind, name, reason) in
        [("Pipeline", "chain", "ModelsNotReady"), ("Experiment", "split", "CandidatesNotReady")]
    {
        assert_eq!(harness.ready(kind, name).await, ("False".into(), reason.into()));
        let (_, message) = harness.condition(kind, name, "Ready").await;
        assert!(message.contains("wine") && message.contains("does not exist"), "{message}");
    }
    harness.create(NAMESPACE, "Model", "wine", scenario::model("wine")).await;
    harness.settle().await;
    for (kind, name) in [("Pipeline", "chain"), ("Experiment", "split")] {
        assert_eq!(harness.ready(kind, name).await.0, "True", "{kind}");
        for reason in [format!("{kind}NotReady"), format!("{kind}Ready")] {
            assert_eq!(harness.events(&reason).len(), 1, "{reason}");
        }
    }
}

/// A model is the default of one experiment only.
#[tokio::test(start_paused = true)]
async fn refused_experiment_starts_when_the_other_one_is_stopped() {
    let harness = Harness::started().await;
    for name in ["iris", "wine"] {
        harness.create(NAMESPACE, "Model", name, scenario::model(name)).await;
    }
    harness.create(NAMESPACE, "Experiment", "first", scenario::split(&[("iris", 1), ("wine", 1)])).await;
    harness.settle().await;
    harness.create(NAMESPACE, "Experiment", "second", scenario::split(&[("iris", 1), ("wine", 9)])).await;
    harness.settle().await;
    assert_eq!(harness.ready("Experiment", "second").await, ("False".into(), "Refused".into()));
    let (_, message) = harness.condition("Experiment", "second", "Ready").await;
    assert!(message.contains("first"), "{message}");
    harness.delete("Experiment", "first").await;
    harness.settle().await;
    assert_eq!(harness.ready("Experiment", "second").await.0, "True");
    assert_eq!(harness.scheduler_experiments().await.keys().collect::<Vec<_>>(), ["second"]);
}

/// A pipeline and an experiment that a user of the command line loaded.
async fn load_from_command_line(harness: &Harness) {
    let step = pb::PipelineStep { name: "iris".into(), ..Default::default() };
    let theirs = pb::Pipeline { name: "chain".into(), steps: vec![step], ..Default::default() };
    let mut client = harness.scheduler_client().await;
    client.load_pipeline(pb::LoadPipelineRequest { pipeline: Some(theirs) }).await.unwrap();
    let candidate = pb::ExperimentCandidate { name: "iris".into(), weight: 1 };
    let theirs = pb::Experiment { name: "split".into(), candidates: vec![candidate], ..Default::default() };
    client.start_experiment(pb::StartExperimentRequest { experiment: Some(theirs) }).await.unwrap();
}

/// An operator with a pipeline and an experiment whose names are taken.
async fn refused() -> Harness {
    let harness = serving().await;
    load_from_command_line(&harness).await;
    harness.create(NAMESPACE, "Pipeline", "chain", scenario::chain(&["iris"])).await;
    harness.create(NAMESPACE, "Experiment", "split", scenario::split(&[("iris", 7)])).await;
    harness.settle().await;
    for (kind, name) in [("Pipeline", "chain"), ("Experiment", "split")] {
        assert_eq!(harness.ready(kind, name).await, ("False".into(), "Refused".into()));
    }
    harness
}

#[tokio::test(start_paused = true)]
async fn objects_of_other_owners_are_neither_changed_nor_ended() {
    let harness = refused().await;
    for (kind, name) in [("Pipeline", "chain"), ("Experiment", "split")] {
        harness.delete(kind, name).await;
    }
    harness.settle().await;
    for (kind, name) in [("Pipeline", "chain"), ("Experiment", "split")] {
        assert!(harness.get(kind, name).await.is_none(), "{kind}");
    }
    assert_eq!(harness.scheduler_pipelines().await["chain"], "iris for cli");
    assert_eq!(harness.scheduler_experiments().await["split"], "iris 1 for cli");
}

#[tokio::test(start_paused = true)]
async fn refused_objects_are_loaded_when_the_other_owner_ends_its_own() {
    let harness = refused().await;
    let mut client = harness.scheduler_client().await;
    client.unload_pipeline(pb::UnloadPipelineRequest { name: "chain".into() }).await.unwrap();
    client.stop_experiment(pb::StopExperimentRequest { name: "split".into() }).await.unwrap();
    harness.settle().await;
    for (kind, name) in [("Pipeline", "chain"), ("Experiment", "split")] {
        assert_eq!(harness.ready(kind, name).await.0, "True", "{kind}");
    }
    assert_eq!(harness.scheduler_pipelines().await["chain"], "iris for operator:ml");
    assert_eq!(harness.scheduler_experiments().await["split"], "iris 7 for operator:ml");
}
