//! Scenarios: sequences of user actions in a namespace. Tests inject faults in between.

use crate::{
    harness::{CONFIG_NAMESPACE, ClusterState, Harness, NAMESPACE, ObjectCounts},
    service_modes, service_rollouts,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Create, change and delete models.
    Models,
    /// Create, change and delete pipelines and experiments.
    Pipelines,
    /// Create, change and delete rollout policies and a model that they select.
    Rollouts,
    /// Create, change and delete a runtime and a server.
    Workloads,
    /// Create, change, stop and delete a service of KServe.
    InferenceServices,
    /// The same in the other deployment modes, and a graph.
    ServiceModes,
    /// A service that is scaled to zero and back.
    ScaleToZero,
    /// Create, change and delete models of a service.
    TrainedModels,
    /// A service under a rollout policy: promoted, rolled back, and without the policy.
    ServiceRollouts,
}

/// The states of a scenario without faults.
pub(crate) struct Recording {
    /// After each step.
    pub(crate) states: Vec<ClusterState>,
    pub(crate) object_counts: ObjectCounts,
    /// Writes of the operator.
    pub(crate) writes: usize,
}

pub(crate) fn model(name: &str) -> Value {
    json!({ "storageUri": format!("gs://models/{name}"), "requirements": ["onnx"], "memory": "1Mi" })
}

pub(crate) fn pod(name: &str, image: &str) -> Value {
    json!({ "containers": [{ "name": name, "image": image, "env": [{ "name": "SELDON_SERVER_CAPABILITIES", "value": "onnx" }] }] })
}

