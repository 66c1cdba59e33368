//! Models and servers against a real scheduler: apply, get, describe, status, delete.

use crate::world::{World, model, server, snapshot, stable};
use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

#[test]
fn apply_says_what_changed() {
    let world = World::new();
    world.write("iris.yaml", &model("iris", "  storageUri: /m\n  requirements: [onnx]\n"));
    let apply = |extra: &[&str]| {
        let mut args = vec!["apply", "-f", "iris.yaml"];
        args.extend(extra);
        world.gantry(&args).ok()
    };
    assert_eq!(apply(&["--dry-run"]), "  model/iris   new   would load on builtin\n");
    assert_eq!(world.gantry(&["get", "model/iris"]).code, 3);
    assert_eq!(apply(&["--wait"]), "model/iris created\nmodel/iris ready\n");
    assert_eq!(apply(&[]), "model/iris unchanged\n");
    world.write("iris.yaml", &model("iris", "  storageUri: /n\n  requirements: [onnx]\n"));
    let planned = apply(&["--dry-run"]);
    assert!(planned.starts_with("  model/iris   1 → 2   storageUri changed; "), "{planned}");
    assert_eq!(apply(&["--wait"]), "model/iris configured\nmodel/iris ready\n");
    assert_eq!(world.gantry(&["get", "model/iris", "-o", "jsonpath={.status.version}"]).ok(), "2\n");
    assert_eq!(apply(&[]), "model/iris unchanged\n");
}

#[test]
fn apply_takes_all_or_nothing_and_servers_first() {
    let world = World::new();
    world.write("all/a-model.yaml", &model("iris", "  storageUri: /m\n"));
    world.write("all/b-server.yaml", &server("extra", 2));
    world.write("all/c-bad.yaml", &model("bad", "  storagUri: /m\n"));
    let refused = world.gantry(&["apply", "-f", "all"]);
    assert_eq!(refused.code, 2);
    assert_eq!(
        refused.stderr,
        "all/c-bad.yaml:6: spec.storagUri is not a field of Model. Did you mean storageUri?\n\
         all/c-bad.yaml:6: spec.storageUri is missing: it is required\nNothing was applied.\n"
    );
    assert_eq!(world.gantry(&["get", "models", "-o", "name"]).ok(), "");
    std::fs::remove_file(world.dir.path().join("all/c-bad.yaml")).unwrap();
    assert_eq!(world.gantry(&["apply", "-f", "all"]).ok(), "server/extra created\nmodel/iris created\n");
    assert_eq!(world.gantry(&["apply", "-f", "all"]).ok(), "server/extra unchanged\nmodel/iris unchanged\n");
    world.write("all/b-server.yaml", &server("extra", 3));
    assert_eq!(world.gantry(&["apply", "-f", "all"]).ok(), "server/extra configured\nmodel/iris unchanged\n");
    world.gantry(&["delete", "-f", "all"]).ok();
    assert_eq!(world.gantry(&["get", "-o", "name"]).ok(), "server/builtin\n");
}

#[test]
fn many_objects_are_applied_in_the_order_of_their_files() {
    let world = World::new();
    let names: Vec<String> = (0..300).map(|i| format!("m{i:03}")).collect();
    let all: Vec<String> = names.iter().map(|n| model(n, "  storageUri: /m\n")).collect();
    world.write("many.yaml", &all.join("---\n"));
    for word in ["created", "unchanged"] {
        let said = world.gantry(&["apply", "-f", "many.yaml", "--timeout", "60s"]).ok();
        let expected: Vec<String> = names.iter().map(|n| format!("model/{n} {word}")).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    }
    world.gantry(&["apply", "-f", "many.yaml", "--wait"]).ok();
}

