//! One module per command, each with its `Args` and `run`.

pub(crate) mod adopt;
pub(crate) mod apply;
pub(crate) mod auth;
pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod convert;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod fetch;
pub(crate) mod get;
pub(crate) mod graph;
pub(crate) mod infer;
pub(crate) mod install;
pub(crate) mod lint;
pub(crate) mod logs;
pub(crate) mod man;
mod replica_processes;
pub(crate) mod rollout;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod wait;

use crate::{
    args::{Cli, Command},
    client::block_on,
    error::CommandError,
    seldon, serve,
};

/// Runs the parsed command.
pub(crate) fn run(cli: Cli) -> Result<(), CommandError> {
    let global = &cli.global;
    match cli.command {
        Command::Up(args) => gantry_standalone::run(&args),
        Command::Runtime(args) => serve::runtime::run(&args),
        Command::Scheduler(args) => serve::scheduler::run(&args),
        Command::Gateway(args) => serve::gateway::run(global, &args),
        Command::Agent(args) => serve::agent::run(global, &args),
        Command::KserveAgent(args) => serve::kserve_agent::run(&args),
        Command::Operator(args) => serve::operator::run(global, &args),
        Command::Apply(args) => apply::run(global, &args),
        Command::Delete(args) => delete::run(global, &args),
        Command::Get(args) => block_on(get::run(global, &args)),
        Command::Describe(args) => block_on(describe::run(global, &args)),
        Command::Explain(args) => block_on(explain::run(global, &args)),
        Command::Diff(args) => diff::run(global, &args),
        Command::Adopt(args) => block_on(adopt::run(global, &args)),
        Command::Status(args) => match args.as_seldon() {
            Some(args) => seldon::run(global, seldon::Command::Status(args)),
            None => block_on(status::run(global, &args)),
        },
        Command::Top(args) => block_on(top::run(global, &args)),
        Command::Wait(args) => block_on(wait::run(global, &args)),
        Command::Infer(args) => block_on(infer::run(global, &args)),
        Command::Logs(args) => block_on(logs::run(global, &args)),
        Command::Install(args) => install::run(&args),
        Command::Auth(args) => auth::run(&args),
        Command::Check(args) => check::run(global, &args),
        Command::Lint(args) => lint::run(&args),
        Command::Graph(args) => graph::run(global, &args),
        Command::Convert(args) => convert::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Rollout(args) => rollout::run(global, &args),
        Command::State(args) => state::run(&args),
        Command::Completion(args) => completion::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Model(command) => seldon::run(global, seldon::Command::Model(command)),
        Command::Server(command) => seldon::run(global, seldon::Command::Server(command)),
        Command::Pipeline(command) => seldon::run(global, seldon::Command::Pipeline(command)),
        Command::Experiment(command) => seldon::run(global, seldon::Command::Experiment(command)),
        Command::Config(command) => seldon::run(global, seldon::Command::Config(command)),
        Command::Load(command) => seldon::run(global, seldon::Command::Load(command)),
        Command::Unload(command) => seldon::run(global, seldon::Command::Unload(command)),
    }
}
