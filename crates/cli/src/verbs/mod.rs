//! What can be asked for: one file a verb, each with its flags and its `run`.

pub(crate) mod adopt;
pub(crate) mod apply;
pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod infer;
pub(crate) mod install;
pub(crate) mod lint;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod state;
pub(crate) mod status;
mod supervised;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod wait;

use crate::{
    args::{Cli, Command},
    client::block_on,
    failure::Failure,
    roles,
    seldon::{self, Said, Speaker},
    up,
};

/// Carries out a command line.
pub(crate) fn run(cli: &Cli) -> Result<(), Failure> {
    let global = &cli.global;
    match &cli.command {
        Command::Up(args) => up::run(args),
        Command::Runtime(args) => roles::runtime::run(args),
        Command::Scheduler(args) => roles::scheduler::run(args),
        Command::Gateway(args) => roles::gateway::run(global, args),
        Command::Agent(args) => roles::agent::run(global, args),
        Command::Operator(args) => roles::operator::run(global, args),
        Command::Apply(args) => apply::run(global, args),
        Command::Delete(args) => delete::run(global, args),
        Command::Get(args) => block_on(get::run(global, args)),
        Command::Describe(args) => block_on(describe::run(global, args)),
        Command::Explain(args) => block_on(explain::run(global, args)),
        Command::Diff(args) => diff::run(global, args),
        Command::Adopt(args) => block_on(adopt::run(global, args)),
        Command::Status(args) => match args.of_file() {
            Some(args) => seldon::run(&Speaker::gantry(global), Said::Status(&args)),
            None => block_on(status::run(global, args)),
        },
        Command::Top(args) => block_on(top::run(global, args)),
        Command::Wait(args) => block_on(wait::run(global, args)),
        Command::Infer(args) => block_on(infer::run(global, args)),
        Command::Logs(args) => block_on(logs::run(global, args)),
        Command::Install(args) => install::run(args),
        Command::Check(args) => check::run(global, args),
        Command::Lint(args) => lint::run(args),
        Command::State(args) => state::run(args),
        Command::Completion(args) => completion::run(args),
        Command::Man(args) => man::run(args),
        Command::Version(args) => version::run(args),
        Command::Model(verb) => seldon::run(&Speaker::gantry(global), Said::Model(verb)),
        Command::Server(verb) => seldon::run(&Speaker::gantry(global), Said::Server(verb)),
        Command::Pipeline(verb) => seldon::run(&Speaker::gantry(global), Said::Pipeline(verb)),
        Command::Experiment(verb) => seldon::run(&Speaker::gantry(global), Said::Experiment(verb)),
        Command::Config(verb) => seldon::run(&Speaker::gantry(global), Said::Config(verb)),
        Command::Load(args) => seldon::run(&Speaker::gantry(global), Said::Load(args)),
        Command::Unload(args) => seldon::run(&Speaker::gantry(global), Said::Unload(args)),
    }
}