#[test]
fn what_get_prints_can_be_applied_again() {
    let world = World::new();
    let spec = "  storageUri: gs://bucket/iris?x\n  modelType: onnx\n  memory: 100Ki\n  minReplicas: 1\n  \
                maxReplicas: 4\n  secretName: creds\n  logger: {percent: 10}\n  artifactVersion: 3\n  \
                parameters: [{name: a, value: 'yes'}, {name: b, value: '1.0'}, {name: c, value: \"x: y # z\"}]\n  \
                dataflow: {cleanTopicsOnDelete: true}\n";
    world.write("iris.yaml", &model("iris", &spec.replace("?x", "")));
    world.gantry(&["apply", "-f", "iris.yaml", "--wait"]).ok();
    for format in ["yaml", "json"] {
        for what in ["model/iris", "models"] {
            let text = world.gantry(&["get", what, "-o", format]).ok();
            let file = format!("again-{format}");
            world.write(&file, &text);
            let again = world.gantry(&["apply", "-f", &file]).ok();
            assert_eq!(again, "model/iris unchanged\n", "{format}: {text}");
        }
    }
    let everything = world.gantry(&["get", "-o", "yaml"]).ok();
    world.write("everything.yaml", &everything);
    let again = world.gantry(&["apply", "-f", "everything.yaml"]).ok();
    assert_eq!(again, "server/builtin unchanged\nmodel/iris unchanged\n");
    let yaml = world.gantry(&["get", "model/iris", "-o", "yaml"]).ok();
    snapshot("get-yaml", &stable(&yaml, world.dir.path()));
}

#[test]
fn a_relative_place_is_relative_to_the_manifest() {
    let world = World::new();
    world.write("models/iris.onnx", "");
    world.write("models/iris.yaml", &model("iris", "  storageUri: ./iris.onnx\n"));
    world.gantry(&["apply", "-f", "models/iris.yaml"]).ok();
    let place = world.gantry(&["get", "model/iris", "-o", "jsonpath={.spec.storageUri}"]).ok();
    let expected = world.dir.path().canonicalize().unwrap().join("models/iris.onnx");
    assert_eq!(place.trim(), expected.display().to_string());
}

/// Models in every state that can be had: ready, failed, on the way, without a server.
fn varied() -> World {
    let world = World::new();
    world.serve(
        "iris",
        "  storageUri: https://host/iris.onnx?token=secret\n  requirements: [onnx]\n  memory: 100Mi\n",
    );
    for (name, spec, state) in [
        ("broken", "  storageUri: /broken\n", "ModelFailed"),
        ("demand", "  storageUri: s3://models/demand\n  requirements: [lightgbm]\n", "ScheduleFailed"),
        ("slow", "  storageUri: /slow\n  replicas: 1\n", "ModelProgressing"),
    ] {
        world.write("m.yaml", &model(name, spec));
        world.gantry(&["apply", "-f", "m.yaml"]).ok();
        world.gantry(&["wait", &format!("model/{name}"), &format!("--for={state}")]).ok();
    }
    world.write("gone.yaml", &model("gone", "  storageUri: /m\n"));
    world.gantry(&["apply", "-f", "gone.yaml", "--wait"]).ok();
    world.gantry(&["delete", "-f", "gone.yaml", "--wait"]).ok();
    world
}

#[test]
fn tables_and_words() {
    let world = varied();
    for (name, args) in [
        ("get-everything", &["get"][..]),
        ("get-models", &["get", "models"]),
        ("get-models-wide", &["get", "models", "-o", "wide"]),
        ("get-servers", &["get", "servers"]),
        ("get-names", &["get", "-o", "name"]),
        ("get-deleted-too", &["get", "models", "--all", "-o", "name"]),
        ("get-json", &["get", "models", "broken", "-o", "json"]),
        ("get-server-json", &["get", "server", "builtin", "-o", "json"]),
        ("get-some-missing", &["get", "model", "iris", "nobody"]),
        ("status", &["status"]),
        ("describe-ready", &["describe", "model/iris"]),
        ("describe-failed", &["describe", "model/broken"]),
        ("describe-unplaced", &["describe", "model/demand"]),
        ("describe-loading", &["describe", "model/slow"]),
        ("describe-deleted", &["describe", "model/gone"]),
        ("describe-server", &["describe", "server", "builtin"]),
        ("top-servers", &["top", "servers"]),
    ] {
        let ran = world.gantry(args);
        let text = stable(&ran.shown(), world.dir.path());
        let secret = text.contains("token=secret");
        assert!(!secret, "{name} shows a secret: {text}");
        snapshot(name, &text);
    }
    assert_eq!(
        world.gantry(&["get", "models", "-o", "jsonpath={.items[*].metadata.name}"]).ok(),
        "broken demand iris slow\n"
    );
    let ready = "jsonpath={.status.conditions[1].type}={.status.conditions[1].status}";
    assert_eq!(world.gantry(&["get", "model/iris", "-o", ready]).ok(), "Ready=True\n");
    assert_eq!(world.gantry(&["get", "model/demand", "-o", ready]).ok(), "Ready=False\n");
}

