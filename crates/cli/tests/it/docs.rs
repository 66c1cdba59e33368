//! Every example of `docs/cli.md`, against `gantry up examples/quickstart`, as it is written there.

use crate::world::command;
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

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
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let text = std::fs::read_to_string(root.join("docs/cli.md")).unwrap();
    let examples: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("$ ")).collect();
    assert!(examples.len() >= 20, "{examples:?}");
    for example in examples {
        let output = Command::new("sh")
            .args(["-c", example])
            .current_dir(&root)
            .env("PATH", &path)
            .envs(variables.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {stderr}");
        assert!(!output.stdout.is_empty() || example.contains(" lint "), "{example} printed nothing");
    }
}
