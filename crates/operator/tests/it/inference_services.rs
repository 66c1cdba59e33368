//! InferenceServices of KServe against the simulated API server.

use crate::{
    harness::{CONFIG_NAMESPACE, Harness, NAMESPACE, OPERATOR},
    scenario::{Scenario, serving_runtime},
    service_modes::{create_crd, set_revision},
};
use serde_json::{Value, json};
use std::time::Duration;

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
                assert_eq!(url, Some(json!("http://iris-ml.example.com")));
                assert!(harness.scheduler_services().await["ml/iris"].admitted);
                assert_eq!(deployment(fetch), Some(json!("s3://models/iris")));
            }
            2 => {
                assert_eq!((ready.0.as_str(), url), ("True", Some(json!("http://iris-ml.ml.test"))));
                assert_eq!(deployment(fetch), Some(json!("s3://models/better")));
                assert!(found(&harness, "ingresses.networking.k8s.io", "iris").is_some());
                assert!(harness.scheduler_services().await.is_empty(), "the Ingress is the route");
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
    harness.set_gateway(true);
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
    let broken = || async {
        let service = harness.get(KIND, "iris").await.unwrap();
        let conditions = service.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap();
        conditions.into_iter().filter(|c| c["type"] == "ConfigValid" && c["status"] == "False").count()
    };
    let events = || {
        let trace = harness.kube.trace();
        trace.writes(Some(OPERATOR)).filter(|entry| entry.object.contains("events")).count()
    };
    assert_eq!(broken().await, 1);
    // The service is reconciled with the last valid settings, without another event.
    let before = events();
    harness.delete_built_in("v1", "Service", "iris-predictor").await;
    harness.settle().await;
    assert_eq!((events(), host()), (before, json!("iris-ml.a.test")));
    assert!(found(&harness, "services", "iris-predictor").is_some());
    // After a restart they are not known: what runs stays, and what is new waits.
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await.0, "True");
    harness.create(NAMESPACE, KIND, "new", spec).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "new").await, ("False".into(), "ConfigInvalid".into()));
    let fixed = config(r#"{"ingressDomain": "b.test"}"#);
    harness.patch_in(CONFIG_NAMESPACE, "v1", "ConfigMap", "inferenceservice-config", fixed).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "new").await.0, "True");
    assert_eq!((host(), broken().await), (json!("iris-ml.b.test"), 0));
}

/// An account and its Secret that come later reach the pods, and the operator keeps no value of a Secret.
#[tokio::test(start_paused = true)]
async fn credentials_of_the_account_reach_the_pods() {
    let harness = Harness::started().await;
    harness.set_gateway(true);
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    let model = json!({ "modelFormat": { "name": "onnx" }, "storageUri": "s3://models/iris" });
    let spec = json!({ "predictor": { "serviceAccountName": "models", "model": model } });
    harness.create(NAMESPACE, KIND, "iris", spec).await;
    harness.settle().await;
    let keys = || {
        let deployment = found(&harness, "deployments.apps", "iris-predictor").unwrap();
        let env = deployment.pointer("/spec/template/spec/initContainers/0/env").unwrap().clone();
        let is_key = |variable: &&Value| variable.pointer("/valueFrom/secretKeyRef").is_some();
        env.as_array().unwrap().iter().filter(is_key).count()
    };
    assert_eq!(keys(), 0);
    let object = |kind: &str, name: &str, more: Value| {
        let mut object = json!({
            "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": NAMESPACE },
        });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let account = object("ServiceAccount", "models", json!({ "secrets": [{ "name": "minio" }] }));
    harness.create_built_in(account).await;
    harness.settle().await;
    assert_eq!(keys(), 0);
    let data = json!({ "data": { "awsAccessKeyID": "aWQ=", "awsSecretAccessKey": "a2V5" } });
    harness.create_built_in(object("Secret", "minio", data)).await;
    harness.settle().await;
    assert_eq!((keys(), harness.ready(KIND, "iris").await.0.as_str()), (2, "True"));
}

fn plain() -> Value {
    json!({ "predictor": { "model": { "modelFormat": { "name": "onnx" } } } })
}

