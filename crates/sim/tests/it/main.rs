//! The simulated world as a test: many seeds, plans that once failed, and the same seed twice.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// Virtual hours of trouble for each seed: enough for every kind, and a test that ends soon.
const HOURS: &str = "0.1";

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gantry-sim")).args(arguments).output().unwrap()
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_hundred_seeds_hold() {
    let output = sim(&["--seeds", "100", "--hours", HOURS]);
    assert!(output.status.success(), "{}", shown(&output));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in ["3", "8", "27"] {
        let replay = || sim(&["--replay", seed, "--hours", HOURS]);
        let (first, second) = (replay(), replay());
        assert!(first.stdout.len() > 1000, "{}", shown(&first));
        for (a, b) in shown(&first).lines().zip(shown(&second).lines()) {
            assert_eq!(a, b, "seed {seed}");
        }
        assert_eq!(first.stdout.len(), second.stdout.len(), "seed {seed}");
    }
    let other = sim(&["--replay", "4", "--hours", HOURS]);
    assert_ne!(shown(&other), shown(&sim(&["--replay", "5", "--hours", HOURS])));
}

/// Each of these found a bug once; the name says which.
#[test]
fn plans_that_once_failed_hold() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let mut plans: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    plans.sort();
    assert!(!plans.is_empty());
    for plan in plans {
        let output = sim(&["--world", plan.to_str().unwrap()]);
        assert!(output.status.success(), "{}: {}", plan.display(), shown(&output));
    }
}

#[test]
fn a_wrong_command_line_is_answered_with_the_right_one() {
    let output = sim(&["--fast"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(shown(&output).contains("--replay SEED"));
}
