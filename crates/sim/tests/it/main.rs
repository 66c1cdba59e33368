//! Runs seeds and kept scenarios, and checks determinism.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// Virtual hours with faults per seed.
const HOURS: &str = "0.1";

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gantry-sim")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn hundred_seeds_pass() {
    let output = sim(&["--seeds", "100", "--hours", HOURS]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn same_seed_gives_same_trace() {
    for seed in ["3", "8", "27"] {
        let replay = || sim(&["--replay", seed, "--hours", HOURS]);
        let (first, second) = (replay(), replay());
        assert!(first.stdout.len() > 1000, "{}", text(&first));
        for (a, b) in text(&first).lines().zip(text(&second).lines()) {
            assert_eq!(a, b, "seed {seed}");
        }
        assert_eq!(first.stdout.len(), second.stdout.len(), "seed {seed}");
    }
    let other = sim(&["--replay", "4", "--hours", HOURS]);
    assert_ne!(text(&other), text(&sim(&["--replay", "5", "--hours", HOURS])));
}

/// Each found a bug once.
#[test]
fn kept_scenarios_pass() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut scenarios: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    scenarios.sort();
    assert!(!scenarios.is_empty());
    for scenario in scenarios {
        let output = sim(&["--run", scenario.to_str().unwrap()]);
        assert!(output.status.success(), "{}: {}", scenario.display(), text(&output));
    }
}

#[test]
fn invalid_arguments_print_usage() {
    let output = sim(&["--fast"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("--replay SEED"));
}