/// A service with a ready pod, routed by a gateway.
async fn routed() -> Harness {
    let harness = Harness::started().await;
    harness.set_gateway(true);
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    harness.create(NAMESPACE, KIND, "iris", plain()).await;
    add_pod(&harness, "iris-predictor", "iris-1", "10.0.0.1").await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await.0, "True");
    assert_eq!(pods(&harness).await, ["10.0.0.1:8080"]);
    harness
}

/// A ready pod of a Deployment.
pub(crate) async fn add_pod(harness: &Harness, deployment: &str, name: &str, address: &str) {
    let app = format!("isvc.{deployment}");
    let labels = json!({ "app": app, "serving.kserve.io/inferenceservice": "iris" });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    harness.create_built_in(pod).await;
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let status = json!({ "status": { "podIP": address, "conditions": ready } });
    harness.patch_status("v1", "Pod", name, status).await;
}

/// The pods that gateways have for the service.
async fn pods(harness: &Harness) -> Vec<String> {
    let services = harness.scheduler_services().await;
    let Some(route) = services.get("ml/iris").and_then(|state| state.route.clone()) else {
        return Vec::new();
    };
    let backends = route.components.iter().flat_map(|component| &component.backends);
    backends.flat_map(|b| &b.pods).map(|pod| format!("{}:{}", pod.host, pod.http_port)).collect()
}

#[tokio::test(start_paused = true)]
async fn route_follows_ready_pods_without_writes() {
    let harness = routed().await;
    let before = harness.writes();
    add_pod(&harness, "iris-predictor", "iris-2", "10.0.0.2").await;
    harness.settle().await;
    assert_eq!(pods(&harness).await, ["10.0.0.1:8080", "10.0.0.2:8080"]);
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    harness.kill_scheduler();
    harness.start_scheduler();
    harness.settle().await;
    let trace = harness.kube.trace();
    let written: Vec<_> = trace.writes(Some(OPERATOR)).skip(before).collect();
    // The number of pods is part of the status.
    assert!(written.len() <= 1, "{written:#?}");
    assert_eq!(harness.ready(KIND, "iris").await.0, "True");
    assert_eq!(pods(&harness).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn service_deleted_while_no_operator_runs_leaves_no_route() {
    let harness = routed().await;
    harness.kill_operator();
    harness.delete(KIND, "iris").await;
    harness.start_operator();
    harness.settle().await;
    assert!(harness.scheduler_services().await.is_empty());
    // And one that is deleted while the operator runs.
    harness.create(NAMESPACE, KIND, "iris", plain()).await;
    harness.settle().await;
    assert_eq!(harness.scheduler_services().await.len(), 1);
    harness.delete(KIND, "iris").await;
    harness.settle().await;
    assert!(harness.scheduler_services().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn service_without_a_gateway_is_not_ready() {
    let harness = routed().await;
    harness.set_gateway(false);
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await, ("False".into(), "GatewayNotConnected".into()));
    harness.set_gateway(true);
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await.0, "True");
    harness.kill_scheduler();
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await, ("False".into(), "SchedulerUnreachable".into()));
    harness.lose_scheduler_state();
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await.0, "True", "the route is sent again");
    assert_eq!(pods(&harness).await, ["10.0.0.1:8080"]);
}

#[tokio::test(start_paused = true)]
async fn canary_traffic_percent_splits_promotes_and_rolls_back() {
    let harness = routed().await;
    let shares = async || {
        let services = harness.scheduler_services().await;
        let route = services["ml/iris"].route.clone().unwrap();
        let backends = route.components[0].backends.iter();
        backends.map(|b| format!("{} {}", b.name, b.weight)).collect::<Vec<_>>()
    };
    let uri = |name: &str| {
        let arguments = "/spec/template/spec/initContainers/0/args/1";
        found(&harness, "deployments.apps", name).and_then(|d| d.pointer(arguments).cloned())
    };
    let spec = |uri: &str, percent: Value| json!({ "predictor": { "canaryTrafficPercent": percent, "model": { "storageUri": uri } } });
    harness.change(KIND, "iris", spec("s3://m/1", Value::Null)).await;
    harness.settle().await;
    for promoted in [false, true] {
        harness.change(KIND, "iris", spec("s3://m/2", json!(20))).await;
        harness.settle().await;
        assert_eq!(shares().await, ["iris-predictor 80", "iris-predictor-canary 20"]);
        assert_eq!(uri("iris-predictor"), Some(json!("s3://m/1")));
        assert_eq!(uri("iris-predictor-canary"), Some(json!("s3://m/2")));
        assert_eq!(harness.ready(KIND, "iris").await.0, "True");
        let target = if promoted { "s3://m/2" } else { "s3://m/1" };
        harness.change(KIND, "iris", spec(target, Value::Null)).await;
        harness.settle().await;
        assert_eq!(shares().await, ["iris-predictor 100"]);
        assert_eq!((uri("iris-predictor"), uri("iris-predictor-canary")), (Some(json!(target)), None));
        assert_eq!(harness.ready(KIND, "iris").await.0, "True");
    }
}

