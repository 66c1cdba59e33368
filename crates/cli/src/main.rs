//! The binary `gantry`: what a person or a script asks of models and servers, and the roles that serve them.
//!
//! ```text
//! args (the command line) ─▶ verbs (one file each) ─▶ client (scheduler, gateway, admin)
//!                                    │           └──▶ view (what the answers mean)
//!                                    └──▶ output (tables, JSON, YAML; data on stdout, the rest on stderr)
//! ```
//!
//! `seldon` is the same for people who come from Seldon: its words, its flags, its outputs.
//! `up` and `roles` are the other side: the processes that those clients talk to.

#![allow(clippy::doc_markdown, reason = "comments on flags are help texts: backticks would be printed")]

mod args;
mod client;
mod duration;
mod failure;
mod kubeconfig;
mod manifests;
mod output;
mod reference;
mod roles;
mod seldon;
mod up;
mod verbs;
mod view;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    if roles::network::is_called(std::env::args_os()) {
        return roles::network::main();
    }
    if seldon::is_called(std::env::args_os().next().as_deref()) {
        return seldon::main();
    }
    let cli = args::Cli::parse();
    match verbs::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                output::say(&failure.message);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}
