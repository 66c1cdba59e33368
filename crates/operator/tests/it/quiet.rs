//! A world in which nothing changes: nothing is written, and nobody is even asked to.

use crate::{
    scenario::{self, Day},
    world::{NAMESPACE, OPERATOR, World},
};
use gantry_kube_sim::{Fault, RequestMatch, FaultPlan, FaultRule, Verb};
use serde_json::json;
use std::time::Duration;

/// Everything that there can be, at rest.
async fn full() -> World {
    let world = World::begun().await;
    // The last steps take the workloads away: nothing would be left to look at.
    for number in 0..Day::Workloads.steps() - 2 {
        Day::Workloads.step(&world, number).await;
    }
    Day::Models.live(&world).await;
    let steps = json!({ "steps": [{ "name": "iris" }] });
    world.create(NAMESPACE, "Pipeline", "chain", steps).await;
    world.rest().await;
    world
}

fn assert_unasked(world: &World, before: usize) {
    let asked = world.asked();
    assert_eq!(asked.len(), before, "asked for: {:#?}", &asked[before..]);
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_starts_anew_writes_nothing() {
    let world = full().await;
    let asked = world.asked().len();
    for _ in 0..3 {
        world.kill_operator();
        world.start_operator();
        world.rest().await;
    }
    assert_unasked(&world, asked);
    // An hour of nothing.
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_unasked(&world, asked);
}

#[tokio::test(start_paused = true)]
async fn what_a_watch_tells_late_brings_nothing_back() {
    let world = World::begun().await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    let models = "models.mlops.seldon.io";
    world.kube.freeze(models);
    world.set_agent(false);
    world.rest().await;
    let past = world.kube.with(|state| state.revision());
    assert_eq!(world.says("Model", "iris").await.0, "False");
    world.set_agent(true);
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await.0, "True");
    let asked = world.asked().len();
    // The watch is now where the model was not ready; the answers to the operator's own writes were later.
    world.kube.travel(models, past);
    world.rest().await;
    assert_unasked(&world, asked);
    world.kube.release(models);
    world.rest().await;
    assert_unasked(&world, asked);
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_has_not_seen_everything_does_nothing() {
    let world = full().await;
    let asked = world.asked().len();
    for kind in ["ServerConfig", "SeldonConfig", "Service", "StatefulSet", "ConfigMap"] {
        world.kill_operator();
        let on = RequestMatch {
            actor: Some(OPERATOR.into()),
            verb: Some(Verb::List),
            kind: Some(kind.into()),
            ..RequestMatch::default()
        };
        world
            .kube
            .start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: 1, then: Fault::Delay { millis: 8_000 } }] });
        world.start_operator();
        world.rest().await;
        assert_unasked(&world, asked);
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_write_stays_and_what_drifts_is_put_back() {
    let world = scenario::settled(2).await;
    let asked = world.asked().len();
    let theirs = json!({
        "metadata": { "labels": { "team": "blue" }, "annotations": { "example.com/note": "kept" } },
        "spec": { "minReadySeconds": 5 },
    });
    for (api, kind, name) in
        [("apps/v1", "StatefulSet", "gantry"), ("apps/v1", "Deployment", "seldon-gateway")]
    {
        world.patch(api, kind, name, theirs.clone()).await;
    }
    let labelled = json!({ "metadata": theirs["metadata"] });
    for (kind, name) in
        [("Service", "gantry-0"), ("ConfigMap", "seldon-tracing"), ("ServiceAccount", "seldon-server")]
    {
        world.patch("v1", kind, name, labelled.clone()).await;
    }
    world.rest().await;
    // Another spec is another form, of which the status tells. Nothing else is written.
    let told = |line: &&String| !line.contains("/status ") && !line.contains("events.");
    let touched: Vec<String> = world.asked()[asked..].iter().filter(told).cloned().collect();
    assert_eq!(touched, [] as [&str; 0]);
    // What is ours is put back, beside what is theirs.
    let image = json!({ "spec": { "replicas": 7, "template": { "spec": { "nodeSelector": { "disk": "ssd" }, "containers": [
        { "name": "agent", "image": "theirs:1" },
    ] } } } });
    world.patch("apps/v1", "StatefulSet", "gantry", image).await;
    world.patch("v1", "ConfigMap", "seldon-tracing", json!({ "data": { "tracing.json": "{}" } })).await;
    world.rest().await;
    let set = |pointer: &str| world.field("statefulsets.apps", "gantry", pointer);
    assert_eq!(set("/spec/template/spec/containers/0/image"), Some("gantry:1".into()));
    assert_eq!(set("/spec/replicas"), Some(2.into()));
    assert_eq!(set("/spec/minReadySeconds"), Some(5.into()));
    assert_eq!(
        set("/spec/template/spec/nodeSelector/disk"),
        Some("ssd".into()),
        "nobody else says anything of it"
    );
    for (kind, name) in [
        ("statefulsets.apps", "gantry"),
        ("deployments.apps", "seldon-gateway"),
        ("services", "gantry-0"),
        ("configmaps", "seldon-tracing"),
        ("serviceaccounts", "seldon-server"),
    ] {
        assert_eq!(world.field(kind, name, "/metadata/labels/team"), Some("blue".into()), "{kind}");
        let note = world.field(kind, name, "/metadata/annotations/example.com~1note");
        assert_eq!(note, Some("kept".into()), "{kind}");
    }
    let setting = world.field("configmaps", "seldon-tracing", "/data/tracing.json").unwrap();
    assert_ne!(setting, "{}");
}
