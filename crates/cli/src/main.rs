//! The binary `gantry`.
//!
//! ```text
//! args (command line) ─▶ commands (one module each) ─▶ client (scheduler, gateway, admin endpoint)
//!                    │           ├──▶ view (status of models and servers)
//!                    │           └──▶ output (tables, JSON, YAML on stdout; messages on stderr)
//!                    ├──▶ seldon (the Seldon CLI)
//!                    └──▶ serve (scheduler, gateway, agent, runtime and operator as processes)
//! ```

#![allow(clippy::doc_markdown, reason = "comments on flags are help texts: backticks would be printed")]

mod args;
mod client;
mod commands;
mod duration;
mod kubeconfig;
mod manifests;
mod object_ref;
mod output;
mod seldon;
mod serve;
mod view;

use clap::Parser as _;
use gantry_standalone::{error, onnx_worker};
use std::process::ExitCode;

fn main() -> ExitCode {
    if onnx_worker::is_requested(std::env::args_os()) {
        return onnx_worker::main();
    }
    if seldon::is_called(std::env::args_os().next().as_deref()) {
        return seldon::main();
    }
    let cli = args::Cli::parse();
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.message.is_empty() {
                output::print_stderr(&error.message);
            }
            ExitCode::from(error.exit as u8)
        }
    }
}
