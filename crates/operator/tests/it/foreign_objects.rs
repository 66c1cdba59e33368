//! Foreign objects, names, statuses and finalizers are left unchanged.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario::{self, settled},
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
async fn foreign_object_with_a_needed_name_is_unchanged() {
    let harness = Harness::started().await;
    scenario::configure(&harness).await;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "seldon-kafka", "namespace": NAMESPACE },
        "data": { "mine": "1" },
    });
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "seldon-server", "namespace": NAMESPACE, "annotations": { "cloud/role": "models" } },
    });
    for object in [service("gantry-0"), map, account] {
        harness.create_built_in(object).await;
    }
    let theirs = || {
        ["services gantry-0", "configmaps seldon-kafka", "serviceaccounts seldon-server"].map(|place| {
            let (kind, name) = place.split_once(' ').unwrap();
            harness.live(kind, name).unwrap()
        })
    };
    let before = theirs();
    harness.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
    harness.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    harness.settle().await;
    assert_eq!(theirs(), before);
    let taken = ("False".to_owned(), "NameTaken".to_owned());
    assert_eq!(harness.ready("Server", "gantry").await, taken);
    assert_eq!(harness.ready("SeldonRuntime", "seldon").await, taken);
    assert!(harness.live("statefulsets.apps", "gantry").is_some(), "other objects are created");
    let write_requests = harness.write_requests().len();
    tokio::time::sleep(std::time::Duration::from_hours(1)).await;
    assert_eq!(harness.write_requests().len(), write_requests, "it only polls");
    // Deleted by their owner; the service account stays and is used unchanged.
    harness.delete_built_in("v1", "Service", "gantry-0").await;
    harness.delete_built_in("v1", "ConfigMap", "seldon-kafka").await;
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await, ("True".into(), "ServerReady".into()));
    assert_eq!(harness.ready("SeldonRuntime", "seldon").await, ("True".into(), "RuntimeReady".into()));
    assert_eq!(harness.live("serviceaccounts", "seldon-server").as_ref(), before.last());
}

#[tokio::test(start_paused = true)]
async fn orphaned_objects_are_adopted_by_the_next_server() {
    let harness = settled(1).await;
    // As after `kubectl delete server gantry --cascade=orphan`.
    harness.kill_operator();
    let uid = harness.field("statefulsets.apps", "gantry", "/metadata/uid");
    for (api, kind, name) in
        [("apps/v1", "StatefulSet", "gantry"), ("v1", "Service", "gantry"), ("v1", "Service", "gantry-0")]
    {
        harness.patch(api, kind, name, json!({ "metadata": { "ownerReferences": null } })).await;
    }
    harness.delete("Server", "gantry").await;
    harness.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    harness.start_operator();
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await, ("True".into(), "ServerReady".into()));
    assert_eq!(harness.field("statefulsets.apps", "gantry", "/metadata/uid"), uid);
}

#[tokio::test(start_paused = true)]
async fn foreign_replacement_of_an_owned_object_is_not_deleted() {
    let harness = settled(2).await;
    harness.kube.freeze("services");
    harness.delete_built_in("v1", "Service", "gantry-1").await;
    harness.create_built_in(service("gantry-1")).await;
    harness.change("Server", "gantry", json!({ "replicas": 1 })).await;
    harness.settle().await;
    assert_eq!(harness.field("services", "gantry-1", "/metadata/labels/app"), Some("mine".into()));
    harness.kube.release("services");
    harness.settle().await;
    assert_eq!(harness.field("services", "gantry-1", "/metadata/labels/app"), Some("mine".into()));
    assert_eq!(harness.ready("Server", "gantry").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn status_is_not_written_to_a_recreated_object() {
    let harness = Harness::started().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    harness.kube.freeze("models.mlops.seldon.io");
    harness.set_finalizers("Model", "iris", &[]).await;
    harness.delete("Model", "iris").await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("another")).await;
    // A status change of the deleted object, which is still in the cache.
    harness.set_agent(false);
    harness.settle().await;
    assert_eq!(harness.get("Model", "iris").await.unwrap().get("status"), None);
    harness.kube.release("models.mlops.seldon.io");
    harness.set_agent(true);
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    assert_eq!(harness.scheduler_models().await["iris"], "gs://models/another");
}

#[tokio::test(start_paused = true)]
async fn foreign_finalizers_are_kept() {
    let harness = Harness::started().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    harness.set_finalizers("Model", "iris", &["seldon.model.finalizer", "example.com/mine"]).await;
    harness.delete("Model", "iris").await;
    harness.settle().await;
    let left = harness.get("Model", "iris").await.expect("a foreign finalizer");
    assert_eq!(left["metadata"]["finalizers"], json!(["example.com/mine"]));
    assert_eq!(harness.scheduler_models().await.get("iris"), None);
    harness.set_finalizers("Model", "iris", &[]).await;
    assert!(harness.get("Model", "iris").await.is_none());
}

/// Loads a model as the CLI would.
async fn load_with_cli(harness: &Harness) {
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
    harness.scheduler_client().await.load_model(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn model_owned_by_another_client_is_unchanged() {
    let harness = Harness::started().await;
    load_with_cli(&harness).await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await, ("False".into(), "Refused".into()));
    assert_eq!(harness.scheduler_models().await["iris"], "gs://theirs");
    harness.delete("Model", "iris").await;
    harness.settle().await;
    assert!(harness.get("Model", "iris").await.is_none(), "it is released");
    assert_eq!(harness.scheduler_models().await["iris"], "gs://theirs", "the foreign model stays");
}

#[tokio::test(start_paused = true)]
async fn rejected_load_is_retried_after_the_owner_unloads() {
    let harness = Harness::started().await;
    load_with_cli(&harness).await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.1, "Refused");
    let reference = pb::ModelReference { name: "iris".into(), version: None };
    let request = pb::UnloadModelRequest { model: Some(reference), kubernetes_meta: None };
    harness.scheduler_client().await.unload_model(request).await.unwrap();
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    assert_eq!(harness.scheduler_models().await["iris"], "gs://models/iris");
}
