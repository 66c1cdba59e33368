//! Runs the commands in `README.md` and in pages of `docs` against `gantry up` with the examples that they name.

use crate::harness::command;
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Examples with these strings may print nothing.
const SILENT: [&str; 6] =
    [" lint ", " state ", " --ignore-not-found", " logs server/", " diff ", " --input "];

/// `gantry up` on free ports, stopped on drop.
struct Up {
    child: Child,
    /// Environment variables with its addresses.
    variables: Vec<(&'static str, String)>,
    state: tempfile::TempDir,
    /// Home directory with the `seldon` symlink.
    home: tempfile::TempDir,
}

impl Up {
    fn start(examples: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut up = command(&["up", examples, "--no-watch", "--state-dir"]);
        up.arg(state.path()).current_dir(root()).stdout(Stdio::piped()).stderr(Stdio::null());
        for port in ["--inference-port", "--admin-port", "--scheduler-port", "--agent-port"] {
            up.args([port, "0"]);
        }
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gantry"), home.path().join("seldon")).unwrap();
        let mut up = Self { child: up.spawn().unwrap(), variables: Vec::new(), state, home };
        let mut lines = BufReader::new(up.child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let ready = lines.by_ref().any(|line| {
            let mut columns = line.split_whitespace();
            if let (Some(name), Some(address)) = (columns.next(), columns.next()) {
                let variable = match name {
                    "inference" => Some("GANTRY_INFERENCE"),
                    "scheduler" => Some("GANTRY_SCHEDULER"),
                    "admin" => Some("GANTRY_ADMIN"),
                    _ => None,
                };
                up.variables.extend(variable.map(|v| (v, address.to_owned())));
            }
            line.starts_with("Ready in")
        });
        assert!(ready && up.variables.len() == 3, "{:?}", up.variables);
        // The Seldon CLI only reads its own variables.
        for (gantry, seldon) in
            [("GANTRY_INFERENCE", "SELDON_INFER_HOST"), ("GANTRY_SCHEDULER", "SELDON_SCHEDULE_HOST")]
        {
            let address = up.variables.iter().find(|(name, _)| *name == gantry).unwrap().1.clone();
            up.variables.push((seldon, address));
        }
        up
    }

    /// `HOST:PORT` of a variable.
    fn address(&self, variable: &str) -> &str {
        let (_, address) = self.variables.iter().find(|(name, _)| *name == variable).unwrap();
        address.trim_start_matches("http://")
    }

    /// A shell with that environment.
    fn shell(&self, shell: &str, script: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_gantry")).parent().unwrap();
        let others = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{others}", binary.display(), self.home.path().display());
        let mut command = Command::new(shell);
        command
            .args(["-c", script])
            .current_dir(root())
            .env("PATH", path)
            .env("HOME", self.home.path())
            .env("GANTRY_STATE_DIR", self.state.path())
            .envs(self.variables.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn examples_work_as_written() {
    assert!(run_examples("examples/quickstart", &["docs/seldon-cli.md", "docs/cli.md"]) >= 30);
}

#[test]
fn examples_of_pipelines_and_experiments_work_as_written() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("SKIPPED: the examples need curl, which is not on this machine");
        return;
    }
    assert!(run_examples("examples/pipelines", &["docs/pipelines.md"]) >= 8);
    assert!(run_examples("examples/experiments", &["docs/experiments.md"]) >= 8);
}

#[test]
fn examples_of_rollouts_work_as_written() {
    assert!(run_examples("examples/rollouts", &["docs/rollouts.md"]) >= 6);
}

/// Runs the commands of these pages and returns their number.
fn run_examples(served: &str, pages: &[&str]) -> usize {
    let up = Up::start(served);
    let texts: Vec<String> =
        pages.iter().map(|page| std::fs::read_to_string(root().join(page)).unwrap()).collect();
    let examples: Vec<&str> =
        texts.iter().flat_map(|t| t.lines()).filter_map(|l| l.strip_prefix("$ ")).collect();
    for example in &examples {
        let example = example.replace("127.0.0.1:9000", up.address("GANTRY_INFERENCE"));
        let output = up.shell("sh", &example).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {stderr}");
        let silent = SILENT.iter().any(|s| example.contains(s));
        assert!(!output.stdout.is_empty() || silent, "{example} printed nothing");
    }
    examples.len()
}

/// A shell block and its documented output, if any.
struct Block<'a> {
    script: &'a str,
    output: Option<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for fenced in text.split("\n```").skip(1).step_by(2) {
        let (language, content) = fenced.split_once('\n').unwrap();
        match language {
            "sh" => blocks.push(Block { script: content, output: None }),
            "text" => blocks.last_mut().expect("output follows a script").output = Some(content),
            other => panic!("unsupported block language {other}"),
        }
    }
    blocks
}

/// Runs the whole tour in one shell with the ports, the binary and the file in `/tmp` replaced.
#[test]
fn readme_tour_works_as_written() {
    let missing = |tool: &&str| Command::new(tool).arg("--version").output().is_err();
    if let Some(tool) = ["bash", "curl"].iter().find(|tool| missing(tool)) {
        println!("SKIPPED: the tour of the README needs {tool}, which is not on this machine");
        return;
    }
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains("\ncargo run --release -- up examples/quickstart\n"), "the tour starts with it");
    let (_, tour) = readme.split_once("\n## Five minutes\n").unwrap();
    let (tour, _) = tour.split_once("\n## ").unwrap();
    let blocks = blocks(tour);
    assert!(blocks.len() >= 6 && blocks.iter().any(|block| block.output.is_some()), "{}", blocks.len());

