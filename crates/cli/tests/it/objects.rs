//! Models and servers against a real scheduler: apply, get, describe, status, delete.

use crate::harness::{Harness, model, normalize, server, snapshot};
use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

#[test]
fn apply_reports_created_configured_unchanged() {
    let harness = Harness::new();
    harness.write("iris.yaml", &model("iris", "  storageUri: /m\n  requirements: [onnx]\n"));
    let apply = |extra: &[&str]| {
        let mut args = vec!["apply", "-f", "iris.yaml"];
        args.extend(extra);
        harness.gantry(&args).ok()
    };
    assert_eq!(apply(&["--dry-run"]), "  model/iris   new   would load on builtin\n");
    assert_eq!(harness.gantry(&["get", "model/iris"]).code, 3);
    assert_eq!(apply(&["--wait"]), "model/iris created\nmodel/iris ready\n");
    assert_eq!(apply(&[]), "model/iris unchanged\n");
    harness.write("iris.yaml", &model("iris", "  storageUri: /n\n  requirements: [onnx]\n"));
    let planned = apply(&["--dry-run"]);
    assert!(planned.starts_with("  model/iris   1 → 2   storageUri changed; "), "{planned}");
    assert_eq!(apply(&["--wait"]), "model/iris configured\nmodel/iris ready\n");
    assert_eq!(harness.gantry(&["get", "model/iris", "-o", "jsonpath={.status.version}"]).ok(), "2\n");
    assert_eq!(apply(&[]), "model/iris unchanged\n");
}

#[test]
fn apply_is_all_or_nothing_and_servers_first() {
    let harness = Harness::new();
    harness.write("all/a-model.yaml", &model("iris", "  storageUri: /m\n"));
    harness.write("all/b-server.yaml", &server("extra", 2));
    harness.write("all/c-bad.yaml", &model("bad", "  storagUri: /m\n"));
    let refused = harness.gantry(&["apply", "-f", "all"]);
    assert_eq!(refused.code, 2);
    assert_eq!(
        refused.stderr,
        "all/c-bad.yaml:6: spec.storagUri is not a field of Model. Did you mean storageUri?\n\
         all/c-bad.yaml:6: spec.storageUri is required\nNothing was applied.\n"
    );
    assert_eq!(harness.gantry(&["get", "models", "-o", "name"]).ok(), "");
    std::fs::remove_file(harness.dir.path().join("all/c-bad.yaml")).unwrap();
    assert_eq!(harness.gantry(&["apply", "-f", "all"]).ok(), "server/extra created\nmodel/iris created\n");
    assert_eq!(
        harness.gantry(&["apply", "-f", "all"]).ok(),
        "server/extra unchanged\nmodel/iris unchanged\n"
    );
    harness.write("all/b-server.yaml", &server("extra", 3));
    assert_eq!(
        harness.gantry(&["apply", "-f", "all"]).ok(),
        "server/extra configured\nmodel/iris unchanged\n"
    );
    harness.gantry(&["delete", "-f", "all"]).ok();
    assert_eq!(harness.gantry(&["get", "-o", "name"]).ok(), "server/builtin\n");
}

#[test]
fn many_objects_are_reported_in_file_order() {
    let harness = Harness::new();
    let names: Vec<String> = (0..300).map(|i| format!("m{i:03}")).collect();
    let all: Vec<String> = names.iter().map(|n| model(n, "  storageUri: /m\n")).collect();
    harness.write("many.yaml", &all.join("---\n"));
    for change in ["created", "unchanged"] {
        let output = harness.gantry(&["apply", "-f", "many.yaml", "--timeout", "60s"]).ok();
        let expected: Vec<String> = names.iter().map(|n| format!("model/{n} {change}")).collect();
        assert_eq!(output.lines().collect::<Vec<_>>(), expected);
    }
    harness.gantry(&["apply", "-f", "many.yaml", "--wait"]).ok();
}

