use crate::harness::{Agent, client, experiment, model, pipeline, scheduler, subscribe, unload, until};
use gantry_proto::scheduler::model_status::ModelState;
use prometheus_client::{encoding::text::encode, registry::Registry};

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_objects_commands_and_subscribers() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut registry = Registry::default();
    running.scheduler().register_metrics(&mut registry);
    let mut client = client(&running).await;
    let mut statuses = subscribe(&mut client).await;
    let mut agent = Agent::join(&running).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    client.unload_model(unload("unknown")).await.unwrap_err();
    agent.execute(None).await;
    until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    client.load_pipeline(pipeline("p", &["iris"])).await.unwrap();
    client.load_pipeline(pipeline("q", &["missing"])).await.unwrap();
    client.start_experiment(experiment("e", &["missing"])).await.unwrap();
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        "gantry_scheduler_schedule_seconds_count 4",
        "gantry_scheduler_queue_depth 0",
        "gantry_scheduler_moving 1",
        "gantry_scheduler_models{state=\"ModelAvailable\"} 1",
        "gantry_scheduler_models{state=\"ModelProgressing\"} 0",
        "gantry_scheduler_commands_refused_total{reason=\"refused\"} 1",
        "gantry_scheduler_store_commit_failures_total 0",
        "gantry_scheduler_subscribers{kind=\"model\"} 1",
        "gantry_scheduler_subscribers{kind=\"agent\"} 1",
        "gantry_scheduler_pipelines{state=\"PipelineReady\"} 1",
        "gantry_scheduler_pipelines{state=\"ModelsNotReady\"} 1",
        "gantry_scheduler_experiments{state=\"Inactive\"} 1",
        "gantry_usage_model_count 1",
        "gantry_usage_pipeline_count 2",
        "gantry_usage_experiment_count 1",
        "gantry_usage_server_count 1",
        "gantry_usage_server_replica_count 1",
        "gantry_usage_overcommit_enabled_count 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    running.stop().await;
}