/// A canary on Knative: first revision, share, promotion; the operator restarts in every state.
#[tokio::test(start_paused = true)]
async fn canary_on_knative_is_promoted() {
    let harness = Harness::prepared().await;
    create_crd(&harness, "serving.knative.dev", "v1", "Service").await;
    harness.start_operator();
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    let annotations = json!({ "serving.kserve.io/deploymentMode": "Serverless" });
    let predictor = |uri: &str, percent: Value| {
        let model = json!({ "modelFormat": { "name": "onnx" }, "storageUri": uri });
        json!({ "predictor": { "model": model, "canaryTrafficPercent": percent } })
    };
    let metadata = json!({ "name": "iris", "annotations": annotations });
    harness.create_with(NAMESPACE, KIND, metadata, predictor("s3://m/1", Value::Null)).await;
    let restart = || async {
        harness.settle().await;
        harness.kill_operator();
        let before = harness.writes();
        harness.start_operator();
        harness.settle().await;
        assert_eq!(harness.writes(), before, "a restart writes nothing");
    };
    let traffic = || {
        found(&harness, "services.serving.knative.dev", "iris-predictor").unwrap()["spec"]["traffic"].clone()
    };
    let set_status = async |revision: &str, traffic: Value| {
        set_revision(&harness, "iris-predictor", revision, &traffic).await;
    };
    restart().await;
    assert_eq!(traffic(), json!([{ "latestRevision": true, "percent": 100 }]));
    let all = |revision: &str| json!([{ "revisionName": revision, "latestRevision": true, "percent": 100 }]);
    set_status("r1", all("r1")).await;
    restart().await;
    assert_eq!(harness.ready(KIND, "iris").await.0, "True");

    harness.change(KIND, "iris", predictor("s3://m/2", json!(20))).await;
    restart().await;
    let rest = json!({ "revisionName": "r1", "latestRevision": false, "percent": 80, "tag": "prev" });
    assert_eq!(traffic(), json!([{ "latestRevision": true, "percent": 20 }, rest]));
    let share = json!([{ "revisionName": "r2", "latestRevision": true, "percent": 20 }, rest]);
    set_status("r2", share).await;
    restart().await;
    let revision = async |field: &str| {
        let service = harness.get(KIND, "iris").await.unwrap();
        service["status"]["components"]["predictor"][field].clone()
    };
    assert_eq!(revision("latestRolledoutRevision").await, "r1");

    harness.change(KIND, "iris", predictor("s3://m/2", Value::Null)).await;
    restart().await;
    assert_eq!(traffic(), json!([{ "latestRevision": true, "percent": 100 }]));
    set_status("r2", all("r2")).await;
    restart().await;
    assert_eq!(revision("latestRolledoutRevision").await, "r2");
    assert_eq!(revision("previousRolledoutRevision").await, "r1");
}

