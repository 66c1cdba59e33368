//! Pipelines and experiments in both dialects.

use crate::harness::{Harness, gantry_with, model, normalize, snapshot};

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: mlops.seldon.io/v1alpha1\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

fn pipeline(name: &str, steps: &str) -> String {
    object("Pipeline", name, &format!("  steps:\n{steps}"))
}

fn half() -> String {
    let candidates = "  - {name: tokenize, weight: 50}\n  - {name: classify, weight: 50}\n";
    object("Experiment", "half", &format!("  default: tokenize\n  candidates:\n{candidates}"))
}

/// Dependants come before what they need.
fn everything() -> String {
    let join = "  - name: tokenize\n  - name: classify\n    inputs: [tokenize.outputs.ids]\n    \
                triggers: [join.inputs]\n  output:\n    steps: [classify]\n";
    let artifact = "  storageUri: /m\n  requirements: [onnx]\n";
    [half(), pipeline("join", join), model("tokenize", artifact), model("classify", artifact)].join("---\n")
}

fn served() -> Harness {
    let harness = Harness::new();
    harness.write("all.yaml", &everything());
    let applied = harness.gantry(&["apply", "-f", "all.yaml", "--wait"]).ok();
    let mut ready: Vec<&str> = applied.lines().filter(|l| l.ends_with(" ready")).collect();
    ready.sort_unstable();
    let expected =
        ["experiment/half ready", "model/classify ready", "model/tokenize ready", "pipeline/join ready"];
    assert_eq!(ready, expected, "{applied}");
    harness
}

#[test]
fn objects_of_one_file_are_applied_in_the_order_of_their_needs() {
    let harness = served();
    let shown = |args: &[&str]| normalize(&harness.gantry(args).ok(), harness.dir.path());
    let mut text = String::new();
    for args in [
        &["get", "pipelines,experiments"][..],
        &["get", "pipeline/join", "-o", "wide"],
        &["get", "experiments", "-o", "wide"],
        &["get", "pipeline", "join", "-o", "yaml"],
        &["get", "experiment", "half", "-o", "yaml"],
        &["describe", "pipeline/join", "experiment/half"],
        &["status"],
        &["status", "pipeline/join", "experiment/half", "model/tokenize", "server/builtin"],
    ] {
        text += &format!("$ gantry {}\n{}\n", args.join(" "), shown(args));
    }
    snapshot("graphs", &text);
}

#[test]
fn annotation_of_payloads_is_applied_without_a_version() {
    let harness = served();
    let annotated = everything()
        .replace("  name: join\n", "  name: join\n  annotations: {gantry.dev/keep-payloads: \"true\"}\n");
    harness.write("annotated.yaml", &annotated);
    for (file, kept) in [("annotated.yaml", true), ("all.yaml", false)] {
        let diff = harness.gantry(&["diff", "-f", file]);
        assert!(diff.stdout.contains("pipeline/join") && diff.code == 1, "{diff:?}");
        let applied = harness.gantry(&["apply", "-f", file]).ok();
        assert!(applied.lines().any(|line| line == "pipeline/join configured"), "{applied}");
        assert_eq!(applied.lines().filter(|line| line.ends_with(" unchanged")).count(), 3, "{applied}");
        assert_eq!(harness.gantry(&["diff", "-f", file]).code, 0);
        let version = harness.gantry(&["get", "pipeline/join", "-o", "jsonpath={.status.version}"]).ok();
        assert_eq!(version, "1\n");
        let manifest = harness.gantry(&["get", "pipeline/join", "-o", "yaml"]).ok();
        assert_eq!(manifest.contains("gantry.dev/keep-payloads: \"true\""), kept, "{manifest}");
    }
}

#[test]
fn pipeline_has_versions_and_is_unchanged_by_the_same_manifest() {
    let harness = served();
    let again = harness.gantry(&["apply", "-f", "all.yaml"]).ok();
    assert_eq!(again.lines().filter(|l| l.ends_with(" unchanged")).count(), 4, "{again}");
    let diff = harness.gantry(&["diff", "-f", "all.yaml"]);
    assert_eq!((diff.code, diff.stderr.as_str()), (0, "Nothing would change.\n"), "{diff:?}");
    harness.write("join.yaml", &pipeline("join", "  - name: classify\n  output: {steps: [classify]}\n"));
    let diff = harness.gantry(&["diff", "-f", "join.yaml"]);
    assert!(diff.stdout.contains("pipeline/join") && diff.stdout.contains("steps changed"), "{diff:?}");
    assert_eq!(diff.code, 1);
    harness.gantry(&["apply", "-f", "join.yaml", "--wait"]).ok();
    let version = harness.gantry(&["get", "pipeline/join", "-o", "jsonpath={.status.version}"]).ok();
    assert_eq!(version, "2\n");
    let narrowed = half().replace("weight: 50}\n  - {name: classify", "weight: 90}\n  - {name: classify");
    harness.write("half.yaml", &narrowed);
    let diff = harness.gantry(&["diff", "-f", "half.yaml"]);
    assert!(
        diff.stdout.contains("experiment/half") && diff.stdout.contains("candidates changed"),
        "{diff:?}"
    );
    assert_eq!(harness.gantry(&["apply", "-f", "half.yaml"]).ok(), "experiment/half configured\n");
}

