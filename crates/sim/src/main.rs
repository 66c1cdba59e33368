//! A deterministic world to break the control plane in.
//!
//! The real scheduler, agents, control loops of gateways and store run in one process under virtual time, over a network
//! and a disk that fail as a plan says. The properties of the design are checked after each step. One seed gives one plan
//! and one trace; `cargo xtask sim` runs many of them.
#![allow(clippy::print_stdout, reason = "a tool for developers: what it prints is its result")]

mod arguments;
mod entropy;
mod log;
mod net;
mod plan;
mod process;
mod rng;
mod runner;
mod trace;
mod world;

use arguments::{Arguments, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = Arguments::read(&words).and_then(|arguments| match arguments.command {
        Command::World => process::run(&arguments),
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