#[test]
fn get_output_can_be_reapplied() {
    let harness = Harness::new();
    let spec = "  storageUri: gs://bucket/iris?x\n  modelType: onnx\n  memory: 100Ki\n  minReplicas: 1\n  \
                maxReplicas: 4\n  secretName: creds\n  logger: {percent: 10}\n  artifactVersion: 3\n  \
                parameters: [{name: a, value: 'yes'}, {name: b, value: '1.0'}, {name: c, value: \"x: y # z\"}]\n  \
                dataflow: {cleanTopicsOnDelete: true}\n";
    harness.write("iris.yaml", &model("iris", &spec.replace("?x", "")));
    harness.gantry(&["apply", "-f", "iris.yaml", "--wait"]).ok();
    for format in ["yaml", "json"] {
        for what in ["model/iris", "models"] {
            let text = harness.gantry(&["get", what, "-o", format]).ok();
            let file = format!("again-{format}");
            harness.write(&file, &text);
            let again = harness.gantry(&["apply", "-f", &file]).ok();
            assert_eq!(again, "model/iris unchanged\n", "{format}: {text}");
        }
    }
    let everything = harness.gantry(&["get", "-o", "yaml"]).ok();
    harness.write("everything.yaml", &everything);
    let again = harness.gantry(&["apply", "-f", "everything.yaml"]).ok();
    assert_eq!(again, "server/builtin unchanged\nmodel/iris unchanged\n");
    let yaml = harness.gantry(&["get", "model/iris", "-o", "yaml"]).ok();
    snapshot("get-yaml", &normalize(&yaml, harness.dir.path()));
}

#[test]
fn relative_storage_uri_is_resolved_against_the_manifest() {
    let harness = Harness::new();
    harness.write("models/iris.onnx", "");
    harness.write("models/iris.yaml", &model("iris", "  storageUri: ./iris.onnx\n"));
    harness.gantry(&["apply", "-f", "models/iris.yaml"]).ok();
    let uri = harness.gantry(&["get", "model/iris", "-o", "jsonpath={.spec.storageUri}"]).ok();
    let expected = harness.dir.path().canonicalize().unwrap().join("models/iris.onnx");
    assert_eq!(uri.trim(), expected.display().to_string());
}

/// Models that are ready, failed, loading, unplaced and deleted.
fn harness_with_all_states() -> Harness {
    let harness = Harness::new();
    harness.serve(
        "iris",
        "  storageUri: https://host/iris.onnx?token=secret\n  requirements: [onnx]\n  memory: 100Mi\n",
    );
    for (name, spec, state) in [
        ("broken", "  storageUri: /broken\n", "ModelFailed"),
        ("demand", "  storageUri: s3://models/demand\n  requirements: [lightgbm]\n", "ScheduleFailed"),
        ("slow", "  storageUri: /slow\n  replicas: 1\n", "ModelProgressing"),
    ] {
        harness.write("m.yaml", &model(name, spec));
        harness.gantry(&["apply", "-f", "m.yaml"]).ok();
        harness.gantry(&["wait", &format!("model/{name}"), &format!("--for={state}")]).ok();
    }
    harness.write("gone.yaml", &model("gone", "  storageUri: /m\n"));
    harness.gantry(&["apply", "-f", "gone.yaml", "--wait"]).ok();
    harness.gantry(&["delete", "-f", "gone.yaml", "--wait"]).ok();
    harness
}

#[test]
fn output_of_get_describe_status_top() {
    let harness = harness_with_all_states();
    for (name, args) in [
        ("get-everything", &["get"][..]),
        ("get-models", &["get", "models"]),
        ("get-models-wide", &["get", "models", "-o", "wide"]),
        ("get-servers", &["get", "servers"]),
        ("get-names", &["get", "-o", "name"]),
        ("get-deleted-too", &["get", "models", "--all", "-o", "name"]),
        ("get-json", &["get", "models", "broken", "-o", "json"]),
        ("get-server-json", &["get", "server", "builtin", "-o", "json"]),
        ("get-some-missing", &["get", "model", "iris", "missing"]),
        ("status", &["status"]),
        ("describe-ready", &["describe", "model/iris"]),
        ("describe-failed", &["describe", "model/broken"]),
        ("describe-unplaced", &["describe", "model/demand"]),
        ("describe-loading", &["describe", "model/slow"]),
        ("describe-deleted", &["describe", "model/gone"]),
        ("describe-server", &["describe", "server", "builtin"]),
        ("top-servers", &["top", "servers"]),
    ] {
        let ran = harness.gantry(args);
        let text = normalize(&ran.transcript(), harness.dir.path());
        let secret = text.contains("token=secret");
        assert!(!secret, "{name} shows a secret: {text}");
        snapshot(name, &text);
    }
    assert_eq!(
        harness.gantry(&["get", "models", "-o", "jsonpath={.items[*].metadata.name}"]).ok(),
        "broken demand iris slow\n"
    );
    let ready = "jsonpath={.status.conditions[1].type}={.status.conditions[1].status}";
    assert_eq!(harness.gantry(&["get", "model/iris", "-o", ready]).ok(), "Ready=True\n");
    assert_eq!(harness.gantry(&["get", "model/demand", "-o", ready]).ok(), "Ready=False\n");
}

