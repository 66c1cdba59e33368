//! Rollout policies and rollouts, with `gantry up` and with a scheduler.

use crate::{
    harness::{Harness, RunResult, command, finish, model, snapshot},
    roles::process::{Process, infer, wait_until},
};
use std::path::Path;

fn policy(name: &str, target: &str, strategy: &str) -> String {
    format!(
        "apiVersion: gantry.dev/v1alpha1\nkind: RolloutPolicy\nmetadata:\n  name: {name}\nspec:\n  {target}\n  \
         strategy: {strategy}\n"
    )
}

/// `gantry up` that watches a directory.
struct Up {
    process: Process,
    scheduler: String,
    inference: String,
}

impl Up {
    fn start(manifests: &Path, state: &Path) -> Self {
        let mut args = vec!["up".to_owned(), manifests.display().to_string()];
        args.extend(["--state-dir".to_owned(), state.display().to_string()]);
        for port in ["--inference-port", "--admin-port", "--scheduler-port", "--agent-port"] {
            args.extend([port.to_owned(), "0".to_owned()]);
        }
        let process = Process::start(&args);
        process.wait_for_line("Ready in");
        let addresses = process.addresses();
        let of = |name: &str| addresses.get(name).unwrap().clone();
        Self { scheduler: of("scheduler"), inference: of("inference"), process }
    }

    fn rollout(&self, args: &[&str]) -> RunResult {
        let args: Vec<&str> = std::iter::once("rollout").chain(args.iter().copied()).collect();
        finish(command(&args).env("GANTRY_SCHEDULER", &self.scheduler))
    }

    fn wait_for_status(&self, sentence: &str) {
        let mut last = String::new();
        let reached = || {
            let result = self.rollout(&["status", "iris"]);
            last = result.stdout + &result.stderr;
            last.starts_with(sentence)
        };
        wait_until(sentence, reached);
    }
}

#[test]
fn model_under_a_policy_is_rolled_out_promoted_and_undone() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("models");
    std::fs::create_dir(&manifests).unwrap();
    let artifact = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris");
    let spec = format!("  storageUri: {}\n  requirements: [onnx]\n", artifact.display());
    let (file, policy_file) = (manifests.join("iris.yaml"), manifests.join("policy.yaml"));
    std::fs::write(&file, model("iris", &spec)).unwrap();
    std::fs::write(manifests.join("plain.yaml"), model("plain", &spec)).unwrap();
    let strategy = "{canary: {steps: [{weight: 50, hold: 1h}]}}";
    std::fs::write(&policy_file, policy("careful", "targetRef: {kind: Model, name: iris}", strategy))
        .unwrap();
    let up = Up::start(&manifests, &dir.path().join("state"));

    up.wait_for_status("iris runs version 1: no rollout is in progress.");
    for (args, code, message) in [
        (&["status", "irsi"][..], 3, "model/irsi not found. Did you mean iris?"),
        (&["status", "plain"], 3, "model/plain has no rollout policy: apply a RolloutPolicy with targetRef"),
        (&["promote", "iris"], 6, "is not in progress: a new version starts the next one"),
        (&["status", "pipeline/x"], 3, "pipeline/x not found"),
        (
            &["status", "server/x"],
            2,
            "server/x has no rollouts: name a model, a pipeline or an InferenceService",
        ),
    ] {
        let result = up.rollout(args);
        assert!(result.code == code && result.stderr.contains(message), "{args:?}: {result:?}");
    }

    let changed = format!("{spec}  parameters: [{{name: build, value: \"2\"}}]\n");
    std::fs::write(&file, model("iris", &changed)).unwrap();
    up.wait_for_status("iris is at 50 % on version 2 (step 1 of 1): ");
    // Requests reach both versions, and the statistics of the gateway reach the scheduler.
    wait_until("requests of both versions", || {
        assert_eq!(infer(&up.inference, "").unwrap().0, 200);
        let status = up.rollout(&["status", "iris", "-o", "json"]).ok();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        ["stable", "candidate"].iter().all(|side| status[side]["requests"].as_u64() > Some(0))
    });
    let page = up.rollout(&["status", "iris"]).ok();
    assert!(page.contains(" answers good (100.00 %, needs 99.00 %), "), "{page}");
    assert!(page.contains("\n  next     gantry rollout watch iris\n"), "{page}");

    assert_eq!(up.rollout(&["pause", "iris"]).ok(), "iris holds the weights of version 2\n");
    up.wait_for_status("iris is paused at 50 % on version 2");
    assert_eq!(up.rollout(&["resume", "iris"]).ok(), "iris continues with version 2\n");
    up.wait_for_status("iris is at 50 % on version 2");
    let promoted = up.rollout(&["promote", "iris", "--full"]).ok();
    assert_eq!(promoted, "iris promotes version 2 without further steps\n");
    up.wait_for_status("iris bakes version 2, the version before it stays loaded: ");
    let undone = up.rollout(&["undo", "iris"]).ok();
    assert_eq!(undone, "iris returns from version 2 to the version before it\n");
    up.wait_for_status("iris was returned to version 1: ");
    let history = up.rollout(&["history", "iris"]).ok();
    let outcomes: Vec<&str> = history.lines().skip(1).filter_map(|l| l.split_whitespace().nth(3)).collect();
    assert_eq!(outcomes, ["RolledBack", "Promoted", "Deployed"], "{history}");
    assert_eq!(infer(&up.inference, "").unwrap().0, 200);

    std::fs::remove_file(&policy_file).unwrap();
    up.process.wait_for_line("rolloutpolicy/careful removed");
    wait_until("no rollout", || up.rollout(&["status", "iris"]).code == 3);
}

