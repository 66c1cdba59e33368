//! `cargo xtask sim`: the simulated world, built for release.

use crate::{Failure, metadata};

/// Builds the world and passes the words on to it; with `--mutants`, a world that can have mistakes in it.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let mut command = metadata::cargo();
    command.args(["run", "--quiet", "--release", "--package", "gantry-sim"]);
    if arguments.iter().any(|word| word.starts_with("--mutant")) {
        command.args(["--features", "mutants"]);
    }
    let fine = command.arg("--").args(arguments).status()?.success();
    Ok(if arguments.contains(&"--mutants") { operator_mutants()? && fine } else { fine })
}

/// The operator's mistakes are found by its own tests, in the world with the simulated API server.
fn operator_mutants() -> Result<bool, Failure> {
    let mut command = metadata::cargo();
    command.args([
        "test",
        "--quiet",
        "--package",
        "gantry-operator",
        "--features",
        "mutants",
        "--test",
        "it",
    ]);
    command.args(["mutants", "--", "--nocapture"]);
    Ok(command.status()?.success())
}
