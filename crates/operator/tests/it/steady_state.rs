//! Steady state: the operator sends no writes.

use crate::{
    harness::{Harness, NAMESPACE, OPERATOR},
    scenario::{self, Scenario},
};
use gantry_kube_sim::{Fault, FaultPlan, FaultRule, RequestMatch, Verb};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

/// All kinds of objects, converged.
async fn converged() -> Harness {
    let harness = Harness::started().await;
    // The last steps delete the workloads.
    for number in 0..Scenario::Workloads.steps() - 2 {
        Scenario::Workloads.step(&harness, number).await;
    }
    Scenario::Pipelines.record(&harness).await;
    harness.create(NAMESPACE, "RolloutPolicy", "careful", scenario::policy(20)).await;
    harness.settle().await;
    harness
}

fn assert_no_writes(harness: &Harness, before: usize) {
    let write_requests = harness.write_requests();
    assert_eq!(write_requests.len(), before, "{:#?}", &write_requests[before..]);
}

#[tokio::test(start_paused = true)]
async fn restarted_operator_writes_nothing() {
    let harness = converged().await;
    let write_requests = harness.write_requests().len();
    for _ in 0..3 {
        harness.kill_operator();
        harness.start_operator();
        harness.settle().await;
    }
    assert_no_writes(&harness, write_requests);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_no_writes(&harness, write_requests);
}

#[tokio::test(start_paused = true)]
async fn thousand_pipelines_need_two_writes_each_and_none_after_a_restart() {
    const COUNT: usize = 1000;
    let harness = Harness::started_for_many().await;
    for name in ["iris", "wine"] {
        harness.create(NAMESPACE, "Model", name, scenario::model(name)).await;
    }
    harness.settle().await;
    let before = harness.writes();
    for number in 0..COUNT {
        let steps = scenario::chain(&["iris", "wine"]);
        harness.create(NAMESPACE, "Pipeline", &format!("p{number}"), steps).await;
    }
    harness.settle().await;
    for number in 0..COUNT {
        assert_eq!(harness.ready("Pipeline", &format!("p{number}")).await.0, "True", "p{number}");
    }
    let mut writes: BTreeMap<String, usize> = BTreeMap::new();
    for entry in harness.kube.trace().writes(Some(OPERATOR)).skip(before) {
        *writes.entry(entry.object.trim_end_matches("/status").to_owned()).or_default() += 1;
    }
    assert_eq!(writes.len(), COUNT, "{writes:?}");
    assert!(writes.values().all(|count| *count <= 2), "{writes:?}");
    let written = harness.write_requests().len();
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert_no_writes(&harness, written);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_no_writes(&harness, written);
}

#[tokio::test(start_paused = true)]
async fn late_watch_events_cause_no_writes() {
    let harness = Harness::started().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    let models = "models.mlops.seldon.io";
    harness.kube.freeze(models);
    harness.set_agent(false);
    harness.settle().await;
    let past = harness.kube.with(|state| state.revision());
    assert_eq!(harness.ready("Model", "iris").await.0, "False");
    harness.set_agent(true);
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    let write_requests = harness.write_requests().len();
    // The watch returns to an older state than the responses to the operator's own writes.
    harness.kube.travel(models, past);
    harness.settle().await;
    assert_no_writes(&harness, write_requests);
    harness.kube.release(models);
    harness.settle().await;
    assert_no_writes(&harness, write_requests);
}

#[tokio::test(start_paused = true)]
async fn operator_waits_for_all_caches_to_sync() {
    let harness = converged().await;
    let write_requests = harness.write_requests().len();
    for kind in ["ServerConfig", "SeldonConfig", "Service", "StatefulSet", "ConfigMap"] {
        harness.kill_operator();
        let on = RequestMatch {
            actor: Some(OPERATOR.into()),
            verb: Some(Verb::List),
            kind: Some(kind.into()),
            ..RequestMatch::default()
        };
        harness.kube.start(FaultPlan {
            rules: vec![FaultRule { on, nth: 1, times: 1, then: Fault::Delay { millis: 8_000 } }],
        });
        harness.start_operator();
        harness.settle().await;
        assert_no_writes(&harness, write_requests);
    }
}

