//! The scheduler alone: load throughput, latency of one change among many models, recovery.
//!
//! Without a peer: the reference deadlocks under such a burst.

use crate::{
    Failure,
    bench::{
        Bench, note,
        table::{Better, Row, figure, median},
    },
};
use serde_json::Value;
use std::{path::Path, process::Command};

/// JSON key, description, unit, direction, floor and aim.
type Figure = (&'static str, &'static str, &'static str, Better, f64, f64);

const DRIVEN: [Figure; 7] = [
    (
        "models_per_second",
        "10,000 LoadModel, 64 in flight, until all are available",
        " models/s",
        Better::Higher,
        5_000.0,
        20_000.0,
    ),
    ("cpu_seconds", "the same: CPU time of the scheduler", " s", Better::Lower, 6.0, 0.5),
    ("resident_mb", "the same: its resident memory", " MB", Better::Lower, 100.0, 30.0),
    ("growth", "CPU time a model, 50,000 against 1,000", "x", Better::Lower, 1.5, 1.1),
    (
        "routed_p99_ms",
        "one change among 10,000 until a gateway routes it, p99",
        " ms",
        Better::Lower,
        20.0,
        2.0,
    ),
    ("first_route_ms", "restart with 10,000: the first route", " ms", Better::Lower, 1_000.0, 100.0),
    ("all_available_ms", "restart with 10,000: all available", " ms", Better::Lower, 5_000.0, 500.0),
];

const DECIDED: [Figure; 2] = [
    ("ms", "10,000 models x 10 replicas decided and routed", " ms", Better::Lower, 2_000.0, 100.0),
    ("mb", "the same: bytes allocated", " MB", Better::Lower, 1_000.0, 130.0),
];

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let drive = bench.build_example("gantry-scheduler", "load_test")?;
    let schedule = bench.build_example("gantry-core", "schedule")?;
    let (mut driven, mut decided) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds.min(3) {
        note(&format!("round {round}"));
        driven.push(bench.machine.on_all_cores(|| run_program(&drive, &["figures"]))?);
        decided.push(run_program(&schedule, &["--json"])?);
    }
    let mut rows = Vec::new();
    for (figures, answers) in [(&DRIVEN[..], &driven), (&DECIDED[..], &decided)] {
        for (key, what, unit, better, floor, aim) in figures {
            let rounds: Vec<f64> = answers.iter().filter_map(|a| a.get(*key)?.as_f64()).collect();
            if rounds.len() != answers.len() {
                return Err(format!("no {key} in {answers:?}").into());
            }
            rows.push(Row {
                what: (*what).to_owned(),
                peer: String::new(),
                ours: format!("{}{unit}", figure(median(&rounds))),
                theirs: String::new(),
                rounds,
                unit,
                better: *better,
                floor: Some(*floor),
                aim: Some(*aim),
            });
        }
    }
    Ok(rows)
}

/// Runs a program whose last line of output is JSON.
fn run_program(program: &Path, arguments: &[&str]) -> Result<Value, Failure> {
    let output = Command::new(program).args(arguments).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let last = stdout.lines().next_back().unwrap_or_default();
    serde_json::from_str(last).map_err(|e| format!("{}: {e}: {stdout}{stderr}", program.display()).into())
}
