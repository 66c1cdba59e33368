//! Runtimes and configurations.

use crate::{
    harness::{CONFIG_NAMESPACE, Harness, NAMESPACE},
    scenario::{self, settled},
};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn runtime_is_deleted_after_its_servers() {
    let harness = settled(1).await;
    harness.delete("SeldonRuntime", "seldon").await;
    harness.settle().await;
    assert_eq!(harness.ready("SeldonRuntime", "seldon").await, ("False".into(), "ServersLeft".into()));
    assert!(harness.live("statefulsets.apps", "seldon-scheduler").is_some());
    harness.delete("Server", "gantry").await;
    harness.settle().await;
    assert!(harness.get("SeldonRuntime", "seldon").await.is_none());
    assert!(harness.live("statefulsets.apps", "seldon-scheduler").is_none());
}

#[tokio::test(start_paused = true)]
async fn second_runtime_of_a_namespace_waits() {
    let harness = settled(1).await;
    let uid = |name: &str| harness.field("deployments.apps", name, "/metadata/ownerReferences/0/name");
    harness.create(NAMESPACE, "SeldonRuntime", "another", json!({ "seldonConfig": "default" })).await;
    harness.settle().await;
    assert_eq!(harness.ready("SeldonRuntime", "another").await, ("False".into(), "AnotherRuntime".into()));
    assert_eq!(uid("seldon-gateway"), Some("seldon".into()));
    harness.delete("SeldonRuntime", "seldon").await;
    harness.settle().await;
    assert!(harness.get("SeldonRuntime", "seldon").await.is_none(), "the other one serves the Servers");
    assert_eq!(harness.ready("SeldonRuntime", "another").await, ("True".into(), "RuntimeReady".into()));
    assert_eq!(uid("seldon-gateway"), Some("another".into()));
}

#[tokio::test(start_paused = true)]
async fn runtime_is_ready_when_its_components_are() {
    let harness = Harness::started().await;
    harness.stop_controllers();
    scenario::configure(&harness).await;
    harness.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
    harness.settle().await;
    assert_eq!(harness.ready("SeldonRuntime", "seldon").await, ("False".into(), "ComponentsNotReady".into()));
    harness.start_controllers();
    harness.settle().await;
    assert_eq!(harness.ready("SeldonRuntime", "seldon").await, ("True".into(), "RuntimeReady".into()));
}

#[tokio::test(start_paused = true)]
async fn configurations_report_validity() {
    let harness = Harness::started().await;
    scenario::configure(&harness).await;
    let twice = json!({ "components": [{ "name": "a" }, { "name": "a" }] });
    harness.create(CONFIG_NAMESPACE, "SeldonConfig", "bad", twice).await;
    harness.settle().await;
    for (kind, name, ready) in [
        ("SeldonConfig", "default", "True"),
        ("ServerConfig", "builtin", "True"),
        ("SeldonConfig", "bad", "False"),
    ] {
        assert_eq!(harness.ready_in(CONFIG_NAMESPACE, kind, name).await.0, ready, "{kind} {name}");
    }
}