#[test]
fn status_shows_an_older_serving_version() {
    let harness = Harness::new();
    harness.serve("iris", "  storageUri: /one\n");
    harness.write("iris.yaml", &model("iris", "  storageUri: /slow\n"));
    harness.gantry(&["apply", "-f", "iris.yaml"]).ok();
    harness.gantry(&["wait", "model/iris", "--for=ModelProgressing"]).ok();
    let versions = harness.gantry(&["get", "model/iris", "--all-versions", "--no-headers"]).ok();
    assert_eq!(versions.lines().count(), 2, "{versions}");
    let json = harness.gantry(&["get", "model/iris", "--all-versions", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let numbers: Vec<_> =
        json["status"]["versions"].as_array().unwrap().iter().map(|v| v["version"].clone()).collect();
    assert_eq!(numbers, [2, 1]);
    snapshot("status-update", &harness.gantry(&["status"]).ok());
    let text = harness.gantry(&["describe", "model/iris"]).ok();
    assert!(
        text.starts_with("iris is not ready: loading version 2 on builtin. Version 1 still serves."),
        "{text}"
    );
}

#[test]
fn empty_results_are_reported_on_stderr() {
    let harness = Harness::without_server();
    let ran = harness.gantry(&["get"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (0, "", "No models, no servers, no pipelines, no experiments, no rolloutpolicies.\n")
    );
    let ran = harness.gantry(&["get", "models", "-o", "json"]);
    assert!(ran.stdout.contains("\"items\": []"), "{ran:?}");
    let ran = harness.gantry(&["status"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.starts_with("No models. Apply one with"), "{ran:?}");
    let ran = harness.gantry(&["top", "servers"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "No server replicas.\n"));
}

#[test]
fn delete_by_name_and_by_file() {
    let harness = Harness::new();
    harness.serve("iris", "  storageUri: /m\n");
    harness.serve("fraud", "  storageUri: /m\n");
    assert_eq!(harness.gantry(&["delete", "model", "iris", "fraud", "--wait"]).ok().lines().count(), 2);
    harness.serve("iriss", "  storageUri: /m\n");
    for args in [&["get", "model/iris"][..], &["wait", "model/iris"], &["delete", "model/iris"]] {
        assert_eq!(harness.gantry(args).stderr, "model/iris not found. Did you mean iriss?\n", "{args:?}");
    }
    harness.gantry(&["delete", "model/iriss"]).ok();
    let again = harness.gantry(&["delete", "model/iris"]);
    assert_eq!((again.code, again.stderr.as_str()), (3, "model/iris not found\n"));
    assert_eq!(harness.gantry(&["delete", "model/iris", "--ignore-not-found"]).ok(), "");
    assert_eq!(
        harness.gantry(&["apply", "-f", "iris.yaml", "--wait"]).ok(),
        "model/iris created\nmodel/iris ready\n"
    );
    assert_eq!(harness.gantry(&["delete", "-f", "iris.yaml"]).ok(), "model/iris deleted\n");
    // apply waits for the deletion before it reuses the name.
    assert_eq!(harness.gantry(&["apply", "-f", "iris.yaml"]).code, 0);
}

#[test]
fn watch_prints_changes() {
    let harness = Harness::new();
    harness.serve("iris", "  storageUri: /m\n");
    let mut child =
        harness.command(&["get", "models", "-w", "--no-headers"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("iris   True"));
    harness.gantry(&["delete", "model/iris"]).ok();
    let gone = lines.find(|l| l.starts_with("iris   False")).unwrap();
    assert!(gone.contains("unload"), "{gone}");
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = harness.command(&["status", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    harness.serve("fraud", "  storageUri: /m\n");
    let ready = lines.find(|l| l.contains("Available")).unwrap();
    assert_eq!(ready, "fraud version 1 Available 1/1 serving version 1 on builtin");
    harness.gantry(&["delete", "model/fraud"]).ok();
    assert_eq!(lines.find(|l| l.contains("deleted")).unwrap(), "fraud deleted");
    child.kill().unwrap();
    child.wait().unwrap();
}
