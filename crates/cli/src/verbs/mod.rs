//! What can be asked for: one file a verb, each with its flags and its `run`.

pub(crate) mod apply;
pub(crate) mod completion;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod get;
pub(crate) mod infer;
pub(crate) mod lint;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod wait;

use crate::{
    args::{Cli, Command},
    client::block_on,
    failure::Failure,
    roles,
    seldon::{self, Speaker, Verb},
    up,
};

/// Carries out a command line.
pub(crate) fn run(cli: Cli) -> Result<(), Failure> {
    let global = &cli.global;
    match cli.command {
        Command::Up(args) => up::run(&args),
        Command::Runtime(args) => roles::runtime::run(&args),
        Command::Scheduler(args) => roles::scheduler::run(&args),
        Command::Gateway(args) => roles::gateway::run(global, &args),
        Command::Agent(args) => roles::agent::run(global, &args),
        Command::Apply(args) => apply::run(global, &args),
        Command::Delete(args) => delete::run(global, &args),
        Command::Get(args) => block_on(get::run(global, &args)),
        Command::Describe(args) => block_on(describe::run(global, &args)),
        Command::Status(args) => match args.of_file() {
            Some(args) => seldon::run(&Speaker::gantry(global), &Verb::Status(args)),
            None => block_on(status::run(global, &args)),
        },
        Command::Top(args) => block_on(top::run(global, &args)),
        Command::Wait(args) => block_on(wait::run(global, &args)),
        Command::Infer(args) => block_on(infer::run(global, &args)),
        Command::Logs(args) => block_on(logs::run(global, &args)),
        Command::Lint(args) => lint::run(&args),
        Command::Completion(args) => completion::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Model(verb) => seldon::run(&Speaker::gantry(global), &Verb::Model(verb)),
        Command::Server(verb) => seldon::run(&Speaker::gantry(global), &Verb::Server(verb)),
        Command::Pipeline(verb) => seldon::run(&Speaker::gantry(global), &Verb::Pipeline(verb)),
        Command::Experiment(verb) => seldon::run(&Speaker::gantry(global), &Verb::Experiment(verb)),
        Command::Config(verb) => seldon::run(&Speaker::gantry(global), &Verb::Config(verb)),
        Command::Load(args) => seldon::run(&Speaker::gantry(global), &Verb::Load(args)),
        Command::Unload(args) => seldon::run(&Speaker::gantry(global), &Verb::Unload(args)),
    }
}