    let up = Up::start("examples/quickstart");
    let dir = tempfile::tempdir().unwrap();
    let print = |n: usize| dir.path().join(format!("{n}"));
    // Scripts do not expand aliases by default.
    let mut script = "shopt -s expand_aliases\n".to_owned();
    for (n, block) in blocks.iter().enumerate() {
        // Blocks with output show a rejected command.
        let errexit = if block.output.is_some() { "+e" } else { "-e" };
        script += &format!("exec >'{}' 2>&1\nset {errexit}\n{}\n", print(n).display(), block.script);
    }
    let file = dir.path().join("shop.yaml");
    for (documented, actual) in [
        ("127.0.0.1:9000", up.address("GANTRY_INFERENCE")),
        ("127.0.0.1:9003", up.address("GANTRY_ADMIN")),
        ("$PWD/target/release/gantry", env!("CARGO_BIN_EXE_gantry")),
        ("/tmp/shop.yaml", file.to_str().unwrap()),
    ] {
        assert!(script.contains(documented), "the tour does not contain {documented}");
        script = script.replace(documented, actual);
    }
    let status = up.shell("bash", &script).status().unwrap();
    let printed = |n: usize| std::fs::read_to_string(print(n)).unwrap_or_else(|_| "not reached".into());
    let mut all = String::new();
    for (n, block) in blocks.iter().enumerate() {
        all += &format!("── {}\n{}\n", block.script, printed(n));
    }
    assert!(status.success(), "{all}");
    for (n, block) in blocks.iter().enumerate() {
        match block.output {
            Some(output) => assert_eq!(printed(n).trim_end(), output.trim_end(), "after {}", block.script),
            None => assert!(
                block.script.starts_with("alias ") || !printed(n).is_empty(),
                "{} printed nothing",
                block.script
            ),
        }
    }
    for (part, expected) in [
        ("curl 127.0.0.1:9000", "\"outputs\""),
        ("grep seldon_model_infer_total", "seldon_model_infer_total{"),
    ] {
        let n = blocks.iter().position(|block| block.script.contains(part)).unwrap();
        assert!(printed(n).contains(expected), "{all}");
    }
}
