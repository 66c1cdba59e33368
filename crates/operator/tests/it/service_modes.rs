//! InferenceServices in the modes beside Standard: Knative, `ModelMesh`, KEDA, scale to zero, and a graph over them. Statuses of
//! Knative are scripted.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario::serving_runtime,
};
use gantry_operator::cluster::ResourceKind;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};
use std::time::Duration;

const KIND: &str = "InferenceService";
const GRAPH: &str = "InferenceGraph";
const TRAINED_MODEL: &str = "TrainedModel";

pub(crate) const STEPS: usize = 9;
pub(crate) const SCALE_TO_ZERO_STEPS: usize = 4;
pub(crate) const TRAINED_MODEL_STEPS: usize = 2;

/// A CRD that accepts everything.
pub(crate) async fn create_crd(harness: &Harness, group: &str, version: &str, kind: &str) {
    let plural = format!("{}s", kind.to_lowercase());
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let schema = json!({ "type": "object", "properties": { "spec": any, "status": any } });
    let crd = json!({
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "plural": plural, "kind": kind, "singular": kind.to_lowercase() },
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    });
    let resource = ResourceKind::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    let api: Api<DynamicObject> = Api::all_with(harness.user(), &resource.api_resource());
    api.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
}

/// The kinds of Knative and KEDA, before the operator starts.
pub(crate) async fn create_crds(harness: &Harness) {
    create_crd(harness, "serving.knative.dev", "v1", "Service").await;
    create_crd(harness, "keda.sh", "v1alpha1", "ScaledObject").await;
}

/// The status that Knative writes when a revision has all of a Service's traffic, or a share of it.
pub(crate) fn revision_status(generation: i64, revision: &str, traffic: &Value) -> Value {
    let is_true = |kind: &str| json!({ "type": kind, "status": "True" });
    json!({ "status": {
        "observedGeneration": generation,
        "conditions": [is_true("Ready"), is_true("RoutesReady"), is_true("ConfigurationsReady")],
        "latestCreatedRevisionName": revision, "latestReadyRevisionName": revision, "traffic": traffic,
        "url": "http://iris-predictor.ml.example.com",
    } })
}

/// Knative reports this traffic of the current generation.
pub(crate) async fn set_revision(harness: &Harness, service: &str, revision: &str, traffic: &Value) {
    let live = harness.live("services.serving.knative.dev", service).unwrap();
    let generation = live["metadata"]["generation"].as_i64().unwrap();
    let status = revision_status(generation, revision, traffic);
    harness.patch_status("serving.knative.dev/v1", "Service", service, status).await;
}

fn predictor(uri: &str) -> Value {
    json!({ "model": { "modelFormat": { "name": "onnx" }, "storageUri": uri } })
}

/// A predictor with memory for one model, without a model of its own.
fn multi_model() -> Value {
    let limits = json!({ "limits": { "memory": "100Mi" } });
    json!({ "model": { "modelFormat": { "name": "onnx" }, "resources": limits } })
}

fn trained_model(uri: &str) -> Value {
    let model = json!({ "storageUri": uri, "framework": "onnx", "memory": "60Mi" });
    json!({ "inferenceService": "many", "model": model })
}

/// With a share of the traffic for the latest revision.
fn canary(uri: &str, percent: Value) -> Value {
    let mut predictor = predictor(uri);
    predictor["canaryTrafficPercent"] = percent;
    json!({ "predictor": predictor })
}

async fn create_annotated(harness: &Harness, name: &str, annotation: (&str, &str), spec: Value) {
    let (key, value) = annotation;
    let metadata = json!({ "name": name, "annotations": { format!("serving.kserve.io/{key}"): value } });
    harness.create_with(NAMESPACE, KIND, metadata, spec).await;
}

fn graph(services: &[&str]) -> Value {
    let steps: Vec<Value> = services.iter().map(|name| json!({ "serviceName": name })).collect();
    json!({ "nodes": { "root": { "routerType": "Sequence", "steps": steps } } })
}

