//! `gantry man`: the manual pages.

use crate::{
    args::Cli,
    failure::Failure,
    output::{emit, say},
};
use clap::CommandFactory as _;
use std::{fs, path::PathBuf};

/// Print the manual page, or write all of them to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  gantry man --dir ~/.local/share/man/man1 && man gantry-apply")]
pub(crate) struct Args {
    /// Write a page for each sub-command into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let Some(dir) = &args.dir else {
        return emit(page(Cli::command())?);
    };
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir).map_err(failed)?;
    say(&format!("Pages written to {}.", dir.display()));
    Ok(())
}

fn page(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|e| Failure::failed(format!("the page cannot be written: {e}")))?;
    Ok(text)
}
