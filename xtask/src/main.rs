//! What developers run: `cargo xtask test | bench | sim | deps`.
#![allow(clippy::print_stdout, reason = "a tool for developers: what it prints is its result")]

mod architecture;
mod bench;
mod count;
mod deps;
mod metadata;
mod python;
mod sim;
mod test;

use std::process::ExitCode;

/// What any step can fail with: a sentence for the person in front of the terminal.
pub(crate) type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "\
cargo xtask COMMAND

  test [--no-clients | --only-clients] [-- FILTER]
      Runs every test: cargo's, then real clients (tritonclient and others) against the real program.
  bench [--quick] [--json] [NAME…]
      Compares with MLServer, Envoy, ONNX Runtime, LightGBM and XGBoost on this machine.
      NAME is one of: start, memory, iris, gateway, routes, onnx, trees, scheduler.
      Builds what it measures for release; GANTRY=PATH names another program.
  sim [--seeds N] [--from S] [--hours H] [--shrink] | --replay SEED|PLAN.json [--shrink] | --mutants
      Runs the simulated world: N seeds, each H virtual hours of faults (default 100 and 1).
      --replay shows everything that happens in one; --shrink leaves out of a failing plan what is not needed;
      --mutants puts known mistakes into the parts and says which seed finds each.
  deps
      Checks the arrows between the crates and the house rules, and counts what is compiled.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["test", rest @ ..] => test::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["bench-upstream"] => bench::upstream::serve(),
        ["bench-awake"] => Ok(bench::machine::stay_awake()),
        ["sim", rest @ ..] => sim::run(rest),
        ["deps"] => deps::run(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(true)
        }
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
    }
}
