//! `gantry man`: the manual pages.

use crate::{
    args::Cli,
    error::CommandError,
    output::{emit, print_stderr},
};
use clap::CommandFactory as _;
use std::{fs, path::PathBuf};

/// Print the manual page, or write all of them to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  gantry man --dir ~/.local/share/man/man1 && man gantry-apply")]
pub(crate) struct Args {
    /// Write one page per subcommand to this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let Some(dir) = &args.dir else {
        return emit(page(Cli::command())?);
    };
    let failed = |e: std::io::Error| CommandError::failed(format!("{}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir).map_err(failed)?;
    print_stderr(&format!("Pages written to {}.", dir.display()));
    Ok(())
}

fn page(command: clap::Command) -> Result<Vec<u8>, CommandError> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|e| CommandError::failed(format!("cannot render the manual page: {e}")))?;
    Ok(text)
}
