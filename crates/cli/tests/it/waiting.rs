//! `wait` ends at the goal, at a failure or at the timeout.

use crate::harness::{Harness, model};
use std::process::Stdio;

#[test]
fn wait_ends_when_a_server_connects() {
    let harness = Harness::without_server();
    harness.write("iris.yaml", &model("iris", "  storageUri: /m\n"));
    harness.gantry(&["apply", "-f", "iris.yaml"]).ok();
    let waiting = harness
        .command(&["wait", "model/iris", "--for=ready", "--timeout", "30s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    harness.connect_agent("builtin");
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "model/iris ready\n");
    assert!(output.status.success());
}

#[test]
fn wait_ends_at_a_model_failure() {
    let harness = Harness::new();
    harness.write("broken.yaml", &model("broken", "  storageUri: /broken\n"));
    let ran = harness.gantry(&["apply", "-f", "broken.yaml", "--wait", "--timeout", "30s"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "model/broken created\n"));
    assert_eq!(ran.stderr, "model/broken failed: builtin-0: it is not a model\n");
    let again = harness.gantry(&["wait", "model/broken"]);
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(harness.gantry(&["wait", "model/broken", "--for=failed"]).ok(), "model/broken ModelFailed\n");
    let retried = harness.gantry(&["apply", "-f", "broken.yaml"]);
    assert_eq!(retried.stdout, "model/broken unchanged\n");
    assert_eq!(retried.stderr, "model/broken had failed; retrying\n");
}

#[test]
fn timeout_error_has_the_last_state_and_reason() {
    let harness = Harness::new();
    harness.write(
        "two.yaml",
        &(model("slow", "  storageUri: /slow\n")
            + "---\n"
            + &model("none", "  storageUri: /m\n  requirements: [tensorrt]\n")),
    );
    harness.gantry(&["apply", "-f", "two.yaml"]).ok();
    let ran = harness.gantry(&["wait", "model", "slow", "none", "--timeout", "200ms"]);
    assert_eq!(ran.code, 5);
    assert_eq!(
        ran.stderr,
        "model/none is not ready after 200ms; it is ScheduleFailed: no server offers tensorrt; builtin offers onnx\n\
         model/slow is not ready after 200ms; it is Progressing: loading version 1 on builtin\n"
    );
    // A timeout of 0 checks once.
    assert_eq!(harness.gantry(&["wait", "model/slow", "--timeout", "0"]).code, 5);
    assert_eq!(harness.gantry(&["wait", "server/builtin", "--timeout", "0"]).ok(), "server/builtin ready\n");
}

#[test]
fn deleted_includes_unknown_objects() {
    let harness = Harness::new();
    harness.serve("iris", "  storageUri: /m\n");
    harness.gantry(&["delete", "model/iris"]).ok();
    let ran = harness.gantry(&["wait", "model/iris", "model/never", "--for=deleted"]).ok();
    let mut lines: Vec<&str> = ran.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["model/iris deleted", "model/never deleted"]);
    let ready = harness.gantry(&["wait", "model/iris", "--for=ready"]);
    assert_eq!((ready.code, ready.stderr.as_str()), (3, "model/iris not found\n"));
}

#[test]
fn model_states_are_invalid_for_servers() {
    let harness = Harness::new();
    let ran = harness.gantry(&["wait", "server/builtin", "--for=ModelFailed"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("has no state ModelFailed"), "{ran:?}");
}