/// From an HPA to KEDA, which is installed later, and back.
#[tokio::test(start_paused = true)]
async fn autoscaler_class_changes_under_a_service() {
    let harness = Harness::started().await;
    harness.set_gateway(true);
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    let metric = json!({ "type": "Resource", "resource": { "name": "cpu" } });
    let spec = json!({ "predictor": {
        "model": { "modelFormat": { "name": "onnx" } }, "maxReplicas": 3, "autoScaling": { "metrics": [metric] },
    } });
    harness.create(NAMESPACE, KIND, "iris", spec).await;
    harness.settle().await;
    let hpa = || found(&harness, "horizontalpodautoscalers.autoscaling", "iris-predictor").is_some();
    let scaled = || found(&harness, "scaledobjects.keda.sh", "iris-predictor").is_some();
    assert!(hpa());
    let class = |class: &str| json!({ "metadata": { "annotations": { "serving.kserve.io/autoscalerClass": class } } });
    harness.patch_custom(NAMESPACE, KIND, "iris", class("keda")).await;
    harness.settle().await;
    assert_eq!(harness.ready(KIND, "iris").await, ("False".into(), "InvalidAutoscaler".into()));
    assert!(hpa(), "what runs stays");
    create_crd(&harness, "keda.sh", "v1alpha1", "ScaledObject").await;
    // Discovery of optional kinds is periodic.
    for _ in 0..100 {
        harness.settle().await;
        if scaled() && !hpa() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    }
    assert_eq!((hpa(), scaled(), harness.ready(KIND, "iris").await.0.as_str()), (false, true, "True"));
    harness.patch_custom(NAMESPACE, KIND, "iris", class("hpa")).await;
    harness.settle().await;
    assert_eq!((hpa(), scaled(), harness.ready(KIND, "iris").await.0.as_str()), (true, false, "True"));
}

