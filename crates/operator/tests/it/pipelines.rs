//! Pipelines: settings beside the spec.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario::{self, settled},
};
use gantry_proto::scheduler as pb;
use serde_json::{Value, json};
use std::time::Duration;

async fn keeps_payloads(harness: &Harness) -> bool {
    let request = pb::PipelineStatusRequest {
        subscriber_name: "test".into(),
        name: Some("chain".into()),
        ..Default::default()
    };
    let mut all = harness.scheduler_client().await.pipeline_status(request).await.unwrap().into_inner();
    let status = all.message().await.unwrap().unwrap();
    status.versions.into_iter().next_back().unwrap().pipeline.unwrap().keep_payloads
}

/// An annotation changes no generation.
#[tokio::test(start_paused = true)]
async fn annotation_that_keeps_payloads_reaches_the_scheduler() {
    let harness = settled(1).await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.create(NAMESPACE, "Pipeline", "chain", scenario::chain(&["iris"])).await;
    harness.settle().await;
    assert!(!keeps_payloads(&harness).await);
    let annotate = async |value: Value| {
        let patch = json!({ "metadata": { "annotations": { "gantry.dev/keep-payloads": value } } });
        harness.patch_custom(NAMESPACE, "Pipeline", "chain", patch).await;
        // Before an unanswered request would be repeated.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let ready = harness.ready("Pipeline", "chain").await;
        (keeps_payloads(&harness).await, ready.0, ready.1)
    };
    let ready = |keeps| (keeps, "True".to_owned(), "PipelineReady".to_owned());
    assert_eq!(annotate("true".into()).await, ready(true));
    assert_eq!(annotate("yes".into()).await, (true, "False".to_owned(), "InvalidSpec".to_owned()));
    assert_eq!(annotate("true".into()).await, ready(true));
    assert_eq!(annotate("false".into()).await, ready(false));
    assert_eq!(annotate("true".into()).await, ready(true));
    assert_eq!(annotate(Value::Null).await, ready(false));
}
