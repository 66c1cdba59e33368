//! What people paste from `README.md`, `docs/cli.md` and `docs/seldon.md`, against `gantry up examples/quickstart`, as it
//! is written there.

use crate::world::command;
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Examples with these words say nothing when all is well.
const SILENT: [&str; 5] = [" lint ", " state ", " --ignore-not-found", " logs server/", " diff "];

/// `gantry up examples/quickstart` on free ports. It ends with the test.
struct Up {
    child: Child,
    /// The variables that lead to it, with their addresses.
    variables: Vec<(&'static str, String)>,
    state: tempfile::TempDir,
    /// The home of who types: with the binary under the name that makes it speak the dialect.
    home: tempfile::TempDir,
}

impl Up {
    fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut up = command(&["up", "examples/quickstart", "--no-watch", "--state-dir"]);
        up.arg(state.path()).current_dir(root()).stdout(Stdio::piped()).stderr(Stdio::null());
        for port in ["--inference-port", "--admin-port", "--scheduler-port", "--agent-port"] {
            up.args([port, "0"]);
        }
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gantry"), home.path().join("seldon")).unwrap();
        let mut up = Self { child: up.spawn().unwrap(), variables: Vec::new(), state, home };
        let mut lines = BufReader::new(up.child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let ready = lines.by_ref().any(|line| {
            let mut words = line.split_whitespace();
            if let (Some(what), Some(address)) = (words.next(), words.next()) {
                let variable = match what {
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
        // The dialect knows its own variables and not ours.
        for (ours, theirs) in
            [("GANTRY_INFERENCE", "SELDON_INFER_HOST"), ("GANTRY_SCHEDULER", "SELDON_SCHEDULE_HOST")]
        {
            let address = up.variables.iter().find(|(name, _)| *name == ours).unwrap().1.clone();
            up.variables.push((theirs, address));
        }
        up
    }

    /// `HOST:PORT` behind one of the variables.
    fn address(&self, variable: &str) -> &str {
        let (_, address) = self.variables.iter().find(|(name, _)| *name == variable).unwrap();
        address.trim_start_matches("http://")
    }

    /// A shell that would reach it.
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
    let up = Up::start();
    let texts = ["docs/seldon.md", "docs/cli.md"].map(|f| std::fs::read_to_string(root().join(f)).unwrap());
    let examples: Vec<&str> =
        texts.iter().flat_map(|t| t.lines()).filter_map(|l| l.strip_prefix("$ ")).collect();
    assert!(examples.len() >= 30, "{examples:?}");
    for example in examples {
        let output = up.shell("sh", example).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {stderr}");
        let silent = SILENT.iter().any(|s| example.contains(s));
        assert!(!output.stdout.is_empty() || silent, "{example} printed nothing");
    }
}

/// A block that is pasted, and what the text says it prints, if it says so.
struct Block<'a> {
    pasted: &'a str,
    shown: Option<&'a str>,
}

/// The blocks of a Markdown text.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for fenced in text.split("\n```").skip(1).step_by(2) {
        let (language, content) = fenced.split_once('\n').unwrap();
        match language {
            "sh" => blocks.push(Block { pasted: content, shown: None }),
            "text" => blocks.last_mut().expect("something printed it").shown = Some(content),
            other => panic!("a block of {other}: say here how it is checked"),
        }
    }
    blocks
}

/// One shell types the whole tour. Only places are changed: the ports, the binary, and the file in `/tmp`.
#[test]
fn the_tour_of_the_readme_works_as_pasted() {
    let missing = |tool: &&str| Command::new(tool).arg("--version").output().is_err();
    if let Some(tool) = ["bash", "curl"].iter().find(|tool| missing(tool)) {
        println!("SKIPPED: the tour of the README needs {tool}, which is not on this machine");
        return;
    }
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(
        readme.contains("\ncargo run --release -- up examples/quickstart\n"),
        "the tour goes on from there"
    );
    let (_, tour) = readme.split_once("\n## Five minutes\n").unwrap();
    let (tour, _) = tour.split_once("\n## ").unwrap();
    let blocks = blocks(tour);
    assert!(blocks.len() >= 6 && blocks.iter().any(|block| block.shown.is_some()), "{}", blocks.len());

    let up = Up::start();
    let dir = tempfile::tempdir().unwrap();
    let print = |n: usize| dir.path().join(format!("{n}"));
    // A shell that a person types into knows aliases; a script has to ask for them.
    let mut script = "shopt -s expand_aliases\n".to_owned();
    for (n, block) in blocks.iter().enumerate() {
        // What is shown is a mistake that is refused: there the shell goes on.
        let go_on = if block.shown.is_some() { "+e" } else { "-e" };
        script += &format!("exec >'{}' 2>&1\nset {go_on}\n{}\n", print(n).display(), block.pasted);
    }
    let file = dir.path().join("shop.yaml");
    for (written, here) in [
        ("127.0.0.1:9000", up.address("GANTRY_INFERENCE")),
        ("127.0.0.1:9003", up.address("GANTRY_ADMIN")),
        ("$PWD/target/release/gantry", env!("CARGO_BIN_EXE_gantry")),
        ("/tmp/shop.yaml", file.to_str().unwrap()),
    ] {
        assert!(script.contains(written), "the tour has no {written} any more");
        script = script.replace(written, here);
    }
    let status = up.shell("bash", &script).status().unwrap();
    let printed =
        |n: usize| std::fs::read_to_string(print(n)).unwrap_or_else(|_| "nothing: not reached".into());
    let mut all = String::new();
    for (n, block) in blocks.iter().enumerate() {
        all += &format!("── {}\n{}\n", block.pasted, printed(n));
    }
    assert!(status.success(), "{all}");
    for (n, block) in blocks.iter().enumerate() {
        match block.shown {
            Some(shown) => assert_eq!(printed(n).trim_end(), shown.trim_end(), "after {}", block.pasted),
            None => assert!(
                block.pasted.starts_with("alias ") || !printed(n).is_empty(),
                "{} printed nothing",
                block.pasted
            ),
        }
    }
    for (part, answer) in [
        ("curl 127.0.0.1:9000", "\"outputs\""),
        ("grep seldon_model_infer_total", "seldon_model_infer_total{"),
    ] {
        let n = blocks.iter().position(|block| block.pasted.contains(part)).unwrap();
        assert!(printed(n).contains(answer), "{all}");
    }
}