/// The pods go after the route, and come back for a request that waits. A restart changes nothing.
#[tokio::test(start_paused = true)]
async fn service_scales_to_zero_and_back() {
    let harness = Harness::started().await;
    harness.set_gateway(true);
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    let annotations = json!({ "autoscaling.knative.dev/scale-to-zero-pod-retention-period": "10m" });
    let model = json!({ "modelFormat": { "name": "onnx" } });
    let spec = json!({ "predictor": { "minReplicas": 0, "maxReplicas": 3, "annotations": annotations, "model": model } });
    harness.create(NAMESPACE, KIND, "iris", spec).await;
    add_pod(&harness, "iris-predictor", "iris-1", "10.0.0.1").await;
    harness.settle().await;
    let replicas =
        || found(&harness, "deployments.apps", "iris-predictor").unwrap()["spec"]["replicas"].clone();
    let state = || async {
        let service = harness.get(KIND, "iris").await.unwrap();
        let conditions = service.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap();
        let of = |kind: &str, field: &str| {
            let condition = conditions.iter().find(|c| c["type"] == kind).unwrap();
            condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        (of("Ready", "status"), of("PredictorReady", "reason"))
    };
    let restart = || async {
        let before = harness.writes();
        harness.kill_operator();
        harness.start_operator();
        harness.settle().await;
        assert_eq!(harness.writes(), before);
    };
    let (ready, scaled) = (("True".into(), String::new()), ("True".into(), "ScaledToZero".into()));
    assert_eq!((replicas(), state().await), (json!(1), ready));
    // A request keeps the pods.
    tokio::time::sleep(Duration::from_mins(5)).await;
    harness.report_demand("ml/iris/predictor", false).await;
    tokio::time::sleep(Duration::from_mins(7)).await;
    assert_eq!((replicas(), pods(&harness).await.len()), (json!(1), 1));
    restart().await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    harness.settle().await;
    assert_eq!((replicas(), state().await, pods(&harness).await.len()), (json!(0), scaled, 0));
    let route = || async { harness.scheduler_services().await["ml/iris"].clone() };
    let sleeps = || async { route().await.route.unwrap().components[0].sleeps };
    assert!(sleeps().await);
    let hpa = found(&harness, "horizontalpodautoscalers.autoscaling", "iris-predictor").unwrap();
    assert_eq!(hpa["spec"]["minReplicas"], 1);
    harness.delete_built_in("v1", "Pod", "iris-1").await;
    restart().await;
    harness.kill_scheduler();
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(replicas(), json!(0), "a restart of the scheduler starts nothing");

    harness.report_demand("ml/iris/predictor", true).await;
    harness.settle().await;
    assert_eq!((replicas(), state().await.0.as_str()), (json!(1), "True"));
    assert!(sleeps().await, "requests wait until the pod is ready");
    add_pod(&harness, "iris-predictor", "iris-2", "10.0.0.2").await;
    harness.settle().await;
    assert_eq!(pods(&harness).await, ["10.0.0.2:8080"]);
    assert!(!sleeps().await);
}

/// A Deployment and an autoscaler as KServe's controller writes them for a service without an artifact, scaled to five.
async fn create_objects_of_kserve(harness: &Harness, uid: &str, image: &str) {
    let labels = json!({
        "app": "isvc.iris-predictor", "component": "predictor", "serving.kserve.io/inferenceservice": "iris",
    });
    let metadata = || {
        json!({
            "name": "iris-predictor", "namespace": NAMESPACE, "labels": labels,
            "ownerReferences": [{
                "apiVersion": "serving.kserve.io/v1beta1", "kind": KIND, "name": "iris", "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        })
    };
    let container = json!({
        "name": "kserve-container", "image": image, "env": [{ "name": "INFERENCE_SERVICE_NAME", "value": "iris" }],
        "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log",
        "readinessProbe": {
            "tcpSocket": { "port": 8080 }, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
            "failureThreshold": 3,
        },
        "resources": {
            "limits": { "cpu": "1", "memory": "2Gi" }, "requests": { "cpu": "1", "memory": "2Gi" },
        },
    });
    let template = json!({
        "metadata": { "labels": labels },
        "spec": { "automountServiceAccountToken": false, "containers": [container], "dnsPolicy": "ClusterFirst" },
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(),
        "spec": {
            "replicas": 5, "selector": { "matchLabels": { "app": "isvc.iris-predictor" } }, "template": template,
        },
    });
    harness.create_built_in(deployment).await;
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "iris-predictor" });
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata(),
        "spec": { "scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 5 },
    });
    harness.create_built_in(scaler).await;
}

/// Moving in: a service of KServe is left alone, then taken over; its pods stay, whatever its replicas are.
#[tokio::test(start_paused = true)]
async fn adopted_service_keeps_its_pods() {
    for (image, is_restarted) in [("mine:1", false), ("changed-by-hand:1", true)] {
        let harness = Harness::started().await;
        harness.set_gateway(true);
        let metadata = json!({ "name": "iris", "finalizers": ["inferenceservice.finalizers"] });
        let containers = json!([{ "name": "kserve-container", "image": "mine:1" }]);
        let spec = json!({ "predictor": { "maxReplicas": 5, "containers": containers } });
        harness.create_with(NAMESPACE, KIND, metadata, spec).await;
        let uid = harness.get(KIND, "iris").await.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        create_objects_of_kserve(&harness, &uid, image).await;
        harness.settle().await;
        let deployment = || found(&harness, "deployments.apps", "iris-predictor").unwrap();
        let before = deployment();
        assert_eq!(harness.get(KIND, "iris").await.unwrap().get("status"), None, "it belongs to KServe");

        let adopt = json!({ "metadata": { "annotations": { "gantry.dev/adopt": "true" } } });
        harness.patch_custom(NAMESPACE, KIND, "iris", adopt).await;
        harness.settle().await;
        let after = deployment();
        let pods = |object: &Value| object["spec"]["template"].clone();
        assert_eq!(pods(&before) == pods(&after), !is_restarted, "{image}");
        assert_eq!(after["spec"]["replicas"], 5, "the autoscaler's replicas stay");
        assert_eq!(harness.ready(KIND, "iris").await.0, "True");
        let image = after.pointer("/spec/template/spec/containers/0/image").unwrap();
        assert_eq!(image, "mine:1");
        let scaler = || found(&harness, "horizontalpodautoscalers.autoscaling", "iris-predictor");
        assert_eq!(scaler().unwrap()["metadata"]["labels"]["app.kubernetes.io/managed-by"], "gantry");
        let writes = harness.writes();
        harness.kill_operator();
        harness.start_operator();
        harness.settle().await;
        assert_eq!(harness.writes(), writes, "a restart writes nothing");
        // A new spec replaces the pods.
        let newer = json!({ "maxReplicas": null, "containers": [{ "image": "mine:2" }] });
        harness.change(KIND, "iris", json!({ "predictor": newer })).await;
        harness.settle().await;
        let image = deployment().pointer("/spec/template/spec/containers/0/image").cloned().unwrap();
        assert_eq!((image, scaler()), (json!("mine:2"), None));
        // Back again: KServe's controller has its finalizer.
        assert_eq!(harness.scheduler_services().await.len(), 1);
        let release = json!({ "metadata": { "annotations": { "gantry.dev/adopt": null } } });
        harness.patch_custom(NAMESPACE, KIND, "iris", release).await;
        harness.settle().await;
        assert!(harness.scheduler_services().await.is_empty(), "gateways would keep its pods");
        let writes = harness.writes();
        harness.delete_built_in("v1", "Service", "iris-predictor").await;
        harness.settle().await;
        assert_eq!(harness.writes(), writes, "it belongs to KServe");
    }
}

/// KServe has an autoscaler for every Deployment, which would undo later changes of the replicas.
#[tokio::test(start_paused = true)]
async fn autoscaler_of_kserve_goes_when_none_is_desired() {
    let harness = Harness::started().await;
    harness.set_gateway(true);
    let metadata = json!({ "name": "iris", "finalizers": ["inferenceservice.finalizers"] });
    let containers = json!([{ "name": "kserve-container", "image": "mine:1" }]);
    let spec = json!({ "predictor": { "minReplicas": 5, "containers": containers } });
    harness.create_with(NAMESPACE, KIND, metadata, spec).await;
    let uid = harness.get(KIND, "iris").await.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    create_objects_of_kserve(&harness, &uid, "mine:1").await;
    harness.settle().await;
    let scaler = || found(&harness, "horizontalpodautoscalers.autoscaling", "iris-predictor");
    assert!(scaler().is_some());
    let adopt = json!({ "metadata": { "annotations": { "gantry.dev/adopt": "true" } } });
    harness.patch_custom(NAMESPACE, KIND, "iris", adopt).await;
    harness.settle().await;
    assert_eq!((scaler(), harness.ready(KIND, "iris").await.0.as_str()), (None, "True"));
}

/// Complaint 11: KServe's controller stops at 112 of 300 services, because its webhook and its one worker do not keep up. A burst
/// costs few writes for each service, however many there are.
#[tokio::test(start_paused = true)]
async fn complaint_11_services_of_a_burst_become_ready() {
    const SERVICES: usize = 30;
    let harness = Harness::started().await;
    harness.set_gateway(true);
    harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
    harness.settle().await;
    let before = harness.writes();
    for number in 0..SERVICES {
        harness.create(NAMESPACE, KIND, &format!("s{number}"), plain()).await;
    }
    harness.settle().await;
    for number in 0..SERVICES {
        assert_eq!(harness.ready(KIND, &format!("s{number}")).await.0, "True", "s{number}");
    }
    let written = harness.writes() - before;
    assert!(written <= 6 * SERVICES, "{written} writes");
}

/// Complaint 12: services at rest are not reconciled again and again, which would fill the log.
#[tokio::test(start_paused = true)]
async fn complaint_12_services_at_rest_cause_no_calls() {
    let harness = routed().await;
    let calls = || harness.kube.trace().lines().len();
    tokio::time::sleep(Duration::from_mins(5)).await;
    harness.settle().await;
    let (before, writes) = (calls(), harness.writes());
    tokio::time::sleep(Duration::from_mins(30)).await;
    harness.settle().await;
    assert_eq!(harness.writes(), writes);
    // Watches end and start again, and leases are renewed; a reconcile every second would make 1,800 calls.
    assert!(calls() - before < 900, "{} calls", calls() - before);
}

/// Complaint 6: a third party that adds labels to objects and pods does not start a fight.
#[tokio::test(start_paused = true)]
async fn complaint_6_labels_of_others_cause_no_writes() {
    let harness = routed().await;
    let before = harness.writes();
    let injected = json!({ "metadata": { "labels": { "injected.example.com/by": "policy" } } });
    for (version, kind) in [("apps/v1", "Deployment"), ("v1", "Service")] {
        harness.patch(version, kind, "iris-predictor", injected.clone()).await;
    }
    let pods = json!({ "spec": { "template": injected } });
    harness.patch("apps/v1", "Deployment", "iris-predictor", pods).await;
    harness.settle().await;
    let trace = harness.kube.trace();
    let written: Vec<_> =
        trace.writes(Some(OPERATOR)).skip(before).map(|entry| entry.object.clone()).collect();
    assert!(!written.iter().any(|object| object.contains("iris-predictor")), "{written:?}");
    let label = "/spec/template/metadata/labels/injected.example.com~1by";
    assert_eq!(harness.field("deployments.apps", "iris-predictor", label), Some(json!("policy")));
}
