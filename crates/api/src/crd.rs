//! `CustomResourceDefinitions`, generated from the types and their validation rules.
//!
//! Embedded Kubernetes types such as `PodSpec` have no schema: this keeps the CRDs small enough for client-side
//! `kubectl apply` and saves API server memory.

mod structural;

#[cfg(test)]
mod tests;

use crate::{
    ALGORITHM_V1, API_VERSION, AlgorithmSpec, AlgorithmStatus, ExperimentSpec, GANTRY_V1ALPHA1, ModelSpec,
    ModelStatus, PipelineSpec, PlainStatus, RolloutPolicySpec, RolloutPolicyStatus, SeldonConfigSpec,
    SeldonRuntimeSpec, ServerConfigSpec, ServerSpec, ServerStatus,
    kserve::{
        ClusterStorageContainerSpec, InferenceGraphSpec, InferenceGraphStatus, InferenceServiceSpec,
        InferenceServiceStatus, KSERVE_V1ALPHA1, KSERVE_V1BETA1, ServingRuntimeSpec, TrainedModelSpec,
        TrainedModelStatus,
    },
    name,
    validation::{CelRule, Validate},
};
use schemars::JsonSchema;
use serde_json::{Value, json};

/// A custom resource.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// Such as `mlops.seldon.io/v1alpha1`.
    pub api_version: &'static str,
    pub is_namespaced: bool,
    /// Such as `SeldonRuntime`.
    pub kind: &'static str,
    /// Such as `seldonruntimes`.
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    /// Whether it has the scale subresource.
    pub scales: bool,
    /// Additional printer columns.
    pub columns: &'static [Column],
    parts: fn() -> Parts,
}

/// A printer column of `kubectl get`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer` or `date`.
    pub r#type: &'static str,
    /// JSON path of the value.
    pub path: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: u8,
}

