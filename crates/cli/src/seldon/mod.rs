//! Seldon's dialect of the command line: the same words, flags, outputs, variables and files, over the same contracts.
//!
//! ```text
//! args (words and flags) ─▶ objects (load, unload, status, list) ─▶ scheduler
//!                       └─▶ infer (infer, metadata)               ─▶ data plane
//!                       └─▶ config (which scheduler, which data plane)
//! ```
//!
//! `gantry model load` is spoken beside our own verbs; a link named `seldon` to the binary speaks this dialect alone,
//! and then ends with 1 for every failure, as that program does.

mod args;
mod config;
mod failure;
mod files;
mod indent;
mod infer;
mod later;
mod objects;
mod place;
mod protojson;
mod session;
mod table;

use args::Verb;
pub(crate) use args::{Control, Experiment, Load, Model, Pipeline, Server, StatusAll, UnloadAll};
pub(crate) use config::Config;
pub(crate) use place::Speaker;

use crate::{client::block_on, duration, failure::Failure, output};
use clap::{Parser, error::ErrorKind};
use std::{ffi::OsStr, path::Path, process::ExitCode, time::Duration};

/// Load models and ask them, with the words of Seldon's command line.
#[derive(Debug, Parser)]
#[command(
    name = "seldon",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
struct Cli {
    /// Give up after this long, such as 30s or 2m [default: 10s; 10m where something is waited for]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(subcommand)]
    verb: Verb,
}

/// Whether the program was called by a name that asks for this dialect alone.
pub(crate) fn is_called(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_stem).is_some_and(|name| name == "seldon")
}

/// The whole program, for whoever called it `seldon`.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // Nobody can be told that telling failed.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            output::say(&format!("Error: {}", text.strip_prefix("error: ").unwrap_or(&text).trim_end()));
            return ExitCode::FAILURE;
        }
    };
    match run(&Speaker::seldon(cli.timeout), Said::from(&cli.verb)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                output::say(&failure.message);
            }
            ExitCode::FAILURE
        }
    }
}

/// What was said, wherever it was said.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said<'a> {
    Model(&'a Model),
    Server(&'a Server),
    Pipeline(&'a Pipeline),
    Experiment(&'a Experiment),
    Config(&'a Config),
    Load(&'a Load),
    Unload(&'a UnloadAll),
    Status(&'a StatusAll),
}

impl<'a> From<&'a Verb> for Said<'a> {
    fn from(verb: &'a Verb) -> Self {
        match verb {
            Verb::Model(verb) => Self::Model(verb),
            Verb::Server(verb) => Self::Server(verb),
            Verb::Pipeline(verb) => Self::Pipeline(verb),
            Verb::Experiment(verb) => Self::Experiment(verb),
            Verb::Config(verb) => Self::Config(verb),
            Verb::Load(args) => Self::Load(args),
            Verb::Unload(args) => Self::Unload(args),
            Verb::Status(args) => Self::Status(args),
        }
    }
}

/// Carries out what was said.
pub(crate) fn run(speaker: &Speaker, said: Said<'_>) -> Result<(), Failure> {
    match said {
        Said::Config(verb) => config::run(verb),
        Said::Model(verb) => block_on(model(speaker, verb)),
        Said::Server(verb) => block_on(server(speaker, verb)),
        Said::Pipeline(verb) => block_on(pipeline(speaker, verb)),
        Said::Experiment(verb) => block_on(experiment(speaker, verb)),
        Said::Load(args) => block_on(objects::load(speaker, args, None)),
        Said::Unload(args) => block_on(objects::unload_all(speaker, args)),
        Said::Status(args) => block_on(objects::status_all(speaker, args)),
    }
}

async fn model(speaker: &Speaker, verb: &Model) -> Result<(), Failure> {
    use gantry_api::Kind::Model as Kind;
    match verb {
        Model::Load(args) => objects::load(speaker, args, Some(Kind)).await,
        Model::Unload(args) => objects::unload(speaker, args, Kind).await,
        Model::Status(args) => objects::model_status(speaker, args).await,
        Model::List(args) => objects::list_models(speaker, args).await,
        Model::Infer(args) => infer::infer(speaker, args, infer::Of::Model).await,
        Model::Metadata(args) => infer::metadata(speaker, args).await,
    }
}

async fn server(speaker: &Speaker, verb: &Server) -> Result<(), Failure> {
    use gantry_api::Kind::Server as Kind;
    match verb {
        Server::Load(args) => objects::load(speaker, args, Some(Kind)).await,
        Server::Unload(args) => objects::unload(speaker, args, Kind).await,
        Server::Status(args) => objects::server_status(speaker, args).await,
        Server::List(args) => objects::list_servers(speaker, args).await,
    }
}

async fn pipeline(speaker: &Speaker, verb: &Pipeline) -> Result<(), Failure> {
    use later::Later::Pipeline as Kind;
    match verb {
        Pipeline::Load(args) => later::load(speaker, args, Kind).await,
        Pipeline::Unload(args) => later::unload(speaker, args, Kind).await,
        Pipeline::Status(args) => later::status(speaker, &args.control, &args.name, Kind).await,
        Pipeline::List(args) => later::list(speaker, args, Kind).await,
        Pipeline::Infer(args) => infer::infer(speaker, args, infer::Of::Pipeline).await,
        Pipeline::Inspect(_) => Err(failure::failed(
            "pipeline inspect reads Kafka, which Gantry does not use: there are no topics to look at",
        )),
    }
}

async fn experiment(speaker: &Speaker, verb: &Experiment) -> Result<(), Failure> {
    use later::Later::Experiment as Kind;
    match verb {
        Experiment::Start(args) => later::load(speaker, args, Kind).await,
        Experiment::Stop(args) => later::unload(speaker, args, Kind).await,
        Experiment::Status(args) => later::status(speaker, &args.control, &args.name, Kind).await,
        Experiment::List(args) => later::list(speaker, args, Kind).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_decides() {
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
