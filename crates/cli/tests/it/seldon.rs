//! Seldon's dialect: `gantry model load`, and the same binary called `seldon`.

use crate::{
    infer::Plane,
    world::{Ran, World, command, finish, gantry_with, model, server, stable},
};
use std::{
    path::Path,
    process::{Command, Stdio},
};

const REQUEST: &str = r#"{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1.50,2]}]}"#;
const MESSAGE: &str = r#"{"model_name":"iris","inputs":[{"name":"X","contents":{"fp32_contents":[1,2]},"datatype":"FP32","shape":[1,2]}]}"#;

/// The binary under the name `seldon`, with a home of its own.
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

fn with(world: &World, args: &[&str]) -> Ran {
    finish(seldon(world.dir.path(), args).env("SELDON_SCHEDULE_HOST", world.scheduler.to_string()))
}

#[test]
fn a_models_life() {
    let world = World::new();
    world.write(
        "iris.yaml",
        &model("iris", "  storageUri: gs://m/iris\n  requirements: [onnx]\n  memory: 100Ki\n"),
    );
    assert_eq!(with(&world, &["model", "load", "-f", "iris.yaml"]).ok(), "{}\n");
    assert_eq!(with(&world, &["model", "status", "iris", "-w", "ModelAvailable"]).ok(), "{}\n");
    let status = stable(&with(&world, &["model", "status", "iris"]).ok(), world.dir.path());
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
        with(&world, &["model", "list"]).ok(),
        "model\tstate\t\treason\n-----\t-----\t\t------\niris\tModelAvailable\t\n"
    );
    assert_eq!(
        with(&world, &["server", "list"]).ok(),
        "server\treplicas\tmodels\n------\t--------\t------\nbuiltin\t1\t\t1\n"
    );
    let server: serde_json::Value =
        serde_json::from_str(&with(&world, &["server", "status", "builtin"]).ok()).unwrap();
    assert_eq!(
        (&server["serverName"], &server["resources"][0]["totalMemoryBytes"]),
        (&"builtin".into(), &"1000000000".into())
    );
    assert_eq!(with(&world, &["model", "unload", "iris", "--force", "-v"]).ok(), "{}\n");
    assert_eq!(with(&world, &["model", "status", "iris", "-w", "ModelTerminated"]).ok(), "{}\n");
}

#[test]
fn what_is_shown_can_be_chosen() {
    let world = World::new();
    world.write("iris.yaml", &model("iris", "  storageUri: /m\n"));
    let shown = with(&world, &["model", "load", "-f", "iris.yaml", "-r", "-o=false"]).ok();
    assert_eq!(
        shown,
        "{\"model\":{\"meta\":{\"name\":\"iris\"},\"modelSpec\":{\"uri\":\"/m\"},\"deploymentSpec\":{\"replicas\":1}}}\n"
    );
    assert_eq!(
        with(&world, &["model", "status", "iris", "-w", "ModelAvailable", "--show-response=false"]).ok(),
        ""
    );
    let asked = with(&world, &["model", "unload", "iris", "--show-request"]).ok();
    assert_eq!(asked, "{\"model\":{\"name\":\"iris\"}}\n{}\n");
}

#[test]
fn files_with_many_objects() {
    let world = World::new();
    let all = model("a", "  storageUri: /m\n")
        + "---\n"
        + &model("b", "  storageUri: /m\n")
        + "---\n"
        + &server("s", 1);
    world.write("all.yaml", &all);
    assert_eq!(with(&world, &["load", "-f", "all.yaml"]).ok(), "{}\n{}\n{}\n");
    world.write(
        "models.yaml",
        &(model("a", "  storageUri: /m\n") + "---\n" + &model("b", "  storageUri: /m\n")),
    );
    assert_eq!(with(&world, &["status", "-f", "models.yaml", "-w"]).ok(), "{}\n{}\n");
    assert_eq!(world.gantry(&["status", "-f", "models.yaml", "-w"]).ok(), "{}\n{}\n");
    let statuses = world.gantry(&["status", "-f", "all.yaml"]).ok();
    assert_eq!(statuses.lines().count(), 3, "{statuses}");
    let wrong = with(&world, &["model", "load", "-f", "all.yaml"]);
    assert!(wrong.stderr.starts_with("Error: all.yaml:15: kind is Server"), "{wrong:?}");
    assert_eq!(with(&world, &["unload", "-f", "all.yaml"]).ok(), "{}\n{}\n{}\n");
    world.gantry(&["wait", "model", "a", "b", "--for=deleted"]).ok();
}

