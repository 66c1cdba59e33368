//! `gantry up`: scheduler, agent, built-in runtime, gateway and store in one process.

use crate::failure::Failure;

/// Serve models from this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Manifests, directories of manifests, or directories of model files.
    #[arg(value_name = "PATH")]
    pub paths: Vec<std::path::PathBuf>,
}

/// Runs until Ctrl-C.
pub fn run(args: &Args) -> Result<(), Failure> {
    let _ = args;
    Err(Failure::unavailable("not wired yet"))
}
