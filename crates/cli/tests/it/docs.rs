//! Every example of `docs/cli.md` and `docs/seldon.md`, against `gantry up examples/quickstart`, as it is written there.

use crate::world::command;
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Examples with these words say nothing when all is well.
const SILENT: [&str; 2] = [" lint ", " --ignore-not-found"];

/// A process that ends with the test.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn examples_work_as_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let state = tempfile::tempdir().unwrap();
    let mut up = command(&["up", "examples/quickstart", "--no-watch", "--state-dir"]);
    up.arg(state.path()).current_dir(&root).stdout(Stdio::piped()).stderr(Stdio::null());
    for port in ["--inference-port", "--admin-port", "--scheduler-port", "--agent-port"] {
        up.args([port, "0"]);
    }
    let mut up = Up(up.spawn().unwrap());
    let mut variables = Vec::new();
    let mut lines = BufReader::new(up.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ready = lines.by_ref().any(|line| {
        let mut words = line.split_whitespace();
        if let (Some(what), Some(address)) = (words.next(), words.next()) {
            let variable = match what {
                "inference" => Some("GANTRY_INFERENCE"),
                "scheduler" => Some("GANTRY_SCHEDULER"),
                "admin" => Some("GANTRY_ADMIN"),
                _ => None,
            };
            variables.extend(variable.map(|v| (v, address.to_owned())));
        }
        line.starts_with("Ready in")
    });
    assert!(ready && variables.len() == 3, "{variables:?}");
    let binary = Path::new(env!("CARGO_BIN_EXE_gantry")).parent().unwrap();
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gantry"), home.path().join("seldon")).unwrap();
    let path = format!(
        "{}:{}:{}",
        binary.display(),
        home.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    // The dialect knows its own variables and not ours.
    let theirs = [("GANTRY_INFERENCE", "SELDON_INFER_HOST"), ("GANTRY_SCHEDULER", "SELDON_SCHEDULE_HOST")];
    for (ours, theirs) in theirs {
        let address = variables.iter().find(|(name, _)| *name == ours).unwrap().1.clone();
        variables.push((theirs, address));
    }
    let texts = ["docs/seldon.md", "docs/cli.md"].map(|f| std::fs::read_to_string(root.join(f)).unwrap());
    let examples: Vec<&str> =
        texts.iter().flat_map(|t| t.lines()).filter_map(|l| l.strip_prefix("$ ")).collect();
    assert!(examples.len() >= 30, "{examples:?}");
    for example in examples {
        let output = Command::new("sh")
            .args(["-c", example])
            .current_dir(&root)
            .env("PATH", &path)
            .env("HOME", home.path())
            .envs(variables.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {stderr}");
        assert!(
            !output.stdout.is_empty() || SILENT.iter().any(|s| example.contains(s)),
            "{example} printed nothing"
        );
    }
}