/// Without the label the object leaves the selector of the watch, which reports it as deleted.
#[tokio::test(start_paused = true)]
async fn removed_managed_by_label_is_restored_without_a_write_loop() {
    let harness = scenario::settled(2).await;
    let (write_requests, ready) = (harness.write_requests().len(), harness.ready("Server", "gantry").await);
    let unlabelled = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
    harness.patch("apps/v1", "StatefulSet", "gantry", unlabelled).await;
    harness.settle().await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let label = "/metadata/labels/app.kubernetes.io~1managed-by";
    assert_eq!(harness.field("statefulsets.apps", "gantry", label), Some("gantry".into()));
    let requests = harness.write_requests().split_off(write_requests);
    assert!(requests.len() <= 6, "{requests:#?}");
    assert_eq!(harness.ready("Server", "gantry").await, ready);
    // The cache follows the object again.
    harness.patch("apps/v1", "StatefulSet", "gantry", json!({ "spec": { "replicas": 7 } })).await;
    harness.settle().await;
    assert_eq!(harness.field("statefulsets.apps", "gantry", "/spec/replicas"), Some(2.into()));
}

#[tokio::test(start_paused = true)]
async fn foreign_fields_are_kept_and_drift_is_corrected() {
    let harness = scenario::settled(2).await;
    let write_requests = harness.write_requests().len();
    let theirs = json!({
        "metadata": { "labels": { "team": "blue" }, "annotations": { "example.com/note": "kept" } },
        "spec": { "minReadySeconds": 5 },
    });
    for (api, kind, name) in
        [("apps/v1", "StatefulSet", "gantry"), ("apps/v1", "Deployment", "seldon-gateway")]
    {
        harness.patch(api, kind, name, theirs.clone()).await;
    }
    let labelled = json!({ "metadata": theirs["metadata"] });
    for (kind, name) in
        [("Service", "gantry-0"), ("ConfigMap", "seldon-tracing"), ("ServiceAccount", "seldon-server")]
    {
        harness.patch("v1", kind, name, labelled.clone()).await;
    }
    harness.settle().await;
    // The new generation is reported in the status. Nothing else is written.
    let is_object_write = |line: &&String| !line.contains("/status ") && !line.contains("events.");
    let touched: Vec<String> =
        harness.write_requests()[write_requests..].iter().filter(is_object_write).cloned().collect();
    assert_eq!(touched, [] as [&str; 0]);
    // Owned fields are restored, foreign ones kept.
    let image = json!({ "spec": { "replicas": 7, "template": { "spec": { "nodeSelector": { "disk": "ssd" }, "containers": [
        { "name": "agent", "image": "theirs:1" },
    ] } } } });
    harness.patch("apps/v1", "StatefulSet", "gantry", image).await;
    harness.patch("v1", "ConfigMap", "seldon-tracing", json!({ "data": { "tracing.json": "{}" } })).await;
    harness.settle().await;
    let set = |pointer: &str| harness.field("statefulsets.apps", "gantry", pointer);
    assert_eq!(set("/spec/template/spec/containers/0/image"), Some("gantry:1".into()));
    assert_eq!(set("/spec/replicas"), Some(2.into()));
    assert_eq!(set("/spec/minReadySeconds"), Some(5.into()));
    assert_eq!(set("/spec/template/spec/nodeSelector/disk"), Some("ssd".into()), "not owned by the operator");
    for (kind, name) in [
        ("statefulsets.apps", "gantry"),
        ("deployments.apps", "seldon-gateway"),
        ("services", "gantry-0"),
        ("configmaps", "seldon-tracing"),
        ("serviceaccounts", "seldon-server"),
    ] {
        assert_eq!(harness.field(kind, name, "/metadata/labels/team"), Some("blue".into()), "{kind}");
        let note = harness.field(kind, name, "/metadata/annotations/example.com~1note");
        assert_eq!(note, Some("kept".into()), "{kind}");
    }
    let setting = harness.field("configmaps", "seldon-tracing", "/data/tracing.json").unwrap();
    assert_ne!(setting, "{}");
}