#[test]
fn deletion_and_unknown_names() {
    let harness = served();
    let deleted = harness.gantry(&["delete", "-f", "all.yaml", "--wait"]).ok();
    let kinds: Vec<&str> = deleted.lines().filter_map(|l| l.split('/').next()).collect();
    assert_eq!(kinds, ["experiment", "pipeline", "model", "model"], "{deleted}");
    let gone = harness.gantry(&["get", "pipelines,experiments"]);
    assert_eq!(gone.stderr, "No pipelines, no experiments.\n");
    harness.gantry(&["apply", "-f", "all.yaml", "--wait"]).ok();
    for (args, expected) in [
        (&["get", "pipeline/jion"][..], "pipeline/jion not found. Did you mean join?\n"),
        (&["describe", "experiment/hlaf"], "experiment/hlaf not found. Did you mean half?\n"),
        (&["delete", "pipeline", "joinn"], "pipeline/joinn not found. Did you mean join?\n"),
        (&["explain", "pipeline/joi"], "pipeline/joi not found. Did you mean join?\n"),
        (&["wait", "experiment/half2"], "experiment/half2 not found. Did you mean half?\n"),
        (&["status", "pipeline/jonn"], "pipeline/jonn not found. Did you mean join?\n"),
        (&["graph", "pipeline/joi"], "pipeline/joi not found. Did you mean join?\n"),
    ] {
        let ran = harness.gantry(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (3, expected), "{args:?}");
    }
    let logs = harness.gantry(&["logs", "pipeline/join"]);
    assert_eq!((logs.code, logs.stderr.as_str()), (2, "pipeline/join has no logs: name a model of it\n"));
}

#[test]
fn graph_draws_applied_pipelines_and_manifests() {
    let harness = served();
    for (form, start) in [("text", ""), ("mermaid", "flowchart"), ("svg", "<svg")] {
        let applied = harness.gantry(&["graph", "pipeline/join", "-o", form]).ok();
        assert!(applied.starts_with(start), "{applied}");
        assert!(applied.contains("tokenize") && applied.contains("classify"), "{applied}");
        assert_eq!(harness.gantry(&["graph", "-f", "all.yaml", "-o", form]).ok(), applied);
    }
    let model = harness.gantry(&["graph", "model/tokenize"]);
    assert_eq!((model.code, model.stderr.as_str()), (2, "model/tokenize has no graph: name a pipeline\n"));
    let none = gantry_with(&["graph", "-f", "-"], &half());
    assert_eq!(none.stderr, "the manifests contain no pipelines: nothing was drawn\n");
}

#[test]
fn missing_model_is_named_by_status_wait_and_explain() {
    let harness = Harness::new();
    harness.write("p.yaml", &pipeline("lonely", "  - name: absent\n  output: {steps: [absent]}\n"));
    assert_eq!(harness.gantry(&["apply", "-f", "p.yaml"]).ok(), "pipeline/lonely created\n");
    let waited = harness.gantry(&["wait", "pipeline/lonely", "--timeout", "0"]);
    assert!(waited.code == 5 && waited.stderr.contains("absent"), "{waited:?}");
    for args in [
        &["get", "pipelines"][..],
        &["status"],
        &["describe", "pipeline/lonely"],
        &["explain", "pipeline/lonely"],
    ] {
        let text = harness.gantry(args).ok();
        assert!(text.contains("absent"), "{args:?}: {text}");
    }
}

