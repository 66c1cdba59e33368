//! `wait` ends when it should: at the goal, at a failure, at the deadline.

use crate::world::{World, model};
use std::process::Stdio;

#[test]
fn a_wait_ends_when_the_server_comes() {
    let world = World::without_server();
    world.write("iris.yaml", &model("iris", "  storageUri: /m\n"));
    world.gantry(&["apply", "-f", "iris.yaml"]).ok();
    let waiting = world
        .command(&["wait", "model/iris", "--for=ready", "--timeout", "30s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    world.join("builtin");
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "model/iris ready\n");
    assert!(output.status.success());
}

#[test]
fn a_model_that_fails_ends_the_wait_at_once() {
    let world = World::new();
    world.write("broken.yaml", &model("broken", "  storageUri: /broken\n"));
    let ran = world.gantry(&["apply", "-f", "broken.yaml", "--wait", "--timeout", "30s"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "model/broken created\n"));
    assert_eq!(ran.stderr, "model/broken failed: builtin-0: it is not a model\n");
    let again = world.gantry(&["wait", "model/broken"]);
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(world.gantry(&["wait", "model/broken", "--for=failed"]).ok(), "model/broken ModelFailed\n");
    let retried = world.gantry(&["apply", "-f", "broken.yaml"]);
    assert_eq!(retried.stdout, "model/broken unchanged\n");
    assert_eq!(retried.stderr, "model/broken had failed; it is tried again\n");
}

#[test]
fn a_deadline_names_the_last_state_and_its_reason() {
    let world = World::new();
    world.write(
        "two.yaml",
        &(model("slow", "  storageUri: /slow\n")
            + "---\n"
            + &model("none", "  storageUri: /m\n  requirements: [tensorrt]\n")),
    );
    world.gantry(&["apply", "-f", "two.yaml"]).ok();
    let ran = world.gantry(&["wait", "model", "slow", "none", "--timeout", "200ms"]);
    assert_eq!(ran.code, 5);
    assert_eq!(
        ran.stderr,
        "model/none is not ready after 200ms; it is ScheduleFailed: no server offers tensorrt; builtin offers onnx\n\
         model/slow is not ready after 200ms; it is Progressing: loading version 1 on builtin\n"
    );
    // A timeout of nothing looks once.
    assert_eq!(world.gantry(&["wait", "model/slow", "--timeout", "0"]).code, 5);
    assert_eq!(world.gantry(&["wait", "server/builtin", "--timeout", "0"]).ok(), "server/builtin ready\n");
}

#[test]
fn deleted_is_reached_by_what_is_gone_and_by_what_never_was() {
    let world = World::new();
    world.serve("iris", "  storageUri: /m\n");
    world.gantry(&["delete", "model/iris"]).ok();
    let ran = world.gantry(&["wait", "model/iris", "model/never", "--for=deleted"]).ok();
    let mut lines: Vec<&str> = ran.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["model/iris deleted", "model/never deleted"]);
    let ready = world.gantry(&["wait", "model/iris", "--for=ready"]);
    assert_eq!((ready.code, ready.stderr.as_str()), (3, "model/iris is not known\n"));
}

#[test]
fn servers_are_ready_or_deleted_and_nothing_else() {
    let world = World::new();
    let ran = world.gantry(&["wait", "server/builtin", "--for=ModelFailed"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("servers have no states"), "{ran:?}");
}
