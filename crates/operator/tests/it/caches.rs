//! Caches that are filled by watches and by own writes.

use crate::{
    harness::{CONFIG_NAMESPACE, Harness, NAMESPACE, OPERATOR},
    scenario::{self, settled},
};
use gantry_kube_sim::{Entry, Fault, FaultPlan, FaultRule, RequestMatch, Verb};
use serde_json::json;
use std::time::Duration;

/// The list that follows an expired watch is read before an object is created, and arrives after it.
#[tokio::test(start_paused = true)]
async fn object_created_during_a_list_is_followed() {
    let harness = settled(1).await;
    let rule = |verb: Verb, then: Fault| FaultRule {
        on: RequestMatch {
            verb: Some(verb),
            kind: Some("statefulsets.apps".into()),
            actor: Some(OPERATOR.into()),
            ..RequestMatch::default()
        },
        nth: 1,
        times: 1,
        then,
    };
    harness.kube.start(FaultPlan {
        rules: vec![
            rule(Verb::Watch, Fault::ExpireWatch { after: 0 }),
            rule(Verb::List, Fault::Delay { millis: 30_000 }),
        ],
    });
    let lists = || {
        let trace = harness.kube.trace();
        let is_list = |e: &&Entry| e.verb == Verb::List && e.object.starts_with("statefulsets.apps");
        trace.entries.iter().filter(|e| e.actor == OPERATOR).filter(is_list).count()
    };
    let before = lists();
    // Watches end after five minutes; the next one expires with its first event.
    tokio::time::sleep(Duration::from_mins(6)).await;
    let annotation = json!({ "metadata": { "annotations": { "example.com/note": "changed" } } });
    harness.patch("apps/v1", "StatefulSet", "gantry", annotation).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lists(), before + 1, "{}", harness.kube.trace().lines().join("\n"));
    harness.create(NAMESPACE, "Server", "late", json!({ "serverConfig": "builtin" })).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(harness.live("statefulsets.apps", "late").is_some(), "created before the list arrives");
    let writes = harness.write_requests().len();
    harness.settle().await;
    let requests = harness.write_requests().split_off(writes);
    assert!(requests.len() <= 6, "a loop: {requests:#?}");
    // No agent joins for it.
    assert_eq!(harness.condition("Server", "late", "StatefulSetOrDeploymentReady").await.0, "True");
    // Its updates are not ignored.
    harness.patch("apps/v1", "StatefulSet", "late", json!({ "spec": { "replicas": 7 } })).await;
    harness.settle().await;
    assert_eq!(harness.field("statefulsets.apps", "late", "/spec/replicas"), Some(1.into()));
}

/// A merge patch of a status without the field would leave it there, and be repeated for ever.
#[tokio::test(start_paused = true)]
async fn status_field_that_no_longer_applies_is_removed() {
    let harness = Harness::prepared().await;
    harness.kill_scheduler();
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    // As Seldon's operator leaves it.
    let status = json!({ "status": { "modelgwReady": "ModelAvailable(1/1 ready ) " } });
    harness.patch_status("mlops.seldon.io/v1alpha1", "Model", "iris", status).await;
    harness.start_operator();
    harness.settle().await;
    let model = harness.get("Model", "iris").await.unwrap();
    assert_eq!(model["status"].get("modelgwReady"), None, "{model:#}");
    let writes = harness.write_requests().len();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(harness.write_requests().len(), writes, "{:#?}", harness.write_requests());
}

/// The runtime writes the `ConfigMap` itself: the watch event has no news for the cache.
#[tokio::test(start_paused = true)]
async fn settings_written_by_the_runtime_reach_servers_before_the_resync() {
    let harness = settled(1).await;
    let mut pod = scenario::pod("agent", "gantry:1");
    pod["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "seldon-agent" } }]);
    harness.change_in(CONFIG_NAMESPACE, "ServerConfig", "builtin", json!({ "podSpec": pod })).await;
    harness.settle().await;
    let annotation = "/spec/template/metadata/annotations/gantry.dev~1config-maps";
    let digest = || harness.field("statefulsets.apps", "gantry", annotation);
    let before = digest();
    assert!(before.is_some());
    let rclone = json!({ "config": { "agentConfig": { "rclone": { "config": ["{\"name\":\"s3\"}"] } } } });
    harness.change("SeldonRuntime", "seldon", rclone).await;
    // The resync is every ten minutes.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_ne!(digest(), before);
}

/// Models and Pipelines limit the replicas of Seldon's gateways.
#[tokio::test(start_paused = true)]
async fn new_model_raises_the_limit_of_a_gateways_replicas() {
    let harness = Harness::started().await;
    let gateway = json!({ "name": "seldon-modelgateway", "podSpec": scenario::pod("gateway", "seldon:2") });
    harness.create(CONFIG_NAMESPACE, "SeldonConfig", "default", json!({ "components": [gateway] })).await;
    let overrides = json!([{ "name": "seldon-modelgateway", "replicas": 2 }]);
    let spec = json!({ "seldonConfig": "default", "overrides": overrides });
    harness.create(NAMESPACE, "SeldonRuntime", "seldon", spec).await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    let replicas = || harness.field("deployments.apps", "seldon-modelgateway", "/spec/replicas");
    assert_eq!(replicas(), Some(1.into()));
    assert_eq!(harness.events("ModelGatewayReplicasAdjusted").len(), 1);
    harness.create(NAMESPACE, "Model", "wine", scenario::model("wine")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(replicas(), Some(2.into()));
    harness.settle().await;
    assert_eq!(harness.events("ModelGatewayReplicasAdjusted").len(), 1);
}
