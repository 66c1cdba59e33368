//! What is not ours: objects, names, statuses and finalizers of others.

use crate::{
    scenario::{self, settled},
    world::{NAMESPACE, World},
};
use gantry_proto::scheduler as pb;
use serde_json::{Value, json};

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app": "mine" } },
        "spec": { "selector": { "app": "mine" }, "ports": [{ "name": "web", "port": 8080 }] },
    })
}

#[tokio::test(start_paused = true)]
async fn what_somebody_made_under_a_name_that_we_need_is_left_alone() {
    let world = World::begun().await;
    scenario::configure(&world).await;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "seldon-kafka", "namespace": NAMESPACE },
        "data": { "mine": "1" },
    });
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "seldon-server", "namespace": NAMESPACE, "annotations": { "cloud/role": "models" } },
    });
    for object in [service("gantry-0"), map, account] {
        world.make(object).await;
    }
    let theirs = || {
        ["services gantry-0", "configmaps seldon-kafka", "serviceaccounts seldon-server"].map(|place| {
            let (kind, name) = place.split_once(' ').unwrap();
            world.live(kind, name).unwrap()
        })
    };
    let before = theirs();
    world.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
    world.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    world.rest().await;
    assert_eq!(theirs(), before);
    let taken = ("False".to_owned(), "NameTaken".to_owned());
    assert_eq!(world.says("Server", "gantry").await, taken);
    assert_eq!(world.says("SeldonRuntime", "seldon").await, taken);
    assert!(world.live("statefulsets.apps", "gantry").is_some(), "what is not in anybody's way is made");
    let asked = world.asked().len();
    tokio::time::sleep(std::time::Duration::from_hours(1)).await;
    assert_eq!(world.asked().len(), asked, "looking is enough");
    // They go by themselves; an account of that name stays, and is used as it is.
    world.take_away("v1", "Service", "gantry-0").await;
    world.take_away("v1", "ConfigMap", "seldon-kafka").await;
    world.rest().await;
    assert_eq!(world.says("Server", "gantry").await, ("True".into(), "ServerReady".into()));
    assert_eq!(world.says("SeldonRuntime", "seldon").await, ("True".into(), "RuntimeReady".into()));
    assert_eq!(world.live("serviceaccounts", "seldon-server").as_ref(), before.last());
}

#[tokio::test(start_paused = true)]
async fn what_a_server_left_behind_is_the_next_ones() {
    let world = settled(1).await;
    // As after `kubectl delete server gantry --cascade=orphan`.
    world.kill_operator();
    let uid = world.field("statefulsets.apps", "gantry", "/metadata/uid");
    for (api, kind, name) in
        [("apps/v1", "StatefulSet", "gantry"), ("v1", "Service", "gantry"), ("v1", "Service", "gantry-0")]
    {
        world.patch(api, kind, name, json!({ "metadata": { "ownerReferences": null } })).await;
    }
    world.delete("Server", "gantry").await;
    world.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    world.start_operator();
    world.rest().await;
    assert_eq!(world.says("Server", "gantry").await, ("True".into(), "ServerReady".into()));
    assert_eq!(world.field("statefulsets.apps", "gantry", "/metadata/uid"), uid);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_put_in_the_place_of_ours_is_not_deleted() {
    let world = settled(2).await;
    world.kube.freeze("services");
    world.take_away("v1", "Service", "gantry-1").await;
    world.make(service("gantry-1")).await;
    world.change("Server", "gantry", json!({ "replicas": 1 })).await;
    world.rest().await;
    assert_eq!(world.field("services", "gantry-1", "/metadata/labels/app"), Some("mine".into()));
    world.kube.release("services");
    world.rest().await;
    assert_eq!(world.field("services", "gantry-1", "/metadata/labels/app"), Some("mine".into()));
    assert_eq!(world.says("Server", "gantry").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_status_is_not_written_to_another_object_of_that_name() {
    let world = World::begun().await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    world.kube.freeze("models.mlops.seldon.io");
    world.hold("Model", "iris", &[]).await;
    world.delete("Model", "iris").await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("another")).await;
    // Something happens to the one that the operator still believes in.
    world.set_agent(false);
    world.rest().await;
    assert_eq!(world.get("Model", "iris").await.unwrap().get("status"), None);
    world.kube.release("models.mlops.seldon.io");
    world.set_agent(true);
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await.0, "True");
    assert_eq!(world.scheduled().await["iris"], "gs://models/another");
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_others_stay() {
    let world = World::begun().await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    world.hold("Model", "iris", &["seldon.model.finalizer", "example.com/mine"]).await;
    world.delete("Model", "iris").await;
    world.rest().await;
    let left = world.get("Model", "iris").await.expect("somebody else holds it");
    assert_eq!(left["metadata"]["finalizers"], json!(["example.com/mine"]));
    assert_eq!(world.scheduled().await.get("iris"), None);
    world.hold("Model", "iris", &[]).await;
    assert!(world.get("Model", "iris").await.is_none());
}

/// Somebody loads a model with the CLI.
async fn load_by_hand(world: &World) {
    let definition = pb::Model {
        meta: Some(pb::MetaData { name: "iris".into(), ..Default::default() }),
        model_spec: Some(pb::ModelSpec {
            uri: "gs://theirs".into(),
            requirements: vec!["onnx".into()],
            memory_bytes: Some(1 << 20),
            ..Default::default()
        }),
        deployment_spec: Some(pb::DeploymentSpec { replicas: 1, ..Default::default() }),
        ..Default::default()
    };
    let request = pb::LoadModelRequest { model: Some(definition) };
    world.ask_scheduler().await.load_model(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_model_that_somebody_else_has_in_the_scheduler_stays_theirs() {
    let world = World::begun().await;
    load_by_hand(&world).await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await, ("False".into(), "Refused".into()));
    assert_eq!(world.scheduled().await["iris"], "gs://theirs");
    world.delete("Model", "iris").await;
    world.rest().await;
    assert!(world.get("Model", "iris").await.is_none(), "it can go");
    assert_eq!(world.scheduled().await["iris"], "gs://theirs", "and takes nothing along");
}

#[tokio::test(start_paused = true)]
async fn what_a_scheduler_refused_is_asked_for_again_when_it_may_be_had() {
    let world = World::begun().await;
    load_by_hand(&world).await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await.1, "Refused");
    let reference = pb::ModelReference { name: "iris".into(), version: None };
    let request = pb::UnloadModelRequest { model: Some(reference), kubernetes_meta: None };
    world.ask_scheduler().await.unload_model(request).await.unwrap();
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await.0, "True");
    assert_eq!(world.scheduled().await["iris"], "gs://models/iris");
}
