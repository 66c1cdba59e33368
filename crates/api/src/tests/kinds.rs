//! Manifests of every kind as people have them, and what is said about those that are refused.

use crate::{
    ExperimentSpec, ModelSpec, PipelineSpec, Problem, SeldonConfigSpec, SeldonRuntimeSpec, ServerConfigSpec,
    ServerSpec, crd, parse, read,
    read::written,
    resources,
    rules::Ruled,
    schema::Fault,
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

/// The spec as it is written again, or what is wrong with the object.
fn again<S: DeserializeOwned + Serialize + JsonSchema + Ruled>(node: &Node) -> Result<Value, Vec<Fault>> {
    let kind = node.get("kind").and_then(Node::text).unwrap();
    written::<S>(node, kind).map(|object| serde_json::to_value(object.spec).unwrap())
}

fn of_any_kind(node: &Node) -> Result<Value, Vec<Fault>> {
    match node.get("kind").and_then(Node::text).unwrap() {
        "Model" => again::<ModelSpec>(node),
        "Server" => again::<ServerSpec>(node),
        "Pipeline" => again::<PipelineSpec>(node),
        "Experiment" => again::<ExperimentSpec>(node),
        "SeldonRuntime" => again::<SeldonRuntimeSpec>(node),
        "SeldonConfig" => again::<SeldonConfigSpec>(node),
        "ServerConfig" => again::<ServerConfigSpec>(node),
        other => panic!("{other} is no kind"),
    }
}

/// Where something that was written is not there when it is written again.
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
        // An amount is written as a text.
        (Value::Number(n), Some(Value::String(text))) if n.to_string() == *text => Vec::new(),
        // What is absent means the same.
        (Value::Bool(false) | Value::Null, None) => Vec::new(),
        (Value::Array(items), None) if items.is_empty() => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

#[test]
fn manifests_as_people_have_them_are_understood_and_keep_every_field() {
    for file in files("accepted") {
        for node in documents(&fs::read_to_string(&file).unwrap()) {
            let before = node.to_json();
            match of_any_kind(&node) {
                Ok(after) => {
                    assert_eq!(lost(&before["spec"], Some(&after), "spec"), [""; 0], "{}", file.display());
                }
                Err(faults) => panic!("{}: {faults:#?}", file.display()),
            }
        }
    }
}

/// The paths of a schema's fields, down to where anything goes.
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
fn the_manifests_use_every_field_there_is() {
    let mut written = BTreeSet::new();
    for file in files("accepted") {
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
fn refused_objects_are_told_where_and_why() {
    for file in files("refused") {
        let text = fs::read_to_string(&file).unwrap();
        let expected: Vec<String> = text.lines().map_while(|l| l.strip_prefix("# ")).map(exactly).collect();
        let [node] = documents(&text).try_into().unwrap();
        let faults = of_any_kind(&node).expect_err(&file.display().to_string());
        let said: Vec<String> = faults.iter().map(|f| format!("{} {}", f.path, f.message)).collect();
        assert_eq!(said, expected, "{}", file.display());
    }
}

/// The path in a line with its part in brackets, which only we know.
fn exactly(line: &str) -> String {
    let (path, message) = line.split_once(' ').unwrap();
    format!("{} {message}", path.replace(['(', ')'], ""))
}

#[test]
fn every_rule_is_broken_by_one_of_them() {
    fn rules<S: Ruled>(kind: &str) -> impl Iterator<Item = (String, crate::rules::Text)> {
        S::texts().into_iter().map(move |text| (kind.to_owned(), text))
    }
    let all = rules::<ModelSpec>("Model")
        .chain(rules::<ServerSpec>("Server"))
        .chain(rules::<PipelineSpec>("Pipeline"))
        .chain(rules::<ExperimentSpec>("Experiment"))
        .chain(rules::<SeldonRuntimeSpec>("SeldonRuntime"))
        .chain(rules::<SeldonConfigSpec>("SeldonConfig"))
        .chain(rules::<ServerConfigSpec>("ServerConfig"));
    let objects: Vec<Value> = files("refused")
        .iter()
        .flat_map(|file| documents(&fs::read_to_string(file).unwrap()))
        .map(|node| node.to_json())
        .collect();
    for (kind, text) in all {
        let broken = objects
            .iter()
            .filter(|o| o["kind"] == kind)
            .any(|o| !crate::rules::tests::refused_by_cel(&text, o).is_empty());
        assert!(broken, "{kind}: nothing breaks {text:?}");
    }
}

fn said(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn runtime(spec: &str) -> String {
    format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: SeldonRuntime\nmetadata: {{name: seldon}}\nspec:\n{spec}"
    )
}

#[test]
fn kinds_of_kubernetes_are_checked_and_no_scheduler_gets_them() {
    let good = runtime("  seldonConfig: default\n");
    let manifest = read("r.yaml", &good).unwrap();
    let [object] = manifest.cluster.as_slice() else { panic!("{manifest:?}") };
    assert_eq!((object.kind, object.name.as_str(), object.line), ("SeldonRuntime", "seldon", 1));
    for (text, expected) in [
        (
            good.clone(),
            "r.yaml:1: kind SeldonRuntime belongs to Kubernetes, where the operator acts on it: use kubectl apply -f r.yaml",
        ),
        (
            runtime("  seldonConfg: default\n"),
            "r.yaml:5: spec.seldonConfg is not a field of SeldonRuntime. Did you mean seldonConfig?\n\
             r.yaml:5: spec.seldonConfig is missing: it is required",
        ),
        (
            runtime("  seldonConfig: default\n  config:\n    kafkaConfig:\n      consumer: {a: true}\n"),
            "r.yaml:8: spec.config.kafkaConfig.consumer.a must be a whole number or a text, got true: put it in quotes",
        ),
        (
            runtime("  seldonConfig: default\n  overrides: [{name: a, podSpec: 7}]\n"),
            "r.yaml:6: spec.overrides[0].podSpec must be a map of fields, got 7",
        ),
        (
            format!("{good}---\n{good}"),
            "r.yaml:7: metadata.name \"seldon\" is used twice: SeldonRuntime seldon stands at line 1 already",
        ),
        (
            good.replace("SeldonRuntime", "SeldonRuntim"),
            "r.yaml:2: kind \"SeldonRuntim\" is not known: kinds are Model and Server. Did you mean SeldonRuntime?",
        ),
    ] {
        assert_eq!(said(&parse("r.yaml", &text).unwrap_err()), expected, "\n{text}");
    }
}

#[test]
fn lists_and_texts_that_no_object_needs_are_refused() {
    let text = format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: iris}}\nspec:\n  storageUri: /m\n  requirements: [{}]\n",
        vec!["onnx"; 1025].join(", ")
    );
    let expected = "m.yaml:6: spec.requirements has 1025 entries, at most 1024 are allowed";
    assert_eq!(said(&parse("m.yaml", &text).unwrap_err()), expected);
    let text = text.replace(&vec!["onnx"; 1025].join(", "), &"x".repeat(1025));
    let expected = "m.yaml:6: spec.requirements[0] has 1025 characters, at most 1024 are allowed";
    assert_eq!(said(&parse("m.yaml", &text).unwrap_err()), expected);
}

#[test]
fn what_the_api_server_adds_to_metadata_is_no_mistake() {
    let metadata = serde_json::json!({
        "name": "iris", "namespace": "ml", "uid": "u", "resourceVersion": "7", "generation": 2, "finalizers": ["f"],
        "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
        "deletionGracePeriodSeconds": 0, "managedFields": [], "ownerReferences": [], "selfLink": "", "generateName": "i",
    });
    let object = serde_json::json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": metadata, "spec": { "storageUri": "gs://x" },
    });
    let read = crate::read("", &object.to_string());
    assert!(read.is_ok(), "{read:?}");
}