#[test]
fn policies_are_applied_listed_compared_and_deleted() {
    let harness = Harness::new();
    let selector = "selector: {kind: Model, matchLabels: {team: a}}";
    let both = format!(
        "{}---\n{}",
        model("iris", "  storageUri: /m/iris\n").replace("name: iris", "name: iris\n  labels: {team: a}"),
        policy("careful", selector, "{canary: {steps: [{weight: 5}, {weight: 50, approval: true}]}}")
    );
    harness.write("both.yaml", &both);
    harness.write("alone.yaml", &policy("careful", selector, "{blueGreen: {}}"));
    let mut text = String::new();
    for args in [
        &["apply", "-f", "both.yaml", "--wait"][..],
        &["apply", "-f", "both.yaml"],
        &["apply", "-f", "alone.yaml"],
        &["lint", "both.yaml"],
        &["lint", "alone.yaml"],
        &["get", "rolloutpolicies", "-o", "wide"],
        &["get", "rp", "careful", "-o", "yaml"],
        &["describe", "rolloutpolicy/careful"],
        &["diff", "-f", "both.yaml"],
        &["rollout", "list"],
        &["delete", "rolloutpolicy", "careful"],
        &["delete", "rolloutpolicy", "careful"],
        &["get", "rp"],
        &["rollout", "status", "iris"],
    ] {
        text += &format!("$ gantry {}\n{}\n\n", args.join(" "), harness.gantry(args).transcript());
    }
    snapshot("rollout-policies", &text);
}

#[test]
fn simulate_prints_outcomes_and_refuses_what_it_cannot_read() {
    let harness = Harness::without_server();
    let target = "targetRef: {kind: Model, name: iris}";
    harness.write("careful.yaml", &policy("careful", target, "{canary: {steps: [{weight: 20}]}}"));
    harness.write("iris.yaml", &model("iris", "  storageUri: /m\n"));
    let run = |args: &[&str]| {
        let all: Vec<&str> =
            ["rollout", "simulate", "--rate", "200", "--runs", "5"].iter().chain(args).copied().collect();
        harness.gantry(&all)
    };
    let bad = run(&["-f", "careful.yaml", "--success", "0.5"]).ok();
    assert!(
        bad.starts_with("Of 5 simulated rollouts by careful: 5 rolled back (HigherFailureRatio) (100.0 %)."),
        "{bad}"
    );
    assert_eq!(run(&["-f", "careful.yaml", "--success", "0.5"]).ok(), bad, "the same seed");
    let json = run(&["-f", "careful.yaml", "--success", "0.5", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["outcomes"][0]["runs"], 5, "{json}");
    for (args, message) in [
        (&["-f", "iris.yaml", "--success", "1"][..], "iris.yaml has no RolloutPolicy: add one"),
        (&["-f", "careful.yaml", "--success", "97"], "write a share between 0 and 1, such as 0.97"),
    ] {
        let result = run(args);
        assert!(result.code == 2 && result.stderr.contains(message), "{result:?}");
    }
}