pub(crate) async fn step(harness: &Harness, number: usize) {
    let rest = json!({ "revisionName": "r1", "latestRevision": false, "percent": 80, "tag": "prev" });
    let latest = |revision: &str, percent: u32| json!({ "revisionName": revision, "latestRevision": true, "percent": percent });
    match number {
        0 => {
            harness.set_gateway(true);
            harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
            let mode = |mode| ("deploymentMode", mode);
            create_annotated(harness, "serverless", mode("Knative"), canary("s3://m/1", Value::Null)).await;
            create_annotated(
                harness,
                "mesh",
                mode("ModelMesh"),
                json!({ "predictor": predictor("s3://m/1") }),
            )
            .await;
        }
        1 => set_revision(harness, "serverless-predictor", "r1", &json!([latest("r1", 100)])).await,
        2 => {
            harness.change(KIND, "serverless", canary("s3://m/2", json!(20))).await;
            harness.change(KIND, "mesh", json!({ "predictor": predictor("s3://m/2") })).await;
        }
        3 => set_revision(harness, "serverless-predictor", "r2", &json!([latest("r2", 20), rest])).await,
        4 => harness.change(KIND, "serverless", canary("s3://m/2", Value::Null)).await,
        5 => set_revision(harness, "serverless-predictor", "r2", &json!([latest("r2", 100)])).await,
        6 => {
            let metric = json!({ "type": "Resource", "resource": { "name": "cpu" } });
            let mut predictor = predictor("s3://m/1");
            predictor["maxReplicas"] = json!(3);
            predictor["autoScaling"] = json!({ "metrics": [metric] });
            create_annotated(
                harness,
                "scaled",
                ("autoscalerClass", "keda"),
                json!({ "predictor": predictor }),
            )
            .await;
            harness.create(NAMESPACE, GRAPH, "chain", graph(&["scaled"])).await;
        }
        7 => {
            let class =
                json!({ "metadata": { "annotations": { "serving.kserve.io/autoscalerClass": "hpa" } } });
            harness.patch_custom(NAMESPACE, KIND, "scaled", class).await;
            harness.change(GRAPH, "chain", graph(&["scaled", "mesh"])).await;
        }
        8 => {
            harness.delete(GRAPH, "chain").await;
            for name in ["serverless", "mesh", "scaled"] {
                harness.delete(KIND, name).await;
            }
        }
        _ => unreachable!("no such step"),
    }
}

/// A service that is idle, is scaled to zero, and starts again for a request.
pub(crate) async fn scale_to_zero_step(harness: &Harness, number: usize) {
    match number {
        0 => {
            harness.set_gateway(true);
            harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
            let mut predictor = predictor("s3://m/1");
            predictor["minReplicas"] = json!(0);
            predictor["maxReplicas"] = json!(3);
            predictor["annotations"] =
                json!({ "autoscaling.knative.dev/scale-to-zero-pod-retention-period": "10m" });
            harness.create(NAMESPACE, KIND, "iris", json!({ "predictor": predictor })).await;
        }
        1 => tokio::time::sleep(Duration::from_mins(30)).await,
        2 => harness.report_demand("ml/iris/predictor", true).await,
        3 => harness.delete(KIND, "iris").await,
        _ => unreachable!("no such step"),
    }
}

