//! Runtimes, configurations, and the kinds that are not run yet.

use crate::{
    scenario::{self, settled},
    world::{CONFIGS, NAMESPACE, World},
};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn a_runtime_stays_until_its_servers_are_gone() {
    let world = settled(1).await;
    world.delete("SeldonRuntime", "seldon").await;
    world.rest().await;
    assert_eq!(world.says("SeldonRuntime", "seldon").await, ("False".into(), "ServersLeft".into()));
    assert!(world.live("statefulsets.apps", "seldon-scheduler").is_some());
    world.delete("Server", "gantry").await;
    world.rest().await;
    assert!(world.get("SeldonRuntime", "seldon").await.is_none());
    assert!(world.live("statefulsets.apps", "seldon-scheduler").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_second_runtime_waits_for_its_turn() {
    let world = settled(1).await;
    let uid = |name: &str| world.field("deployments.apps", name, "/metadata/ownerReferences/0/name");
    world.create(NAMESPACE, "SeldonRuntime", "another", json!({ "seldonConfig": "default" })).await;
    world.rest().await;
    assert_eq!(world.says("SeldonRuntime", "another").await, ("False".into(), "AnotherRuntime".into()));
    assert_eq!(uid("seldon-gateway"), Some("seldon".into()));
    world.delete("SeldonRuntime", "seldon").await;
    world.rest().await;
    assert!(world.get("SeldonRuntime", "seldon").await.is_none(), "the other one is there for the Servers");
    assert_eq!(world.says("SeldonRuntime", "another").await, ("True".into(), "RuntimeReady".into()));
    assert_eq!(uid("seldon-gateway"), Some("another".into()));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_is_ready_when_its_components_are() {
    let world = World::begun().await;
    world.stop_controllers();
    scenario::configure(&world).await;
    world.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
    world.rest().await;
    assert_eq!(world.says("SeldonRuntime", "seldon").await, ("False".into(), "ComponentsNotReady".into()));
    world.start_controllers();
    world.rest().await;
    assert_eq!(world.says("SeldonRuntime", "seldon").await, ("True".into(), "RuntimeReady".into()));
}

#[tokio::test(start_paused = true)]
async fn configurations_say_whether_they_can_be_used() {
    let world = World::begun().await;
    scenario::configure(&world).await;
    let twice = json!({ "components": [{ "name": "a" }, { "name": "a" }] });
    world.create(CONFIGS, "SeldonConfig", "bad", twice).await;
    world.rest().await;
    for (kind, name, ready) in [
        ("SeldonConfig", "default", "True"),
        ("ServerConfig", "builtin", "True"),
        ("SeldonConfig", "bad", "False"),
    ] {
        assert_eq!(world.says_in(CONFIGS, kind, name).await.0, ready, "{kind} {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn pipelines_and_experiments_are_told_the_truth_and_let_go() {
    let world = World::prepared().await;
    // They were there before the operator.
    let held = json!({ "name": "chain", "finalizers": ["seldon.pipeline.finalizer"] });
    world.create_with(NAMESPACE, "Pipeline", held, json!({ "steps": [{ "name": "iris" }] })).await;
    let split = json!({ "candidates": [{ "name": "iris", "weight": 100 }] });
    world.create(NAMESPACE, "Experiment", "split", split).await;
    world.start_operator();
    world.rest().await;
    for (kind, name) in [("Pipeline", "chain"), ("Experiment", "split")] {
        assert_eq!(world.says(kind, name).await, ("False".into(), "NotSupportedYet".into()));
        world.delete(kind, name).await;
    }
    world.rest().await;
    assert!(
        world.get("Pipeline", "chain").await.is_none() && world.get("Experiment", "split").await.is_none()
    );
}
