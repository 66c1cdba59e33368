//! Deterministic simulation of the control plane.
//!
//! The real scheduler, store, agents and gateway control loops run in one process under virtual time, on a network and a
//! disk with injected faults. Invariants are checked after each step. One seed gives one scenario and one trace;
//! `cargo xtask sim` runs many.
#![allow(clippy::print_stdout, reason = "a developer tool: its output is its result")]

mod arguments;
mod cluster;
mod entropy;
mod log;
mod net;
mod process;
mod rng;
mod runner;
mod scenario;
mod trace;

use arguments::{Arguments, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = Arguments::parse(&words).and_then(|arguments| match arguments.command {
        Command::Run => process::run(&arguments),
        Command::Seeds => runner::seeds(&arguments),
        Command::Replay => runner::replay(&arguments),
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
    }
}
