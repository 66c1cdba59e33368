//! `gantry pipeline inspect` and `gantry top` with the gateway of `gantry up`.

use super::process::{Process, infer};
use crate::harness::finish;
use std::{fs, path::Path, process::Command};

fn pipeline(name: &str, annotations: &str) -> String {
    format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Pipeline\nmetadata:\n  name: {name}\n  annotations: {{{annotations}}}\n\
         spec:\n  steps: [{{name: iris}}]\n  output: {{steps: [iris]}}\n---\n"
    )
}

#[test]
fn annotation_keeps_the_payloads_of_one_pipeline() {
    let (state, models) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let artifact = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris");
    let model = format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: iris}}\n\
         spec: {{storageUri: {}, requirements: [onnx]}}\n",
        artifact.display()
    );
    let manifests = pipeline("kept", "gantry.dev/keep-payloads: \"true\"") + &pipeline("plain", "") + &model;
    fs::write(models.path().join("all.yaml"), manifests).unwrap();
    let mut args = vec!["up".to_owned(), models.path().display().to_string(), "--no-watch".to_owned()];
    args.push(format!("--state-dir={}", state.path().display()));
    for port in ["inference", "admin", "scheduler", "agent"] {
        args.push(format!("--{port}-port=0"));
    }
    let up = Process::start_with(&args, &[]);
    up.wait_for_line("Ready in");
    let addresses = up.addresses();
    let admin = addresses["admin"].trim_start_matches("http://").to_owned();
    let gantry = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        finish(command.args(args).env("GANTRY_ADMIN", &admin)).ok()
    };
    for (name, kept) in [("kept", true), ("plain", false)] {
        let header = format!("seldon-model: {name}.pipeline\r\n");
        assert_eq!(infer(&addresses["inference"], &header).unwrap().0, 200);
        let rows = gantry(&["pipeline", "inspect", name]);
        let topics: Vec<&str> = rows.lines().filter_map(|row| row.split('\t').next()).collect();
        let expected = [
            format!("seldon.default.pipeline.{name}.inputs"),
            "seldon.default.model.iris.inputs".to_owned(),
            "seldon.default.model.iris.outputs".to_owned(),
            format!("seldon.default.pipeline.{name}.outputs"),
        ];
        assert_eq!(topics, expected, "{rows}");
        assert_eq!(rows.contains("5.1"), kept, "{rows}");
    }
    let top = gantry(&["top", "pipelines"]);
    let words: Vec<Vec<&str>> = top.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["PIPELINE", "REQ/S", "P50", "P99", "REQUESTS", "ERRORS"], "{top}");
    for name in ["kept", "plain"] {
        let row = words.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{top}"));
        assert_eq!(row[row.len() - 2..], ["1", "0"], "{top}");
    }
}
