//! InferenceServices of KServe against the simulated API server.

use crate::{
    harness::{CONFIG_NAMESPACE, Harness, NAMESPACE, OPERATOR},
    scenario::{Scenario, serving_runtime},
};
use serde_json::{Value, json};

const KIND: &str = "InferenceService";

fn found(harness: &Harness, kind: &str, name: &str) -> Option<Value> {
    harness.kube.with(|state| state.object(kind, NAMESPACE, name).map(|object| (**object).clone()))
}

#[tokio::test(start_paused = true)]
async fn inference_service_scenario_reaches_the_expected_states() {
    let harness = Harness::started().await;
    let case = Scenario::InferenceServices;
    let deployment = |pointer: &str| {
        found(&harness, "deployments.apps", "iris-predictor").and_then(|d| d.pointer(pointer).cloned())
    };
    let fetch = "/spec/template/spec/initContainers/0/args/1";
    let image = "/spec/template/spec/containers/0/image";
    for number in 0..case.steps() {
        case.step(&harness, number).await;
        harness.settle().await;
        let ready = if number < 8 { harness.ready(KIND, "iris").await } else { Default::default() };
        let url = harness.get(KIND, "iris").await.and_then(|o| o.pointer("/status/url").cloned());
        match number {
            0 => assert_eq!(ready, ("False".into(), "NoSupportingRuntime".into())),
            1 => {
                assert_eq!(ready.0, "True");
                assert_eq!(url, Some(json!("http://iris-predictor.ml.svc.cluster.local")));
                assert_eq!(deployment(fetch), Some(json!("s3://models/iris")));
            }
            2 => {
                assert_eq!((ready.0.as_str(), url), ("True", Some(json!("http://iris-ml.ml.test"))));
                assert_eq!(deployment(fetch), Some(json!("s3://models/better")));
                assert!(found(&harness, "ingresses.networking.k8s.io", "iris").is_some());
            }
            3 => {
                assert_eq!(ready.0, "True");
                let hpa = found(&harness, "horizontalpodautoscalers.autoscaling", "iris-predictor").unwrap();
                assert_eq!(hpa["spec"]["maxReplicas"], 4);
                assert!(found(&harness, "poddisruptionbudgets.policy", "iris-predictor").is_some());
            }
            4 => {
                assert_eq!(ready.0, "True");
                let ingress = found(&harness, "ingresses.networking.k8s.io", "iris").unwrap();
                let backend = ingress.pointer("/spec/rules/0/http/paths/0/backend/service/name").unwrap();
                assert_eq!(backend, "iris-transformer");
            }
            5 => {
                assert_eq!(ready, ("False".into(), "Stopped".into()));
                assert_eq!(deployment("/metadata"), None);
                assert!(found(&harness, "services", "iris-predictor").is_none());
                assert!(found(&harness, "ingresses.networking.k8s.io", "iris").is_none());
            }
            6 => {
                assert_eq!(ready.0, "True");
                assert_eq!(deployment(image), Some(json!("gantry:1")));
            }
            7 => {
                assert_eq!(ready.0, "True");
                assert_eq!(deployment(image), Some(json!("gantry:2")));
            }
            _ => assert_eq!(deployment("/metadata"), None, "deleted with its owner"),
        }
    }
}

/// Deployment, Service, Ingress, and two statuses: not ready, then ready.
#[tokio::test(start_paused = true)]
async fn service_costs_few_writes_and_none_at_rest() {
    let harness = Harness::started().await;
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "inferenceservice-config", "namespace": CONFIG_NAMESPACE },
        "data": { "ingress": r#"{"ingressDomain": "ml.test"}"# },
    });
    harness.create_built_in_in(CONFIG_NAMESPACE, config).await;
    harness.settle().await;
    let before = harness.writes();
    let spec = json!({ "predictor": { "model": { "modelFormat": { "name": "onnx" } } } });
    harness.create(NAMESPACE, KIND, "iris", spec).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await.0, "True");
    let lines: Vec<String> = harness
        .kube
        .trace()
        .writes(Some(OPERATOR))
        .skip(before)
        .map(|entry| format!("{:?} {}", entry.verb, entry.object))
        .filter(|line| !line.contains("events"))
        .collect();
    assert!(lines.len() <= 6, "{lines:#?}");
    // A restart writes nothing.
    let before = harness.writes();
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert_eq!(harness.writes(), before);
}

/// Complaint 3: objects of others with the names and labels of the service are neither changed nor deleted.
#[tokio::test(start_paused = true)]
async fn objects_of_others_are_left_alone() {
    let harness = Harness::started().await;
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    let labels = json!({ "serving.kserve.io/inferenceservice": "iris", "component": "predictor" });
    let foreign = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "iris-workers", "namespace": NAMESPACE, "labels": labels },
        "spec": { "ports": [{ "port": 80 }] },
    });
    harness.create_built_in(foreign).await;
    let spec = json!({ "predictor": { "model": { "modelFormat": { "name": "onnx" } } } });
    harness.create(NAMESPACE, KIND, "iris", spec).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await.0, "True");
    assert!(found(&harness, "services", "iris-workers").is_some());
    // A Deployment that is deleted by hand comes back.
    harness.delete_built_in("apps/v1", "Deployment", "iris-predictor").await;
    harness.settle().await;
    assert!(found(&harness, "deployments.apps", "iris-predictor").is_some());
}

/// Complaint 13: a broken `ConfigMap` changes nothing that runs, and a corrected one takes effect at once.
#[tokio::test(start_paused = true)]
async fn broken_configuration_keeps_services_as_they_are() {
    let harness = Harness::started().await;
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    let config = |ingress: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "inferenceservice-config", "namespace": CONFIG_NAMESPACE },
            "data": { "ingress": ingress },
        })
    };
    harness.create_built_in_in(CONFIG_NAMESPACE, config(r#"{"ingressDomain": "a.test"}"#)).await;
    let spec = json!({ "predictor": { "model": { "modelFormat": { "name": "onnx" } } } });
    harness.create(NAMESPACE, KIND, "iris", spec.clone()).await;
    harness.settle().await;
    harness.patch_in(CONFIG_NAMESPACE, "v1", "ConfigMap", "inferenceservice-config", config("{")).await;
    harness.settle().await;
    let host = || {
        let ingress = found(&harness, "ingresses.networking.k8s.io", "iris").unwrap();
        ingress.pointer("/spec/rules/0/host").cloned().unwrap()
    };
    assert_eq!((harness.ready(KIND, "iris").await.0.as_str(), host()), ("True", json!("iris-ml.a.test")));
    harness.create(NAMESPACE, KIND, "new", spec).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "new").await, ("False".into(), "ConfigInvalid".into()));
    let fixed = config(r#"{"ingressDomain": "b.test"}"#);
    harness.patch_in(CONFIG_NAMESPACE, "v1", "ConfigMap", "inferenceservice-config", fixed).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "new").await.0, "True");
    assert_eq!(host(), json!("iris-ml.b.test"));
}