#[test]
fn an_older_version_is_shown_while_it_serves() {
    let world = World::new();
    world.serve("iris", "  storageUri: /one\n");
    world.write("iris.yaml", &model("iris", "  storageUri: /slow\n"));
    world.gantry(&["apply", "-f", "iris.yaml"]).ok();
    world.gantry(&["wait", "model/iris", "--for=ModelProgressing"]).ok();
    let versions = world.gantry(&["get", "model/iris", "--all-versions", "--no-headers"]).ok();
    assert_eq!(versions.lines().count(), 2, "{versions}");
    let json = world.gantry(&["get", "model/iris", "--all-versions", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let numbers: Vec<_> =
        json["status"]["versions"].as_array().unwrap().iter().map(|v| v["version"].clone()).collect();
    assert_eq!(numbers, [2, 1]);
    snapshot("status-update", &world.gantry(&["status"]).ok());
    let text = world.gantry(&["describe", "model/iris"]).ok();
    assert!(
        text.starts_with("iris is not ready: loading version 2 on builtin. Version 1 serves meanwhile."),
        "{text}"
    );
}

#[test]
fn nothing_is_said_on_stderr() {
    let world = World::without_server();
    let ran = world.gantry(&["get"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", "No models and no servers.\n"));
    let ran = world.gantry(&["get", "models", "-o", "json"]);
    assert!(ran.stdout.contains("\"items\": []"), "{ran:?}");
    let ran = world.gantry(&["status"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.starts_with("No models. Apply one with"), "{ran:?}");
    let ran = world.gantry(&["top", "servers"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "No server has joined.\n"));
}

#[test]
fn delete_by_name_by_file_and_again() {
    let world = World::new();
    world.serve("iris", "  storageUri: /m\n");
    world.serve("fraud", "  storageUri: /m\n");
    assert_eq!(world.gantry(&["delete", "model", "iris", "fraud", "--wait"]).ok().lines().count(), 2);
    world.serve("iriss", "  storageUri: /m\n");
    for args in [&["get", "model/iris"][..], &["wait", "model/iris"], &["delete", "model/iris"]] {
        assert_eq!(world.gantry(args).stderr, "model/iris is not known. Did you mean iriss?\n", "{args:?}");
    }
    world.gantry(&["delete", "model/iriss"]).ok();
    let again = world.gantry(&["delete", "model/iris"]);
    assert_eq!((again.code, again.stderr.as_str()), (3, "model/iris is not known\n"));
    assert_eq!(world.gantry(&["delete", "model/iris", "--ignore-not-found"]).ok(), "");
    assert_eq!(
        world.gantry(&["apply", "-f", "iris.yaml", "--wait"]).ok(),
        "model/iris created\nmodel/iris ready\n"
    );
    assert_eq!(world.gantry(&["delete", "-f", "iris.yaml"]).ok(), "model/iris deleted\n");
    // The name may be used again at once: apply waits until the deleted model is gone.
    assert_eq!(world.gantry(&["apply", "-f", "iris.yaml"]).code, 0);
}

#[test]
fn a_watch_prints_every_change() {
    let world = World::new();
    world.serve("iris", "  storageUri: /m\n");
    let mut child =
        world.command(&["get", "models", "-w", "--no-headers"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("iris   True"));
    world.gantry(&["delete", "model/iris"]).ok();
    let gone = lines.find(|l| l.starts_with("iris   False")).unwrap();
    assert!(gone.contains("unload"), "{gone}");
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = world.command(&["status", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    world.serve("fraud", "  storageUri: /m\n");
    let ready = lines.find(|l| l.contains("Available")).unwrap();
    assert_eq!(ready, "fraud version 1 Available 1/1 serving version 1 on builtin");
    world.gantry(&["delete", "model/fraud"]).ok();
    assert_eq!(lines.find(|l| l.contains("gone")).unwrap(), "fraud is gone");
    child.kill().unwrap();
    child.wait().unwrap();
}
