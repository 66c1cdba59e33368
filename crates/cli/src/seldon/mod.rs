//! The Seldon CLI: the same commands, flags, outputs, environment variables and configuration files.
//!
//! ```text
//! args (commands, flags) ─▶ objects (load, unload, status, list) ─▶ scheduler
//!                        └─▶ infer (infer, metadata)               ─▶ gateway
//!                        └─▶ config (addresses, TLS)
//! ```
//!
//! Available as `gantry model load` beside Gantry's own commands, and alone through a symlink named `seldon`, which exits
//! with 255 for every failure as the original does.

mod args;
mod config;
mod endpoints;
mod error;
mod files;
mod infer;
mod inspect;
mod objects;
mod pretty_json;
mod protojson;
mod session;
mod table;
mod trace;

pub(crate) use args::{Command, Control, Experiment, Load, Model, Pipeline, Server, StatusAll, UnloadAll};
pub(crate) use config::Config;
use endpoints::Endpoints;

use crate::{args::Global, client::block_on, duration, error::CommandError, output};
use clap::{Parser, error::ErrorKind};
use std::{ffi::OsStr, path::Path, process::ExitCode, time::Duration};

/// Manage models and send inference requests: the Seldon CLI on Gantry
#[derive(Debug, Parser)]
#[command(
    name = "seldon",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
struct Cli {
    /// Timeout, such as 30s or 2m [default: 10s per call; 10m when waiting for a state]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(subcommand)]
    command: Command,
}

/// Exit code of the original for every failure.
const FAILURE: u8 = 255;

/// Whether the program was started through a symlink named `seldon`.
pub(crate) fn is_called(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_stem).is_some_and(|name| name == "seldon")
}

/// Entry point of the `seldon` symlink.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            output::print_stderr(&format!(
                "Error: {}",
                text.strip_prefix("error: ").unwrap_or(&text).trim_end()
            ));
            return FAILURE.into();
        }
    };
    match run_with(&Endpoints::seldon(cli.timeout), cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.message.is_empty() {
                output::print_stderr(&error.message);
            }
            FAILURE.into()
        }
    }
}

/// Runs a command given as `gantry model …`.
pub(crate) fn run(global: &Global, command: Command) -> Result<(), CommandError> {
    run_with(&Endpoints::gantry(global), command)
}

fn run_with(endpoints: &Endpoints, command: Command) -> Result<(), CommandError> {
    match command {
        Command::Config(command) => config::run(&command),
        Command::Model(command) => block_on(model(endpoints, &command)),
        Command::Server(command) => block_on(server(endpoints, &command)),
        Command::Pipeline(command) => block_on(pipeline(endpoints, &command)),
        Command::Experiment(command) => block_on(experiment(endpoints, &command)),
        Command::Load(args) => block_on(objects::load(endpoints, &args, None)),
        Command::Unload(args) => block_on(objects::unload_all(endpoints, &args)),
        Command::Status(args) => block_on(objects::status_all(endpoints, &args)),
    }
}

async fn model(endpoints: &Endpoints, command: &Model) -> Result<(), CommandError> {
    use gantry_api::Kind::Model as Kind;
    match command {
        Model::Load(args) => objects::load(endpoints, args, Some(Kind)).await,
        Model::Unload(args) => objects::unload(endpoints, args, Kind).await,
        Model::Status(args) => objects::status(endpoints, args, Kind).await,
        Model::List(args) => objects::list_models(endpoints, args).await,
        Model::Infer(args) => infer::infer(endpoints, args, infer::TargetKind::Model).await,
        Model::Metadata(args) => infer::metadata(endpoints, args).await,
    }
}

async fn server(endpoints: &Endpoints, command: &Server) -> Result<(), CommandError> {
    use gantry_api::Kind::Server as Kind;
    match command {
        Server::Load(args) => objects::load(endpoints, args, Some(Kind)).await,
        Server::Unload(args) => objects::unload(endpoints, args, Kind).await,
        Server::Status(args) => objects::server_status(endpoints, args).await,
        Server::List(args) => objects::list_servers(endpoints, args).await,
    }
}

async fn pipeline(endpoints: &Endpoints, command: &Pipeline) -> Result<(), CommandError> {
    use gantry_api::Kind::Pipeline as Kind;
    match command {
        Pipeline::Load(args) => objects::load(endpoints, args, Some(Kind)).await,
        Pipeline::Unload(args) => objects::unload(endpoints, args, Kind).await,
        Pipeline::Status(args) => objects::status(endpoints, args, Kind).await,
        Pipeline::List(args) => objects::list_pipelines(endpoints, args).await,
        Pipeline::Infer(args) if args.trace => infer::trace(endpoints, &args.infer).await,
        Pipeline::Infer(args) => infer::infer(endpoints, &args.infer, infer::TargetKind::Pipeline).await,
        Pipeline::Inspect(args) => inspect::run(endpoints, args).await,
    }
}

async fn experiment(endpoints: &Endpoints, command: &Experiment) -> Result<(), CommandError> {
    use gantry_api::Kind::Experiment as Kind;
    match command {
        Experiment::Start(args) => objects::load(endpoints, args, Some(Kind)).await,
        Experiment::Stop(args) => objects::unload(endpoints, args, Kind).await,
        Experiment::Status(args) => objects::experiment_status(endpoints, args).await,
        Experiment::List(args) => objects::list_experiments(endpoints, args).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_called_matches_the_program_name() {
        for (name, expected) in [
            ("seldon", true),
            ("/usr/local/bin/seldon", true),
            ("seldon.exe", true),
            ("gantry", false),
            ("./seldonctl", false),
        ] {
            assert_eq!(is_called(Some(OsStr::new(name))), expected, "{name}");
        }
        assert!(!is_called(None));
    }
}