#[test]
fn seldon_dialect_loads_and_lists_pipelines_and_experiments() {
    let harness = Harness::new();
    let artifact = "  storageUri: /m\n  requirements: [onnx]\n";
    harness.serve("tokenize", artifact);
    harness.serve("classify", artifact);
    harness.write("p.yaml", &pipeline("join", "  - name: tokenize\n  output: {steps: [tokenize]}\n"));
    harness.write("e.yaml", &half());
    let run = |args: &[&str]| harness.gantry(args).ok();
    assert_eq!(run(&["pipeline", "load", "-f", "p.yaml"]), "{}\n");
    let status: serde_json::Value =
        serde_json::from_str(&run(&["pipeline", "status", "join", "-w", "PipelineReady"])).unwrap();
    assert_eq!(status["versions"][0]["state"]["status"], "PipelineReady");
    assert_eq!(status["versions"][0]["pipeline"]["steps"][0]["name"], "tokenize");
    assert_eq!(status["manager"], serde_json::Value::Null, "own fields are not printed");
    assert_eq!(
        run(&["pipeline", "list"]),
        "pipeline\tstate\t\treason\n--------\t-----\t\t------\njoin\t\tPipelineReady\tcreated pipeline\n"
    );
    assert_eq!(run(&["experiment", "start", "-f", "e.yaml"]), "{}\n");
    let status: serde_json::Value =
        serde_json::from_str(&run(&["experiment", "status", "half", "-w"])).unwrap();
    assert_eq!(
        (&status["active"], &status["statusDescription"]),
        (&true.into(), &"experiment active".into())
    );
    assert_eq!(run(&["experiment", "list"]), "experiment\tactive\n----------\t------\nhalf\t\ttrue\n");
    assert_eq!(run(&["experiment", "stop", "half"]), "{}\n");
    assert_eq!(run(&["pipeline", "unload", "join"]), "{}\n");
    run(&["wait", "pipeline/join", "experiment/half", "--for=deleted"]);
    assert_eq!(run(&["pipeline", "list"]).lines().count(), 2);
    assert_eq!(run(&["experiment", "list"]).lines().count(), 2);
    harness.write("all.yaml", &everything());
    assert_eq!(run(&["load", "-f", "all.yaml"]), "{}\n".repeat(4));
    run(&["status", "-f", "all.yaml", "-w"]);
    assert_eq!(run(&["unload", "-f", "all.yaml"]), "{}\n".repeat(4));
}

#[test]
fn convert_prints_manifests_and_lists_what_is_left() {
    let deployment = "apiVersion: machinelearning.seldon.io/v1\nkind: SeldonDeployment\nmetadata: {name: iris}\nspec:\n  \
        predictors:\n  - name: main\n    traffic: 90\n    graph: {name: m, implementation: SKLEARN_SERVER, modelUri: gs://b/1}\n  \
        - name: canary\n    traffic: 10\n    graph: {name: m, implementation: XGBOOST_SERVER, modelUri: gs://b/2}\n";
    let converted = gantry_with(&["convert", "-f", "-"], deployment);
    snapshot("convert", &converted.transcript());
    let linted = gantry_with(&["lint", "-"], &converted.stdout);
    assert_eq!((linted.code, linted.stderr.as_str()), (0, "ok: 3 objects in 1 file\n"));
    let linted = gantry_with(&["lint", "-"], deployment);
    assert_eq!(
        linted.stderr,
        "stdin:1: not checked: SeldonDeployment of machinelearning.seldon.io/v1; convert it: gantry convert -f -\n\
         ok: 0 objects in 1 file\n"
    );
    let applied = gantry_with(&["apply", "-f", "-", "--scheduler", "127.0.0.1:1"], deployment);
    assert!(
        applied.stderr.contains("is not handled by gantry: convert it: gantry convert -f -"),
        "{applied:?}"
    );
    let other = gantry_with(&["convert", "-f", "-"], &model("iris", "  storageUri: /m\n"));
    assert_eq!(other.stderr, "no SeldonDeployment of machinelearning.seldon.io found\n");
    let broken = gantry_with(&["convert", "-f", "-"], &deployment.replace("graph: {", "graph: 7 #"));
    assert_eq!(broken.code, 2);
    assert!(broken.stderr.ends_with("Nothing was converted.\n"), "{broken:?}");
}

#[test]
fn lint_checks_graphs_and_experiments_of_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
    write("a.yaml", &half());
    write("b.yaml", &half().replace("name: half", "name: other"));
    write("c.yaml", &pipeline("join", "  - name: a\n  - name: b\n    inputs: [aa]\n"));
    let mut command = crate::harness::command(&["lint", "."]);
    let ran = crate::harness::finish(command.current_dir(dir.path()));
    assert_eq!(
        ran.stdout,
        "./c.yaml:9: spec.steps[1].inputs[0] step b has input aa for step that does not exist: add step aa or \
         correct the name. Did you mean a?\n\
         ./b.yaml:1: spec.default \"tokenize\" is also the default of experiment half at ./a.yaml:1: it can be the \
         default of one experiment\n"
    );
}