/// The parts of a CRD that are generated from Rust types.
struct Parts {
    spec: Value,
    status: Value,
    /// Fields beside spec and status.
    root: Vec<(&'static str, Value)>,
    rules: Vec<CelRule>,
}

/// A rule and not a required field: required fields do not ratchet.
const HAS_SPEC: CelRule = CelRule {
    at: "",
    field: "spec",
    rule: "has(self.spec)",
    message: "is missing: an object needs a spec",
    values: &[],
    ratchet: "oldSelf.hasValue()",
};

fn parts<Spec: JsonSchema + Validate, Status: JsonSchema>() -> Parts {
    let mut rules = vec![HAS_SPEC];
    if Spec::CHECK_NAME("a.b").is_err() {
        rules.push(name::NAME_RULE);
    }
    rules.extend(Spec::cel_rules());
    Parts {
        spec: structural::schema_of::<Spec>(),
        status: structural::schema_of::<Status>(),
        root: Vec::new(),
        rules,
    }
}

fn storage_container_parts() -> Parts {
    let disabled = json!({ "type": "boolean", "description": "Whether it is not used." });
    Parts { root: vec![("disabled", disabled)], ..parts::<ClusterStorageContainerSpec, NoStatus>() }
}

const fn column(name: &'static str, r#type: &'static str, path: &'static str) -> Column {
    Column { name, r#type, path, priority: 0 }
}

const fn wide(name: &'static str, path: &'static str) -> Column {
    Column { name, r#type: "string", path, priority: 1 }
}

const READY: Column = column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status");
const MESSAGE: Column = column("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message");
const AGE: Column = column("Age", "date", ".metadata.creationTimestamp");

const RUNTIME_COLUMNS: &[Column] = &[
    column("Disabled", "boolean", ".spec.disabled"),
    column("ModelType", "string", ".spec.supportedModelFormats[*].name"),
    column("Containers", "string", ".spec.containers[*].name"),
    AGE,
];

/// The status of a kind that has none.
#[derive(schemars::JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct NoStatus {}

/// All kinds of the operator, in the order in which they are installed.
pub fn resources() -> [Resource; 15] {
    RESOURCES
}

const RESOURCES: [Resource; 15] = [
    Resource {
        api_version: API_VERSION,
        is_namespaced: true,
        kind: "SeldonConfig",
        plural: "seldonconfigs",
        singular: "seldonconfig",
        short_names: &[],
        scales: false,
        columns: &[READY, MESSAGE, AGE],
        parts: parts::<SeldonConfigSpec, PlainStatus>,
    },
    Resource {
        api_version: API_VERSION,
        is_namespaced: true,
        kind: "ServerConfig",
        plural: "serverconfigs",
        singular: "serverconfig",
        short_names: &["mlc"],
        scales: false,
        columns: &[READY, MESSAGE, AGE],
        parts: parts::<ServerConfigSpec, PlainStatus>,
    },
    Resource {
        api_version: API_VERSION,
        is_namespaced: true,
        kind: "SeldonRuntime",
        plural: "seldonruntimes",
        singular: "seldonruntime",
        short_names: &[],
        scales: false,
        columns: &[READY, column("Config", "string", ".spec.seldonConfig"), MESSAGE, AGE],
        parts: parts::<SeldonRuntimeSpec, PlainStatus>,
    },
    Resource {
        api_version: API_VERSION,
        is_namespaced: true,
        kind: "Server",
        plural: "servers",
        singular: "server",
        short_names: &["mls"],
        scales: true,
        columns: &[
            READY,
            column("Replicas", "integer", ".status.replicas"),
            column("Loaded Models", "integer", ".status.loadedModels"),
            MESSAGE,
            AGE,
        ],
        parts: parts::<ServerSpec, ServerStatus>,
    },
    Resource {
        api_version: API_VERSION,
        is_namespaced: true,
        kind: "Model",
        plural: "models",
        singular: "model",
        short_names: &["mlm"],
        scales: true,
        columns: &[
            column("Ready", "string", ".status.conditions[?(@.type==\"ModelReady\")].status"),
            column("Desired Replicas", "integer", ".spec.replicas"),
            column("Available Replicas", "integer", ".status.availableReplicas"),
            column("ModelGw Ready", "string", ".status.modelgwReady"),
            MESSAGE,
            AGE,
        ],
        parts: parts::<ModelSpec, ModelStatus>,
    },
    Resource {
        api_version: API_VERSION,
        is_namespaced: true,
        kind: "Pipeline",
        plural: "pipelines",
        singular: "pipeline",
        short_names: &["mlp"],
        scales: false,
        columns: &[
            column("Pipeline ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
            wide("Models ready", ".status.conditions[?(@.type==\"ModelsReady\")].status"),
            wide("PipelineGw ready", ".status.conditions[?(@.type==\"PipelineGwReady\")].status"),
            wide("Dataflow ready", ".status.conditions[?(@.type==\"PipelineReady\")].status"),
            MESSAGE,
            AGE,
        ],
        parts: parts::<PipelineSpec, PlainStatus>,
    },
    Resource {
        api_version: API_VERSION,
        is_namespaced: true,
        kind: "Experiment",
        plural: "experiments",
        singular: "experiment",
        short_names: &["mlx"],
        scales: false,
        columns: &[
            column("Experiment ready", "string", ".status.conditions[?(@.type==\"ExperimentReady\")].status"),
            wide("Candidates ready", ".status.conditions[?(@.type==\"CandidatesReady\")].status"),
            wide("Mirror ready", ".status.conditions[?(@.type==\"MirrorReady\")].status"),
            MESSAGE,
            AGE,
        ],
        parts: parts::<ExperimentSpec, PlainStatus>,
    },
    Resource {
        api_version: GANTRY_V1ALPHA1,
        is_namespaced: true,
        kind: "RolloutPolicy",
        plural: "rolloutpolicies",
        singular: "rolloutpolicy",
        short_names: &["rp"],
        scales: false,
        columns: &[
            READY,
            column("Targets", "integer", ".status.targets"),
            column("Progressing", "integer", ".status.progressing"),
            column("Rolled Back", "integer", ".status.rolledBack"),
            MESSAGE,
            wide("Weights", ".spec.strategy.canary.steps[*].weight"),
            wide("Bake", ".spec.bake"),
            AGE,
        ],
        parts: parts::<RolloutPolicySpec, RolloutPolicyStatus>,
    },
    Resource {
        api_version: KSERVE_V1ALPHA1,
        is_namespaced: false,
        kind: "ClusterStorageContainer",
        plural: "clusterstoragecontainers",
        singular: "clusterstoragecontainer",
        short_names: &[],
        scales: false,
        columns: &[],
        parts: storage_container_parts,
    },
    Resource {
        api_version: KSERVE_V1ALPHA1,
        is_namespaced: false,
        kind: "ClusterServingRuntime",
        plural: "clusterservingruntimes",
        singular: "clusterservingruntime",
        short_names: &[],
        scales: false,
        columns: RUNTIME_COLUMNS,
        parts: parts::<ServingRuntimeSpec, NoStatus>,
    },
    Resource {
        api_version: KSERVE_V1ALPHA1,
        is_namespaced: true,
        kind: "ServingRuntime",
        plural: "servingruntimes",
        singular: "servingruntime",
        short_names: &[],
        scales: false,
        columns: RUNTIME_COLUMNS,
        parts: parts::<ServingRuntimeSpec, NoStatus>,
    },
    Resource {
        api_version: KSERVE_V1BETA1,
        is_namespaced: true,
        kind: "InferenceService",
        plural: "inferenceservices",
        singular: "inferenceservice",
        short_names: &["isvc"],
        scales: false,
        columns: &[
            column("URL", "string", ".status.url"),
            READY,
            column("Prev", "integer", ".status.components.predictor.traffic[?(@.tag=='prev')].percent"),
            column(
                "Latest",
                "integer",
                ".status.components.predictor.traffic[?(@.latestRevision==true)].percent",
            ),
            column(
                "PrevRolledoutRevision",
                "string",
                ".status.components.predictor.traffic[?(@.tag=='prev')].revisionName",
            ),
            column(
                "LatestReadyRevision",
                "string",
                ".status.components.predictor.traffic[?(@.latestRevision==true)].revisionName",
            ),
            AGE,
        ],
        parts: parts::<InferenceServiceSpec, InferenceServiceStatus>,
    },
    Resource {
        api_version: KSERVE_V1ALPHA1,
        is_namespaced: true,
        kind: "TrainedModel",
        plural: "trainedmodels",
        singular: "trainedmodel",
        short_names: &["tm"],
        scales: false,
        columns: &[column("URL", "string", ".status.url"), READY, AGE],
        parts: parts::<TrainedModelSpec, TrainedModelStatus>,
    },
    Resource {
        api_version: KSERVE_V1ALPHA1,
        is_namespaced: true,
        kind: "InferenceGraph",
        plural: "inferencegraphs",
        singular: "inferencegraph",
        short_names: &["ig"],
        scales: false,
        columns: &[column("URL", "string", ".status.url"), READY, AGE],
        parts: parts::<InferenceGraphSpec, InferenceGraphStatus>,
    },
    Resource {
        api_version: ALGORITHM_V1,
        is_namespaced: true,
        kind: "Algorithm",
        plural: "algorithms",
        singular: "algorithm",
        short_names: &["algo"],
        scales: true,
        columns: &[
            column("Phase", "string", ".status.phase"),
            column("Revision", "string", ".status.stableRevision"),
            column("Weight", "integer", ".status.canaryWeight"),
            READY,
            wide("Canary", ".status.canaryRevision"),
            wide("Message", ".status.conditions[?(@.type==\"Ready\")].message"),
            AGE,
        ],
        parts: parts::<AlgorithmSpec, AlgorithmStatus>,
    },
];

/// The `CustomResourceDefinition` of a kind.
pub fn crd(resource: &Resource) -> Value {
    let (group, version) = resource.api_version.split_once('/').unwrap_or((resource.api_version, "v1"));
    let mut subresources = json!({ "status": {} });
    if resource.scales {
        let paths = json!({
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        });
        insert(&mut subresources, "scale", paths);
    }
    let mut names = json!({
        "kind": resource.kind,
        "listKind": format!("{}List", resource.kind),
        "plural": resource.plural,
        "singular": resource.singular,
        "categories": if resource.api_version == API_VERSION { json!(["seldon", "gantry"]) } else { json!(["gantry"]) },
    });
    if !resource.short_names.is_empty() {
        // The API server drops an empty list, so `kubectl apply` would see a change every time.
        insert(&mut names, "shortNames", json!(resource.short_names));
    }
    let columns: Vec<Value> = resource.columns.iter().map(Column::as_json).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{group}", resource.plural) },
        "spec": {
            "group": group,
            "names": names,
            "scope": if resource.is_namespaced { "Namespaced" } else { "Cluster" },
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": resource.schema() },
                "subresources": subresources,
                "additionalPrinterColumns": columns,
            }],
        },
    })
}