#[test]
fn failures_have_the_known_shape_and_our_words() {
    let world = World::new();
    world.write("typo.yaml", &model("iris", "  storagUri: /m\n"));
    world.write("broken.yaml", &model("broken", "  storageUri: /broken\n"));
    world.write(
        "p.yaml",
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec: {}\n",
    );
    world.write(
        "x.yaml",
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Experiment\nmetadata: {name: x}\nspec: {}\n",
    );
    with(&world, &["model", "load", "-f", "broken.yaml"]).ok();
    let unimplemented = "Error: rpc error: code = Unimplemented desc = ";
    for (args, code, says) in [
        (
            &["model", "load", "-f", "typo.yaml"][..],
            2,
            "Error: json: unknown field \"storagUri\"\n\
             typo.yaml:6: spec.storagUri is not a field of Model. Did you mean storageUri?\n",
        ),
        (&["model", "load", "-f", "none.yaml"], 2, "Error: none.yaml does not exist\n"),
        (&["model", "status", "nobody"], 6, "Error: rpc error: code = FailedPrecondition desc = "),
        (&["model", "unload", "nobody"], 6, "Error: rpc error: code = FailedPrecondition desc = "),
        (&["model", "status", "broken", "-w", "ModelAvailable"], 1, "Error: model/broken failed: "),
        (&["model", "status", "broken", "-w", "ModelAvailabel"], 2, "Error: --wait: "),
        (&["pipeline", "list"], 6, unimplemented),
        (&["pipeline", "status", "p"], 6, unimplemented),
        (&["pipeline", "load", "-f", "p.yaml"], 6, unimplemented),
        (&["pipeline", "unload", "p"], 6, unimplemented),
        (&["pipeline", "load", "-f", "x.yaml"], 2, "Error: x.yaml: kind is \"Experiment\", not Pipeline"),
        (&["pipeline", "inspect", "p", "--offset", "1"], 1, "Error: pipeline inspect reads Kafka"),
        (&["experiment", "list"], 6, unimplemented),
        (&["experiment", "start", "-f", "x.yaml"], 6, unimplemented),
        (&["experiment", "stop", "x"], 6, unimplemented),
        (&["experiment", "status", "x", "-w"], 6, unimplemented),
        (
            &["model", "list", "--scheduler-host", "127.0.0.1:1"],
            4,
            "Error: rpc error: code = Unavailable desc = no scheduler answers at 127.0.0.1:1",
        ),
        (&["model", "status", "iris", "--scheduler-host", "a b"], 2, "Error: --scheduler"),
    ] {
        let ours = world.gantry(args);
        assert_eq!((ours.code, ours.stdout.as_str()), (code, ""), "{args:?} {ours:?}");
        assert!(ours.stderr.starts_with(says), "{args:?} {ours:?}");
        // Under its own name the dialect knows one code for all failures.
        let theirs = with(&world, args);
        assert_eq!((theirs.code, theirs.stderr), (1, ours.stderr), "{args:?}");
    }
    let unknown = with(&world, &["model", "laod"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.starts_with("Error: unrecognized subcommand 'laod'"), "{unknown:?}");
    assert!(with(&world, &["apply", "-f", "x.yaml"]).stderr.starts_with("Error: unrecognized subcommand"));
    assert!(with(&world, &["--help"]).ok().contains("Load everything in a manifest"));
}

#[test]
fn stdin_is_a_manifest_too() {
    let world = World::new();
    let scheduler = world.scheduler.to_string();
    let ran = gantry_with(
        &["--scheduler", &scheduler, "model", "load", "-f", "-"],
        &model("iris", "  storageUri: /m\n"),
    );
    assert_eq!(ran.ok(), "{}\n");
}

#[test]
fn asking_over_rest() {
    let plane = Plane::rest();
    let home = tempfile::tempdir().unwrap();
    let ask = |args: &[&str]| {
        let mut command = seldon(home.path(), &["model", "infer"]);
        finish(command.args(args).env("SELDON_INFER_HOST", &plane.address))
    };
    let indented = "{\n\t\"inputs\": [\n\t\t{\n\t\t\t\"name\": \"X\",\n\t\t\t\"shape\": [\n\t\t\t\t1,\n\t\t\t\t2\n\t\t\t],\n\
                    \t\t\t\"datatype\": \"FP32\",\n\t\t\t\"data\": [\n\t\t\t\t1.50,\n\t\t\t\t2\n\t\t\t]\n\t\t}\n\t]\n}\n";
    assert_eq!(ask(&["iris", REQUEST]).ok(), indented);
    std::fs::write(home.path().join("request.json"), REQUEST).unwrap();
    assert_eq!(ask(&["iris", "-f", "request.json"]).ok(), indented);
    assert_eq!(ask(&["iris", REQUEST, "-o=false"]).ok(), "");
    assert_eq!(ask(&["iris", REQUEST, "-i", "57"]).ok(), "Success: map[:iris_1::57]\n");
    assert!(ask(&["iris", REQUEST, "-t", "1"]).ok().starts_with("Success: map[:iris_1::"));
    let shown =
        ask(&["iris", REQUEST, "--show-headers", "--header", "x-one=1", "--authority", "mesh.local"]).ok();
    let head = "> POST /v2/models/iris/infer HTTP/1.1\n> Host: mesh.local\n> Content-Type:[application/json]\n\
                > Seldon-Model:[iris]\n> X-One:[1]\n\n";
    assert!(shown.starts_with(head), "{shown}");
    assert!(shown.contains("\n< X-Seldon-Route:[:iris_1:]\n") && shown.ends_with(indented), "{shown}");
    // The route of the last answer is the next one's, when that is asked for.
    let kept = std::fs::read_to_string(home.path().join(".config/seldon/cli/session")).unwrap();
    assert_eq!(kept, ":iris_1:");
    let sticky = ask(&["iris", REQUEST, "--show-headers", "-s"]).ok();
    assert!(sticky.contains("\n> X-Seldon-Route:[:iris_1:]\n"), "{sticky}");
    for (args, says) in [
        (
            &["bad", REQUEST][..],
            "Error: V2 server error: 400 {\"error\":\"input X: shape [1,4] needs 4 values, got 3\"}\n",
        ),
        (&["text", REQUEST], "Error: V2 server error: 500 plain words\n"),
        (&["iris", REQUEST, "-i", "2", "--header", "x-fail=1"], "Error: V2 server error: 503 "),
        (&["iris"], "Error: there is no request"),
        (&["iris", REQUEST, "--inference-host", "127.0.0.1:1"], "Error: no gateway answers at 127.0.0.1:1"),
        (&["a/b", REQUEST], "Error: name "),
    ] {
        let ran = ask(args);
        assert!(ran.code == 1 && ran.stderr.starts_with(says), "{args:?} {ran:?}");
    }
    let mut metadata = seldon(home.path(), &["model", "metadata", "iris"]);
    let metadata = finish(metadata.env("SELDON_INFER_HOST", &plane.address)).ok();
    assert!(metadata.starts_with("{\n\t\"name\": \"iris\",\n\t\"platform\": \"onnx\""), "{metadata}");
}

#[test]
fn asking_over_grpc() {
    let plane = Plane::grpc();
    let home = tempfile::tempdir().unwrap();
    let ask = |args: &[&str]| {
        let mut command = seldon(home.path(), &["model", "infer", "--inference-mode", "grpc"]);
        finish(command.args(args).env("SELDON_INFER_HOST", &plane.address))
    };
    let answer = ask(&["iris", MESSAGE]).ok();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["outputs"][0]["contents"]["fp32Contents"], serde_json::json!([1.0, 2.0]));
    let shown = ask(&["iris", MESSAGE, "--show-headers"]).ok();
    let head = format!(
        "> /inference.GRPCInferenceService/ModelInfer HTTP/2\n> Host: {}\n> seldon-model:[iris]\n\n",
        plane.address
    );
    assert!(shown.starts_with(&head), "{shown}");
    assert!(ask(&["iris", MESSAGE, "-i", "3"]).ok().starts_with("Success: map["));
    for (text, says) in [
        ("{\"inputs\":[]}", "Error: rpc error: code = InvalidArgument desc = one input is needed\n"),
        ("{\"input\":[]}", "Error: proto: "),
        ("no", "Error: proto: "),
    ] {
        let ran = ask(&["iris", text]);
        assert!(ran.code == 1 && ran.stderr.starts_with(says), "{text} {ran:?}");
    }
}