/// A model of a service.
pub(crate) async fn trained_model_step(harness: &Harness, number: usize) {
    match number {
        0 => {
            harness.set_gateway(true);
            harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await;
            harness.create(NAMESPACE, KIND, "many", json!({ "predictor": multi_model() })).await;
            harness.create(NAMESPACE, TRAINED_MODEL, "extra", trained_model("s3://m/1")).await;
        }
        1 => {
            harness.change(TRAINED_MODEL, "extra", trained_model("s3://m/2")).await;
            harness.delete(KIND, "many").await;
        }
        _ => unreachable!("no such step"),
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_of_trained_models_reaches_the_expected_states() {
    let harness = Harness::started().await;
    let ready = async |name: &str| harness.ready(TRAINED_MODEL, name).await;
    let models = async || harness.scheduler_models().await;
    trained_model_step(&harness, 0).await;
    harness.settle().await;
    assert_eq!((ready("extra").await.0.as_str(), models().await["extra"].as_str()), ("True", "s3://m/1"));
    let url = harness.get(TRAINED_MODEL, "extra").await.unwrap()["status"]["url"].clone();
    assert_eq!(url, "http://many-ml.example.com/v1/models/extra:predict");
    // The memory is for one of them, and goes to the other one.
    harness.create(NAMESPACE, TRAINED_MODEL, "large", trained_model("s3://m/3")).await;
    harness.settle().await;
    assert_eq!(ready("large").await, ("False".into(), "MemoryResourceNotAvailable".into()));
    harness.delete(TRAINED_MODEL, "extra").await;
    harness.settle().await;
    assert_eq!((ready("large").await.0.as_str(), models().await.len()), ("True", 1));
    harness.create(NAMESPACE, TRAINED_MODEL, "extra", trained_model("s3://m/1")).await;
    harness.settle().await;
    assert_eq!(ready("extra").await, ("False".into(), "MemoryResourceNotAvailable".into()));
    // They wait for a service that is gone.
    trained_model_step(&harness, 1).await;
    harness.settle().await;
    assert!(models().await.is_empty());
    assert_eq!(ready("large").await, ("False".into(), "InferenceServiceNotFound".into()));
}

fn names(harness: &Harness, kinds: &[(&str, &str)]) -> Vec<bool> {
    kinds.iter().map(|(kind, name)| harness.live(kind, name).is_some()).collect()
}

#[tokio::test(start_paused = true)]
async fn scenario_of_modes_reaches_the_expected_states() {
    let harness = Harness::prepared().await;
    create_crds(&harness).await;
    harness.start_operator();
    let autoscalers = [
        ("scaledobjects.keda.sh", "scaled-predictor"),
        ("horizontalpodautoscalers.autoscaling", "scaled-predictor"),
    ];
    for number in 0..STEPS {
        step(&harness, number).await;
        harness.settle().await;
        let ready = async |kind: &str, name: &str| harness.ready(kind, name).await.0;
        let shares = || {
            let service = harness.live("services.serving.knative.dev", "serverless-predictor").unwrap();
            let traffic = service["spec"]["traffic"].as_array().unwrap().iter();
            traffic.filter_map(|target| target["percent"].as_u64()).collect::<Vec<u64>>()
        };
        match number {
            0 => {
                assert_ne!(ready(KIND, "serverless").await, "True");
                assert_eq!(ready(KIND, "mesh").await, "True");
                assert_eq!(harness.scheduler_models().await["mesh"], "s3://m/1");
            }
            1 | 3 | 5 => assert_eq!(ready(KIND, "serverless").await, "True"),
            2 => {
                assert_eq!(shares(), [20, 80]);
                assert_eq!(harness.scheduler_models().await["mesh"], "s3://m/2");
            }
            4 => assert_eq!(shares(), [100]),
            6 => {
                assert_eq!(names(&harness, &autoscalers), [true, false]);
                assert_eq!(
                    (ready(KIND, "scaled").await, ready(GRAPH, "chain").await),
                    ("True".into(), "True".into())
                );
            }
            7 => {
                assert_eq!(names(&harness, &autoscalers), [false, true]);
                assert_eq!(ready(GRAPH, "chain").await, "True");
            }
            _ => {
                assert!(
                    harness.scheduler_services().await.is_empty()
                        && harness.scheduler_models().await.is_empty()
                );
                assert_eq!(names(&harness, &autoscalers), [false, false]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_of_scale_to_zero_reaches_the_expected_states() {
    let harness = Harness::started().await;
    for number in 0..SCALE_TO_ZERO_STEPS {
        scale_to_zero_step(&harness, number).await;
        harness.settle().await;
        let replicas = harness.field("deployments.apps", "iris-predictor", "/spec/replicas");
        let expected = [Some(json!(1)), Some(json!(0)), Some(json!(1)), None];
        assert_eq!(replicas, expected[number], "step {number}");
    }
}