fn insert(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

/// The CRD file of a kind.
pub fn crd_yaml(resource: &Resource) -> Result<String, String> {
    let text = serde_saphyr::to_string(&sorted(crd(resource)))
        .map_err(|e| format!("failed to serialize the CRD of {}: {e}", resource.kind))?;
    Ok(format!("# Generated by `cargo xtask crds` from the types in crates/api. Do not edit.\n{text}"))
}

/// Sorts all fields: the map order depends on `serde_json` features.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().map(|(k, v)| (k, sorted(v))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        plain => plain,
    }
}

impl Column {
    fn as_json(&self) -> Value {
        let mut column = json!({ "name": self.name, "type": self.r#type, "jsonPath": self.path });
        if self.priority > 0 {
            insert(&mut column, "priority", self.priority.into());
        }
        column
    }
}

impl Resource {
    /// The folder of its CRD in `deploy`. Those of KServe are apart: KServe may have installed its own. Those of optional kinds
    /// are apart, too: an installation would accept objects without effect.
    pub fn folder(&self) -> &'static str {
        match self.api_version {
            API_VERSION | GANTRY_V1ALPHA1 => "crds",
            ALGORITHM_V1 => "crds-algorithm",
            _ => "crds-kserve",
        }
    }

    fn schema(&self) -> Value {
        let parts = (self.parts)();
        let mut schema = json!({
            "type": "object",
            "properties": {
                "apiVersion": { "type": "string" },
                "kind": { "type": "string" },
                // `fieldPath` of a rule must exist in the schema.
                "metadata": { "type": "object", "properties": { "name": { "type": "string" } } },
                "spec": parts.spec,
                "status": parts.status,
            },
        });
        if let Some(properties) = schema.get_mut("properties") {
            parts.root.into_iter().for_each(|(name, field)| insert(properties, name, field));
        }
        for rule in &parts.rules {
            structural::add_rule(&mut schema, rule.at, rule.validation());
        }
        schema
    }
}