#[test]
fn configurations_say_where_things_are() {
    let world = World::new();
    let plane = Plane::rest();
    let home = world.dir.path();
    let say = |args: &[&str]| finish(&mut seldon(home, args));
    world.write(
        "local.json",
        &format!(
            "{{\"controlplane\":{{\"schedulerHost\":\"{}\"}},\"dataplane\":{{\"inferHost\":\"{}\"}},\"kafka\":{{\"bootstrap\":\"k:1\"}}}}\n",
            world.scheduler, plane.address
        ),
    );
    world.write("tls.json", "{\"controlplane\":{\"schedulerHost\":\"s:9044\",\"tls\":true}}");
    world.write("broken.json", "{");
    assert_eq!(say(&["config", "list"]).ok(), "config\tpath\tactive\n------\t----\t------\n");
    assert_eq!(say(&["config", "add", "local", "local.json"]).ok(), "");
    assert_eq!(say(&["config", "add", "tls", "tls.json"]).ok(), "");
    assert!(say(&["config", "add", "broken", "broken.json"]).stderr.starts_with("Error: broken.json: "));
    say(&["config", "activate", "local"]).ok();
    let listed = say(&["config", "list"]).ok();
    let path = std::path::absolute(home.join("local.json")).unwrap();
    let row = listed.lines().find(|l| l.starts_with("local")).unwrap();
    assert_eq!(
        row.split('\t').filter(|c| !c.is_empty()).collect::<Vec<_>>(),
        ["local", path.to_str().unwrap(), "*"]
    );
    assert!(say(&["config", "list", "local"]).ok().contains("\"bootstrap\":\"k:1\""));
    // The configuration counts before the variable, and a flag before both.
    let mut listing = seldon(home, &["server", "list"]);
    let found = finish(listing.env("SELDON_SCHEDULE_HOST", "127.0.0.1:1")).ok();
    assert!(found.contains("builtin"), "{found}");
    assert!(say(&["model", "infer", "iris", REQUEST]).ok().contains("1.50"));
    assert_eq!(say(&["server", "list", "--scheduler-host", "127.0.0.1:1"]).code, 1);
    say(&["config", "activate", "tls"]).ok();
    assert!(say(&["model", "list"]).stderr.contains("without a caPath"), "plain text is no substitute");
    say(&["config", "deactivate", "tls"]).ok();
    assert!(!say(&["config", "list"]).ok().contains('*'));
    say(&["config", "remove", "tls"]).ok();
    let gone = say(&["config", "activate", "locla"]);
    assert_eq!(gone.stderr, "Error: there is no configuration locla. Did you mean local?\n");
}
