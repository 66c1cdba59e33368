//! `gantry completion`: shell completion scripts.

use crate::{args::Cli, error::CommandError, output::emit};
use clap::CommandFactory as _;
use clap_complete::Shell;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    gantry completion bash > ~/.local/share/bash-completion/completions/gantry\n  \
    gantry completion zsh > ~/.zfunc/_gantry\n  \
    gantry completion fish > ~/.config/fish/completions/gantry.fish")]
pub(crate) struct Args {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gantry", &mut script);
    emit(script)
}