/// A `SeldonConfig` with a scheduler and a gateway that references a `ConfigMap`.
pub(crate) async fn configure(harness: &Harness) {
    let mut gateway = pod("gateway", "gantry:1");
    gateway["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "seldon-tracing" } }]);
    let components = json!({ "components": [
        { "name": "seldon-scheduler", "podSpec": pod("scheduler", "gantry:1"),
          "volumeClaimTemplates": [{ "name": "state", "spec": { "accessModes": ["ReadWriteOnce"] } }] },
        { "name": "seldon-gateway", "podSpec": gateway },
    ]});
    harness.create(CONFIG_NAMESPACE, "SeldonConfig", "default", components).await;
    harness
        .create(CONFIG_NAMESPACE, "ServerConfig", "builtin", json!({ "podSpec": pod("agent", "gantry:1") }))
        .await;
}

/// A converged runtime and Server.
pub(crate) async fn settled(replicas: u32) -> Harness {
    let harness = Harness::started().await;
    configure(&harness).await;
    harness.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
    let spec = json!({ "serverConfig": "builtin", "replicas": replicas });
    harness.create(NAMESPACE, "Server", "gantry", spec).await;
    harness.settle().await;
    harness
}

impl Scenario {
    /// Those whose steps need no running scheduler.
    pub(crate) const ALL: [Self; 6] = [
        Self::Models,
        Self::Pipelines,
        Self::Rollouts,
        Self::Workloads,
        Self::InferenceServices,
        Self::ServiceModes,
    ];

    /// A cluster in which the scenario can run, without an operator.
    pub(crate) async fn prepared(self) -> Harness {
        let harness = Harness::prepared().await;
        if self == Self::ServiceModes {
            service_modes::create_crds(&harness).await;
        }
        harness
    }

    /// With a running operator.
    pub(crate) async fn started(self) -> Harness {
        let harness = self.prepared().await;
        harness.start_operator();
        harness
    }

    pub(crate) const fn steps(self) -> usize {
        match self {
            Self::Models | Self::Rollouts => 6,
            Self::Pipelines => 5,
            Self::Workloads | Self::InferenceServices => 9,
            Self::ServiceModes => service_modes::STEPS,
            Self::ScaleToZero => service_modes::SCALE_TO_ZERO_STEPS,
            Self::TrainedModels => service_modes::TRAINED_MODEL_STEPS,
            Self::ServiceRollouts => service_rollouts::STEPS,
        }
    }

    pub(crate) async fn step(self, harness: &Harness, number: usize) {
        match self {
            Self::Models => models(harness, number).await,
            Self::Pipelines => pipelines(harness, number).await,
            Self::Rollouts => rollouts(harness, number).await,
            Self::Workloads => workloads(harness, number).await,
            Self::InferenceServices => inference_services(harness, number).await,
            Self::ServiceModes => service_modes::step(harness, number).await,
            Self::ScaleToZero => service_modes::scale_to_zero_step(harness, number).await,
            Self::TrainedModels => service_modes::trained_model_step(harness, number).await,
            Self::ServiceRollouts => service_rollouts::step(harness, number).await,
        }
    }

    /// Runs all steps and records the states.
    pub(crate) async fn record(self, harness: &Harness) -> Recording {
        let mut states = Vec::new();
        for number in 0..self.steps() {
            self.step(harness, number).await;
            harness.settle().await;
            states.push(harness.cluster_state().await);
        }
        Recording { states, object_counts: harness.object_counts(), writes: harness.writes() }
    }

    /// Runs all steps and compares the states.
    pub(crate) async fn replay(self, harness: &Harness, recording: &Recording, what: &str) {
        for number in 0..self.steps() {
            self.step(harness, number).await;
            harness.settle().await;
            self.compare(harness, recording, number, what).await;
        }
        recording.assert_counts(harness, what);
    }

    pub(crate) async fn compare(self, harness: &Harness, recording: &Recording, number: usize, what: &str) {
        let found = harness.cluster_state().await;
        let differ = differences(&recording.states[number], &found);
        let lines = || harness.kube.trace().lines().join("\n");
        assert!(differ.is_empty(), "{self:?}, step {number}, {what}\n{}\n\n{}", differ.join("\n"), lines());
    }
}

impl Recording {
    /// No object was created or deleted more often than in the recording.
    pub(crate) fn assert_counts(&self, harness: &Harness, what: &str) {
        let lines = || harness.kube.trace().lines().join("\n");
        assert_eq!(harness.object_counts(), self.object_counts, "{what}\n{}", lines());
    }
}

pub(crate) fn differences(expected: &ClusterState, found: &ClusterState) -> Vec<String> {
    let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let differ = keys.into_iter().filter(|key| expected.get(*key) != found.get(*key));
    let shown = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    differ
        .map(|key| format!("{key}\n  is {}\n  was {}", shown(found.get(key)), shown(expected.get(key))))
        .collect()
}

async fn models(harness: &Harness, number: usize) {
    match number {
        0 => {
            harness.create(NAMESPACE, "Model", "iris", model("iris")).await;
            harness.create(NAMESPACE, "Model", "wine", model("wine")).await;
        }
        1 => {
            let spec = json!({"storageUri": "gs://x", "requirements": ["none"]});
            harness.create(NAMESPACE, "Model", "lost", spec).await;
        }
        2 => harness.change("Model", "iris", json!({"storageUri": "gs://models/better"})).await,
        3 => harness.change("Model", "wine", json!({"replicas": 2, "minReplicas": 1})).await,
        4 => harness.delete("Model", "iris").await,
        5 => {
            harness.delete("Model", "lost").await;
            harness.create(NAMESPACE, "Model", "iris", model("again")).await;
        }
        _ => unreachable!("no such step"),
    }
}

/// A pipeline whose steps run one after the other.
pub(crate) fn chain(steps: &[&str]) -> Value {
    let step = |(i, name): (usize, &&str)| match i.checked_sub(1) {
        None => json!({ "name": name }),
        Some(before) => json!({ "name": name, "inputs": [steps[before]] }),
    };
    let all: Vec<Value> = steps.iter().enumerate().map(step).collect();
    json!({ "steps": all, "output": { "steps": &steps[steps.len() - 1..] } })
}

/// An experiment that takes over the name of its first candidate.
pub(crate) fn split(weights: &[(&str, u32)]) -> Value {
    let candidates: Vec<Value> =
        weights.iter().map(|(name, weight)| json!({ "name": name, "weight": weight })).collect();
    json!({ "default": weights[0].0, "candidates": candidates })
}

async fn pipelines(harness: &Harness, number: usize) {
    match number {
        0 => {
            harness.create(NAMESPACE, "Model", "iris", model("iris")).await;
            harness.create(NAMESPACE, "Model", "wine", model("wine")).await;
            harness.create(NAMESPACE, "Pipeline", "chain", chain(&["iris", "wine"])).await;
            harness.create(NAMESPACE, "Experiment", "split", split(&[("iris", 50), ("wine", 50)])).await;
        }
        1 => {
            harness.create(NAMESPACE, "Pipeline", "lost", chain(&["iris", "nowhere"])).await;
            harness.create(NAMESPACE, "Experiment", "idle", split(&[("wine", 1), ("nowhere", 1)])).await;
        }
        2 => {
            harness.change("Pipeline", "chain", chain(&["wine"])).await;
            harness.change("Experiment", "split", split(&[("iris", 90), ("wine", 10)])).await;
        }
        3 => {
            harness.delete("Pipeline", "chain").await;
            harness.delete("Experiment", "split").await;
        }
        4 => {
            harness.delete("Pipeline", "lost").await;
            harness.delete("Experiment", "idle").await;
            harness.create(NAMESPACE, "Pipeline", "chain", chain(&["wine", "iris"])).await;
            harness.create(NAMESPACE, "Experiment", "split", split(&[("wine", 1), ("iris", 2)])).await;
        }
        _ => unreachable!("no such step"),
    }
}

/// A policy for the models with a label. Without requests and without a progress deadline, its rollouts hold.
pub(crate) fn policy(weight: u32) -> Value {
    json!({
        "selector": { "kind": "Model", "matchLabels": { "delivery": "careful" } },
        "strategy": { "canary": { "steps": [{ "weight": weight }] } },
        "progressDeadline": "30d", "bake": "0s",
    })
}

/// A model that the policy selects.
pub(crate) async fn create_selected(harness: &Harness, name: &str) {
    let metadata = json!({ "name": name, "labels": { "delivery": "careful" } });
    harness.create_with(NAMESPACE, "Model", metadata, model(name)).await;
}

async fn rollouts(harness: &Harness, number: usize) {
    const KIND: &str = "RolloutPolicy";
    match number {
        0 => {
            create_selected(harness, "iris").await;
            harness.create(NAMESPACE, KIND, "careful", policy(20)).await;
        }
        1 => harness.change("Model", "iris", json!({ "storageUri": "gs://models/better" })).await,
        2 => {
            harness.create(NAMESPACE, KIND, "younger", policy(50)).await;
            harness.change(KIND, "careful", json!({ "strategy": policy(30)["strategy"] })).await;
        }
        3 => harness.delete(KIND, "younger").await,
        4 => harness.delete("Model", "iris").await,
        5 => {
            harness.delete(KIND, "careful").await;
            create_selected(harness, "iris").await;
            harness.create(NAMESPACE, KIND, "later", policy(40)).await;
        }
        _ => unreachable!("no such step"),
    }
}

async fn workloads(harness: &Harness, number: usize) {
    match number {
        0 => {
            configure(harness).await;
            harness.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
        }
        1 => {
            let over = json!({ "nodeSelector": { "disk": "ssd" } });
            let spec = json!({ "serverConfig": "builtin", "replicas": 2, "podSpec": over });
            harness.create(NAMESPACE, "Server", "gantry", spec).await;
        }
        2 => harness.change("Server", "gantry", json!({ "replicas": 1 })).await,
        3 => {
            let mut without = pod("agent", "gantry:2");
            without["containers"][0]["env"] = Value::Null;
            harness
                .change_in(CONFIG_NAMESPACE, "ServerConfig", "builtin", json!({ "podSpec": without }))
                .await;
        }
        4 => {
            let tracing = json!({ "tracingConfig": { "otelExporterEndpoint": "collector:4317" } });
            let overrides = json!([{ "name": "seldon-gateway", "disable": true }]);
            let spec = json!({ "overrides": overrides, "config": tracing });
            harness.change("SeldonRuntime", "seldon", spec).await;
        }
        5 => {
            let overrides = json!([{ "name": "seldon-gateway", "replicas": 2 }]);
            harness.change("SeldonRuntime", "seldon", json!({ "overrides": overrides })).await;
        }
        // Recreated before all owned objects are deleted.
        6 => {
            harness.delete("Server", "gantry").await;
            harness.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
        }
        7 => harness.delete("Server", "gantry").await,
        8 => harness.delete("SeldonRuntime", "seldon").await,
        _ => unreachable!("no such step"),
    }
}

/// A runtime that every test model selects.
pub(crate) fn serving_runtime(image: &str) -> Value {
    json!({
        "supportedModelFormats": [{ "name": "onnx", "autoSelect": true }],
        "containers": [{ "name": "kserve-container", "image": image, "ports": [{ "containerPort": 8080 }] }],
    })
}

fn predictor(uri: &str) -> Value {
    json!({ "predictor": { "model": { "modelFormat": { "name": "onnx" }, "storageUri": uri } } })
}

async fn inference_services(harness: &Harness, number: usize) {
    const KIND: &str = "InferenceService";
    let stop = |value: &str| json!({ "metadata": { "annotations": { "serving.kserve.io/stop": value } } });
    match number {
        0 => {
            // Without a runtime, and without a configuration: then Gantry's gateway is the route.
            harness.set_gateway(true);
            harness.create(NAMESPACE, KIND, "iris", predictor("s3://models/iris")).await;
        }
        1 => harness.create("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:1")).await,
        2 => {
            harness.change(KIND, "iris", predictor("s3://models/better")).await;
            let config = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "inferenceservice-config", "namespace": CONFIG_NAMESPACE },
                "data": { "ingress": r#"{"ingressDomain": "ml.test", "ingressClassName": "nginx"}"# },
            });
            harness.create_built_in_in(CONFIG_NAMESPACE, config).await;
        }
        3 => {
            let scaling = json!({ "predictor": { "minReplicas": 2, "maxReplicas": 4 } });
            harness.change(KIND, "iris", scaling).await;
        }
        4 => {
            let transformer = json!({ "transformer": { "containers": [{ "name": "t", "image": "t:1" }] } });
            harness.change(KIND, "iris", transformer).await;
        }
        5 => harness.patch_custom(NAMESPACE, KIND, "iris", stop("true")).await,
        6 => harness.patch_custom(NAMESPACE, KIND, "iris", stop("false")).await,
        7 => harness.change_in("", "ClusterServingRuntime", "gantry", serving_runtime("gantry:2")).await,
        8 => harness.delete(KIND, "iris").await,
        _ => unreachable!("no such step"),
    }
}
