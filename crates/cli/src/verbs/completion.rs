//! `gantry completion`: what a shell needs to complete our command line.

use crate::{args::Cli, failure::Failure, output::emit};
use clap::{CommandFactory as _, ValueEnum};

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    gantry completion bash > ~/.local/share/bash-completion/completions/gantry\n  \
    gantry completion zsh > ~/.zfunc/_gantry\n  \
    gantry completion fish > ~/.config/fish/completions/gantry.fish")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
        Shell::Powershell => clap_complete::Shell::PowerShell,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gantry", &mut script);
    emit(script)
}
