//! Valid and invalid manifests of every kind, and their error messages.

use crate::{
    AlgorithmSpec, Diagnostic, ExperimentSpec, ModelSpec, PipelineSpec, RolloutPolicySpec, SeldonConfigSpec,
    SeldonRuntimeSpec, ServerConfigSpec, ServerSpec, crd,
    kserve::{
        ClusterStorageContainer, ClusterStorageContainerSpec, InferenceGraphSpec, InferenceServiceSpec,
        ServingRuntimeSpec, TrainedModelSpec,
    },
    parse,
    parse::{decode, decode_envelope},
    parse_manifest, resources,
    validation::{CelRule, Validate, tests::cel_errors},
    yaml::{self, Node},
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(folder);
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|f| f.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

fn documents(text: &str) -> Vec<Node> {
    yaml::parse(text).unwrap_or_else(|e| panic!("line {}: {}", e.line, e.message))
}

/// The spec, decoded and encoded again.
fn round_trip<S: DeserializeOwned + Serialize + JsonSchema + Validate>(
    node: &Node,
) -> Result<Value, Vec<Diagnostic>> {
    let kind = node.get("kind").and_then(Node::text).unwrap();
    decode_envelope::<S>(node, kind).map(|object| serde_json::to_value(object.spec).unwrap())
}

fn round_trip_any(node: &Node) -> Result<Value, Vec<Diagnostic>> {
    match node.get("kind").and_then(Node::text).unwrap() {
        "Model" => round_trip::<ModelSpec>(node),
        "Server" => round_trip::<ServerSpec>(node),
        "Pipeline" => round_trip::<PipelineSpec>(node),
        "Experiment" => round_trip::<ExperimentSpec>(node),
        "SeldonRuntime" => round_trip::<SeldonRuntimeSpec>(node),
        "SeldonConfig" => round_trip::<SeldonConfigSpec>(node),
        "ServerConfig" => round_trip::<ServerConfigSpec>(node),
        "InferenceService" => round_trip::<InferenceServiceSpec>(node),
        "ServingRuntime" | "ClusterServingRuntime" => round_trip::<ServingRuntimeSpec>(node),
        kind @ "ClusterStorageContainer" => {
            decode(node, kind, |c: &ClusterStorageContainer| c.spec.validate_named(&c.metadata.name))
                .map(|c| serde_json::to_value(c.spec).unwrap())
        }
        "InferenceGraph" => round_trip::<InferenceGraphSpec>(node),
        "Algorithm" => round_trip::<AlgorithmSpec>(node),
        "TrainedModel" => round_trip::<TrainedModelSpec>(node),
        "RolloutPolicy" => round_trip::<RolloutPolicySpec>(node),
        other => panic!("unknown kind {other}"),
    }
}

/// Paths of fields that the round trip loses.
fn lost(before: &Value, after: Option<&Value>, path: &str) -> Vec<String> {
    match (before, after) {
        (Value::Object(fields), Some(Value::Object(kept))) => fields
            .iter()
            .flat_map(|(name, value)| lost(value, kept.get(name), &format!("{path}.{name}")))
            .collect(),
        (Value::Array(items), Some(Value::Array(kept))) if items.len() == kept.len() => items
            .iter()
            .zip(kept)
            .enumerate()
            .flat_map(|(i, (before, after))| lost(before, Some(after), &format!("{path}[{i}]")))
            .collect(),
        (before, Some(after)) if before == after => Vec::new(),
        // Quantities are encoded as strings.
        (Value::Number(n), Some(Value::String(text))) if n.to_string() == *text => Vec::new(),
        // Absent means the same.
        (Value::Bool(false) | Value::Null, None) => Vec::new(),
        (Value::Array(items), None) if items.is_empty() => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

#[test]
fn valid_manifests_round_trip_without_loss() {
    for file in files("valid") {
        for node in documents(&fs::read_to_string(&file).unwrap()) {
            let before = node.to_json();
            match round_trip_any(&node) {
                Ok(after) => {
                    assert_eq!(lost(&before["spec"], Some(&after), "spec"), [""; 0], "{}", file.display());
                }
                Err(errors) => panic!("{}: {errors:#?}", file.display()),
            }
        }
    }
}

/// The paths of a schema's fields.
fn fields(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.{name}");
        fields(property, &path, found);
        found.insert(path);
    }
    if let Some(items) = schema.get("items") {
        fields(items, &format!("{path}[]"), found);
    }
}

/// The paths of a value's fields.
fn used(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                used(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| used(item, &format!("{path}[]"), found)),
        _ => {}
    }
}

#[test]
fn valid_manifests_cover_every_field() {
    let mut written = BTreeSet::new();
    for file in files("valid") {
        for node in documents(&fs::read_to_string(&file).unwrap()) {
            let object = node.to_json();
            used(&object["spec"], &format!("{}.spec", object["kind"].as_str().unwrap()), &mut written);
        }
    }
    let mut known = BTreeSet::new();
    for resource in resources() {
        let definition = crd(&resource);
        let spec = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
        fields(spec, &format!("{}.spec", resource.kind), &mut known);
    }
    assert!(known.len() > 100, "{}", known.len());
    let unused: Vec<&String> = known.difference(&written).collect();
    assert!(unused.is_empty(), "no manifest uses {unused:?}");
}

#[test]
fn invalid_manifests_report_path_and_message() {
    for file in files("invalid") {
        let text = fs::read_to_string(&file).unwrap();
        let expected: Vec<String> = text.lines().map_while(|l| l.strip_prefix("# ")).map(full_path).collect();
        let [node] = documents(&text).try_into().unwrap();
        let errors = round_trip_any(&node).expect_err(&file.display().to_string());
        let actual: Vec<String> = errors.iter().map(|e| format!("{} {}", e.path, e.message)).collect();
        assert_eq!(actual, expected, "{}", file.display());
    }
}

/// The path with the part in parentheses, which only `gantry lint` reports.
fn full_path(line: &str) -> String {
    let (path, message) = line.split_once(' ').unwrap();
    format!("{} {message}", path.replace(['(', ')'], ""))
}

#[test]
fn every_rule_has_an_invalid_manifest() {
    fn rules<S: Validate>(kind: &str) -> impl Iterator<Item = (String, CelRule)> {
        S::cel_rules().into_iter().map(move |rule| (kind.to_owned(), rule))
    }
    let all = rules::<ModelSpec>("Model")
        .chain(rules::<ServerSpec>("Server"))
        .chain(rules::<PipelineSpec>("Pipeline"))
        .chain(rules::<ExperimentSpec>("Experiment"))
        .chain(rules::<SeldonRuntimeSpec>("SeldonRuntime"))
        .chain(rules::<SeldonConfigSpec>("SeldonConfig"))
        .chain(rules::<ServerConfigSpec>("ServerConfig"))
        .chain(rules::<InferenceServiceSpec>("InferenceService"))
        .chain(rules::<ServingRuntimeSpec>("ServingRuntime"))
        .chain(rules::<ServingRuntimeSpec>("ClusterServingRuntime"))
        .chain(rules::<ClusterStorageContainerSpec>("ClusterStorageContainer"))
        .chain(rules::<InferenceGraphSpec>("InferenceGraph"))
        .chain(rules::<TrainedModelSpec>("TrainedModel"))
        .chain(rules::<RolloutPolicySpec>("RolloutPolicy"))
        .chain(rules::<AlgorithmSpec>("Algorithm"));
    let objects: Vec<Value> = files("invalid")
        .iter()
        .flat_map(|file| documents(&fs::read_to_string(file).unwrap()))
        .map(|node| node.to_json())
        .collect();
    for (kind, rule) in all {
        let is_violated =
            objects.iter().filter(|o| o["kind"] == kind).any(|o| !cel_errors(&rule, o).is_empty());
        assert!(is_violated, "{kind}: no manifest violates {rule:?}");
    }
}

fn messages(errors: &[Diagnostic]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn runtime(spec: &str) -> String {
    format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: SeldonRuntime\nmetadata: {{name: seldon}}\nspec:\n{spec}"
    )
}

#[test]
fn cluster_kinds_are_validated_but_rejected_for_a_scheduler() {
    let good = runtime("  seldonConfig: default\n");
    let manifest = parse_manifest("r.yaml", &good).unwrap();
    let [object] = manifest.cluster.as_slice() else { panic!("{manifest:?}") };
    assert_eq!((object.kind, object.name.as_str(), object.line), ("SeldonRuntime", "seldon", 1));
    for (text, expected) in [
        (
            good.clone(),
            "r.yaml:1: kind SeldonRuntime is handled by the Kubernetes operator: use kubectl apply -f r.yaml",
        ),
        (
            runtime("  seldonConfg: default\n"),
            "r.yaml:5: spec.seldonConfg is not a field of SeldonRuntime. Did you mean seldonConfig?\n\
             r.yaml:5: spec.seldonConfig is required",
        ),
        (
            runtime("  seldonConfig: default\n  config:\n    kafkaConfig:\n      consumer: {a: true}\n"),
            "r.yaml:8: spec.config.kafkaConfig.consumer.a must be an integer or a string, got true: put it in quotes",
        ),
        (
            runtime("  seldonConfig: default\n  config:\n    kafkaConfig:\n      worker: {maxInFlight: 0}\n"),
            "r.yaml:8: spec.config.kafkaConfig.worker.maxInFlight must be at least 1, got 0",
        ),
        (
            runtime("  seldonConfig: default\n  overrides: [{name: a, podSpec: 7}]\n"),
            "r.yaml:6: spec.overrides[0].podSpec must be an object, got 7",
        ),
        (
            format!("{good}---\n{good}"),
            "r.yaml:7: metadata.name \"seldon\" is a duplicate: SeldonRuntime seldon is already defined at line 1",
        ),
        (
            good.replace("SeldonRuntime", "SeldonRuntim"),
            "r.yaml:2: kind \"SeldonRuntim\" is not supported: use Model, Server, Pipeline, Experiment, SeldonRuntime, SeldonConfig, ServerConfig or InferenceService. Did you mean SeldonRuntime?",
        ),
    ] {
        assert_eq!(messages(&parse("r.yaml", &text).unwrap_err()), expected, "\n{text}");
    }
}

#[test]
fn oversized_lists_and_strings_are_rejected() {
    let text = format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: iris}}\nspec:\n  storageUri: /m\n  requirements: [{}]\n",
        vec!["onnx"; 1025].join(", ")
    );
    let expected = "m.yaml:6: spec.requirements has 1025 entries, at most 1024 are allowed";
    assert_eq!(messages(&parse("m.yaml", &text).unwrap_err()), expected);
    let text = text.replace(&vec!["onnx"; 1025].join(", "), &"x".repeat(1025));
    let expected = "m.yaml:6: spec.requirements[0] has 1025 characters, at most 1024 are allowed";
    assert_eq!(messages(&parse("m.yaml", &text).unwrap_err()), expected);
}

#[test]
fn server_side_metadata_is_accepted() {
    let metadata = serde_json::json!({
        "name": "iris", "namespace": "ml", "uid": "u", "resourceVersion": "7", "generation": 2, "finalizers": ["f"],
        "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
        "deletionGracePeriodSeconds": 0, "managedFields": [], "ownerReferences": [], "selfLink": "", "generateName": "i",
    });
    let object = serde_json::json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": metadata, "spec": { "storageUri": "gs://x" },
    });
    let parsed = parse_manifest("", &object.to_string());
    assert!(parsed.is_ok(), "{parsed:?}");
}
