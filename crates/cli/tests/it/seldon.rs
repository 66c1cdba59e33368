//! The Seldon CLI: `gantry model load`, and the binary started as `seldon`.

use crate::{
    harness::{Harness, RunResult, command, finish, gantry_with, model, normalize, server},
    infer::FakeGateway,
};
use std::{
    path::Path,
    process::{Command, Stdio},
};

const REQUEST: &str = r#"{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1.50,2]}]}"#;
const MESSAGE: &str = r#"{"model_name":"iris","inputs":[{"name":"X","contents":{"fp32_contents":[1,2]},"datatype":"FP32","shape":[1,2]}]}"#;

/// The binary started as `seldon`, with its own home.
fn seldon(home: &Path, args: &[&str]) -> Command {
    let link = home.join("seldon");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gantry"), &link).unwrap();
    }
    let plain = command(args);
    let mut command = Command::new(link);
    command.args(args).env("HOME", home).current_dir(home).stdin(Stdio::null());
    for (name, value) in plain.get_envs().filter(|(name, _)| *name != "HOME") {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn seldon_with(harness: &Harness, args: &[&str]) -> RunResult {
    finish(seldon(harness.dir.path(), args).env("SELDON_SCHEDULE_HOST", harness.scheduler.to_string()))
}

#[test]
fn model_lifecycle() {
    let harness = Harness::new();
    harness.write(
        "iris.yaml",
        &model("iris", "  storageUri: gs://m/iris\n  requirements: [onnx]\n  memory: 100Ki\n"),
    );
    assert_eq!(seldon_with(&harness, &["model", "load", "-f", "iris.yaml"]).ok(), "{}\n");
    assert_eq!(seldon_with(&harness, &["model", "status", "iris", "-w", "ModelAvailable"]).ok(), "{}\n");
    let status = normalize(&seldon_with(&harness, &["model", "status", "iris"]).ok(), harness.dir.path());
    let value: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(value["modelName"], "iris");
    let version = &value["versions"][0];
    assert_eq!((&version["version"], &version["serverName"]), (&1.into(), &"builtin".into()));
    assert_eq!(version["modelReplicaState"]["0"]["state"], "Available");
    assert_eq!(
        (&version["state"]["state"], &version["state"]["availableReplicas"]),
        (&"ModelAvailable".into(), &1.into())
    );
    assert_eq!(version["modelDefn"]["modelSpec"]["memoryBytes"], "102400");
    assert!(value.get("manager").is_none(), "{value}");
    assert_eq!(
        seldon_with(&harness, &["model", "list"]).ok(),
        "model\tstate\t\treason\n-----\t-----\t\t------\niris\tModelAvailable\t\n"
    );
    assert_eq!(
        seldon_with(&harness, &["server", "list"]).ok(),
        "server\treplicas\tmodels\n------\t--------\t------\nbuiltin\t1\t\t1\n"
    );
    let server: serde_json::Value =
        serde_json::from_str(&seldon_with(&harness, &["server", "status", "builtin"]).ok()).unwrap();
    assert_eq!(
        (&server["serverName"], &server["resources"][0]["totalMemoryBytes"]),
        (&"builtin".into(), &"1000000000".into())
    );
    assert_eq!(seldon_with(&harness, &["model", "unload", "iris", "--force", "-v"]).ok(), "{}\n");
    assert_eq!(seldon_with(&harness, &["model", "status", "iris", "-w", "ModelTerminated"]).ok(), "{}\n");
}

#[test]
fn show_request_and_show_response_flags() {
    let harness = Harness::new();
    harness.write("iris.yaml", &model("iris", "  storageUri: /m\n"));
    let output = seldon_with(&harness, &["model", "load", "-f", "iris.yaml", "-r", "-o=false"]).ok();
    assert_eq!(
        output,
        "{\"model\":{\"meta\":{\"name\":\"iris\"},\"modelSpec\":{\"uri\":\"/m\"},\"deploymentSpec\":{\"replicas\":1}}}\n"
    );
    assert_eq!(
        seldon_with(&harness, &["model", "status", "iris", "-w", "ModelAvailable", "--show-response=false"])
            .ok(),
        ""
    );
    let output = seldon_with(&harness, &["model", "unload", "iris", "--show-request"]).ok();
    assert_eq!(output, "{\"model\":{\"name\":\"iris\"}}\n{}\n");
}

#[test]
fn verbose_and_timeout_flags_are_accepted() {
    let harness = Harness::new();
    harness.write("iris.yaml", &model("iris", "  storageUri: /m\n"));
    harness.write("slow.yaml", &model("slow", "  storageUri: /slow\n"));
    assert_eq!(seldon_with(&harness, &["model", "load", "-f", "iris.yaml", "-v"]).ok(), "{}\n");
    seldon_with(&harness, &["load", "-f", "slow.yaml", "--verbose"]).ok();
    let wait = ["model", "status", "iris", "-w", "ModelAvailable", "-t", "60", "-v"];
    assert_eq!(seldon_with(&harness, &wait).ok(), "{}\n");
    for args in
        [&["model", "list", "-v"][..], &["server", "list", "-v"], &["server", "status", "builtin", "-v"]]
    {
        assert_ne!(seldon_with(&harness, args).ok(), "", "{args:?}");
    }
    for args in [
        &["model", "status", "slow", "-w", "ModelAvailable", "--timeout-secs", "1"][..],
        &["status", "-f", "slow.yaml", "-w", "-t", "1"],
    ] {
        let ran = seldon_with(&harness, args);
        assert!(ran.code == 255 && ran.stderr.contains("1s"), "{args:?} {ran:?}");
    }
}

#[test]
fn load_status_and_unload_of_a_manifest_with_many_objects() {
    let harness = Harness::new();
    let all = model("a", "  storageUri: /m\n")
        + "---\n"
        + &model("b", "  storageUri: /m\n")
        + "---\n"
        + &server("s", 1);
    harness.write("all.yaml", &all);
    assert_eq!(seldon_with(&harness, &["load", "-f", "all.yaml"]).ok(), "{}\n{}\n{}\n");
    harness.write(
        "models.yaml",
        &(model("a", "  storageUri: /m\n") + "---\n" + &model("b", "  storageUri: /m\n")),
    );
    assert_eq!(seldon_with(&harness, &["status", "-f", "models.yaml", "-w"]).ok(), "{}\n{}\n");
    assert_eq!(harness.gantry(&["status", "-f", "models.yaml", "-w"]).ok(), "{}\n{}\n");
    let statuses = harness.gantry(&["status", "-f", "all.yaml"]).ok();
    assert_eq!(statuses.lines().count(), 3, "{statuses}");
    let wrong = seldon_with(&harness, &["model", "load", "-f", "all.yaml"]);
    assert!(wrong.stderr.starts_with("Error: all.yaml:15: kind is Server"), "{wrong:?}");
    assert_eq!(seldon_with(&harness, &["unload", "-f", "all.yaml"]).ok(), "{}\n{}\n{}\n");
    harness.gantry(&["wait", "model", "a", "b", "--for=deleted"]).ok();
}

#[test]
fn errors_match_the_seldon_cli_format() {
    let harness = Harness::new();
    harness.write("typo.yaml", &model("iris", "  storagUri: /m\n"));
    harness.write("broken.yaml", &model("broken", "  storageUri: /broken\n"));
    harness.write(
        "p.yaml",
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec: {steps: []}\n",
    );
    harness.write(
        "x.yaml",
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Experiment\nmetadata: {name: x}\nspec: {mirror: {name: m, percent: 1}}\n",
    );
    seldon_with(&harness, &["model", "load", "-f", "broken.yaml"]).ok();
    for (args, code, message) in [
        (
            &["model", "load", "-f", "typo.yaml"][..],
            2,
            "Error: json: unknown field \"storagUri\"\n\
             typo.yaml:6: spec.storagUri is not a field of Model. Did you mean storageUri?\n",
        ),
        (&["model", "load", "-f", "none.yaml"], 2, "Error: none.yaml does not exist\n"),
        (&["model", "status", "missing"], 6, "Error: rpc error: code = FailedPrecondition desc = "),
        (&["model", "unload", "missing"], 6, "Error: rpc error: code = FailedPrecondition desc = "),
        (&["model", "status", "broken", "-w", "ModelAvailable"], 1, "Error: model/broken failed: "),
        (&["model", "status", "broken", "-w", "ModelAvailabel"], 2, "Error: --wait: "),
        (
            &["pipeline", "status", "p"],
            6,
            "Error: rpc error: code = FailedPrecondition desc = pipeline p not found",
        ),
        (&["pipeline", "load", "-f", "p.yaml"], 2, "Error: p.yaml:4: spec.steps is empty"),
        (&["pipeline", "unload", "p"], 6, "Error: rpc error: code = FailedPrecondition desc = "),
        (
            &["pipeline", "load", "-f", "x.yaml"],
            2,
            "Error: x.yaml:1: kind is Experiment, but this command accepts Pipeline",
        ),
        (&["pipeline", "inspect", "p.a.b"], 2, "Error: \"p.a.b\" is not PIPELINE[.STEP"),
        (&["experiment", "stop", "x"], 6, "Error: rpc error: code = FailedPrecondition desc = "),
        (&["experiment", "status", "x"], 6, "Error: rpc error: code = FailedPrecondition desc = "),
        (&["experiment", "status", "x", "-w"], 3, "Error: experiment/x not found"),
        (
            &["model", "list", "--scheduler-host", "127.0.0.1:1"],
            4,
            "Error: rpc error: code = Unavailable desc = no scheduler at 127.0.0.1:1",
        ),
        (&["model", "status", "iris", "--scheduler-host", "a b"], 2, "Error: --scheduler"),
    ] {
        let as_gantry = harness.gantry(args);
        assert_eq!((as_gantry.code, as_gantry.stdout.as_str()), (code, ""), "{args:?} {as_gantry:?}");
        assert!(as_gantry.stderr.starts_with(message), "{args:?} {as_gantry:?}");
        // Started as `seldon`, every failure exits with 255.
        let as_seldon = seldon_with(&harness, args);
        assert_eq!((as_seldon.code, as_seldon.stderr), (255, as_gantry.stderr), "{args:?}");
    }
    let inspect = harness.gantry(&["pipeline", "inspect", "p", "--offset", "1"]);
    assert_eq!(inspect.code, 4);
    assert!(inspect.stderr.starts_with("Error: no admin endpoint at 127.0.0.1:1"), "{inspect:?}");
    let unknown = seldon_with(&harness, &["model", "laod"]);
    assert_eq!(unknown.code, 255);
    assert!(unknown.stderr.starts_with("Error: unrecognized subcommand 'laod'"), "{unknown:?}");
    assert!(
        seldon_with(&harness, &["apply", "-f", "x.yaml"])
            .stderr
            .starts_with("Error: unrecognized subcommand")
    );
    assert!(seldon_with(&harness, &["--help"]).ok().contains("Load all objects of a manifest"));
}

#[test]
fn dash_reads_the_manifest_from_stdin() {
    let harness = Harness::new();
    let scheduler = harness.scheduler.to_string();
    let ran = gantry_with(
        &["--scheduler", &scheduler, "model", "load", "-f", "-"],
        &model("iris", "  storageUri: /m\n"),
    );
    assert_eq!(ran.ok(), "{}\n");
}

#[test]
fn infer_over_rest() {
    let gateway = FakeGateway::rest();
    let home = tempfile::tempdir().unwrap();
    let infer = |args: &[&str]| {
        let mut command = seldon(home.path(), &["model", "infer"]);
        finish(command.args(args).env("SELDON_INFER_HOST", &gateway.address))
    };
    let indented = "{\n\t\"inputs\": [\n\t\t{\n\t\t\t\"name\": \"X\",\n\t\t\t\"shape\": [\n\t\t\t\t1,\n\t\t\t\t2\n\t\t\t],\n\
                    \t\t\t\"datatype\": \"FP32\",\n\t\t\t\"data\": [\n\t\t\t\t1.50,\n\t\t\t\t2\n\t\t\t]\n\t\t}\n\t]\n}\n";
    assert_eq!(infer(&["iris", REQUEST]).ok(), indented);
    std::fs::write(home.path().join("request.json"), REQUEST).unwrap();
    assert_eq!(infer(&["iris", "-f", "request.json"]).ok(), indented);
    assert_eq!(infer(&["iris", REQUEST, "-o=false"]).ok(), "");
    assert_eq!(infer(&["iris", REQUEST, "-r", "-o=false"]).ok(), indented, "the request is indented, too");
    assert_eq!(infer(&["iris", REQUEST, "-i", "57"]).ok(), "Success: map[:iris_1::57]\n");
    assert!(infer(&["iris", REQUEST, "-t", "1"]).ok().starts_with("Success: map[:iris_1::"));
    let shown =
        infer(&["iris", REQUEST, "--show-headers", "--header", "x-one=1", "--authority", "mesh.local"]).ok();
    let head = "> POST /v2/models/iris/infer HTTP/1.1\n> Host: mesh.local\n> Content-Type:[application/json]\n\
                > Seldon-Model:[iris]\n> X-One:[1]\n\n";
    assert!(shown.starts_with(head), "{shown}");
    assert!(shown.contains("\n< X-Seldon-Route:[:iris_1:]\n") && shown.ends_with(indented), "{shown}");
    // A sticky session reuses the route of the last response.
    let kept = std::fs::read_to_string(home.path().join(".config/seldon/cli/session")).unwrap();
    assert_eq!(kept, ":iris_1:");
    let sticky = infer(&["iris", REQUEST, "--show-headers", "-s"]).ok();
    assert!(sticky.contains("\n> X-Seldon-Route:[:iris_1:]\n"), "{sticky}");
    for (args, message) in [
        (
            &["bad", REQUEST][..],
            "Error: V2 server error: 400 {\"error\":\"input X: shape [1,4] needs 4 values, got 3\"}\n",
        ),
        (&["text", REQUEST], "Error: V2 server error: 500 plain text\n"),
        (&["iris", REQUEST, "-i", "2", "--header", "x-fail=1"], "Error: V2 server error: 503 "),
        (&["iris"], "Error: request missing"),
        (&["iris", REQUEST, "--inference-host", "127.0.0.1:1"], "Error: no gateway at 127.0.0.1:1"),
        (&["a/b", REQUEST], "Error: name "),
    ] {
        let ran = infer(args);
        assert!(ran.code == 255 && ran.stderr.starts_with(message), "{args:?} {ran:?}");
    }
    let mut metadata = seldon(home.path(), &["model", "metadata", "iris"]);
    let metadata = finish(metadata.env("SELDON_INFER_HOST", &gateway.address)).ok();
    assert!(metadata.starts_with("{\n\t\"name\": \"iris\",\n\t\"platform\": \"onnx\""), "{metadata}");
}

#[test]
fn infer_over_grpc() {
    let gateway = FakeGateway::grpc();
    let home = tempfile::tempdir().unwrap();
    let infer = |args: &[&str]| {
        let mut command = seldon(home.path(), &["model", "infer", "--inference-mode", "grpc"]);
        finish(command.args(args).env("SELDON_INFER_HOST", &gateway.address))
    };
    let response = infer(&["iris", MESSAGE]).ok();
    let response: serde_json::Value = serde_json::from_str(&response).unwrap();
    assert_eq!(response["outputs"][0]["contents"]["fp32Contents"], serde_json::json!([1.0, 2.0]));
    let shown = infer(&["iris", MESSAGE, "--show-headers"]).ok();
    let head = format!(
        "> /inference.GRPCInferenceService/ModelInfer HTTP/2\n> Host: {}\n> seldon-model:[iris]\n\n",
        gateway.address
    );
    assert!(shown.starts_with(&head), "{shown}");
    assert!(infer(&["iris", MESSAGE, "-i", "3"]).ok().starts_with("Success: map["));
    for (text, message) in [
        ("{\"inputs\":[]}", "Error: rpc error: code = InvalidArgument desc = one input is needed\n"),
        ("{\"input\":[]}", "Error: proto: "),
        ("no", "Error: proto: "),
    ] {
        let ran = infer(&["iris", text]);
        assert!(ran.code == 255 && ran.stderr.starts_with(message), "{text} {ran:?}");
    }
}

#[test]
fn config_selects_addresses_and_tls() {
    let harness = Harness::new();
    let gateway = FakeGateway::rest();
    let home = harness.dir.path();
    let run = |args: &[&str]| finish(&mut seldon(home, args));
    harness.write(
        "local.json",
        &format!(
            "{{\"controlplane\":{{\"schedulerHost\":\"{}\"}},\"dataplane\":{{\"inferHost\":\"{}\"}},\"kafka\":{{\"bootstrap\":\"k:1\"}}}}\n",
            harness.scheduler, gateway.address
        ),
    );
    harness.write("tls.json", "{\"controlplane\":{\"schedulerHost\":\"s:9044\",\"tls\":true}}");
    harness.write("broken.json", "{");
    assert_eq!(run(&["config", "list"]).ok(), "config\tpath\tactive\n------\t----\t------\n");
    assert_eq!(run(&["config", "add", "local", "local.json"]).ok(), "");
    assert_eq!(run(&["config", "add", "tls", "tls.json"]).ok(), "");
    assert!(run(&["config", "add", "broken", "broken.json"]).stderr.starts_with("Error: broken.json: "));
    run(&["config", "activate", "local"]).ok();
    let listed = run(&["config", "list"]).ok();
    let path = std::path::absolute(home.join("local.json")).unwrap();
    let row = listed.lines().find(|l| l.starts_with("local")).unwrap();
    assert_eq!(
        row.split('\t').filter(|c| !c.is_empty()).collect::<Vec<_>>(),
        ["local", path.to_str().unwrap(), "*"]
    );
    assert!(run(&["config", "list", "local"]).ok().contains("\"bootstrap\":\"k:1\""));
    // Flag before configuration before environment variable.
    let mut listing = seldon(home, &["server", "list"]);
    let found = finish(listing.env("SELDON_SCHEDULE_HOST", "127.0.0.1:1")).ok();
    assert!(found.contains("builtin"), "{found}");
    assert!(run(&["model", "infer", "iris", REQUEST]).ok().contains("1.50"));
    assert_eq!(run(&["server", "list", "--scheduler-host", "127.0.0.1:1"]).code, 255);
    run(&["config", "activate", "tls"]).ok();
    assert!(run(&["model", "list"]).stderr.contains("without caPath"), "must not fall back to plaintext");
    run(&["config", "deactivate", "tls"]).ok();
    assert!(!run(&["config", "list"]).ok().contains('*'));
    run(&["config", "remove", "tls"]).ok();
    let gone = run(&["config", "activate", "locla"]);
    assert_eq!(gone.stderr, "Error: configuration locla not found. Did you mean local?\n");
}
