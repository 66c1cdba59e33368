//! `cargo xtask sim`: the simulation, built for release.

use crate::{Failure, metadata, mutants};

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    if let ["--mutants", names @ ..] = arguments {
        return mutants::run(names);
    }
    let mut command = metadata::cargo();
    command.args(["run", "--quiet", "--release", "--package", "gantry-sim", "--"]).args(arguments);
    Ok(command.status()?.success())
}
